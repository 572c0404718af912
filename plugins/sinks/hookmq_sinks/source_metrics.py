"""The metrics of the sources."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from hookmq.plugin import MetricRegistry

from hookmq_sinks.source_process import SourceProcess

_STATES: Final = ("starting", "active", "retrying", "failed", "paused")


def register_sources(
    registry: MetricRegistry, sources: Callable[[], Sequence[SourceProcess]]
) -> None:
    """Add the source metrics to a `MetricRegistry`."""

    def each(
        read: Callable[[SourceProcess], Any],
    ) -> Callable[[], list[tuple[dict[str, str], float]]]:
        return lambda: [({"source": one.name}, float(read(one))) for one in sources()]

    registry.counter(
        "sources_received_total", "Messages of a source that the broker took.", each(lambda one: one.received)
    )  # fmt: skip
    registry.counter(
        "sources_refused_total",
        "Refusals of messages of a source, including those that were tried again.",
        each(lambda one: one.refused),
    )
    registry.counter(
        "sources_restarts_total", "Restarts of a source's process.", each(lambda one: one.restarts)
    )
    registry.gauge(
        "sources_state",
        "1 for the present state of a source, 0 for the others.",
        lambda: [
            ({"source": one.name, "state": word}, float(one.status["state"] == word))
            for one in sources()
            for word in _STATES
        ],
    )
    registry.gauge(
        "sources_stored_dead_letters",
        "Dead letters of a source on disk.",
        each(lambda one: one.status.get("dead_letters", 0)),
    )
