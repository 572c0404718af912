"""What the exporter shows of the service and of what is remembered."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from hookmq_auth_http.cache import Cache
from hookmq_auth_http.service import Counts, Service

_STATES: Final = {"closed": 0, "half-open": 1, "open": 2}


class Decides(Protocol):
    """The plugin, as far as it is of interest here."""

    undecided: int


def register(
    registry: Any,
    plugin: Decides,
    service: Callable[[], Service | None],
    cache: Callable[[], Cache[Any] | None],
) -> None:
    """Add the metrics to a `hookmq.metric_registry.MetricRegistry`."""

    def counts() -> Counts:
        found = service()
        return found.counts if found is not None else Counts()

    def of_cache(name: str) -> int:
        found = cache()
        return 0 if found is None else int(getattr(found, name))

    def state() -> int:
        found = service()
        return 0 if found is None else _STATES[found.breaker.state]

    registry.counter(
        "auth_http_failures_total", "Requests without a usable answer.", lambda: counts().failures
    )
    registry.counter(
        "auth_http_refused_total",
        "Requests not made: too many waited, or the circuit was open.",
        lambda: counts().refused,
    )
    registry.counter(
        "auth_http_undecided_total", "Decisions that could not be made.", lambda: plugin.undecided
    )
    registry.counter(
        "auth_http_cache_hits_total", "Answers that were known.", lambda: of_cache("hits")
    )
    registry.counter(
        "auth_http_cache_misses_total", "Answers that were not.", lambda: of_cache("misses")
    )
    registry.gauge(
        "auth_http_waiting", "Requests that wait for their turn.", lambda: counts().waiting
    )
    registry.gauge("auth_http_running", "Requests under way.", lambda: counts().running)
    registry.gauge("auth_http_circuit", "0 closed, 1 half-open, 2 open.", state)
    registry.summary(
        "auth_http_request_seconds",
        "Time of one request.",
        lambda: [({}, counts().requests, counts().seconds)],
    )
