"""Counters of the broker: plain integers, incremented on the event loop and read by exporters. No lock, no label lookup
on the hot path."""

from collections.abc import Mapping
from typing import Final


class Metrics:
    """Counters since start. Exported, each has ``hookmq_`` before its name and ``_total`` behind it; `dropped` is by
    (reason, direction), exported as ``messages_dropped``."""

    __slots__ = (
        "authz_cache_hits", "authz_cache_misses", "bytes_received", "bytes_sent", "connections_accepted",
        "connections_refused", "dropped", "keep_alive_timeouts", "messages_delivered", "messages_received",
        "packets_received", "protocol_errors", "receive_maximum_exceeded", "sessions_created", "sessions_expired",
        "sessions_resumed", "takeovers", "watchdog_blocked", "wills_published", "writes",
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
        self.bytes_received = 0
        self.bytes_sent = 0
        self.writes = 0
        self.protocol_errors = 0
        self.keep_alive_timeouts = 0
        self.receive_maximum_exceeded = 0
        self.authz_cache_hits = 0
        self.authz_cache_misses = 0
        self.wills_published = 0
        self.watchdog_blocked = 0
        self.dropped: dict[tuple[str, str], int] = {}

    def count_drop(self, reason: str, direction: str, count: int = 1) -> None:
        """Count dropped messages under their reason and direction."""
        key = (reason, direction)
        self.dropped[key] = self.dropped.get(key, 0) + count

    def snapshot(self) -> dict[str, int]:
        """Every counter by its name, drops as ``messages_dropped{reason="…",direction="…"}``."""
        values = {name: getattr(self, name) for name in HELP if name != "dropped"}
        for (reason, direction), count in sorted(self.dropped.items()):
            values[f'messages_dropped{{reason="{reason}",direction="{direction}"}}'] = count
        return values


PREFIX: Final = "hookmq_"
"""What every exported metric's name begins with."""

HELP: Final[Mapping[str, str]] = {
    "connections_accepted": "Connections that were accepted by CONNACK.",
    "connections_refused": "Connections that were closed or refused before.",
    "takeovers": "Connections ended because another came with the same client id.",
    "sessions_created": "Sessions begun.",
    "sessions_resumed": "Sessions taken up again.",
    "sessions_expired": "Sessions that ended because nobody came back.",
    "packets_received": "MQTT packets received.",
    "messages_received": "PUBLISH packets received.",
    "messages_delivered": "PUBLISH packets sent to clients, repetitions not counted.",
    "bytes_received": "Bytes received from clients.",
    "bytes_sent": "Bytes sent to clients.",
    "writes": "Writes to connections, each with all that one turn of the loop had for it.",
    "protocol_errors": "Connections ended because the client broke MQTT.",
    "keep_alive_timeouts": "Connections ended because the client was silent for too long.",
    "receive_maximum_exceeded": "PUBLISH packets above the receive maximum.",
    "authz_cache_hits": "Decisions of authorize that were remembered.",
    "authz_cache_misses": "Decisions of authorize that plugins were asked for.",
    "wills_published": "Wills published.",
    "watchdog_blocked": "Times the event loop was blocked for over 100 ms.",
    "dropped": "Messages dropped, by reason and direction.",
}
"""What each counter counts, for exporters."""
