"""The core's metrics: counters, sizes and hook calls. The exporter shows them, and plugins read
them.

Most values are read from the broker's state only on demand.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hookmq.broker.plugin_state import PluginSpace
from hookmq.hooks.metric_registry import MetricRegistry, Sample, Value
from hookmq.model.histogram import Histogram
from hookmq.model.metrics import HELP
from hookmq.mqtt.reason_codes import PacketType

if TYPE_CHECKING:
    from hookmq.broker.broker import Broker

_HOOKS: Final = {
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


_ACKNOWLEDGEMENTS: Final = (
    PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP,
)  # fmt: skip
_SPACES: Final[dict[str, tuple[str, Callable[[PluginSpace], int]]]] = {
    "plugin_state_keys": ("Keys in the state of a plugin.", lambda space: len(space.values)),
    "plugin_state_bytes": ("Size of the state of a plugin in bytes.", lambda space: space.size),
    "plugin_timers": ("Timers of a plugin.", lambda space: len(space.timers)),
}


def register_core(registry: MetricRegistry, broker: "Broker") -> None:
    """Register the core's metrics, except ``hookmq_build_info``. Their values are read from `broker` on demand."""
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
    registry.counter("hook_calls_total", "Calls of hooks of plugins, by outcome.", lambda: broker.state.hooks.calls())
    for name, help in _HOOKS.items():
        add = registry.counter if name.endswith("_total") else registry.gauge
        add(name, help, partial(_hook_rows, broker, f"hookmq_{name}"))
    registry.histogram("hook_duration_seconds", "Duration of calls of hooks; those for messages are sampled, 1 in 64.",
                       lambda: broker.state.hooks.durations())
    registry.counter("listener_bytes_received_total", "Bytes received from clients, by listener.",
                     lambda: _traffic(broker, "bytes_received"))
    registry.counter("listener_bytes_sent_total", "Bytes sent to clients, by listener.",
                     lambda: _traffic(broker, "bytes_sent"))
    registry.counter("packets_received_by_type_total", "MQTT packets received, by type.", lambda: _received(broker))
    registry.counter("packets_sent_by_type_total", "MQTT packets sent, by type, without acknowledgements of messages.",
                     lambda: _sent(broker))
    registry.counter("messages_received_by_qos_total", "PUBLISH packets received, by QoS.", lambda: _by_qos(broker))
    registry.histogram("loop_lag_seconds", "How late the event loop ran a timer, 20 times a second.",
                       lambda: [({}, broker.metrics.loop_lag)])
    registry.histogram("commit_duration_seconds", "Duration of commits, unless nothing outlives the process.",
                       lambda: [({}, broker.metrics.commit_seconds)])
    registry.histogram("delivery_delay_seconds", "Time from receiving a message to sending it, for 1 turn in 16.",
                       lambda: [({}, _delays(broker))])
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
    return [(labels, value) for row, labels, value in broker.state.hooks.queues() if row == name]


def _traffic(broker: "Broker", name: str) -> list[Sample]:
    return [
        ({"listener": listener}, getattr(traffic, name))
        for listener, traffic in broker.metrics.listeners.items()
    ]


def _received(broker: "Broker") -> list[Sample]:
    counts = broker.metrics.received_types
    return [({"type": kind.name}, counts[kind]) for kind in PacketType]


def _sent(broker: "Broker") -> list[Sample]:
    # Acknowledgements are left out: one write may contain many, and counting them would slow down every message.
    counts = list(broker.metrics.sent_types)
    counts[PacketType.PUBLISH] = broker.metrics.messages_delivered
    return [
        ({"type": kind.name}, counts[kind]) for kind in PacketType if kind not in _ACKNOWLEDGEMENTS
    ]


def _by_qos(broker: "Broker") -> list[Sample]:
    return [({"qos": str(qos)}, n) for qos, n in enumerate(broker.metrics.received_by_qos())]


def _delays(broker: "Broker") -> Histogram:
    broker.state.writes.sampling_asked = True
    return broker.metrics.delivery_seconds
