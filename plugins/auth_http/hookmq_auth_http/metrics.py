"""Register the plugin's metrics: requests to the service, undecided decisions, and cache usage."""

from collections.abc import Callable
from typing import Any, Protocol

from hookmq.plugin import MetricRegistry
from hookmq_toolkit.http_client import HttpService, register_service_metrics
from hookmq_toolkit.ttl_cache import TtlCache


class Decides(Protocol):
    """The parts of the plugin that the metrics read."""

    undecided: int

    @property
    def cache(self) -> TtlCache[bytes, Any]:
        """The cached responses."""


def register(
    registry: MetricRegistry, plugin: Decides, service: Callable[[], HttpService | None]
) -> None:
    """Add the metrics to `registry`."""
    register_service_metrics(registry, "auth_http", service)
    registry.counter("auth_http_undecided_total", "Undecided decisions.", lambda: plugin.undecided)
    registry.counter(
        "auth_http_cache_hits_total", "Answers found in the cache.", lambda: plugin.cache.hits
    )
    registry.counter(
        "auth_http_cache_misses_total",
        "Answers not found in the cache.",
        lambda: plugin.cache.misses,
    )
