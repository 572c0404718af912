"""The metrics of the sinks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from hookmq.plugin import MetricRegistry
from hookmq_toolkit.sinks import SinkStatus

_COUNTERS: Final = {
    "sinks_written_total": ("written", "Messages that a target confirmed."),
    "sinks_batches_total": ("batches", "Batches that a target confirmed."),
    "sinks_failures_total": ("failures", "Attempts to open a target or write a batch that failed."),
    "sinks_dead_letters_total": ("dead_letters", "Messages that a target did not take."),
    "sinks_dropped_total": ("dropped", "Messages dropped because a sink's log was full."),
    "sinks_restarts_total": ("restarts", "Restarts of a sink's process."),
}
_STATES: Final = ("starting", "active", "retrying", "failed", "paused")


def register(registry: MetricRegistry, sinks: Callable[[], Sequence[SinkStatus]]) -> None:
    """Add the metrics to a `MetricRegistry`."""

    def each(read: Callable[[SinkStatus], float]) -> list[tuple[dict[str, str], float]]:
        return [({"sink": one.name}, read(one)) for one in sinks()]

    def count(name: str) -> list[tuple[dict[str, str], float]]:
        return each(lambda one: one.counts.get(name, 0))

    for name, (key, help) in _COUNTERS.items():
        registry.counter(name, help, partial(count, key))
    registry.gauge(
        "sinks_state",
        "1 for the present state of a sink, 0 for the others.",
        lambda: [
            ({"sink": one.name, "state": word}, float(one.state == word))
            for one in sinks()
            for word in _STATES
        ],
    )
    registry.gauge("sinks_lag", "Messages that are not done.", lambda: each(lambda one: one.lag))
    registry.gauge(
        "sinks_lag_seconds",
        "Age of the oldest message that is not done; 0 if there is none.",
        lambda: each(lambda one: one.lag_seconds or 0.0),
    )
    registry.gauge(
        "sinks_stored_bytes", "Size of a sink's log.", lambda: each(lambda one: one.bytes)
    )
    registry.gauge(
        "sinks_full", "1 while a sink's log has no room.", lambda: each(lambda one: int(one.full))
    )
    registry.gauge(
        "sinks_fill",
        "Share of `max_bytes` that a sink's log uses.",
        lambda: each(lambda one: one.bytes / one.max_bytes),
    )
    registry.gauge(
        "sinks_stored_dead_letters",
        "Dead letters on disk.",
        lambda: each(lambda one: one.dead_letters),
    )
    registry.summary(
        "sinks_write_seconds",
        "Time from passing a batch to a target until it was confirmed.",
        lambda: [
            ({"sink": one.name}, int(one.counts["batches"]), one.counts["write_seconds"])
            for one in sinks()
        ],
    )
