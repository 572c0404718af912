"""Sample the broker's metrics, and keep a limited number of samples in memory."""

import math
from array import array
from collections.abc import Mapping
from typing import Final

from hookmq.plugin import BrokerHandle, Timer

from hookmq_admin.latency import LATENCIES, Buckets, buckets, percentiles

COUNTERS: Final = (
    "messages_received_total", "messages_delivered_total", "bytes_received_total", "bytes_sent_total",
    "connections_accepted_total", "connections_refused_total", "dropped_total",
)  # fmt: skip
GAUGES: Final = (
    "connections", "sessions", "subscriptions", "retained_messages", "retained_bytes", "queue_bytes",
)  # fmt: skip
LAG: Final = "loop_lag"
"""Name of the series that shows how many seconds late each sample was because the event loop was busy."""
SERIES: Final = (*COUNTERS, *GAUGES, LAG, *LATENCIES)
_DROPPED: Final = "messages_dropped_total{"


class History:
    """The last `most` samples, one every `interval` seconds."""

    def __init__(self, broker: BrokerHandle, interval: float, most: int) -> None:
        self.interval = interval
        self._broker = broker
        self._most = most
        self._times = array("d")
        self._values = {name: array("d") for name in SERIES}
        self._timer: Timer | None = None
        self._due = broker.now()
        self._buckets: Buckets = {}

    def start(self) -> None:
        """Take a sample now, and then one every `interval` seconds."""
        broker = self._broker
        now = broker.now()
        counters = broker.counters()
        self._times.append(broker.time())
        for name in (*COUNTERS, *GAUGES):
            self._values[name].append(counters.get(name, 0.0))
        self._values["dropped_total"][-1] = sum(dropped(counters).values())
        self._values[LAG].append(max(0.0, now - self._due))
        read = buckets(counters)
        for name, value in percentiles(self._buckets, read).items():
            self._values[name].append(math.nan if value is None else value)
        self._buckets = read
        # Delete many samples at once, because each deletion copies the arrays.
        if len(self._times) > self._most + self._most // 8:
            for values in (self._times, *self._values.values()):
                del values[: len(values) - self._most]
        self._due = now + self.interval
        self._timer = broker.runtime.call_later(self.interval, self.start)

    def stop(self) -> None:
        """Stop taking samples."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def samples(
        self, since: float, most: int, names: tuple[str, ...]
    ) -> tuple[list[float], dict[str, list[float | None]]]:
        """Return the times and values of the latest samples after `since`, at most `most` of them. A latency is None if
        nothing was measured in that sample.
        """
        first = max(0, len(self._times) - min(most, self._most))
        while first < len(self._times) and self._times[first] <= since:
            first += 1
        found: dict[str, list[float | None]] = {
            name: list(self._values[name][first:]) for name in names
        }
        for name in set(LATENCIES).intersection(found):
            found[name] = [_known(value) for value in self._values[name][first:]]
        return list(self._times[first:]), found

    def rates(self) -> dict[str, float]:
        """Return each counter's change per second between the last two samples."""
        if len(self._times) < 2:
            return {name.removesuffix("_total"): 0.0 for name in COUNTERS}
        seconds = max(self._times[-1] - self._times[-2], 1e-3)
        return {
            name.removesuffix("_total"): (self._values[name][-1] - self._values[name][-2]) / seconds
            for name in COUNTERS
        }

    def latency(self) -> dict[str, float | None]:
        """Return the latency percentiles between the last two samples, in seconds. A percentile is None if nothing was
        measured.
        """
        if not self._times:
            return dict.fromkeys(LATENCIES)
        return {name: _known(self._values[name][-1]) for name in LATENCIES}

    @property
    def lag(self) -> float:
        """The event loop's lag, in seconds, at the last sample."""
        return self._values[LAG][-1] if self._values[LAG] else 0.0


def _known(value: float) -> float | None:
    """Return a value, or None if it is missing (arrays cannot hold None)."""
    return None if math.isnan(value) else value


def dropped(counters: Mapping[str, float]) -> dict[str, float]:
    """Return the number of dropped messages by direction and reason, such as ``out:queue_full``."""
    found: dict[str, float] = {}
    for name, value in counters.items():
        if name.startswith(_DROPPED):
            labels = dict(part.split("=", 1) for part in name[len(_DROPPED) : -1].split(","))
            key = ":".join(labels[label].strip('"') for label in ("direction", "reason"))
            found[key] = found.get(key, 0.0) + value
    return found
