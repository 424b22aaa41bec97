"""An evaluation's report as one HTML page that needs nothing else: no script, no font, no request, light or dark.

Drawings are SVG of lines, dots and text. What has room for one drawing only on a wide screen is drawn twice, and the
style sheet shows one of them: text then keeps its size on a phone. Colours are names in the style sheet, so that they
follow the reader's light or dark setting.
"""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from linearkv.eval.metrics import normalise
from linearkv.eval.modes import MODES
from linearkv.eval.report import (
    BASELINE,
    COMPOSED,
    WANTED_RETENTION,
    EvalReport,
    ModeResult,
    gold_places,
    number_text,
)
from linearkv.eval.statistics import POSITIONS, RESAMPLES, Estimate, decides, json_safe

BASELINES = ("full_canonical", "prefix_cache", "prefix_only", "no_context")
"""Modes, beside full prefill, that compose nothing."""
EXAMPLES = 20
"""Questions shown side by side, at most."""

WIDE, NARROW = 900, 340
"""Widths in pixels of a drawing on a screen and on a phone."""

# Data may hold anything, a page may not: control characters, halves of characters, and what reorders text around it.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_LONGEST_TEXT, _LONGEST_ANSWER, _MOST_ANSWERS, _MOST_NOTES = 600, 160, 6, 50
_HEAT_LEVELS = 9
_INTERVAL = re.compile(r"\[[^\[\]]*\]")
_KEEPS = {"yes": "\u2713", "no": "\u2717", "undecided": "?"}

_RULES = {
    "linearkv": "Unicode forms, case, punctuation and articles are set aside; numbers keep their sign and their point.",
    "squad": "As in SQuAD's script: lower case, without ASCII punctuation and English articles.",
    "hotpotqa": "As in HotpotQA's script: SQuAD's rule, and yes, no and noanswer match only as whole answers.",
}

_COLUMNS = (
    ("EM", "Exact match: share of answers that equal an accepted answer under the scoring rule."),
    ("F1", "Words shared with the accepted answer that fits best, from 0 (none) to 1 (the same words)."),
    (
        "kept",
        "This mode\u2019s F1 divided by full prefill\u2019s on the same questions and orders, with its 95% interval. "
        f"\u2713 the interval lies at or above {WANTED_RETENTION:.0%}, \u2717 below, ? on both sides: too few "
        "questions to say.",
    ),
    ("worst order", "Exact match when every question gets the one of its random orders that suits it least."),
    ("flips", "Share of questions that are right in some orders and wrong in others."),
    (
        "excess flips",
        "Flips minus full prefill\u2019s own, in percentage points, with the 95% interval: what composing adds. Full "
        "prefill depends on the order too.",
    ),
    ("KL", "How far the probabilities of each answer token are from full prefill\u2019s, in nats; 0 is no difference."),
    ("top-1", "Share of answer tokens whose likeliest candidate is full prefill\u2019s."),
    ("reuse", "Share of the prompt\u2019s tokens that were not computed when the question was asked."),
    ("bytes", "Stored chunk states that one answer is made from."),
    (
        "TTFT",
        "Time to the first token with the states in memory, and how many times faster than full prefill: medians over "
        "the timed questions, on the machine named above.",
    ),
)


def page(report: EvalReport) -> str:
    """The whole page. The same report gives the same text to the byte."""
    records = [record for record in report.records if "modes" in record]
    rule = _rule(report)
    known = [MODES[mode.mode] for mode in report.modes if mode.mode in MODES]
    compared = _compared(report)
    html = _TEMPLATE.render(
        style=Markup(_STYLE),
        verdict=_verdict(report),
        title=": ".join(["LinearKV evaluation", *filter(None, [_short(_model(report), 80)])]),
        facts=_facts(report, records),
        columns=_COLUMNS,
        groups=[(title, [_row(mode) for mode in modes]) for title, modes in _groups(report) if modes],
        modes=[(mode.name, mode.about) for mode in known if mode.about],
        figures=[draw(report, records) for draw in (_quality, _positions, _order, _errors)] if records else [],
        examples=_examples(report, records),
        examples_of="the composed modes" if {*compared} & {*COMPOSED} else ", ".join(compared),
        rule=rule,
        rule_words=_RULES.get(rule, ""),
        resamples=RESAMPLES,
        unscored=_unscored(report),
        notes=[_short(note, _LONGEST_TEXT) for note in report.notes[:_MOST_NOTES]],
        more_notes=max(0, len(report.notes) - _MOST_NOTES),
        options=json.dumps(json_safe(report.about), indent=2, ensure_ascii=False, default=str),
        again=_again(report),
    )
    return _UNPRINTABLE.sub("\ufffd", html)


# What was run


def _verdict(report: EvalReport) -> Markup:
    """As a sentence, with intervals that no line break divides."""
    text = report.verdict
    if text.partition(" ")[0] not in {mode.mode for mode in report.modes}:
        text = text[0].upper() + text[1:]
    return Markup(_INTERVAL.sub(r'<span class="whole">\g<0></span>', str(escape(text))))


def _groups(report: EvalReport) -> list[tuple[str, list[ModeResult]]]:
    """Modes as a reader tells them apart."""
    full = [mode for mode in report.modes if mode.mode == BASELINE]
    composed = [mode for mode in report.modes if mode.mode in COMPOSED]
    others = [mode for mode in report.modes if mode.mode not in (BASELINE, *COMPOSED, *BASELINES)]
    baselines = [mode for mode in report.modes if mode.mode in BASELINES]
    return [
        ("Ceiling", full),
        ("Composed modes: what a query can use", composed),
        ("Other recipes and ablations", others),
        ("Baselines that compose nothing", baselines),
    ]


def _full(report: EvalReport) -> ModeResult:
    return next(mode for mode in report.modes if mode.mode == BASELINE)


def _kind(mode: ModeResult) -> str:
    if mode.mode in COMPOSED:
        return "composed"
    return "baseline" if mode.mode in (BASELINE, *BASELINES) else "other"


def _of_kinds(report: EvalReport) -> list[tuple[str, list[ModeResult]]]:
    """Composed modes and the others that use the chunks, which are drawn apart: one failing ablation would otherwise
    set the scale for all."""
    return [(title, modes) for title, modes in _groups(report)[1:3] if modes]


def _model(report: EvalReport) -> str:
    model = report.about.get("model")
    if isinstance(model, dict):
        model = model.get("name") or ", ".join(f"{key} {value}" for key, value in model.items())
    return str(model or "")


def _rule(report: EvalReport) -> str:
    return str(report.about.get("options", {}).get("rule", "linearkv"))


def _facts(report: EvalReport, records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What was run, as pairs of a name and words."""
    options, source = report.about.get("options", {}), report.about.get("source", {})
    machine = report.about.get("machine", {})
    wanted = {
        "corpus": "made from the indexed documents",
        "caller": "passed from a program",
    }
    origin = source.get("questions_from", "")
    asked = f"{len(records):,}"
    if origin:
        form = f" ({source['format']})" if source.get("format") else ""
        asked += f", {wanted.get(origin, f'from {origin}{form}')}"
    if len(report.records) > len(records):
        asked += f"; {len(report.records) - len(records):,} more could not be asked"
    labels = {order["label"] for record in records for order in record["orders"]} - {"shuffle"}
    shuffles = sorted({sum(order["label"] == "shuffle" for order in record["orders"]) for record in records})
    orders = " to ".join(map(str, sorted({*shuffles[:1], *shuffles[-1:]}))) or str(options.get("shuffles", "-"))
    orders += " random a question"
    if labels:
        orders += "; on top, gold chunks first, in the middle and last"
    chunks = sorted({len(record["chunks"]) for record in records})
    used = " to ".join(map(str, sorted({*chunks[:1], *chunks[-1:]})))
    k = str(options.get("k", used or "-"))
    if used and k != used:
        k += f" asked for, {used} used"
    facts = [
        ("Model", _short(_model(report), _LONGEST_TEXT) or "not recorded"),
        ("Questions", asked),
        ("Chunks a question, k", k),
        ("Orders (shuffles)", orders),
        ("Seed", str(options.get("seed", "-"))),
        ("Scoring rule", _rule(report)),
    ]
    if machine.get("device"):
        cores = f", {machine['cores']} cores" if machine.get("cores") else ""
        torch = f", torch {machine['torch']}" if machine.get("torch") else ""
        facts.append(("Machine", f"{machine['device']}{cores}{torch}"))
    return facts


def _unscored(report: EvalReport) -> list[str]:
    counts = _full(report).unscored if report.modes else {}
    return [f"{count:,} answers of each mode are unscored: {reason}" for reason, count in counts.items() if count]


def _again(report: EvalReport) -> str:
    """What to type to run the same evaluation again."""
    options, source = report.about.get("options", {}), report.about.get("source", {})
    origin, model = source.get("questions_from", "caller"), _model(report)
    if origin == "caller":
        given = ", ".join(
            f"{name}={tuple(value) if isinstance(value, list) else value!r}" for name, value in options.items()
        )
        return (
            "from linearkv.eval.evaluation import evaluate\n"
            "from linearkv.eval.runner import EvalOptions\n\n"
            f'evaluate(engine, questions, EvalOptions({given})).to_html("report.html")'
        )
    words = ["linearkv", "eval"]
    words += ["--store", "FOLDER"] if origin == "corpus" else [origin]
    words += ["--model", model or "MODEL"]
    for name in ("k", "shuffles", "seed", "max_new_tokens", "rule"):
        if name in options:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    words += ["--modes", ",".join(mode.mode for mode in report.modes)]
    if source.get("limit"):
        words += ["--limit", str(source["limit"])]
    return shlex.join([*words, "--html", "report.html"])


# The table


def _row(mode: ModeResult) -> dict[str, Any]:
    """A line of the table: the cells as (text, small print)."""
    kept, flips, excess = mode.retention, mode.order["flips"], mode.excess["flips"]
    # Of baselines nobody asks whether they are good enough to use.
    keeps = "" if kept.value is None or _kind(mode) == "baseline" else _keeps(kept)
    cells = [
        (number_text(mode.em.value), ""),
        (number_text(mode.f1.value), ""),
        (f"{_percent(kept.value)} {_KEEPS.get(keeps, '')}".strip(), _interval(kept)),
        (number_text(mode.order["worst"].value), ""),
        (_percent(flips.value), ""),
        ("-" if excess.value is None else _minus(f"{100 * excess.value:+.1f}"), _interval(excess, signed=True)),
        ("-" if mode.kl is None else f"{mode.kl:.4f}", ""),
        (number_text(mode.top1), ""),
        (_percent(mode.reuse), ""),
        (f"{mode.bytes / 1e6:.1f} MB" if mode.bytes else "none", ""),
        (
            "-" if mode.ttft_s is None else f"{1000 * mode.ttft_s:,.0f} ms",
            "" if mode.speedup is None else f"{mode.speedup:.1f}\u00d7",
        ),
    ]
    return {"mode": mode.mode, "kind": _kind(mode), "keeps": keeps, "cells": cells}


def _keeps(kept: Estimate) -> str:
    return decides(kept.low, kept.high, WANTED_RETENTION, questions=kept.questions)


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}%"


def _interval(estimate: Estimate, *, signed: bool = False) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    sign = "+" if signed else ""
    return _minus(f"{100 * estimate.low:{sign}.1f} to {100 * estimate.high:{sign}.1f}")


def _minus(text: str) -> str:
    return text.replace("-", "\u2212")


# Drawings


@dataclass(frozen=True)
class _Figure:
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


def _element(name: str, *children: str, **attributes: object) -> Markup:
    """An element; a trailing underscore in an attribute's name goes, others become hyphens."""
    given = [f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"' for key, value in attributes.items()]
    return Markup(f"<{name}{''.join(given)}>{''.join(map(escape, children))}</{name}>")


def _text(value: object) -> str:
    """Coordinates to a hundredth of a pixel: the page is shorter, and the same on every processor."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _drawing(width: float, height: float, label: str, *children: str) -> Markup:
    return _element(
        "svg",
        *children,
        role="img",
        aria_label=label,
        width=float(width),
        height=float(height),
        viewBox=f"0 0 {_text(float(width))} {_text(float(height))}",
    )


def _for_both(draw: Callable[[int], Markup]) -> Markup:
    return Markup("").join(
        [_element("div", draw(WIDE), class_="on-wide"), _element("div", draw(NARROW), class_="on-narrow")]
    )


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return _element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def _label(x: float, y: float, text: str, class_: str = "tick", anchor: str = "start") -> Markup:
    return _element("text", text, x=float(x), y=float(y), class_=class_, text_anchor=anchor)


def _mark(x: float, y: float, kind: str, radius: float = 4.5) -> Markup:
    """Kinds differ by shape as well as by colour."""
    if kind == "other":
        r = radius * 1.2
        points = f"M{_text(x)} {_text(y - r)}l{_text(r)} {_text(r)}l{_text(-r)} {_text(r)}l{_text(-r)} {_text(-r)}z"
        return _element("path", d=points, class_="mark other")
    return _element("circle", cx=float(x), cy=float(y), r=radius, class_=f"mark {kind}")


@dataclass(frozen=True)
class _Scale:
    """Values as pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, about so many."""
    if high <= low:
        low, high = low - 0.05, high + 0.05
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _share(value: float) -> str:
    """A share as a tick has it: no more digits than it needs."""
    return f"{100 * value:.4g}%"


# Quality against reuse


def _quality(report: EvalReport, records: Sequence[dict[str, Any]]) -> _Figure:
    title = "Quality against reuse"
    known = [mode for mode in report.modes if mode.retention.value is not None and mode.mode != BASELINE]
    if not known:
        compared = [mode for mode in report.modes if mode.mode != BASELINE]
        why = next((mode.retention.reason for mode in compared if mode.retention.reason), "there is one mode only")
        return _Figure(title, "", missing=f"no mode can be compared with full prefill: {why}")
    # Baselines and failing ablations must not squeeze the modes that a reader chooses between.
    scaled = [mode for mode in known if _kind(mode) == "composed"] or known
    lowest = min(_ends(mode.retention)[0] for mode in scaled)
    highest = max(1.0, *(_ends(mode.retention)[1] for mode in scaled))
    ticks = _ticks(min(lowest, 0.95), highest)
    shown = [mode for mode in known if (mode.retention.value or 0) >= ticks[0]]
    below = [mode for mode in known if (mode.retention.value or 0) < ticks[0]]
    remark = ""
    if below:
        remark = f"Below the scale: {', '.join(f'{m.mode} {_percent(m.retention.value)}' for m in below)}."
    about = (
        "Share of full prefill\u2019s F1 that each mode keeps, and share of the prompt that it reuses. The dashed "
        "line is full prefill; bars are 95% intervals over questions."
    )
    wide = _element(
        "p",
        "Up is better, right is cheaper. The scale of reuse is stretched to the right: each step of the same length "
        "divides the computed tokens by the same factor. Modes that reuse the same share stand side by side.",
        class_="about",
    )
    parts = [
        ("", _element("div", wide, _quality_plane(shown, ticks), class_="on-wide")),
        ("", _element("div", _quality_rows(shown, ticks), class_="on-narrow")),
    ]
    return _Figure(title, about, parts, remark=remark)


def _ends(estimate: Estimate) -> tuple[float, float]:
    value = estimate.value or 0.0
    return (value if estimate.low is None else estimate.low, value if estimate.high is None else estimate.high)


def _quality_plane(modes: Sequence[ModeResult], ticks: Sequence[float]) -> Markup:
    """Two scales, where there is room for names beside the points."""
    width = WIDE
    left, top, bottom = 44.0, 14.0, 44.0
    right = max(_wide(mode) for mode in modes) + 24
    height = max(320.0, 15.0 * len(modes) + top + bottom)
    y = _Scale(ticks[0], ticks[-1], height - bottom, top)
    # Computed shares, by their logarithm; the question itself is always computed, so none is 0.
    costs = [-math.log10(max(1 - mode.reuse, 1e-4)) for mode in modes]
    x = _Scale(-0.04, max([*costs, math.log10(2)]) + 0.08, left, width - right)
    parts = []
    for tick in ticks:
        parts.append(_line(left, y(tick), width - right, y(tick), "ceiling" if abs(tick - 1) < 1e-9 else "grid"))
        parts.append(_label(left - 6, y(tick) + 4, _share(tick), anchor="end"))
    last = -math.inf
    for reuse in (0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999):
        place = -math.log10(1 - reuse)
        if place <= x.high and x(place) - last >= 34:
            last = x(place)
            parts.append(_line(last, height - bottom, last, height - bottom + 4, "axis"))
            parts.append(_label(last, height - bottom + 17, _share(reuse), anchor="middle"))
    parts.append(_line(left, height - bottom, width - right, height - bottom, "axis"))
    parts.append(_label((left + width - right) / 2, height - 8, "prompt tokens reused", anchor="middle"))
    places = _side_by_side([x(cost) for cost in costs], 10.0, width - right - 3)
    heights = [y(mode.retention.value or 0) for mode in modes]
    for column, anchor, of in _name_columns(places, [_wide(mode) for mode in modes], left, width - right):
        of = sorted(of, key=lambda i: (heights[i], places[i]))
        aside = 1 if anchor == "start" else -1
        for i, at in zip(of, _apart([heights[i] for i in of], 15.0, top + 2, height - bottom - 4), strict=True):
            parts.append(_line(places[i] + 6 * aside, heights[i], column - 3 * aside, at, "leader"))
            parts.append(_label(column, at + 4, _name(modes[i].mode), f"name {_kind(modes[i])}", anchor))
    for place, at, mode in zip(places, heights, modes, strict=True):
        low, high = _ends(mode.retention)
        parts.append(_line(place, y(low), place, y(high), f"bar {_kind(mode)}"))
        parts.append(_mark(place, at, _kind(mode)))
    return _drawing(width, height, _quality_words(modes), *parts)


def _quality_rows(modes: Sequence[ModeResult], ticks: Sequence[float]) -> Markup:
    """One scale and a line a mode, most reuse first, for narrow screens."""
    width, each, bottom = NARROW, 38.0, 24.0
    x = _Scale(ticks[0], ticks[-1], 14, width - 22)
    height = each * len(modes) + bottom
    parts = []
    for tick in ticks:
        parts.append(_line(x(tick), 4, x(tick), height - bottom, "ceiling" if abs(tick - 1) < 1e-9 else "grid"))
        parts.append(_label(x(tick), height - 6, _share(tick), anchor="middle"))
    for number, mode in enumerate(sorted(modes, key=lambda m: (-round(m.reuse, 2), -(m.retention.value or 0)))):
        top, (low, high) = each * number, _ends(mode.retention)
        parts.append(_label(0, top + 14, _name(mode.mode), f"name {_kind(mode)}"))
        parts.append(_label(width, top + 14, f"{_percent(mode.reuse, 0)} reused", "tick halo", "end"))
        parts.append(_line(x(low), top + 26, x(high), top + 26, f"bar {_kind(mode)}"))
        parts.append(_mark(x(mode.retention.value or 0), top + 26, _kind(mode)))
    return _drawing(width, height, _quality_words(modes), *parts)


def _quality_words(modes: Sequence[ModeResult]) -> str:
    said = "; ".join(f"{m.mode} keeps {_kept(m.retention)} at {_percent(m.reuse, 0)} reuse" for m in modes)
    return f"Share of full prefill's F1 kept, against reuse. {said}."


def _name_columns(
    places: Sequence[float], widths: Sequence[float], start: float, end: float
) -> Iterator[tuple[float, str, list[int]]]:
    """Where names stand, to which side, and whose they are.

    Names go right of their cluster of points where there is room before the next, else left of it, else they wait for
    the next cluster; those of the last stand beside the drawing.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    cluster: list[int] = []
    waiting: list[int] = []
    taken = start
    for i, after in zip(order, [*order[1:], None], strict=True):
        cluster.append(i)
        if after is not None and places[after] - places[i] < 24:
            continue
        room = max(widths[j] for j in waiting + cluster)
        right, left = places[i] + 18, places[cluster[0]] - 18
        if after is None:
            yield max(right, end + 11), "start", waiting + cluster
        elif right + room + 8 < places[after]:
            yield right, "start", waiting + cluster
            taken, waiting = right + room, []
        elif not waiting and left - room > taken:
            yield left, "end", cluster
            taken = places[i]
        else:
            waiting += cluster
            taken = places[i]
        cluster = []


def _wide(mode: ModeResult) -> float:
    """Pixels that a name needs, about: its font is the reader's."""
    return 7.2 * len(_name(mode.mode))


def _kept(estimate: Estimate) -> str:
    interval = _interval(estimate)
    return f"{_percent(estimate.value)}{f' ({interval})' if interval else ''}"


def _name(name: str) -> str:
    return name if len(name) <= 26 else f"{name[:25]}\u2026"


def _side_by_side(places: Sequence[float], gap: float, end: float) -> list[float]:
    """`places` with those that nearly coincide moved apart, around where they were."""
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    groups: list[list[int]] = []
    for i in order:
        if groups and places[i] - places[groups[-1][0]] < gap:
            groups[-1].append(i)
        else:
            groups.append([i])
    moved = list(places)
    for group in groups:
        centre = float(np.mean([places[i] for i in group]))
        first = min(centre - gap * (len(group) - 1) / 2, end - gap * (len(group) - 1))
        for number, i in enumerate(group):
            moved[i] = first + gap * number
    return moved


def _apart(heights: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Ascending `heights` moved as little as a gap between them needs, within the ends where there is room."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, top if not moved else moved[-1] + gap))
    limit = bottom
    for number in reversed(range(len(moved))):
        moved[number] = min(moved[number], limit)
        limit = moved[number] - gap
    return moved


# Accuracy by the gold chunk's position


def _positions(report: EvalReport, records: Sequence[dict[str, Any]]) -> _Figure:
    title = "Accuracy by the gold chunk\u2019s position"
    if not any(record["gold"] for record in records):
        return _Figure(title, "", missing="for none of these questions is it known which chunk holds the answer")
    if all(len(record["chunks"]) < 2 for record in records):
        return _Figure(title, "", missing="each question has one chunk, which has no position among others")
    full = _full(report)
    if not any(estimate.value is not None for estimate in full.by_position.values()):
        return _Figure(title, "", missing="no answer with a known gold chunk is scored")
    parts = []
    for subtitle, modes in _of_kinds(report) or [("", [full])]:
        lows = [_ends(e)[0] for mode in (full, *modes) for e in mode.by_position.values() if e.value is not None]
        ticks = _ticks(min(lows), 1.0, 4)
        panels = [_panel(mode.mode, _kind(mode), _position_drawing(mode, full, ticks)) for mode in modes]
        parts.append((subtitle, _element("div", *panels, class_="panels")))
    about = (
        "Exact match where the last chunk that the answer needs comes first, early, in the middle, late or last among "
        "the chunks, over all orders; bars are 95% intervals. The grey line is full prefill. A line that falls to the "
        "left loses early chunks."
    )
    blind = [mode.mode for mode in report.modes if mode.mode in BASELINES]
    remark = f"Without a panel, since the order does not enter or is full prefill\u2019s: {', '.join(blind)}."
    return _Figure(title, about, parts, remark=remark if blind else "")


def _panel(name: str, kind: str, drawing: Markup, text: str = "") -> Markup:
    children = [_element("h4", _breakable(name), class_=kind), drawing]
    if text:
        children.append(_element("p", text))
    return _element("div", *children, class_="panel")


def _breakable(name: str) -> Markup:
    return Markup("_<wbr>").join(name.split("_"))


def _position_drawing(mode: ModeResult, full: ModeResult, ticks: Sequence[float]) -> Markup:
    width, height, left, top, right, bottom = 180, 126, 38, 8, 14, 22
    x = _Scale(0, len(POSITIONS) - 1, left + 10, width - right)
    y = _Scale(ticks[0], ticks[-1], height - bottom, top)
    parts = []
    for tick in ticks:
        parts.append(_line(left, y(tick), width - right + 6, y(tick), "grid"))
        parts.append(_label(left - 5, y(tick) + 4, _share(tick), anchor="end"))
    for number, position in enumerate(POSITIONS):
        parts.append(_line(x(number), height - bottom, x(number), height - bottom + 3, "axis"))
        if number % 2 == 0:
            parts.append(_label(x(number), height - 6, position, anchor="middle"))
    points = {
        m.mode: [(i, e) for i, p in enumerate(POSITIONS) if (e := m.by_position[p]).value is not None]
        for m in (full, mode)
    }
    for other, class_ in ((full, "baseline"), (mode, _kind(mode))):
        found = points[other.mode]
        for (i, one), (j, two) in zip(found, found[1:], strict=False):
            parts.append(_line(x(i), y(one.value or 0), x(j), y(two.value or 0), f"trend {class_}"))
    for i, estimate in points[mode.mode]:
        low, high = _ends(estimate)
        parts.append(_line(x(i), y(low), x(i), y(high), f"bar {_kind(mode)}"))
        parts.append(_mark(x(i), y(estimate.value or 0), _kind(mode), 3.2))
    said = ", ".join(f"{POSITIONS[i]} {_kept(estimate)}" for i, estimate in points[mode.mode])
    return _drawing(width, height, f"Exact match of {mode.mode} by position of the gold chunk: {said}.", *parts)


# Sensitivity to the order


def _order(report: EvalReport, records: Sequence[dict[str, Any]]) -> _Figure:
    title = "How much the order of the chunks decides"
    shares = {mode.mode: _shares_right(records, mode.mode) for mode in report.modes}
    full = shares.get(BASELINE, [])
    if all(share is None for share in full):
        return _Figure(title, "", missing="no question has scored answers in two random orders or more")
    parts = []
    for subtitle, modes in _of_kinds(report) or [("", [])]:
        named = [_full(report), *modes]
        split = {mode.mode: _split(shares[mode.mode]) for mode in named}
        ticks = _ticks(0, max(0.01, *(sum(found[:3]) for found in split.values())), 4)
        rows = [_order_row(mode, split[mode.mode], shares[mode.mode], full, ticks[-1]) for mode in named]
        rows = [_order_head(), *rows, _order_axis(ticks)]
        parts.append((subtitle, _element("div", *rows, class_="rows")))
    about = (
        "Of each mode\u2019s questions, those that are not right in every random order: the order decides about the "
        "coloured part, the grey part is right in none. Fewer and more: in how many questions a mode is right in fewer "
        "or in more orders than full prefill."
    )
    key = [
        _element("span", _element("i", class_=f"swatch {class_}"), text, class_="key")
        for class_, text in (
            ("mostly", "right in more than half of the orders"),
            ("rarely", "right in half of them or fewer"),
            ("never", "right in none"),
        )
    ]
    parts.insert(0, ("", _element("p", *key, class_="keys")))
    return _Figure(title, about, parts)


def _shares_right(records: Sequence[dict[str, Any]], mode: str) -> list[float | None]:
    """Per question the share of random orders that are right; None with fewer than two scored ones."""
    shares: list[float | None] = []
    for record in records:
        scored = [em for em, _ in _shuffled(record, mode) if em is not None]
        shares.append(sum(em == 1 for em in scored) / len(scored) if len(scored) > 1 else None)
    return shares


def _shuffled(record: dict[str, Any], mode: str) -> list[tuple[float | None, str]]:
    """(exact match, answer) of the random orders."""
    entry = record["modes"][mode]
    each = zip(record["orders"], entry["em"], entry["answers"], strict=True)
    return [(em, answer) for order, em, answer in each if order["label"] == "shuffle"]


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
        f"{mode.mode}: right in all orders {_percent(always)} of questions, in more than half {_percent(mostly)}, "
        f"in half or fewer {_percent(rarely)}, in none {_percent(never)}"
    )
    bars, start = [], 0.0
    for share, class_ in ((mostly, "mostly"), (rarely, "rarely"), (never, "never")):
        if share:
            x, wide = f"{_text(100 * start / widest)}%", f"{_text(100 * share / widest)}%"
            bars.append(_element("rect", x=x, width=wide, y=2, height=16, class_=class_))
        start += share
    drawing = _element("svg", *bars, role="img", aria_label=said, width="100%", height=20)
    pairs = [(a, b) for a, b in zip(shares, full, strict=True) if a is not None and b is not None]
    worse, better = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    against = "" if mode.mode == BASELINE else f"{worse} fewer, {better} more"
    return _element(
        "div",
        _element("span", _breakable(mode.mode), class_=f"name {_kind(mode)}"),
        _element("span", f"all {_percent(always)}", class_="always"),
        drawing,
        _element("span", against, class_="against"),
        class_="row",
    )


def _order_head() -> Markup:
    texts = ("", "right in all orders", "not right in all orders", "right orders, against full prefill")
    return _element("div", *(_element("span", text) for text in texts), class_="row head")


def _order_axis(ticks: Sequence[float]) -> Markup:
    texts = []
    for tick in ticks:
        anchor = "start" if tick == ticks[0] else "end" if tick == ticks[-1] else "middle"
        texts.append(
            _element(
                "text", _share(tick), x=f"{_text(100 * tick / ticks[-1])}%", y=12, class_="tick", text_anchor=anchor
            )
        )
    drawing = _element("svg", *texts, aria_hidden="true", width="100%", height=16)
    words = _element("span", "of the questions", class_="against")
    return _element("div", _element("span", class_="name"), _element("span"), drawing, words, class_="row")


# Errors of states, keys and values


def _errors(report: EvalReport, records: Sequence[dict[str, Any]]) -> _Figure:
    title = "Where the context differs from full prefill\u2019s"
    kinds = [
        (subtitle, [mode for mode in modes if mode.state_error is not None]) for subtitle, modes in _of_kinds(report)
    ]
    kinds = [(subtitle, modes) for subtitle, modes in kinds if modes]
    if not kinds:
        return _Figure(
            title, "", missing="no mode but full prefill itself has a context as long as full prefill\u2019s"
        )
    measured = np.concatenate([_array(values).ravel() for mode in kinds[0][1] for values in _errors_of(mode)])
    found = measured[np.isfinite(measured) & (measured > 0)]
    if not found.size:
        return _Figure(title, "", missing="the contexts are full prefill\u2019s: every error is 0")
    edges = _edges(float(found.min()), float(found.max()))
    parts: list[tuple[str, Markup]] = [("", _for_both(lambda width: _heat_legend(width, edges)))]
    for subtitle, modes in kinds:
        panels = [_panel(mode.mode, _kind(mode), _heat_drawing(mode, edges), _worst(mode)) for mode in modes]
        parts.append((subtitle, _element("div", *panels, class_="panels")))
    about = (
        "Size of the difference divided by the size of full prefill\u2019s own, mean over questions and orders. The "
        "large field: recurrent states, a row for each Gated DeltaNet layer and a column for each of its heads. The "
        "two lines under it: keys (K) and values (V) of each attention layer. Layers and heads count from 0, each kind "
        "of layer by itself. Numbers at the right are means of their row. A difference is no loss by itself: a mean "
        "over several orders is meant to differ from full prefill of one."
    )
    moved = [mode.mode for _, modes in kinds for mode in modes if "pivot" in mode.mode or "canonical" in mode.mode]
    remark = (
        "These put the chunks in an order of their own, so that keys and values are compared with other tokens\u2019: "
        f"{', '.join(moved)}."
        if moved
        else ""
    )
    return _Figure(title, about, parts, remark=remark)


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
    parts = [_label(0, 11, "relative error")]
    for level in range(_HEAT_LEVELS):
        parts.append(_element("rect", x=level * each, y=18, width=each - 1, height=14, class_=f"heat{level}"))
    for number, edge in enumerate(edges, 1):
        parts.append(_label(number * each, 46, f"{edge:.2g}", anchor="middle"))
    label = f"Colours of the errors: lightest below {edges[0]:.2g}, strongest from {edges[-1]:.2g}."
    return _drawing(each * _HEAT_LEVELS, 50, label, *parts)


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
            parts.append(_label(left - 5, height, str(layer), anchor="end"))
            parts.append(_label(width - right + 5, height, _error(float(states[layer].mean()))))
    else:  # no room for every layer
        parts.append(_label(left - 5, top + 9, "0", anchor="end"))
        parts.append(_label(left - 5, bottom - 1, str(layers - 1), anchor="end"))
    for name, values in (("K", mode.key_error), ("V", mode.value_error)):
        if values:
            row = _array(values)[None]
            parts += _cells(row, edges, left, bottom + 6, across / row.shape[1], 12)
            parts.append(_label(left - 5, bottom + 16, name, anchor="end"))
            parts.append(_label(width - right + 5, bottom + 16, _error(float(row.mean()))))
            bottom += 15
    label = f"Relative errors of {mode.mode}, {layers} layers of {heads} heads: {_worst(mode)}"
    return _drawing(width, bottom + 8, label, *parts)


def _cells(
    values: np.ndarray, edges: Sequence[float], left: float, top: float, width: float, height: float
) -> Iterator[Markup]:
    """A path for each level: neighbours in a row that look the same are one rectangle, since models have thousands."""
    levels = np.digitize(values, edges)
    for level in sorted(set(levels.flat)):
        path = []
        for row, line in enumerate(levels):
            changes = np.flatnonzero(np.diff(np.concatenate([[0], line == level, [0]]).astype(int)))
            for start, end in changes.reshape(-1, 2):
                x, y = _text(float(left + start * width)), _text(float(top + row * height))
                wide, high = _text(float((end - start) * width)), _text(float(height))
                path.append(f"M{x} {y}h{wide}v{high}h-{wide}z")
        yield _element("path", d="".join(path), class_=f"heat{level}")


def _worst(mode: ModeResult) -> str:
    states = _array(mode.state_error)
    layer, head = np.unravel_index(int(states.argmax()), states.shape)
    return (
        f"States: mean {_error(float(states.mean()))}, largest {_error(float(states.max()))} in layer {layer}, "
        f"head {head}."
    )


def _error(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "\u221e"


# Questions that flip


def _compared(report: EvalReport) -> list[str]:
    """Modes whose answers are set beside full prefill's: the composed ones, or what else there is."""
    composed = [mode.mode for mode in report.modes if mode.mode in COMPOSED]
    return composed or [mode.mode for mode in report.modes if mode.mode not in (BASELINE, *BASELINES)]


def _examples(report: EvalReport, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The questions in which a mode and full prefill disagree most, and what each answered."""
    rule, compared = _rule(report), _compared(report)
    ranked: list[tuple[float, float, int]] = []
    for number, record in enumerate(records):
        full = _given(record, BASELINE, rule)
        apart = [_disagreement(_given(record, mode, rule), full) for mode in compared]
        scores, texts = max(apart, default=(0.0, 0.0))
        if scores or texts:
            ranked.append((-scores, -texts, number))
    others = [mode.mode for mode in report.modes if mode.mode not in (BASELINE, *BASELINES, *compared)]
    return [_example(records[number], compared, others, rule) for *_, number in sorted(ranked)[:EXAMPLES]]


def _given(record: dict[str, Any], mode: str, rule: str) -> list[tuple[float | None, str]]:
    """(exact match, normalised answer) of the random orders; answers that are the same under the rule are equal."""
    return [(em, normalise(answer, rule)) for em, answer in _shuffled(record, mode)]


def _disagreement(
    ours: Sequence[tuple[float | None, str]], full: Sequence[tuple[float | None, str]]
) -> tuple[float, float]:
    """How far apart the shares of right orders are, and in what share of the orders the answers differ."""
    scored = [(a[0], b[0]) for a, b in zip(ours, full, strict=True) if a[0] is not None and b[0] is not None]
    right = abs(sum((a == 1) - (b == 1) for a, b in scored)) / len(scored) if scored else 0.0
    return right, sum(a[1] != b[1] for a, b in zip(ours, full, strict=True)) / len(ours)


def _example(record: dict[str, Any], compared: Sequence[str], others: Sequence[str], rule: str) -> dict[str, Any]:
    count = len(record["chunks"])
    gold = [_short(record["chunks"][index]["name"], _LONGEST_ANSWER) for index in record["gold"]]
    return {
        "id": _short(str(record["id"]), 60),
        "question": _short(record["question"].strip(), _LONGEST_TEXT) or "(empty)",
        "answers": [_short(answer, _LONGEST_ANSWER) for answer in record["answers"][:_MOST_ANSWERS]],
        "more_answers": max(0, len(record["answers"]) - _MOST_ANSWERS),
        "hops": record["hops"],
        "chunks": count,
        "gold": gold[:_MOST_ANSWERS],
        "note": record.get("note", ""),
        "blocks": [_answers(record, BASELINE, rule) | {"modes": [BASELINE]}, *_blocks(record, compared, rule)],
        "others": _blocks(record, others, rule),
    }


def _blocks(record: dict[str, Any], modes: Sequence[str], rule: str) -> list[dict[str, Any]]:
    """What each mode answered; those that answered the same share a block."""
    blocks: list[dict[str, Any]] = []
    for mode in modes:
        found = _answers(record, mode, rule)
        same = next((block for block in blocks if block | {"modes": []} == found | {"modes": []}), None)
        if same is not None:
            same["modes"].append(mode)
        else:
            blocks.append(found | {"modes": [mode]})
    return blocks


def _answers(record: dict[str, Any], mode: str, rule: str) -> dict[str, Any]:
    """Distinct answers of a mode over the random orders, most frequent first, and where it was not right."""
    given = _given(record, mode, rule)
    texts = [answer for _, answer in _shuffled(record, mode)]
    counts = Counter(given)
    shown = [
        {"text": _short(texts[given.index(one)], _LONGEST_ANSWER), "count": number, "em": one[0]}
        for one, number in counts.most_common(_MOST_ANSWERS)
    ]
    scored = [em for em, _ in given if em is not None]
    wrong = Counter(
        place for (em, _), place in zip(given, _places(record), strict=True) if place and em is not None and em < 1
    )
    right = sum(em == 1 for em in scored)
    same = sum(a[1] == b[1] for a, b in zip(given, _given(record, BASELINE, rule), strict=True))
    return {
        "right": f"{right} of {len(scored)} right" if scored else "unscored",
        "same": "" if mode == BASELINE or scored else f"{same} of {len(given)} as full prefill",
        "answers": shown,
        "more": len(counts) - len(shown),
        # Where all are wrong, that says nothing of the place.
        "wrong": ", ".join(f"{place} {wrong[place]}\u00d7" for place in POSITIONS if wrong[place]) if right else "",
    }


def _places(record: dict[str, Any]) -> list[str | None]:
    """Where the last gold chunk stands in each random order."""
    return [
        place for place, order in zip(gold_places(record), record["orders"], strict=True) if order["label"] == "shuffle"
    ]


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}\u2026 [{len(text):,} characters]"


# The page

_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fff; --ink: #1c2126; --soft: #56616c; --rule: #d5dae0; --fill: #f3f5f7;
  --composed: #0067b1; --other: #3b444d; --baseline: #66717b; --good: #00704f; --bad: #b3261e;
  --mostly: #f5a04a; --rarely: #c4520c; --never: #b4bcc4;
  --heat0: #fff3e4; --heat1: #fee3c4; --heat2: #fdcb98; --heat3: #fbac67; --heat4: #f58a3c;
  --heat5: #e5691b; --heat6: #c74c08; --heat7: #9b3803; --heat8: #6a2503;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --ink: #e4e8ec; --soft: #9da8b3; --rule: #343c44; --fill: #1d2329;
    --composed: #62b0f5; --other: #cdd4db; --baseline: #87929d; --good: #5cc9a2; --bad: #ff8a80;
    --mostly: #b9651a; --rarely: #ffad5c; --never: #59636d;
    --heat0: #2a1f18; --heat1: #42291a; --heat2: #5e351a; --heat3: #7d4318; --heat4: #a05417;
    --heat5: #c76a1c; --heat6: #eb8836; --heat7: #ffb270; --heat8: #ffe0bd;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 72rem; overflow-wrap: break-word;
  background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { max-width: 46rem; margin: 0 0 1.5rem; font-size: 1.65rem; line-height: 1.3; font-weight: 650; text-wrap: balance; }
h2 { margin: 3.25rem 0 .5rem; font-size: 1.25rem; line-height: 1.3; }
h3 { margin: 1.5rem 0 .5rem; font-size: .95rem; color: var(--soft); font-weight: 600; }
h4 { margin: 0 0 .25rem; font-size: .85rem; }
p, ul, pre { margin: 0 0 1rem; }
.about { max-width: 46rem; color: var(--soft); }
.whole { white-space: nowrap; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .9rem 2rem; margin: 0; }
.facts dt, .words dt { color: var(--soft); font-size: .85rem; }
.facts dd { margin: 0; }
.words { columns: 24rem 2; column-gap: 2.5rem; margin: 1rem 0 0; font-size: .9rem; }
.words div { break-inside: avoid; padding-bottom: .4rem; }
.words dt, .words dd { display: inline; margin: 0; }
.words dt { margin-right: .5em; color: var(--ink); font-size: inherit; font-weight: 600; }
.words dd { color: var(--soft); }
.composed { color: var(--composed); }
.other { color: var(--other); }
.baseline { color: var(--baseline); }

.scroll { overflow-x: auto; }
table {
  border-collapse: separate; border-spacing: 0; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums;
}
th, td { padding: .3rem .55rem; text-align: right; vertical-align: baseline; white-space: nowrap; }
td small { display: block; color: var(--soft); font-size: .75rem; line-height: 1.2; }
thead th { border-bottom: 2px solid var(--ink); font-weight: 600; }
tbody th, thead th:first-child {
  position: sticky; left: 0; background: var(--page); text-align: left; padding-left: 0; font-weight: 600;
}
tbody tr + tr > * { border-top: 1px solid var(--rule); }
tbody .group th { padding-top: 1.1rem; color: var(--soft); font-weight: 500; font-size: .8rem; }
tbody tr.of-baseline td { color: var(--soft); }
.yes { color: var(--good); }
.no { color: var(--bad); }

figure { margin: 0; }
figure + .about { margin-top: .75rem; }
svg { display: block; max-width: 100%; overflow: visible; }
svg[height][viewBox] { height: auto; }
svg text { font: 12px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--soft); }
svg .name { font-weight: 600; }
svg .name, svg .halo { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
svg .name.composed { fill: var(--composed); }
svg .name.other { fill: var(--other); }
svg .grid { stroke: var(--rule); }
svg .axis, svg .ceiling { stroke: var(--baseline); }
svg .ceiling { stroke-dasharray: 5 3; }
svg .leader { stroke: var(--rule); }
svg .bar { stroke: currentColor; stroke-width: 2; }
svg .trend { stroke: currentColor; stroke-width: 1.5; }
svg .mark { fill: currentColor; stroke: var(--page); stroke-width: 1; }
svg .mark.baseline { fill: var(--page); stroke: currentColor; stroke-width: 1.5; }
svg .mostly { fill: var(--mostly); }
svg .rarely { fill: var(--rarely); }
svg .never { fill: var(--never); }
svg path, svg rect { shape-rendering: crispEdges; }
svg path.mark { shape-rendering: auto; }
svg .heat0 { fill: var(--heat0); } svg .heat1 { fill: var(--heat1); } svg .heat2 { fill: var(--heat2); }
svg .heat3 { fill: var(--heat3); } svg .heat4 { fill: var(--heat4); } svg .heat5 { fill: var(--heat5); }
svg .heat6 { fill: var(--heat6); } svg .heat7 { fill: var(--heat7); } svg .heat8 { fill: var(--heat8); }
.on-narrow { display: none; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.3rem, 1fr)); gap: 1.25rem 1rem; }
.panel { break-inside: avoid; }
.panel p { margin: .25rem 0 0; color: var(--soft); font-size: .8rem; line-height: 1.35; }
.keys { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; font-size: .875rem; }
.swatch { display: inline-block; width: .9em; height: .9em; margin-right: .45em; vertical-align: -.08em; }
.swatch.mostly { background: var(--mostly); }
.swatch.rarely { background: var(--rarely); }
.swatch.never { background: var(--never); }
.keys, .swatch { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.rows { max-width: 60rem; font-size: .875rem; }
.row {
  display: grid; grid-template-columns: 12.5rem 7.5rem 1fr 12.5rem; gap: 0 .75rem; align-items: center; margin: .3rem 0;
}
.row.head { color: var(--soft); font-size: .8rem; }
.row .name { font-weight: 600; overflow-wrap: anywhere; }
.row .always, .row .against { color: var(--soft); font-variant-numeric: tabular-nums; }
.missing { max-width: 46rem; padding: .75rem 1rem; background: var(--fill); }

.example { break-inside: avoid; border-top: 1px solid var(--rule); padding: 1.1rem 0 .6rem; }
.example h3 { margin: 0 0 .25rem; color: var(--ink); font-size: 1rem; }
.example .meta { color: var(--soft); font-size: .875rem; margin: 0 0 .6rem; }
.given {
  list-style: none; padding: 0; margin: 0; font-size: .9rem;
  display: grid; grid-template-columns: repeat(auto-fill, minmax(15.5rem, 1fr)); gap: .9rem 1.5rem;
}
.given > li { break-inside: avoid; min-width: 0; }
.given .who { font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
.given .how { color: var(--soft); font-size: .8rem; }
.given ul { list-style: none; padding: 0; margin: .15rem 0; display: flex; flex-wrap: wrap; gap: .3rem; }
.given ul li { background: var(--fill); padding: .05rem .5rem; border-radius: .3rem; max-width: 100%; }
details { margin: .8rem 0 0; font-size: .9rem; }
details > * + * { margin-top: .6rem; }
summary { color: var(--soft); cursor: pointer; }
.count { color: var(--soft); font-variant-numeric: tabular-nums; }
bdi, .example h3 { overflow-wrap: anywhere; unicode-bidi: isolate; }
pre {
  padding: .9rem 1rem; background: var(--fill); overflow-wrap: anywhere; white-space: pre-wrap;
  font: .82rem/1.5 ui-monospace, "Cascadia Mono", Menlo, "DejaVu Sans Mono", monospace;
}
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }

@media screen and (max-width: 820px) {
  body { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.35rem; }
  .facts { grid-template-columns: 1fr 1fr; gap: .8rem 1.25rem; }
  .on-wide { display: none; }
  .on-narrow { display: block; }
  .row { grid-template-columns: 1fr auto; margin: .6rem 0; }
  .row svg { grid-column: 1 / -1; grid-row: 2; }
  .row .against { grid-column: 1 / -1; }
  .row.head { display: none; }
}
@media print {
  @page { margin: 13mm; }
  body { padding: 0; font-size: 10pt; }
  h2, h3, h4, .keys, .row.head { break-after: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 7.2pt; }
  th, td { padding: .15rem .25rem; }
  td small { font-size: 6pt; }
  tbody th, thead th:first-child { position: static; }
  .row { grid-template-columns: 9.5rem 5.5rem 1fr 8rem; break-inside: avoid; }
  .panels { grid-template-columns: repeat(4, 1fr); }
  .words { columns: 2; }
  .given { grid-template-columns: repeat(3, 1fr); }
  details { display: none; }
}
"""

_TEMPLATE = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
    """\
{% macro given(blocks) %}
<ul class="given">
{% for block in blocks %}
<li><div class="who">{{ block.modes|join(", ") }}</div>
<div class="how">{{ block.right }}{{ ", " ~ block.same if block.same }}</div>
<ul>
{% for answer in block.answers %}
<li>
{% if answer.em == 1 %}
<span class="yes" role="img" aria-label="right">&#10003;</span>
{% elif answer.em is not none %}
<span class="no" role="img" aria-label="wrong">&#10007;</span>
{% endif %}
{% if answer.text %}
<bdi>{{ answer.text }}</bdi>
{% else %}
<em>empty</em>
{% endif %}
<span class="count">&times;{{ answer.count }}</span>
</li>
{% endfor %}
{% if block.more %}
<li>and {{ block.more }} more answers</li>
{% endif %}
</ul>
{% if block.wrong %}
<div class="how">wrong with gold {{ block.wrong }}</div>
{% endif %}
</li>
{% endfor %}
</ul>
{% endmacro %}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="generator" content="LinearKV">
<link rel="icon" href="data:,">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
<h1>{{ verdict }}.</h1>
<dl class="facts">
{% for name, value in facts %}
<div><dt>{{ name }}</dt> <dd><bdi>{{ value }}</bdi></dd></div>
{% endfor %}
</dl>

<section>
<h2 id="modes">Modes</h2>
{% if groups %}
<p class="about" id="table">
Every mode answered the same questions from the same chunks in the same orders. Means over questions and random orders;
small print is the 95% interval, under TTFT the ratio to full prefill.
</p>
<div class="scroll" tabindex="0" role="region" aria-labelledby="modes">
<table aria-labelledby="modes" aria-describedby="table">
<thead>
<tr><th scope="col">mode</th>{% for name, _ in columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr>
</thead>
{% for title, rows in groups %}
<tbody>
<tr class="group"><th scope="rowgroup" colspan="{{ columns|length + 1 }}">{{ title }}</th></tr>
{% for row in rows %}
<tr class="of-{{ row.kind }}"><th scope="row" class="{{ row.kind }}">{{ row.mode }}</th>
{% for text, small in row.cells %}
<td{% if loop.index == 3 and row.keeps %} class="{{ row.keeps }}"{% endif %}>{{ text }}
{%- if small %}<small>{{ small }}</small>{% endif %}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
{% endfor %}
</table>
</div>
<h3>The columns</h3>
<dl class="words">
{% for name, words in columns %}
<div><dt>{{ name }}</dt> <dd>{{ words }}</dd></div>
{% endfor %}
</dl>
{% if modes %}
<h3>The modes</h3>
<dl class="words">
{% for name, words in modes %}
<div><dt>{{ name }}</dt> <dd>{{ words[0]|upper ~ words[1:] }}.</dd></div>
{% endfor %}
</dl>
{% endif %}
{% else %}
<p class="missing">There is no table: no question could be asked. The notes below say why.</p>
{% endif %}
</section>

{% for figure in figures %}
<section>
<h2>{{ figure.title }}</h2>
{% if figure.missing %}
<p class="missing">Left out: {{ figure.missing }}.</p>
{% else %}
<p class="about">{{ figure.about }}</p>
{% for subtitle, drawing in figure.parts %}
{% if subtitle %}
<h3>{{ subtitle }}</h3>
{% endif %}
<figure>{{ drawing }}</figure>
{% endfor %}
{% if figure.remark %}
<p class="about">{{ figure.remark }}</p>
{% endif %}
{% endif %}
</section>
{% endfor %}

<section>
<h2>Questions that flip</h2>
{% if examples %}
<p class="about">
The {{ examples|length }} question{{ "s" if examples|length > 1 }} in which full prefill and {{ examples_of }} disagree
most, over the random orders. Behind each answer stands in how many orders it was given; answers that are the same under
the scoring rule are one, and modes with the same answers share a block. Under them, where the gold chunk stood when a
mode was wrong.
</p>
{% for example in examples %}
<article class="example">
<h3 dir="auto">{{ example.question }}</h3>
<p class="meta">
{% if example.answers %}
Accepted:
{% for answer in example.answers %}
<strong><bdi>{{ answer }}</bdi></strong>{{ "," if not loop.last }}
{% endfor %}
{{ "and " ~ example.more_answers ~ " more" if example.more_answers }}&ensp;
{% else %}
No accepted answer is known.
{% endif %}
{% if example.gold %}
Gold:
{% for name in example.gold %}
<bdi>{{ name }}</bdi>,
{% endfor %}
among {{ example.chunks }} chunks.
{% else %}
{{ example.chunks }} chunk{{ "s" if example.chunks != 1 }}, no gold chunk known.
{% endif %}
{% if example.hops %}
{{ example.hops }} hop{{ "s" if example.hops != 1 }}.
{% endif %}
{% if example.note %}
<bdi>{{ example.note }}</bdi>.
{% endif %}
Id <bdi>{{ example.id }}</bdi>.
</p>
{{ given(example.blocks) }}
{% if example.others %}
<details>
<summary>Other recipes and ablations</summary>
{{ given(example.others) }}
</details>
{% endif %}
</article>
{% endfor %}
{% elif examples_of and groups %}
<p class="missing">None: {{ examples_of }} gave full prefill&#8217;s answer to every question in every random order.</p>
{% else %}
<p class="missing">Left out: no mode that composes was evaluated.</p>
{% endif %}
</section>

<section>
<h2>Scoring, notes and how to run it again</h2>
<p class="about">
Answers were compared under the rule <strong>{{ rule }}</strong>. {{ rule_words }} The question is the unit of every
interval: questions are drawn again with all their orders, {{ "{:,}".format(resamples) }} times.
</p>
{% if unscored or notes %}
<ul>
{% for line in unscored %}
<li>{{ line }}.</li>
{% endfor %}
{% for note in notes %}
<li><bdi>{{ note }}</bdi></li>
{% endfor %}
{% if more_notes %}
<li>and {{ more_notes }} more notes, which the JSON report has.</li>
{% endif %}
</ul>
{% endif %}
<h3>Run it again</h3>
<pre><code>{{ again }}</code></pre>
<h3>Options</h3>
<pre><code>{{ options }}</code></pre>
</section>
</main>
<footer>
Made by LinearKV from the records of the evaluation alone. Every answer and every number is in the JSON report.
</footer>
</body>
</html>
"""
)
