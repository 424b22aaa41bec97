"""SVG of lines, dots and text: elements, scales, and room for names.

What has room for one drawing only on a wide screen is drawn twice, and the style sheet shows one of them: text then
keeps its size on a phone. Colours are names in the style sheet, so that they follow the reader's light or dark setting.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

WIDE, NARROW = 900, 340
"""Widths in pixels of a drawing on a screen and on a phone."""


def element(name: str, *children: str, **attributes: object) -> Markup:
    """An element; a trailing underscore in an attribute's name goes, others become hyphens."""
    given = [f' {key.rstrip("_").replace("_", "-")}="{escape(coordinate(value))}"' for key, value in attributes.items()]
    return Markup(f"<{name}{''.join(given)}>{''.join(map(escape, children))}</{name}>")


def coordinate(value: object) -> str:
    """An attribute's value: fractions to a hundredth, so that the page is shorter and the same on every processor."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def svg(width: float, height: float, said: str, *children: str) -> Markup:
    return element(
        "svg",
        *children,
        role="img",
        aria_label=said,
        width=float(width),
        height=float(height),
        viewBox=f"0 0 {coordinate(float(width))} {coordinate(float(height))}",
    )


def for_both(draw: Callable[[int], Markup]) -> Markup:
    return Markup("").join(
        [element("div", draw(WIDE), class_="on-wide"), element("div", draw(NARROW), class_="on-narrow")]
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def label(x: float, y: float, text: str, class_: str = "tick", anchor: str = "start") -> Markup:
    return element("text", text, x=float(x), y=float(y), class_=class_, text_anchor=anchor)


def mark(x: float, y: float, kind: str, radius: float = 4.5) -> Markup:
    """Kinds differ by shape as well as by colour."""
    if kind == "other":
        r = radius * 1.2
        there, back = coordinate(r), coordinate(-r)
        points = f"M{coordinate(x)} {coordinate(y - r)}l{there} {there}l{back} {there}l{back} {back}z"
        return element("path", d=points, class_="mark other")
    return element("circle", cx=float(x), cy=float(y), r=radius, class_=f"mark {kind}")


@dataclass(frozen=True)
class Scale:
    """Values as pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def round_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, about so many."""
    if high <= low:
        low, high = low - 0.05, high + 0.05
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A share as a tick has it: no more digits than it needs."""
    return f"{100 * value:.4g}%"


def name_columns(
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


def side_by_side(places: Sequence[float], gap: float, end: float) -> list[float]:
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


def apart(heights: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Ascending `heights` moved as little as a gap between them needs, within the ends where there is room."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, top if not moved else moved[-1] + gap))
    limit = bottom
    for number in reversed(range(len(moved))):
        moved[number] = min(moved[number], limit)
        limit = moved[number] - gap
    return moved
