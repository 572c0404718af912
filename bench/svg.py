"""Draw SVG line charts for the bench's curves."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 44, 52
COLOURS = ("#9e3d22", "#1f6f8b", "#c98a1b", "#7a7a7a", "#5d8a3a")


class Point(NamedTuple):
    """A measured value, with the lowest and highest values of its runs."""

    x: float
    y: float
    least: float
    most: float


class Axis:
    """Converts values to pixels. The scale is logarithmic unless the values start at 0."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        found = list(values)
        self.log = min(found) > 0
        low, high = min(found), max(found)
        if self.log:
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
            high = max(high, low * 10)
        else:
            high = max(high, low + 1)
        self.low, self.high, self.start, self.end = low, high, start, end

    def at(self, value: float) -> float:
        """Return the pixel position of a value."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the values to mark. On a logarithmic axis, mark powers of ten. If there are only a few, also mark 2 and
        5 times each power. On a linear axis, mark about five evenly spaced values.
        """
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            digits = (1, 2, 5) if last - first < 3 else (1,)
            found = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
            return [value for value in found if value <= self.high]
        step = max(1, math.ceil(self.high / 5))
        return [float(value) for value in range(0, int(self.high) + 1, step)]


def short(value: float) -> str:
    """Format a number as an axis label."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def chart(
    title: str,
    x: str,
    y: str,
    lines: Mapping[str, Sequence[Point]],
    order: Sequence[str] = (),
) -> str:
    """Draw a chart of `lines`, which maps names to points. Each line needs at least one point.

    A name in `order` gets its color from its position there, so it has the same color in every chart.
    """
    points = [point for line in lines.values() for point in line]
    across = Axis((point.x for point in points), LEFT, WIDTH - RIGHT)
    up = Axis((v for p in points for v in (p.least, p.most)), HEIGHT - BOTTOM, TOP)
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x)}</text>',
        f'<text x="16" y="{(TOP + HEIGHT - BOTTOM) / 2:g}" text-anchor="middle" '
        f'transform="rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2:g})">{escape(y)}</text>',
    ]
    for value in across.ticks():
        made.append(_line(across.at(value), TOP, across.at(value), HEIGHT - BOTTOM, "#e4e4e4"))
        made.append(_text(across.at(value), HEIGHT - BOTTOM + 16, short(value), "middle"))
    for value in up.ticks():
        made.append(_line(LEFT, up.at(value), WIDTH - RIGHT, up.at(value), "#e4e4e4"))
        made.append(_text(LEFT - 6, up.at(value) + 4, short(value), "end"))
    for number, (name, line) in enumerate(lines.items()):
        place_of = order.index(name) if name in order else number
        colour = COLOURS[place_of % len(COLOURS)]
        path = " ".join(f"{across.at(p.x):.1f},{up.at(p.y):.1f}" for p in line)
        made.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for p in line:
            place = across.at(p.x)
            made.append(_line(place, up.at(p.least), place, up.at(p.most), colour))
            made.append(f'<circle cx="{place:.1f}" cy="{up.at(p.y):.1f}" r="3" fill="{colour}"/>')
        row = TOP + 14 + 20 * number
        made.append(_line(WIDTH - RIGHT + 12, row - 4, WIDTH - RIGHT + 32, row - 4, colour))
        made.append(_text(WIDTH - RIGHT + 38, row, name, "start"))
    return "\n".join((*made, "</svg>", ""))


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
