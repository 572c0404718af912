"""The core's metrics: counters, sizes and hook calls. The exporter shows them, and plugins read
them.

Most values are read from the broker's state only when they are needed.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hookmq.broker.plugin_state import PluginSpace
from hookmq.hooks.metric_registry import MetricRegistry, Sample, Timing, Value
from hookmq.model.metrics import HELP

if TYPE_CHECKING:
    from hookmq.broker.broker import Broker

_HOOKS: Final = {
    "hook_calls_total": "Calls of hooks of plugins, by outcome.",
    "hook_queue_depth": "Events waiting for an observer.",
    "hook_dropped_total": "Events dropped because the queue of an observer was full.",
    "hook_circuit_open": "1 while the observers of a plugin are not called after failures.",
}

_ROUTES: Final = {
    "hits": "Publishes whose route was cached.",
    "misses": "Publishes whose route was looked up.",
    "invalidated": "Cached routes removed because a subscription or a plugin changed.",
    "evicted": "Cached routes removed to make room.",
}


_SPACES: Final[dict[str, tuple[str, Callable[[PluginSpace], int]]]] = {
    "plugin_state_keys": ("Keys in the state of a plugin.", lambda space: len(space.values)),
    "plugin_state_bytes": (
        "Bytes of keys, values and timers of a plugin.",
        lambda space: space.size,
    ),
    "plugin_timers": ("Timers of a plugin.", lambda space: len(space.timers)),
}


def register_core(registry: MetricRegistry, broker: "Broker") -> None:
    """Register the core's metrics, except ``hookmq_build_info``. The values are read from `broker` when they are
    needed.
    """
    # fmt: off
    for name, help in HELP.items():
        if name != "dropped":
            registry.counter(f"{name}_total", help, partial(_read, broker, "metrics", name))
    registry.counter("messages_dropped_total", HELP["dropped"], lambda: _dropped(broker))
    registry.gauge("connections", "Open connections.", lambda: len(broker.connections))
    registry.gauge("listener_connections", "Open transports, by listener.",
                   lambda: [({"listener": one.name}, one.connections) for one in broker.state.listeners()])
    registry.gauge("sessions", "Sessions, online and offline.", lambda: len(broker.sessions))
    registry.gauge("subscriptions", "Subscriptions; a shared subscription counts once.",
                   lambda: len(broker.state.router))
    registry.gauge("retained_messages", "Retained messages.", lambda: len(broker.state.retained))
    registry.gauge("retained_bytes", "Bytes of retained messages: topics, payloads and properties, and their publishers.",
                   lambda: broker.state.retained_bytes)
    registry.gauge("queue_bytes", "Bytes of queued messages: topics, payloads and properties.",
                   lambda: broker.state.queued_bytes)
    for name, (help, read_space) in _SPACES.items():
        registry.gauge(name, help, partial(_spaces, broker, read_space))
    for name, help in _ROUTES.items():
        read = partial(_read, broker, "state.router", name)
        registry.counter(f"route_cache_{name}_total", help, read)
    for name, help in _HOOKS.items():
        add = registry.counter if name.endswith("_total") else registry.gauge
        add(name, help, partial(_hook_rows, broker, f"hookmq_{name}"))
    registry.summary("hook_duration_seconds", "Duration of calls of hooks; those for messages are sampled, 1 in 64.",
                     lambda: _durations(broker))
    # fmt: on


def _read(broker: "Broker", owner: str, name: str) -> Value:
    value: int = getattr(attrgetter(owner)(broker), name)
    return value


def _spaces(broker: "Broker", read: Callable[[PluginSpace], int]) -> list[Sample]:
    spaces = broker.state.plugin_states.spaces
    return [({"plugin": plugin}, read(space)) for plugin, space in spaces.items()]


def _dropped(broker: "Broker") -> list[Sample]:
    return [
        ({"reason": reason, "direction": direction}, count)
        for (reason, direction), count in broker.metrics.dropped.items()
    ]


def _hook_rows(broker: "Broker", name: str) -> list[Sample]:
    return [(labels, value) for row, labels, value in broker.state.hooks.metrics() if row == name]


def _durations(broker: "Broker") -> list[Timing]:
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    found: list[Timing] = []
    for name, labels, value in broker.state.hooks.metrics():
        # each hook's sum precedes its count
        if name == "hookmq_hook_duration_seconds_sum":
            sums[tuple(labels.items())] = value
        elif name == "hookmq_hook_duration_seconds_count":
            found.append((labels, value, sums[tuple(labels.items())]))
    return found
