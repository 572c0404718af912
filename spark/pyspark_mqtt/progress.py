"""Compute the progress of a query's mqtt sources.

Spark cannot show the metrics or the name of a Python source: ``sources[].metrics`` is empty, and
``sources[].description`` is the name of a Java object. All values here are computed from the offsets, which Spark does
report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DESCRIPTION = "PythonMicroBatchStream"
"""Part of the description that Spark gives each source in Python."""


@dataclass(frozen=True)
class SourceProgress:
    """The progress of one source after a batch.

    The three lags have the same names as in Kafka's source. ``batch_ms`` is the duration of the batch, from planning to
    the commit. A new message waits for at most two batches.
    """

    description: str
    log_id: str
    offsets: Mapping[int, int]
    lag: Mapping[int, int]
    """For each partition, the number of messages that were in the log, but not in this batch or an earlier one."""
    rows: int
    rows_per_second: float
    batch_ms: int

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics as numbers, keyed by name."""
        behind = list(self.lag.values()) or [0]
        return {
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
            "offsetsBehindLatest": sum(behind),
            "numInputRows": self.rows,
            "processedRowsPerSecond": self.rows_per_second,
            "batchMs": self.batch_ms,
        }


def source_progress(progress: Any) -> Iterator[SourceProgress]:
    """Yield the progress of each mqtt source of a query, in the order of the query.

    ``progress`` is ``query.lastProgress``, the ``progress`` of a listener's event, or its JSON as a dict.
    """
    given: Mapping[str, Any] = progress
    if not isinstance(progress, Mapping):
        given = json.loads(progress.json)
    took = given.get("durationMs") or {}
    for source in given.get("sources") or ():
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if DESCRIPTION not in source.get("description", "") or "log_id" not in end:
            continue
        log_id = str(end["log_id"])
        offsets = {int(p): int(o) for p, o in end.items() if p != "log_id"}
        known = latest if latest.get("log_id") == log_id else end
        lag = {p: max(0, int(known.get(str(p), o)) - o) for p, o in offsets.items()}
        partitions = ", ".join(map(str, sorted(offsets)))
        yield SourceProgress(
            f"mqtt[log {log_id}, partitions {partitions}]",
            log_id,
            offsets,
            lag,
            int(source.get("numInputRows", 0)),
            float(source.get("processedRowsPerSecond") or 0.0),
            int(took.get("triggerExecution", 0)),
        )


def _offsets(given: object) -> Mapping[str, Any]:
    """Return offsets, which Spark gives as JSON or as text that contains JSON."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    return given if isinstance(given, Mapping) else {}
