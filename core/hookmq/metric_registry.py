"""Metric families by name, read when they are exported, and their text in the formats of Prometheus and OpenMetrics.

A family holds no value: it is read through callables at export, so that what counts on the hot path is a plain integer
of somebody's own. All calls on the loop's thread; no lock.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Final, Literal

from hookmq.metrics import PREFIX

Kind = Literal["counter", "gauge", "summary"]
Value = int | float
Sample = tuple[Mapping[str, str], Value]
"""(labels, value)."""
Read = Callable[[], Value | Iterable[Sample]]
"""What a counter or a gauge is read by: one value without labels, or a value for each set of labels."""
Timing = tuple[Mapping[str, str], Value, Value]
"""(labels, count, sum)."""
ReadTimings = Callable[[], Iterable[Timing]]
Unreadable = Callable[[str, str, Exception], None]
"""Told (family, plugin, error) the first time that a reader fails."""

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RESERVED: Final = ("_total", "_sum", "_count", "_bucket")
_Row = tuple[str, Mapping[str, str], Value]
"""(suffix of the family's name, labels, value)."""


class Family:
    """One family: its readers with the plugin each is of, ``""`` for the core."""

    __slots__ = ("help", "kind", "name", "readers")

    def __init__(self, name: str, kind: Kind, help: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.readers: list[tuple[str, Callable[[], list[_Row]]]] = []


class MetricRegistry:
    """The families of one broker. `unreadable` hears of readers that fail; what they would have told is left out, and
    counted in ``hookmq_metric_errors_total``."""

    __slots__ = ("_errors", "_families", "_plugin", "_unreadable")

    def __init__(self, unreadable: Unreadable | None = None) -> None:
        self._families: dict[str, Family] = {}
        self._errors: dict[tuple[str, str], int] = {}
        self._unreadable = unreadable
        self._plugin = ""
        self.counter(
            "metric_errors_total", "Metrics that could not be read, by family.", self._read_errors
        )

    def of(self, plugin: str) -> "MetricRegistry":
        """The same registry as the plugin of that id gets it: each of its samples has the label ``plugin``, so that two
        of one kind can offer the same family."""
        view = copy(self)
        view._plugin = plugin
        return view

    def counter(self, name: str, help: str, read: Read) -> None:
        """Add a counter: a number that only grows while the process lives. `name` ends in ``_total``; ``hookmq_`` is put
        before it. `read` is called at every export, on the event loop. Raises ValueError for what cannot be exported."""
        if not name.endswith("_total"):
            raise ValueError(f"the name of a counter ends in _total: {name}_total")
        self._add(name.removesuffix("_total"), "counter", help, lambda: _rows(read(), "_total"))

    def gauge(self, name: str, help: str, read: Read) -> None:
        """Add a gauge: a number that goes up and down. Otherwise as `counter`."""
        self._add(name, "gauge", help, lambda: _rows(read(), ""))

    def summary(self, name: str, help: str, read: ReadTimings) -> None:
        """Add a summary: how many and their sum, as of durations in seconds, exported as ``_count`` and ``_sum``.
        Otherwise as `counter`."""
        self._add(name, "summary", help, lambda: _timings(read()))

    def _add(self, name: str, kind: Kind, help: str, read: Callable[[], list[_Row]]) -> None:
        name = PREFIX + name.removeprefix(PREFIX)
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a metric: letters, digits and _")
        if name.endswith(_RESERVED):
            raise ValueError(
                f"{name}: {', '.join(_RESERVED)} at the end have meanings of their own"
            )
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = Family(name, kind, help)
        elif (found.kind, found.help) != (kind, help):
            raise ValueError(f"{name} is already there, as a {found.kind}: {found.help}")
        elif any(owner == self._plugin for owner, _ in found.readers):
            raise ValueError(f"{name} is already there")
        found.readers.append((self._plugin, read))

    def text(self, openmetrics: bool = False) -> str:
        """Every family as text, the names in order: of media type `TEXT`, or `OPENMETRICS` if asked for."""
        lines: list[str] = []
        for name in sorted(self._families):
            family = self._families[name]
            # Prometheus' own format calls a counter by its whole name, OpenMetrics by the family's.
            shown = name if openmetrics or family.kind != "counter" else f"{name}_total"
            lines.append(f"# HELP {shown} {_escape(family.help, quotes=openmetrics)}")
            lines.append(f"# TYPE {shown} {family.kind}")
            lines += self._samples(family)
        if openmetrics:
            lines.append("# EOF")
        return "\n".join(lines) + "\n"

    def _samples(self, family: Family) -> Iterator[str]:
        seen: set[str] = set()
        for plugin, read in family.readers:
            try:
                lines = [
                    (f"{family.name}{suffix}{_labels(labels, plugin)}", _number(value))
                    for suffix, labels, value in read()
                ]
                names = [name for name, _ in lines]
                if len(set(names)) < len(names) or not seen.isdisjoint(names):
                    raise ValueError("two values have the same labels")
            except Exception as error:
                self._failed(family.name, plugin, error)
                continue
            seen.update(names)
            yield from (f"{name} {number}" for name, number in lines)

    def _failed(self, family: str, plugin: str, error: Exception) -> None:
        key = (family, plugin)
        self._errors[key] = self._errors.get(key, 0) + 1
        if self._errors[key] == 1 and self._unreadable is not None:
            self._unreadable(family, plugin, error)

    def _read_errors(self) -> list[Sample]:
        return [
            ({"family": family, "plugin": plugin}, count)
            for (family, plugin), count in self._errors.items()
        ]


def _rows(read: Value | Iterable[Sample], suffix: str) -> list[_Row]:
    if isinstance(read, int | float):
        return [(suffix, {}, read)]
    return [(suffix, labels, value) for labels, value in read]


def _timings(read: Iterable[Timing]) -> list[_Row]:
    rows: list[_Row] = []
    for labels, count, total in read:
        rows += (("_count", labels, count), ("_sum", labels, total))
    return rows


def _labels(labels: Mapping[str, str], plugin: str) -> str:
    if plugin:
        labels = {**labels, "plugin": plugin}
    if not labels:
        return ""
    for name in labels:
        if not _NAME.fullmatch(name) or name.startswith("__"):
            raise ValueError(f"{name!r} is no name of a label: letters, digits and _")
    pairs = (f'{name}="{_escape(str(labels[name]), quotes=True)}"' for name in sorted(labels))
    return "{" + ",".join(pairs) + "}"


def _escape(text: str, quotes: bool) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _number(value: Value) -> str:
    if isinstance(value, int):
        return str(int(value))
    if not isinstance(value, float):
        raise TypeError(f"{value!r} is no number")
    if math.isfinite(value):
        return repr(value).removesuffix(".0")
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
