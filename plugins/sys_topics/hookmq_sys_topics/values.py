"""The topics below ``$SYS/broker`` and their values, from the broker's counters."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from hookmq_sys_topics.load import MINUTES, LoadAverage

_SUMS: Final[Mapping[str, str]] = {
    "bytes/received": "bytes_received_total",
    "bytes/sent": "bytes_sent_total",
    "clients/expired": "sessions_expired_total",
    "messages/received": "packets_received_total",
    "publish/messages/dropped": "messages_dropped_total",
    "publish/messages/received": "messages_received_total",
    "publish/messages/sent": "messages_delivered_total",
    "retained messages/count": "retained_messages",
    "store/messages/bytes": "queue_bytes",
    "subscriptions/count": "subscriptions",
}
"""mosquitto's topics, each with the counter that provides its value. The values of a labelled counter are added up."""
_LOADS: Final[Mapping[str, str]] = {
    "bytes/received": "bytes_received_total",
    "bytes/sent": "bytes_sent_total",
    "connections": "connections_accepted_total",
    "messages/received": "packets_received_total",
    "publish/dropped": "messages_dropped_total",
    "publish/received": "messages_received_total",
    "publish/sent": "messages_delivered_total",
}
_LABEL: Final = re.compile(r'[a-z_]+="((?:[^"\\]|\\.)*)"')
_NO_LEVEL: Final = re.compile(r"[/+#\x00]")


class Values:
    """Computes all topics and their payloads as text. `began` is the monotonic time when the broker started."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._last = began
        self._loads = {name: LoadAverage() for name in _LOADS}
        self._maximum = 0

    def update(self, counters: Mapping[str, float], now: float) -> Iterator[tuple[str, str]]:
        """Read the counters at `now`, and return (topic below ``$SYS/broker/``, text) for each value."""
        sums: dict[str, float] = {}
        for name, value in counters.items():
            family = name.partition("{")[0]
            sums[family] = sums.get(family, 0) + value
        for topic, average in self._loads.items():
            average.update(sums.get(_LOADS[topic], 0), now - self._last)
        self._last = now
        return self._topics(counters, sums, now)

    def _topics(
        self, counters: Mapping[str, float], sums: Mapping[str, float], now: float
    ) -> Iterator[tuple[str, str]]:
        yield "uptime", f"{int(now - self._began)} seconds"
        sessions, connected = int(sums.get("sessions", 0)), int(sums.get("connections", 0))
        self._maximum = max(self._maximum, sessions)
        yield "clients/total", str(sessions)
        yield "clients/connected", str(connected)
        yield "clients/disconnected", str(max(0, sessions - connected))
        yield "clients/maximum", str(self._maximum)
        for topic, name in _SUMS.items():
            yield topic, number(sums.get(name, 0))
        for topic, average in self._loads.items():
            for minutes, rate in zip(MINUTES, average.rates, strict=True):
                yield f"load/{topic}/{minutes}min", f"{rate:.2f}"
        for name, value in counters.items():
            yield f"hookmq/{counter_topic(name)}", number(value)


def number(value: float) -> str:
    """Return a value as text: an integer without a decimal point, anything else with up to six decimals."""
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return text if text not in ("", "-0") else "0"


def counter_topic(name: str) -> str:
    """Return a counter's name as topic levels, followed by the values of its labels."""
    family, _, labels = name.partition("{")
    values = [_NO_LEVEL.sub("_", one) or "_" for one in _LABEL.findall(labels)]
    return "/".join([family, *values])
