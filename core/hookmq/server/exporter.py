"""What the core itself offers to the metric registry: counters, sizes, hooks, build."""

import platform
from collections.abc import Callable, Mapping
from typing import Final

from importlib_metadata import version

from hookmq import BUILD
from hookmq.broker import Broker
from hookmq.metric_registry import MetricRegistry, Sample, Timing, Value
from hookmq.metrics import HELP
from hookmq.plugin import HOOK_API

_HOOKS: Final = {
    "hook_calls_total": "Calls of plugins' hooks, by outcome.",
    "hook_queue_depth": "Events that wait for an observer.",
    "hook_dropped_total": "Events that an observer lost.",
    "hook_circuit_open": "1 while a plugin's observers are left alone after failures.",
}

_ROUTES: Final = {
    "hits": "Publishes whose route was known.",
    "misses": "Publishes whose route was looked up.",
    "invalidated": "Routes forgotten because a subscription or a plugin changed.",
    "evicted": "Routes forgotten to make room.",
}


def register_core(
    registry: MetricRegistry, broker: Broker, listeners: Callable[[], Mapping[str, int]]
) -> None:
    """Add the families of the core. They are read of `broker` and of `listeners` (connections by listener) when they are
    exported, not before."""
    for name, help in HELP.items():
        if name != "dropped":
            registry.counter(f"{name}_total", help, _counter(broker, name))
    registry.counter("messages_dropped_total", HELP["dropped"], lambda: _dropped(broker))
    registry.gauge("connections", "Connections that are open.", lambda: len(broker.connections))
    registry.gauge(
        "listener_connections",
        "Transports that are open, by listener.",
        lambda: [({"listener": name}, count) for name, count in listeners().items()],
    )
    registry.gauge("sessions", "Sessions, online and offline.", lambda: len(broker.sessions))
    registry.gauge(
        "subscriptions",
        "Subscriptions; those of one share to one filter count as one.",
        lambda: len(broker.core.router),
    )
    registry.gauge(
        "retained_messages", "Retained messages kept.", lambda: len(broker.core.retained)
    )
    registry.gauge(
        "retained_bytes",
        "Bytes of retained messages: topics, payloads and properties, and who published them.",
        lambda: broker.core.retained_bytes,
    )
    registry.gauge(
        "queue_bytes",
        "Bytes of messages queued for all clients: topics, payloads and properties.",
        lambda: broker.core.queued_bytes,
    )
    for name, help in _ROUTES.items():
        registry.counter(f"route_cache_{name}_total", help, _route_counter(broker, name))
    for name, help in _HOOKS.items():
        add = registry.counter if name.endswith("_total") else registry.gauge
        add(name, help, _hook_rows(broker, name))
    registry.summary(
        "hook_duration_seconds",
        "Duration of calls of plugins' hooks; on the message path one in 64 is timed.",
        lambda: _durations(broker),
    )
    build = {
        "build": BUILD.kind,
        "version": version("hookmq"),
        "python": platform.python_version(),
        "plugins_api": HOOK_API,
    }
    registry.gauge("build_info", "What runs here; always 1.", lambda: [(build, 1)])


def _counter(broker: Broker, name: str) -> Callable[[], Value]:
    def read() -> Value:
        value: int = getattr(broker.metrics, name)
        return value

    return read


def _route_counter(broker: Broker, name: str) -> Callable[[], Value]:
    def read() -> Value:
        value: int = getattr(broker.core.router, name)
        return value

    return read


def _dropped(broker: Broker) -> list[Sample]:
    return [
        ({"reason": reason, "direction": direction}, count)
        for (reason, direction), count in broker.metrics.dropped.items()
    ]


def _hook_rows(broker: Broker, name: str) -> Callable[[], list[Sample]]:
    full = f"hookmq_{name}"
    return lambda: [
        (labels, value) for row, labels, value in broker.core.hooks.metrics() if row == full
    ]


def _durations(broker: Broker) -> list[Timing]:
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    found: list[Timing] = []
    for name, labels, value in broker.core.hooks.metrics():
        # of each hook the sum stands before the count
        if name == "hookmq_hook_duration_seconds_sum":
            sums[tuple(labels.items())] = value
        elif name == "hookmq_hook_duration_seconds_count":
            found.append((labels, value, sums[tuple(labels.items())]))
    return found
