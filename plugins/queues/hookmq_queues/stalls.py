"""Detect consumers that repeatedly hold messages longer than the visibility timeout."""

from collections.abc import Hashable, Iterable
from typing import Final

from hookmq.plugin import BrokerHandle

from hookmq_queues.consumers import Consumers
from hookmq_queues.group import Lease

STALLED: Final = 3
"""Number of messages that must time out, since the consumer last settled one, for it to count as stalled."""


class Stalls:
    """Counts how many messages timed out with each consumer, and reports a stalled consumer once."""

    def __init__(self, queue: str, group: str, broker: BrokerHandle) -> None:
        self.counts: dict[Hashable, int] = {}
        """For each consumer, the number of messages that have timed out since it last settled one."""
        self.stalled: set[Hashable] = set()
        self._queue = queue
        self._group = group
        self._broker = broker

    def timed_out(self, expired: Iterable[tuple[int, Lease]], consumers: Consumers) -> None:
        """Count messages that timed out."""
        counts = self.counts
        keys = {lease.consumer: None for _, lease in expired}
        for _, lease in expired:
            counts[lease.consumer] = counts.get(lease.consumer, 0) + 1
        for key in list(counts):
            if key not in consumers.by_key:  # it has left
                self._forget(key)
        for key in keys:
            one = consumers.by_key.get(key)  # type: ignore[call-overload]
            if one is None or key in self.stalled:
                continue
            if counts[key] >= STALLED or one.held >= one.most:
                self.stalled.add(key)
                self._report(one.client_id, one.held, counts[key])

    def settled(self, lease: Lease | None) -> None:
        """Record that the consumer that held this lease has settled a message in time."""
        if lease is not None:
            self._forget(lease.consumer)

    def _forget(self, key: Hashable) -> None:
        self.counts.pop(key, None)
        self.stalled.discard(key)

    def _report(self, client_id: str, held: int, timed_out: int) -> None:
        broker, client = self._broker, self._broker.client(client_id)
        fields = {
            "queue": self._queue, "group": self._group, "unacknowledged": held, "timed_out": timed_out,
        }  # fmt: skip
        broker.log("warning", "consumer.stalled", client_id=client_id, **fields)
        broker.emit("consumer.stalled", client, **fields)
