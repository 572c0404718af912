"""Metric families, and their export in the Prometheus and OpenMetrics text formats.

Families do not store values. They call their readers at each export, so counting code only increments plain integers. All
calls are made on the event loop, so no lock is needed.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import lru_cache
from typing import Final, Literal

from hookmq.model.histogram import Exemplar, Histogram, check_exemplar
from hookmq.model.metrics import PREFIX

MetricKind = Literal["counter", "gauge", "summary", "histogram"]
Value = int | float
Sample = tuple[Mapping[str, str], Value]
"""(labels, value)."""
Read = Callable[[], Value | Iterable[Sample]]
"""Reads a counter or gauge: returns one value without labels, or a value for each set of labels."""
Timing = tuple[Mapping[str, str], Value, Value]
"""(labels, count, sum)."""
ReadTimings = Callable[[], Iterable[Timing]]
ReadHistograms = Callable[[], Iterable[tuple[Mapping[str, str], Histogram]]]
"""Returns (labels, histogram) for each set of labels."""
Unreadable = Callable[[str, str, Exception], None]
"""Called with (family, plugin, error) when a reader fails for the first time."""

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RESERVED: Final = ("_total", "_sum", "_count", "_bucket")
_Row = tuple[str, Mapping[str, str], Value, Exemplar | None]
"""(suffix for the family's name, labels, value, exemplar)."""


class MetricFamily:
    """A metric family and its readers. Each reader is stored with its plugin id, or ``""`` for the core."""

    __slots__ = ("help", "kind", "name", "readers")

    def __init__(self, name: str, kind: MetricKind, help: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.readers: list[tuple[str, Callable[[], list[_Row]]]] = []


class MetricRegistry:
    """A broker's metric families.

    If a reader fails, the export omits its values and ``hookmq_metric_errors_total`` counts the failure. `unreadable`
    is called for the first failure.
    """

    __slots__ = ("_errors", "_families", "_plugin", "_prefix", "_unreadable")

    def __init__(self, unreadable: Unreadable | None = None) -> None:
        self._families: dict[str, MetricFamily] = {}
        self._errors: dict[tuple[str, str], int] = {}
        self._unreadable = unreadable
        self._plugin = ""
        self._prefix = PREFIX
        self.counter(
            "metric_errors_total", "Failed readings of metrics, by family.", self._read_errors
        )

    def of(self, plugin: str) -> "MetricRegistry":
        """Return a view for one plugin. The view adds the label ``plugin`` to each sample, so several plugins can
        share a family."""
        view = copy(self)
        view._plugin = plugin
        return view

    def standard(self) -> "MetricRegistry":
        """Return a view that adds no prefix to names, for metrics whose names are the same in all programs."""
        view = copy(self)
        view._prefix = ""
        return view

    def counter(self, name: str, help: str, read: Read) -> None:
        """Add a counter, which only increases. `name` must end in ``_total``; the prefix ``hookmq_`` is added to it.

        `read` is called at each export, on the event loop, and must not block. Raises ValueError if the name is
        invalid or taken.
        """
        if not name.endswith("_total"):
            raise ValueError(f"{name}: the name of a counter must end in _total")
        self._add(name.removesuffix("_total"), "counter", help, lambda: _rows(read(), "_total"))

    def gauge(self, name: str, help: str, read: Read) -> None:
        """Add a gauge, which can increase and decrease. Otherwise, this works like `counter`."""
        self._add(name, "gauge", help, lambda: _rows(read(), ""))

    def summary(self, name: str, help: str, read: ReadTimings) -> None:
        """Add a summary, such as durations in seconds, exported as ``_count`` and ``_sum``. Otherwise, this works like
        `counter`.
        """
        self._add(name, "summary", help, lambda: _timings(read()))

    def histogram(self, name: str, help: str, read: ReadHistograms) -> None:
        """Add a histogram, for example of durations in seconds, exported as ``_bucket``, ``_count`` and ``_sum``.
        Otherwise, this works like `counter`.
        """
        self._add(name, "histogram", help, lambda: _buckets(read()))

    def _add(self, name: str, kind: MetricKind, help: str, read: Callable[[], list[_Row]]) -> None:
        name = self._prefix + name.removeprefix(PREFIX)
        if not _NAME.fullmatch(name):
            raise ValueError(f"invalid metric name {name!r}: expected letters, digits and _")
        if name.endswith(_RESERVED):
            raise ValueError(f"{name}: the endings {', '.join(_RESERVED)} are reserved")
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = MetricFamily(name, kind, help)
        elif (found.kind, found.help) != (kind, help):
            raise ValueError(f"{name} already exists as a {found.kind}: {found.help}")
        elif any(owner == self._plugin for owner, _ in found.readers):
            raise ValueError(f"{name} already exists")
        found.readers.append((self._plugin, read))

    def text(self, openmetrics: bool = False) -> str:
        """Return all families as text, sorted by name. The media type is `OPENMETRICS` if `openmetrics` is true,
        otherwise `TEXT`."""
        return "".join(self.parts(openmetrics))

    def parts(self, openmetrics: bool = False) -> Iterator[str]:
        """Yield the result of `text`, one family at a time, so that the caller can let other work run in between."""
        for name in sorted(self._families):
            family = self._families[name]
            # The Prometheus format uses the counter's full name, OpenMetrics the family's name.
            shown = name if openmetrics or family.kind != "counter" else f"{name}_total"
            lines = [
                f"# HELP {shown} {_escape(family.help, quotes=openmetrics)}",
                f"# TYPE {shown} {family.kind}",
            ]
            lines += [
                f"{sample} {_number(value)}{found if openmetrics else ''}"
                for sample, value, found in self._samples(family)
            ]
            yield "\n".join(lines) + "\n"
        if openmetrics:
            yield "# EOF\n"

    def values(self) -> dict[str, float]:
        """Return the value of every sample. The names are the same as in `text`, such as ``messages_received_total`` or
        ``hook_queue_depth{hook="on_event",plugin="audit"}``, without the prefix ``hookmq_``.
        """
        return {
            name.removeprefix(PREFIX): value
            for family in sorted(self._families)
            for name, value, _ in self._samples(self._families[family])
        }

    def _samples(self, family: MetricFamily) -> Iterator[tuple[str, Value, str]]:
        """Yield each sample's name with its labels, its value, and the text of its exemplar."""
        seen: set[str] = set()
        for plugin, read in family.readers:
            try:
                samples = [
                    (
                        f"{family.name}{suffix}{_labels(labels, plugin)}",
                        _checked(value),
                        "" if found is None else _exemplar(found),
                    )
                    for suffix, labels, value, found in read()
                ]
                names = [name for name, *_ in samples]
                if len(set(names)) < len(names) or not seen.isdisjoint(names):
                    raise ValueError("two values have the same labels")
            except Exception as error:
                self._failed(family.name, plugin, error)
                continue
            seen.update(names)
            yield from samples

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
        return [(suffix, {}, read, None)]
    return [(suffix, labels, value, None) for labels, value in read]


def _timings(read: Iterable[Timing]) -> list[_Row]:
    rows: list[_Row] = []
    for labels, count, total in read:
        rows += (("_count", labels, count, None), ("_sum", labels, total, None))
    return rows


def _buckets(read: Iterable[tuple[Mapping[str, str], Histogram]]) -> list[_Row]:
    rows: list[_Row] = []
    for labels, found in read:
        total = 0
        exemplars = found.exemplars or [None] * len(found.counts)
        bounds = (*found.bounds, math.inf)
        for bound, count, exemplar in zip(bounds, found.counts, exemplars, strict=True):
            total += count
            le = "+Inf" if bound == math.inf else repr(float(bound))
            rows.append(("_bucket", {**labels, "le": le}, total, exemplar))
        rows += (("_count", labels, total, None), ("_sum", labels, found.sum, None))
    return rows


def _exemplar(found: Exemplar) -> str:
    """Return the text that OpenMetrics appends to a bucket's line. Raises ValueError or TypeError for an invalid
    exemplar."""
    check_exemplar(found)  # a plugin may have set it without `exemplify`
    return f' # {{trace_id="{found.trace_id}"}} {_number(found.value)} {found.time:.3f}'


def _labels(labels: Mapping[str, str], plugin: str) -> str:
    if plugin:
        labels = {**labels, "plugin": plugin}
    if not labels:
        return ""
    for name in labels:
        _check_label(name)
    pairs = (f'{name}="{_escape(str(labels[name]), quotes=True)}"' for name in sorted(labels))
    return "{" + ",".join(pairs) + "}"


@lru_cache(1024)
def _check_label(name: str) -> None:
    if not _NAME.fullmatch(name) or name.startswith("__"):
        raise ValueError(f"invalid label name {name!r}: expected letters, digits and _")


def _escape(text: str, quotes: bool) -> str:
    if "\\" not in text and "\n" not in text and '"' not in text:
        return text
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _checked(value: Value) -> Value:
    """Return `value`. Raises TypeError if `value` is not a number: a plugin may return anything."""
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return value


def _number(value: Value) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value).removesuffix(".0")
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
