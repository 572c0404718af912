"""Draw SVG plots: lines over time, and bars over a logarithmic axis. They need no fonts, scripts or other files.

Colors are CSS classes. The page's style sheet defines them for light and dark mode.
"""

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final, NamedTuple

WIDTH: Final = 640
HEIGHT: Final = 240
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 30
POINTS: Final = 300
"""Maximum number of points drawn for one line."""


class Line(NamedTuple):
    """One line in a plot: its name and its points."""

    name: str
    points: Sequence[tuple[float, float]]


class Axis:
    """An axis drawn from position `start` to `end`, with marks at the values in `ticks`."""

    def __init__(
        self,
        low: float,
        high: float,
        start: float,
        end: float,
        ticks: Sequence[float],
        logarithmic: bool = False,
    ) -> None:
        self.ticks = ticks
        self._scale: Callable[[float], float] = log10 if logarithmic else float
        self._low = self._scale(low)
        self._span = self._scale(high) - self._low or 1.0
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Return where `value` lies on the axis."""
        part = (self._scale(value) - self._low) / self._span
        return self._start + part * (self._end - self._start)


def linear(highest: float, start: float, end: float, count: int = 5) -> Axis:
    """Return an axis from 0 to a round number not below `highest`."""
    highest = highest or 1.0
    rough = highest / count
    power: float = 10 ** floor(log10(rough))
    step = next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= rough * 0.999)
    number = ceil(highest / step - 1e-9)
    return Axis(0, number * step, start, end, [step * index for index in range(number + 1)])


def spanning(highest: float, start: float, end: float) -> Axis:
    """Return an axis from 0 to exactly `highest`, with marks at round numbers."""
    ticks = [one for one in linear(highest, 0, 1).ticks if one <= highest * 1.0001]
    return Axis(0, highest or 1.0, start, end, ticks)


def decades(lowest: float, highest: float, start: float, end: float) -> Axis:
    """Return a logarithmic axis with marks at 1, 2 and 5 times powers of ten, or fewer over a wide range."""
    low, high = floor(log10(lowest)), ceil(log10(highest))
    factors = (1, 2, 5) if high - low <= 3 else (1,)
    ticks = [one * 10.0**power for power in range(low, high + 1) for one in factors]
    inside = [one for one in ticks if lowest * 0.999 <= one <= highest * 1.001]
    return Axis(lowest, highest, start, end, inside, logarithmic=True)


def lines(
    title: str, series: Sequence[Line], named: Callable[[float], str], begun: float = 0.0
) -> str:
    """Plot lines over time in seconds. `named` formats the values on the vertical axis. `begun` is when measuring
    began. The plot marks that time, unless it is 0.
    """
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    last = max(points[-1][0] for _, points in drawn)
    x = spanning(last, LEFT, WIDTH - RIGHT)
    y = linear(max(v for _, points in drawn for _, v in points), HEIGHT - BOTTOM, TOP)
    parts = _frame(x, y, named, lambda value: f"{value:g}", "seconds")
    if 0 < begun < last:
        at = x(begun)
        parts += [
            f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
            f'<text class="label" x="{at + 4:.1f}" y="{HEIGHT - BOTTOM - 5}">measured from here</text>',
        ]
    for number, (_, points) in enumerate(drawn):
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in thin(points))
        parts.append(f'<polyline class="line c{number}" points="{path}"/>')
    return _figure(title, [name for name, _ in drawn] if len(drawn) > 1 else [], parts)


def bars(
    title: str,
    counts: Sequence[tuple[float, float, int]],
    named: Callable[[float], str],
    marks: Sequence[tuple[str, float]] = (),
) -> str:
    """Plot bars, given as (from, to, count), over a logarithmic axis. `named` formats axis values. `marks` are labelled
    lines drawn across the plot."""
    if not counts:
        return ""
    x = decades(max(counts[0][0], 1.0), max(counts[-1][1], 2.0), LEFT, WIDTH - RIGHT)
    total = sum(times for _, _, times in counts)
    y = linear(100 * max(times for _, _, times in counts) / total, HEIGHT - BOTTOM, TOP)
    parts = _frame(x, y, lambda value: f"{value:g} %", named, "")
    for low, high, times in counts:
        left, right, top = x(max(low, 1.0)), x(high), y(100 * times / total)
        parts.append(
            f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{max(right - left - 0.6, 0.6):.1f}"'
            f' height="{HEIGHT - BOTTOM - top:.1f}"/>'
        )
    taken = -100.0
    row = 0
    for name, value in marks:
        at = x(min(max(value, 1.0), counts[-1][1]))
        row = row + 1 if at - taken < 44 else 0
        taken = at
        parts.append(
            f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        side, shift = ("end", -4) if at > WIDTH - 60 else ("start", 4)
        parts.append(
            f'<text class="label" x="{at + shift:.1f}" y="{TOP + 10 + 13 * row}"'
            f' text-anchor="{side}">{escape(name)}</text>'
        )
    return _figure(title, [], parts)


def curve(title: str, series: Sequence[Line], named: Callable[[float], str]) -> str:
    """Plot values by percentile. Each additional nine gets the same width. Points are (percentile, value)."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""

    def nines(percent: float) -> float:
        return -log10(1 - percent / 100)

    last = max(nines(points[-1][0]) for _, points in drawn)
    marks = [one for one in (0, 50, 90, 99, 99.9, 99.99, 99.999) if nines(one) <= last * 1.001]
    x = Axis(0, last, LEFT, WIDTH - RIGHT, [nines(one) for one in marks])
    names = {nines(one): f"{one:g} %" for one in marks}
    y = linear(max(v for _, points in drawn for _, v in points), HEIGHT - BOTTOM, TOP)
    parts = _frame(x, y, named, lambda value: names[value], "")
    for number, (_, points) in enumerate(drawn):
        path = " ".join(f"{x(nines(at)):.1f},{y(value):.1f}" for at, value in points)
        parts.append(f'<polyline class="line c{number}" points="{path}"/>')
    return _figure(title, [name for name, _ in drawn] if len(drawn) > 1 else [], parts)


def _frame(
    x: Axis,
    y: Axis,
    vertical: Callable[[float], str],
    horizontal: Callable[[float], str],
    across: str,
) -> list[str]:
    parts = []
    for value in y.ticks:
        at = y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(vertical(value))}</text>'
        )
    bottom = HEIGHT - BOTTOM
    for value in x.ticks:
        at = x(value)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        )
        side = "end" if at > WIDTH - RIGHT - 14 else "middle"
        parts.append(
            f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="{side}">{escape(horizontal(value))}</text>'
        )
    if across:
        parts.append(
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 1}" text-anchor="middle">{escape(across)}</text>'
        )
    return parts


def _figure(title: str, names: Sequence[str], parts: Sequence[str]) -> str:
    legend = "".join(
        f'<span class="key"><i class="c{number}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return (
        f"<figure><figcaption>{escape(title)}{legend}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Reduce a line to at most `POINTS` points by averaging consecutive points."""
    if len(points) <= POINTS:
        return list(points)
    found = []
    for number in range(POINTS):
        part = points[number * len(points) // POINTS : (number + 1) * len(points) // POINTS]
        found.append((part[-1][0], sum(value for _, value in part) / len(part)))
    return found
