"""The page's drawings: quality against reuse, accuracy by position, sensitivity to the order, errors of the context."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from linearkv.eval.page.drawing import (
    NARROW,
    WIDE,
    Scale,
    apart,
    coordinate,
    element,
    for_both,
    label,
    line,
    mark,
    name_columns,
    round_ticks,
    side_by_side,
    svg,
    tick_text,
)
from linearkv.eval.page.reading import BASELINES, full_prefill, groups, interval_text, kind_of, minus, percent, shuffled
from linearkv.eval.report import BASELINE, EvalReport, ModeResult
from linearkv.eval.statistics import POSITIONS, Estimate

_HEAT_LEVELS = 9
"""Colours of the style sheet, heat0 to heat8."""


@dataclass(frozen=True)
class Figure:
    """A titled drawing, or the reason why there is none.

    Attributes:
        about: what it shows and how to read it.
        parts: (subtitle, drawing); the subtitle can be "".
        missing: why it is left out; "" where it is there.
        remark: what could not be drawn.
    """

    title: str
    about: str
    parts: Sequence[tuple[str, Markup]] = ()
    missing: str = ""
    remark: str = ""


def figures(report: EvalReport, records: Sequence[dict[str, Any]]) -> list[Figure]:
    """All of them, in the page's order. `records` are those of the questions that could be asked: one or more."""
    return [_quality(report), _positions(report, records), _order(report, records), _errors(report)]


def _of_kinds(report: EvalReport) -> list[tuple[str, list[ModeResult]]]:
    """Composed modes and the others that use the chunks, which are drawn apart: one failing ablation would otherwise
    set the scale for all."""
    return [(title, modes) for title, modes in groups(report)[1:3] if modes]


def _ends(estimate: Estimate) -> tuple[float, float]:
    value = estimate.value or 0.0
    return (value if estimate.low is None else estimate.low, value if estimate.high is None else estimate.high)


def _kept(estimate: Estimate) -> str:
    interval = interval_text(estimate)
    return f"{percent(estimate.value)}{f' ({interval})' if interval else ''}"


def _panels(
    modes: Sequence[ModeResult], drawing: Callable[[ModeResult], Markup], remark: Callable[[ModeResult], str]
) -> Markup:
    """Modes side by side, each with its drawing and what is to be said of it."""
    panels = []
    for mode in modes:
        children = [element("h4", _breakable(mode.mode), class_=kind_of(mode)), drawing(mode)]
        if text := remark(mode):
            children.append(element("p", text))
        panels.append(element("div", *children, class_="panel"))
    return element("div", *panels, class_="panels")


def _breakable(name: str) -> Markup:
    return Markup("_<wbr>").join(name.split("_"))


# Quality against reuse


def _quality(report: EvalReport) -> Figure:
    title = "Quality against reuse"
    known = [mode for mode in report.modes if mode.retention.value is not None and mode.mode != BASELINE]
    if not known:
        compared = [mode for mode in report.modes if mode.mode != BASELINE]
        why = next((mode.retention.reason for mode in compared if mode.retention.reason), "there is one mode only")
        return Figure(title, "", missing=f"no mode can be compared with full prefill: {why}")
    # Baselines and failing ablations must not squeeze the modes that a reader chooses between.
    scaled = [mode for mode in known if kind_of(mode) == "composed"] or known
    lowest = min(_ends(mode.retention)[0] for mode in scaled)
    highest = max(1.0, *(_ends(mode.retention)[1] for mode in scaled))
    ticks = round_ticks(min(lowest, 0.95), highest)
    shown = [mode for mode in known if (mode.retention.value or 0) >= ticks[0]]
    below = [mode for mode in known if (mode.retention.value or 0) < ticks[0]]
    remark = ""
    if below:
        remark = f"Below the scale: {', '.join(f'{m.mode} {percent(m.retention.value)}' for m in below)}."
    about = (
        "Share of full prefill\u2019s F1 that each mode keeps, and share of the prompt that it reuses. The dashed "
        "line is full prefill; bars are 95% intervals over questions."
    )
    wide = element(
        "p",
        "Up is better, right is cheaper. The scale of reuse is stretched to the right: each step of the same length "
        "divides the computed tokens by the same factor. Modes that reuse the same share stand side by side.",
        class_="about",
    )
    parts = [
        ("", element("div", wide, _quality_plane(shown, ticks), class_="on-wide")),
        ("", element("div", _quality_rows(shown, ticks), class_="on-narrow")),
    ]
    return Figure(title, about, parts, remark=remark)


def _quality_plane(modes: Sequence[ModeResult], ticks: Sequence[float]) -> Markup:
    """Two scales, where there is room for names beside the points."""
    width = WIDE
    left, top, bottom = 44.0, 14.0, 44.0
    right = max(_wide(mode) for mode in modes) + 24
    height = max(320.0, 15.0 * len(modes) + top + bottom)
    y = Scale(ticks[0], ticks[-1], height - bottom, top)
    # Computed shares, by their logarithm; the question itself is always computed, so none is 0.
    costs = [-math.log10(max(1 - mode.reuse, 1e-4)) for mode in modes]
    x = Scale(-0.04, max([*costs, math.log10(2)]) + 0.08, left, width - right)
    parts = []
    for tick in ticks:
        parts.append(line(left, y(tick), width - right, y(tick), "ceiling" if abs(tick - 1) < 1e-9 else "grid"))
        parts.append(label(left - 6, y(tick) + 4, tick_text(tick), anchor="end"))
    last = -math.inf
    for reuse in (0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999):
        place = -math.log10(1 - reuse)
        if place <= x.high and x(place) - last >= 34:
            last = x(place)
            parts.append(line(last, height - bottom, last, height - bottom + 4, "axis"))
            parts.append(label(last, height - bottom + 17, tick_text(reuse), anchor="middle"))
    parts.append(line(left, height - bottom, width - right, height - bottom, "axis"))
    parts.append(label((left + width - right) / 2, height - 8, "prompt tokens reused", anchor="middle"))
    places = side_by_side([x(cost) for cost in costs], 10.0, width - right - 3)
    heights = [y(mode.retention.value or 0) for mode in modes]
    for column, anchor, of in name_columns(places, [_wide(mode) for mode in modes], left, width - right):
        of = sorted(of, key=lambda i: (heights[i], places[i]))
        aside = 1 if anchor == "start" else -1
        for i, at in zip(of, apart([heights[i] for i in of], 15.0, top + 2, height - bottom - 4), strict=True):
            parts.append(line(places[i] + 6 * aside, heights[i], column - 3 * aside, at, "leader"))
            parts.append(label(column, at + 4, _name(modes[i].mode), f"name {kind_of(modes[i])}", anchor))
    for place, at, mode in zip(places, heights, modes, strict=True):
        low, high = _ends(mode.retention)
        parts.append(line(place, y(low), place, y(high), f"bar {kind_of(mode)}"))
        parts.append(mark(place, at, kind_of(mode)))
    return svg(width, height, _quality_words(modes), *parts)


def _quality_rows(modes: Sequence[ModeResult], ticks: Sequence[float]) -> Markup:
    """One scale and a line a mode, most reuse first, for narrow screens."""
    width, each, bottom = NARROW, 38.0, 24.0
    x = Scale(ticks[0], ticks[-1], 14, width - 22)
    height = each * len(modes) + bottom
    parts = []
    for tick in ticks:
        parts.append(line(x(tick), 4, x(tick), height - bottom, "ceiling" if abs(tick - 1) < 1e-9 else "grid"))
        parts.append(label(x(tick), height - 6, tick_text(tick), anchor="middle"))
    for number, mode in enumerate(sorted(modes, key=lambda m: (-round(m.reuse, 2), -(m.retention.value or 0)))):
        top, (low, high) = each * number, _ends(mode.retention)
        parts.append(label(0, top + 14, _name(mode.mode), f"name {kind_of(mode)}"))
        parts.append(label(width, top + 14, f"{percent(mode.reuse, 0)} reused", "tick halo", "end"))
        parts.append(line(x(low), top + 26, x(high), top + 26, f"bar {kind_of(mode)}"))
        parts.append(mark(x(mode.retention.value or 0), top + 26, kind_of(mode)))
    return svg(width, height, _quality_words(modes), *parts)


def _quality_words(modes: Sequence[ModeResult]) -> str:
    said = "; ".join(f"{m.mode} keeps {_kept(m.retention)} at {percent(m.reuse, 0)} reuse" for m in modes)
    return f"Share of full prefill's F1 kept, against reuse. {said}."


def _wide(mode: ModeResult) -> float:
    """Pixels that a name needs, about: its font is the reader's."""
    return 7.2 * len(_name(mode.mode))


def _name(name: str) -> str:
    return name if len(name) <= 26 else f"{name[:25]}\u2026"


# Accuracy by the gold chunk's position


def _positions(report: EvalReport, records: Sequence[dict[str, Any]]) -> Figure:
    title = "Accuracy by the gold chunk\u2019s position"
    if not any(record["gold"] for record in records):
        return Figure(title, "", missing="for none of these questions is it known which chunk holds the answer")
    if all(len(record["chunks"]) < 2 for record in records):
        return Figure(title, "", missing="each question has one chunk, which has no position among others")
    full = full_prefill(report)
    if not any(estimate.value is not None for estimate in full.by_position.values()):
        return Figure(title, "", missing="no scored answer has its gold chunk in a known place")
    parts = []
    for subtitle, modes in _of_kinds(report) or [("", [full])]:
        lows = [_ends(e)[0] for mode in (full, *modes) for e in mode.by_position.values() if e.value is not None]
        ticks = round_ticks(min(lows), 1.0, 4)
        parts.append((subtitle, _panels(modes, partial(_position_drawing, full=full, ticks=ticks), _most_lost)))
    about = (
        "Exact match where the gold chunk comes first, early, in the middle, late or last among the chunks; several "
        "gold chunks count where an order puts them side by side. Bars are 95% intervals, the grey line is full "
        "prefill. Positions hold different questions, so each is to be read against full prefill: a line that falls "
        "off to the left, and full prefill\u2019s does not, loses early chunks."
    )
    blind = [mode.mode for mode in report.modes if mode.mode in BASELINES]
    remark = f"Without a panel, since they compose nothing: {', '.join(blind)}."
    return Figure(title, about, parts, remark=remark if blind else "")


def _most_lost(mode: ModeResult) -> str:
    """The position at which the mode loses most against full prefill."""
    known = [(lost.value, place, lost) for place, lost in mode.lost_by_position.items() if lost.value is not None]
    if not known or mode.mode == BASELINE:
        return ""
    value, place, lost = min(known, key=lambda one: one[0])
    interval = interval_text(lost, signed=True)
    points = f"{minus(f'{100 * value:+.1f}')} points{f' ({interval})' if interval else ''}"
    return f"Against full prefill at worst {points}, gold {place}."


def _position_drawing(mode: ModeResult, full: ModeResult, ticks: Sequence[float]) -> Markup:
    width, height, left, top, right, bottom = 180, 126, 38, 8, 14, 22
    x = Scale(0, len(POSITIONS) - 1, left + 10, width - right)
    y = Scale(ticks[0], ticks[-1], height - bottom, top)
    parts = []
    for tick in ticks:
        parts.append(line(left, y(tick), width - right + 6, y(tick), "grid"))
        parts.append(label(left - 5, y(tick) + 4, tick_text(tick), anchor="end"))
    for number, position in enumerate(POSITIONS):
        parts.append(line(x(number), height - bottom, x(number), height - bottom + 3, "axis"))
        if number % 2 == 0:
            parts.append(label(x(number), height - 6, position, anchor="middle"))
    points = {
        m.mode: [(i, e) for i, p in enumerate(POSITIONS) if (e := m.by_position[p]).value is not None]
        for m in (full, mode)
    }
    for other, class_ in ((full, "baseline"), (mode, kind_of(mode))):
        found = points[other.mode]
        for (i, one), (j, two) in zip(found, found[1:], strict=False):
            parts.append(line(x(i), y(one.value or 0), x(j), y(two.value or 0), f"trend {class_}"))
    for i, estimate in points[mode.mode]:
        low, high = _ends(estimate)
        parts.append(line(x(i), y(low), x(i), y(high), f"bar {kind_of(mode)}"))
        parts.append(mark(x(i), y(estimate.value or 0), kind_of(mode), 3.2))
    said = ", ".join(f"{POSITIONS[i]} {_kept(estimate)}" for i, estimate in points[mode.mode])
    return svg(width, height, f"Exact match of {mode.mode} by position of the gold chunk: {said}.", *parts)


# Sensitivity to the order


def _order(report: EvalReport, records: Sequence[dict[str, Any]]) -> Figure:
    title = "How much the order of the chunks decides"
    shares = {mode.mode: _shares_right(records, mode.mode) for mode in report.modes}
    full = shares.get(BASELINE, [])
    if all(share is None for share in full):
        return Figure(title, "", missing="no question has scored answers in two random orders or more")
    parts = []
    for subtitle, modes in _of_kinds(report) or [("", [])]:
        named = [full_prefill(report), *modes]
        split = {mode.mode: _split(shares[mode.mode]) for mode in named}
        ticks = round_ticks(0, max(0.01, *(sum(found[:3]) for found in split.values())), 4)
        rows = [_order_row(mode, split[mode.mode], shares[mode.mode], full, ticks[-1]) for mode in named]
        rows = [_order_head(), *rows, _order_axis(ticks)]
        parts.append((subtitle, element("div", *rows, class_="rows")))
    about = (
        "Of each mode\u2019s questions, those that are not right in every random order: the order decides about the "
        "coloured part, the grey part is right in none. Fewer and more: in how many questions a mode is right in fewer "
        "or in more orders than full prefill."
    )
    key = [
        element("span", element("i", class_=f"swatch {class_}"), text, class_="key")
        for class_, text in (
            ("mostly", "right in more than half of the orders"),
            ("rarely", "right in half of them or fewer"),
            ("never", "right in none"),
        )
    ]
    parts.insert(0, ("", element("p", *key, class_="keys")))
    return Figure(title, about, parts)


def _shares_right(records: Sequence[dict[str, Any]], mode: str) -> list[float | None]:
    """Per question the share of random orders that are right; None with fewer than two scored ones."""
    shares: list[float | None] = []
    for record in records:
        scored = [em for em, _ in shuffled(record, mode) if em is not None]
        shares.append(sum(em == 1 for em in scored) / len(scored) if len(scored) > 1 else None)
    return shares


def _split(shares: Sequence[float | None]) -> tuple[float, float, float, float]:
    """Shares of questions: right in more than half of the orders but not in all, in fewer but some, in none, in all."""
    known = [share for share in shares if share is not None]
    count = max(1, len(known))
    return (
        sum(0.5 < share < 1 for share in known) / count,
        sum(0 < share <= 0.5 for share in known) / count,
        sum(share == 0 for share in known) / count,
        sum(share == 1 for share in known) / count,
    )


def _order_row(
    mode: ModeResult,
    split: tuple[float, float, float, float],
    shares: Sequence[float | None],
    full: Sequence[float | None],
    widest: float,
) -> Markup:
    mostly, rarely, never, always = split
    said = (
        f"{mode.mode}: right in all orders {percent(always)} of questions, in more than half {percent(mostly)}, "
        f"in half or fewer {percent(rarely)}, in none {percent(never)}"
    )
    bars, start = [], 0.0
    for share, class_ in ((mostly, "mostly"), (rarely, "rarely"), (never, "never")):
        if share:
            x, wide = f"{coordinate(100 * start / widest)}%", f"{coordinate(100 * share / widest)}%"
            bars.append(element("rect", x=x, width=wide, y=2, height=16, class_=class_))
        start += share
    drawing = element("svg", *bars, role="img", aria_label=said, width="100%", height=20)
    pairs = [(a, b) for a, b in zip(shares, full, strict=True) if a is not None and b is not None]
    worse, better = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    against = "" if mode.mode == BASELINE else f"{worse} fewer, {better} more"
    return element(
        "div",
        element("span", _breakable(mode.mode), class_=f"name {kind_of(mode)}"),
        element("span", f"all {percent(always)}", class_="always"),
        drawing,
        element("span", against, class_="against"),
        class_="row",
    )


def _order_head() -> Markup:
    texts = ("", "right in all orders", "not right in all orders", "right orders, against full prefill")
    return element("div", *(element("span", text) for text in texts), class_="row head")


def _order_axis(ticks: Sequence[float]) -> Markup:
    texts = []
    for tick in ticks:
        anchor = "start" if tick == ticks[0] else "end" if tick == ticks[-1] else "middle"
        texts.append(
            element(
                "text",
                tick_text(tick),
                x=f"{coordinate(100 * tick / ticks[-1])}%",
                y=12,
                class_="tick",
                text_anchor=anchor,
            )
        )
    drawing = element("svg", *texts, aria_hidden="true", width="100%", height=16)
    words = element("span", "of the questions", class_="against")
    return element("div", element("span", class_="name"), element("span"), drawing, words, class_="row")


# Errors of states, keys and values


def _errors(report: EvalReport) -> Figure:
    title = "Where the context differs from full prefill\u2019s"
    kinds = [
        (subtitle, [mode for mode in modes if mode.state_error is not None]) for subtitle, modes in _of_kinds(report)
    ]
    kinds = [(subtitle, modes) for subtitle, modes in kinds if modes]
    if not kinds:
        return Figure(title, "", missing="no mode but full prefill itself has a context as long as full prefill\u2019s")
    measured = np.concatenate([_array(values).ravel() for mode in kinds[0][1] for values in _errors_of(mode)])
    found = measured[np.isfinite(measured) & (measured > 0)]
    if not found.size:
        return Figure(title, "", missing="the contexts are full prefill\u2019s: every error is 0")
    edges = _edges(float(found.min()), float(found.max()))
    parts: list[tuple[str, Markup]] = [("", for_both(lambda width: _heat_legend(width, edges)))]
    for subtitle, modes in kinds:
        parts.append((subtitle, _panels(modes, partial(_heat_drawing, edges=edges), _worst)))
    about = (
        "Size of the difference divided by the size of full prefill\u2019s own, mean over questions and random orders. "
        "The large field: recurrent states, a row for each Gated DeltaNet layer and a column for each of its heads. "
        "The two lines under it: keys (K) and values (V) of each attention layer. Layers and heads count from 0, each "
        "kind of layer by itself. Numbers at the right are means of their row. A difference is no loss by itself: a "
        "mean over several orders is meant to differ from full prefill of one."
    )
    return Figure(title, about, parts)


def _array(values: Any) -> np.ndarray:
    """With infinity for what is not a number: it is infinitely wrong."""
    array = np.array(values, dtype=np.float64)
    return np.where(np.isnan(array), np.inf, array)


def _errors_of(mode: ModeResult) -> list[Any]:
    return [values for values in (mode.state_error, mode.key_error, mode.value_error) if values is not None]


def _edges(low: float, high: float) -> list[float]:
    """Bounds between the levels: even on a logarithmic scale, to two digits, so that the legend says what was done."""
    low = min(max(low, high / 1000), high / 4)
    return [float(f"{edge:.2g}") for edge in np.geomspace(low, high, _HEAT_LEVELS + 1)[1:-1]]


def _heat_legend(width: int, edges: Sequence[float]) -> Markup:
    each = 37.0 if width < WIDE else 44.0
    parts = [label(0, 11, "relative error")]
    for level in range(_HEAT_LEVELS):
        parts.append(element("rect", x=level * each, y=18, width=each - 1, height=14, class_=f"heat{level}"))
    for number, edge in enumerate(edges, 1):
        parts.append(label(number * each, 46, f"{edge:.2g}", anchor="middle"))
    said = f"Colours of the errors: lightest below {edges[0]:.2g}, strongest from {edges[-1]:.2g}."
    return svg(each * _HEAT_LEVELS, 50, said, *parts)


def _heat_drawing(mode: ModeResult, edges: Sequence[float]) -> Markup:
    states = _array(mode.state_error)
    layers, heads = states.shape
    width, left, top, right = 180.0, 20.0, 1.0, 36.0
    across, down = width - left - right, min(16.0, max(3.0, 170.0 / layers))
    parts = [*_cells(states, edges, left, top, across / heads, down)]
    bottom = top + layers * down
    if down >= 11:
        for layer in range(layers):
            height = top + layer * down + down / 2 + 4
            parts.append(label(left - 5, height, str(layer), anchor="end"))
            parts.append(label(width - right + 5, height, _error(float(states[layer].mean()))))
    else:  # no room for every layer
        parts.append(label(left - 5, top + 9, "0", anchor="end"))
        parts.append(label(left - 5, bottom - 1, str(layers - 1), anchor="end"))
    for name, values in (("K", mode.key_error), ("V", mode.value_error)):
        if values:
            row = _array(values)[None]
            parts += _cells(row, edges, left, bottom + 6, across / row.shape[1], 12)
            parts.append(label(left - 5, bottom + 16, name, anchor="end"))
            parts.append(label(width - right + 5, bottom + 16, _error(float(row.mean()))))
            bottom += 15
    said = f"Relative errors of {mode.mode}, {layers} layers of {heads} heads: {_worst(mode)}"
    return svg(width, bottom + 8, said, *parts)


def _cells(
    values: np.ndarray, edges: Sequence[float], left: float, top: float, width: float, height: float
) -> Iterator[Markup]:
    """A path for each level: neighbours in a row that look the same are one rectangle, since models have thousands."""
    levels = np.digitize(values, edges)
    for level in sorted(set(levels.flat)):
        path = []
        for row, found in enumerate(levels):
            changes = np.flatnonzero(np.diff(np.concatenate([[0], found == level, [0]]).astype(int)))
            for start, end in changes.reshape(-1, 2):
                x, y = coordinate(float(left + start * width)), coordinate(float(top + row * height))
                wide, high = coordinate(float((end - start) * width)), coordinate(float(height))
                path.append(f"M{x} {y}h{wide}v{high}h-{wide}z")
        yield element("path", d="".join(path), class_=f"heat{level}")


def _worst(mode: ModeResult) -> str:
    states = _array(mode.state_error)
    layer, head = np.unravel_index(int(states.argmax()), states.shape)
    return (
        f"States: mean {_error(float(states.mean()))}, largest {_error(float(states.max()))} in layer {layer}, "
        f"head {head}."
    )


def _error(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "\u221e"
