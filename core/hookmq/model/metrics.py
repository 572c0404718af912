"""The broker's counters: plain integers, incremented on the event loop and read by exporters without locks or label
lookups."""

from collections.abc import Mapping
from typing import Final

from hookmq.model.histogram import Histogram


class ListenerTraffic:
    """Bytes received from and sent to the clients of one listener."""

    __slots__ = ("bytes_received", "bytes_sent")

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0


class Metrics:
    """Counters since the broker started. Exporters add the prefix ``hookmq_`` and the suffix ``_total`` to each name.

    `dropped` counts by (reason, direction) and is exported as ``messages_dropped``.
    """

    __slots__ = (
        "authz_cache_hits", "authz_cache_misses", "commit_seconds", "connections_accepted", "connections_refused",
        "delivery_seconds", "dropped", "keep_alive_timeouts", "listeners", "loop_lag", "messages_delivered",
        "messages_handled", "messages_received", "other_traffic", "packets_received", "protocol_errors",
        "receive_maximum_exceeded", "received_qos2", "received_qos_sum", "received_types", "sent_types",
        "sessions_created", "sessions_expired", "sessions_resumed", "takeovers", "watchdog_blocked",
        "wills_published", "writes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connections_accepted = 0
        self.connections_refused = 0
        self.takeovers = 0
        self.sessions_created = 0
        self.sessions_resumed = 0
        self.sessions_expired = 0
        self.packets_received = 0
        self.messages_received = 0
        self.messages_delivered = 0
        self.messages_handled = 0
        self.writes = 0
        self.protocol_errors = 0
        self.keep_alive_timeouts = 0
        self.receive_maximum_exceeded = 0
        self.authz_cache_hits = 0
        self.authz_cache_misses = 0
        self.wills_published = 0
        self.watchdog_blocked = 0
        self.dropped: dict[tuple[str, str], int] = {}
        self.listeners: dict[str, ListenerTraffic] = {}
        """The traffic of each listener that has had a connection, by its name."""
        self.other_traffic = ListenerTraffic()
        """The traffic of connections without a listener."""
        self.received_types = [0] * 16
        """MQTT packets received, by packet type."""
        self.sent_types = [0] * 16
        """MQTT packets sent, by packet type, except PUBLISH and its acknowledgements."""
        self.received_qos_sum = 0
        """The sum of the QoS of all PUBLISH packets received. Together with `received_qos2`, it determines how many
        packets had each QoS."""
        self.received_qos2 = 0
        """QoS 2 PUBLISH packets received."""
        self.loop_lag = Histogram()
        self.commit_seconds = Histogram()
        self.delivery_seconds = Histogram()

    @property
    def bytes_received(self) -> int:
        """Bytes received from clients."""
        return self.other_traffic.bytes_received + sum(
            [one.bytes_received for one in self.listeners.values()]
        )

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to clients."""
        return self.other_traffic.bytes_sent + sum(
            [one.bytes_sent for one in self.listeners.values()]
        )

    def received_by_qos(self) -> tuple[int, int, int]:
        """Return the number of PUBLISH packets received with QoS 0, 1 and 2."""
        twos = self.received_qos2
        ones = self.received_qos_sum - 2 * twos
        return self.messages_received - ones - twos, ones, twos

    def count_drop(self, reason: str, direction: str, count: int = 1) -> None:
        """Add `count` dropped messages to the counter for a reason and direction."""
        key = (reason, direction)
        self.dropped[key] = self.dropped.get(key, 0) + count

    def snapshot(self) -> dict[str, int]:
        """Return every counter by name. Dropped messages are ``messages_dropped{reason="…",direction="…"}``."""
        values = {name: getattr(self, name) for name in HELP if name != "dropped"}
        for (reason, direction), count in sorted(self.dropped.items()):
            values[f'messages_dropped{{reason="{reason}",direction="{direction}"}}'] = count
        return values


def traffic_of(metrics: Metrics, listener: str) -> ListenerTraffic:
    """Return the traffic of the listener with this name."""
    found = metrics.listeners.get(listener)
    if found is None:
        found = metrics.listeners[listener] = ListenerTraffic()
    return found


PREFIX: Final = "hookmq_"
"""Prefix of every exported metric name."""

HELP: Final[Mapping[str, str]] = {
    "connections_accepted": "Connections accepted with CONNACK.",
    "connections_refused": "Connections refused or closed before CONNACK.",
    "takeovers": "Connections closed because a new one had the same client id.",
    "sessions_created": "Sessions created.",
    "sessions_resumed": "Sessions resumed.",
    "sessions_expired": "Sessions expired.",
    "packets_received": "MQTT packets received.",
    "messages_received": "PUBLISH packets received.",
    "messages_delivered": "PUBLISH packets sent to clients, without retransmissions.",
    "messages_handled": "Messages that a plugin took over.",
    "bytes_received": "Bytes received from clients.",
    "bytes_sent": "Bytes sent to clients.",
    "writes": "Writes to connections; all packets of one turn are one write.",
    "protocol_errors": "Connections closed because the client violated MQTT.",
    "keep_alive_timeouts": "Connections closed because the client exceeded its keep alive.",
    "receive_maximum_exceeded": "PUBLISH packets above the Receive Maximum.",
    "authz_cache_hits": "Decisions of authorize answered from the cache.",
    "authz_cache_misses": "Decisions of authorize that plugins made.",
    "wills_published": "Wills published.",
    "watchdog_blocked": "Times the event loop was blocked for more than 100 ms.",
    "dropped": "Messages dropped, by reason and direction.",
}
"""Help texts by counter name."""
