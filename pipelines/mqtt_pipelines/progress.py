"""Report the queries' progress: a line on stderr for each batch, metrics for Prometheus, and JSON lines for other
programs.

Spark reports progress after each batch. If a file cannot be written, the failure is reported once, and the queries
continue.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark_mqtt.errors import MqttError
from pyspark_mqtt.offsets import Offsets

from mqtt_pipelines.settings import setting
from mqtt_pipelines.sinks import Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mqtt_pipelines.query import Query

log = logging.getLogger("mqtt_pipelines")
PREFIX = "mqtt_pipelines_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """``progress:`` where to report the progress of the queries."""

    lines: bool = setting(True, "a line on stderr for each batch")
    prometheus: str = setting(
        "", "a file for node_exporter's textfile collector, replaced atomically; `NAME.prom`"
    )
    json: str = setting("", "a file to which each batch appends a line of JSON")


@dataclass(frozen=True, slots=True)
class Batch:
    """Spark's report on a batch."""

    query: str
    id: int
    rows: int
    seconds: float
    timestamp: str
    """The time when the batch began, in ISO 8601."""
    lag: Mapping[int, int] = field(default_factory=dict)
    """Number of unread messages at the broker, by partition. It is empty if the source does not report it."""
    late: int = 0
    """Number of rows that arrived after the watermark and were dropped."""
    duplicates: int = 0
    """Number of duplicates that were dropped."""
    state_rows: int = 0
    """Number of rows in the operators' state."""
    watermark: str = ""
    phases: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds that the batch spent in each of Spark's phases, such as ``addBatch``."""

    @property
    def rate(self) -> float:
        """Return the number of rows per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """Return the report as a line of text."""
        told = f"{self.query} batch {self.id}: {self.rows} rows in {self.seconds:.1f} s, {self.rate:.0f} rows/s"
        if self.lag:
            each = ", ".join(f"{p}: {rows}" for p, rows in sorted(self.lag.items()))
            told += f", lag {sum(self.lag.values())} ({each})"
        told += f", {self.duplicates} duplicates" if self.duplicates else ""
        return told + (f", {self.late} too late" if self.late else "")


def batch(told: Mapping[str, Any]) -> Batch:
    """Create a `Batch` from Spark's progress report, given as a parsed JSON object."""
    states = told.get("stateOperators", [])
    return Batch(
        query=told.get("name") or told["id"],
        id=told["batchId"],
        rows=told["numInputRows"],
        seconds=told["batchDuration"] / 1000,
        timestamp=told["timestamp"],
        lag=_lag(told.get("sources", [])),
        late=sum(state.get("numRowsDroppedByWatermark", 0) for state in states),
        duplicates=sum(
            state.get("customMetrics", {}).get("numDroppedDuplicateRows", 0) for state in states
        ),
        state_rows=sum(state.get("numRowsTotal", 0) for state in states),
        watermark=told.get("eventTime", {}).get("watermark", ""),
        phases=told.get("durationMs", {}),
    )


def _lag(sources: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for source in sources:
        edges = []
        for name in ("endOffset", "latestOffset"):
            given: Any = source.get(name)
            try:
                given = json.loads(given) if isinstance(given, str) else given
                edges.append(Offsets.of(given))
            except (MqttError, ValueError, TypeError, AttributeError):
                break
        if len(edges) == 2 and edges[0].log_id == edges[1].log_id:
            for partition, end in edges[0].next.items():
                waits = max(0, edges[1].next.get(partition, end) - end)
                found[partition] = found.get(partition, 0) + waits
    return found


class _Reports(JStreamingQueryListener):
    """Receives each of Spark's reports on batches as JSON, in a single call.

    pyspark's own class asks Java for each field separately, which would take 25 % of the CPU time of a small batch.
    """

    def onQueryProgress(self, jevent: Any) -> None:
        reporter: Any = self.pylistener
        reporter.tell(batch(json.loads(jevent.progress().json())))

    def onQueryIdle(self, jevent: Any) -> None:
        pass


class Reporter(StreamingQueryListener):
    """Listens to a session's queries: ``spark.streams.addListener(reporter)``.

    Spark calls it from a separate thread, with a slight delay. Use its values for display only, not for decisions.
    """

    def __init__(self, app: str, settings: Progress, stderr: TextIO | None = None) -> None:
        self.app = app
        self.settings = settings
        self.stderr = stderr
        self._lock = threading.Lock()
        self._java: Any = None
        self._totals: dict[tuple[str, str], int] = {}
        self._last: dict[str, Batch] = {}
        self._up: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._complained: set[str] = set()

    @property
    def _jlistener(self) -> Any:
        """Return the listener object that Spark calls."""
        if self._java is None:
            jvm: Any = SparkContext._jvm
            self._java = jvm.PythonStreamingQueryListenerWrapper(_Reports(self))
        return self._java

    def written(self, query: Query, batch_id: int, written: Written) -> None:
        """Record the result of a batch, as reported by the runner."""
        with self._lock:
            self._add(query.name, "written_rows", written.rows)
            self._add(query.name, "repeated_batches", int(written.repeated))
        if written.repeated and self.settings.lines:
            self._say(f"{query.name} batch {batch_id} was there already: not written again")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Report that a query is running."""
        name = event.name or str(event.id)
        with self._lock:
            self._names[str(event.id)] = name
            self._up[name] = 1
        self._publish()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report that a batch is done."""
        self.tell(batch(json.loads(event.progress.json)))

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing, because there are no new rows."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Report that a query has ended, with or without an error."""
        with self._lock:
            self._up[self._names.get(str(event.id), str(event.id))] = 0
        self._publish()

    def tell(self, done: Batch) -> None:
        """Write a batch's report to all outputs."""
        with self._lock:
            self._last[done.query] = done
            self._add(done.query, "read_rows", done.rows)
            self._add(done.query, "late_rows", done.late)
            self._add(done.query, "duplicate_rows", done.duplicates)
            self._add(done.query, "batches", 1)
        if self.settings.lines:
            self._say(done.line())
        if self.settings.json:
            self._try(self.settings.json, lambda: _append(self.settings.json, self._json(done)))
        self._publish()

    def drain(self, spark: SparkSession, seconds: float = 10.0) -> None:
        """Wait for reports that Spark has not delivered yet. Call this before stopping the session. Otherwise, the last
        batch is not reported.
        """
        context: Any = spark.sparkContext._jsc
        try:
            context.sc().listenerBus().waitUntilEmpty(int(seconds * 1000))
        except Exception as error:
            log.warning("The last batches may not have been told: %s", error)

    def _publish(self) -> None:
        """Write the metrics file."""
        if self.settings.prometheus:
            with self._lock:
                text = self._metrics()
            self._try(self.settings.prometheus, lambda: _replace(self.settings.prometheus, text))

    def _add(self, query: str, name: str, amount: int) -> None:
        self._totals[query, name] = self._totals.get((query, name), 0) + amount

    def _say(self, text: str) -> None:
        print(f"hookmq-pipelines: {text}", file=self.stderr or sys.stderr, flush=True)

    def _json(self, done: Batch) -> str:
        told = {
            "app": self.app,
            "query": done.query,
            "batch": done.id,
            "timestamp": done.timestamp,
            "rows": done.rows,
            "seconds": done.seconds,
            "rows_per_second": round(done.rate, 3),
            "lag": {str(p): rows for p, rows in sorted(done.lag.items())},
            "late": done.late,
            "duplicates": done.duplicates,
            "state_rows": done.state_rows,
            "watermark": done.watermark,
            "phases": dict(done.phases),
        }
        return json.dumps(told) + "\n"

    def _try(self, path: str, write: Callable[[], None]) -> None:
        try:
            write()
            self._complained.discard(path)
        except OSError as error:
            if path not in self._complained:
                self._complained.add(path)
                log.warning("%s cannot be written, the queries go on: %s", path, error)

    def _metrics(self) -> str:
        """Return all metrics in the Prometheus text format."""
        lines: list[str] = []

        def family(
            name: str, kind: str, help: str, values: Iterable[tuple[dict[str, object], float]]
        ) -> None:
            lines.extend([f"# HELP {PREFIX}{name} {help}", f"# TYPE {PREFIX}{name} {kind}"])
            for labels, value in values:
                given = {"app": self.app, **labels}.items()
                text = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in given)
                number = int(value) if float(value).is_integer() else round(value, 6)
                lines.append(f"{PREFIX}{name}{{{text}}} {number}")

        up = sorted(self._up.items())
        family("up", "gauge", "Whether the query runs.", [({"query": q}, n) for q, n in up])
        for name, help in TOTALS.items():
            counts: list[tuple[dict[str, object], float]] = [
                ({"query": query}, count)
                for (query, counted), count in sorted(self._totals.items())
                if counted == name
            ]
            family(f"{name}_total", "counter", help, counts)
        last = sorted(self._last.items())
        for name, (help, value) in GAUGES.items():
            family(name, "gauge", help, [({"query": q}, value(done)) for q, done in last])
        lag: list[tuple[dict[str, object], float]] = [
            ({"query": q, "partition": p}, rows)
            for q, done in last
            for p, rows in sorted(done.lag.items())
        ]
        waits = "Messages that the broker had and the query had not read, by the log's partition."
        family("lag_rows", "gauge", waits, lag)
        return "\n".join(lines) + "\n"


TOTALS = {
    "batches": "Batches that were run.",
    "read_rows": "Rows that were read.",
    "written_rows": "Rows that were added to tables.",
    "repeated_batches": "Batches that came again after a crash and were in the table already.",
    "late_rows": "Rows that came after the watermark and were dropped.",
    "duplicate_rows": "Rows that agreed with an earlier one and were dropped.",
}
"""Counters since the process started."""
GAUGES: dict[str, tuple[str, Callable[[Batch], float]]] = {
    "batch": ("The last batch.", lambda done: done.id),
    "batch_seconds": ("How long the last batch took.", lambda done: done.seconds),
    "rows_per_second": ("Of the last batch.", lambda done: done.rate),
    "state_rows": ("Rows that stateful operators remember.", lambda done: done.state_rows),
}
"""Values of the last batch."""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _append(path: str, line: str) -> None:
    """Append a line in a single write, so that lines from several writers do not mix."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line)


def _replace(path: str, text: str) -> None:
    """Replace a file atomically."""
    target = Path(path).absolute()
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except OSError:
        os.unlink(name)
        raise
