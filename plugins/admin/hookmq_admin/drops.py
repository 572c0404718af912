"""Record dropped messages for a while: counts by client and topic, and samples. This costs nothing unless a recording
is running.
"""

from collections import deque
from typing import Any, Final

from hookmq.plugin import BrokerHandle, ClientInfo, Dropped, Message, Timer

from hookmq_admin.top_counts import MAX_KEY, TopCounts

CAPACITY: Final = 500
"""Maximum number of clients, and of topics, to count at the same time."""
SAMPLES: Final = 100
"""Number of the latest dropped messages to keep, without their payloads."""


class DropLog:
    """Records dropped messages, one recording at a time, and keeps the last result."""

    def __init__(self, broker: BrokerHandle) -> None:
        self._broker = broker
        self._timer: Timer | None = None
        self.clients = TopCounts(CAPACITY)
        self.topics = TopCounts(CAPACITY)
        self.samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES)
        self.started_at = 0.0
        self.ended_at = 0.0

    @property
    def running(self) -> bool:
        """Whether drops are being recorded."""
        return self._timer is not None

    def start(self, seconds: float) -> bool:
        """Record drops for `seconds`, discarding the last recording. Return False if a recording is already running."""
        if self._timer is not None:
            return False
        self.clients = TopCounts(CAPACITY)
        self.topics = TopCounts(CAPACITY)
        self.samples.clear()
        self.started_at = self._broker.time()
        self._timer = self._broker.runtime.call_later(seconds, self._due)
        self._broker.observe("on_dropped", True)
        return True

    def stop(self) -> bool:
        """End the recording and keep its result. Return False if none is running."""
        if self._timer is None:
            return False
        self._timer.cancel()
        self._timer = None
        self.ended_at = self._broker.time()
        self._broker.observe("on_dropped", False)
        return True

    def _due(self) -> None:
        self.stop()

    def record(self, client: ClientInfo | None, message: Message, why: Dropped) -> None:
        """Count one dropped message. `client` is its publisher or its subscriber, depending on the direction."""
        client_id = why.client_id or ""
        size = len(message.payload)
        self.clients.add(client_id, 1, size)
        self.topics.add(message.topic, 1, size)
        self.samples.append(
            {
                "time": self._broker.time(),
                "reason": why.reason.value,
                "direction": why.direction.value,
                "client_id": why.client_id,
                "listener": "" if client is None else client.listener,
                "topic": message.topic[:MAX_KEY],
                "qos": message.qos,
                "bytes": size,
                "sender": message.sender,
                "detail": why.detail[:MAX_KEY],
            }
        )
