"""Support consumers that accept only messages on certain topics, with subscriptions such as ``$queue/jobs/resize/+``.

The strategy `ByFilter` keeps a line of waiting messages for each filter. A message that no online consumer accepts
stays in the selection's window, and later messages are delivered before it. Delivery stops when the window contains
only such messages.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from hookmq.mqtt_api import compile_filter
from hookmq.plugin import Message

from hookmq_queues.consumers import Consumer, Consumers
from hookmq_queues.topics import PREFIX, delivered_topic

MAX_FILTERS: Final = 64
"""Maximum number of different filters among one group's consumers. Each message is compared with all of them."""


def is_narrow(topic_filter: str, queue: str) -> bool:
    """Return whether a subscription to a queue accepts only some of its messages."""
    return topic_filter not in (PREFIX + queue, f"{PREFIX}{queue}/#")


class _Line:
    """A heap of the waiting messages that match one filter. Entries for messages that no longer wait are
    removed later.
    """

    def __init__(self, topic_filter: str, queue: str) -> None:
        narrow = is_narrow(topic_filter, queue)
        self.matches: Callable[[str], bool] = (
            compile_filter(topic_filter) if narrow else lambda topic: True
        )
        self.heap: list[int] = []


class ByFilter:
    """Chooses the oldest message that some consumer accepts and has room for.

    Two kinds of messages need no consumer and come first: expired ones, and those for which `is_dead` returns True.
    `expires_at` returns when a message expires, or infinity. `time` returns the current time.
    """

    def __init__(
        self,
        queue: str,
        consumers: Consumers,
        is_dead: Callable[[int], bool],
        expires_at: Callable[[Message], float],
        time: Callable[[], float],
    ) -> None:
        self.waiting: set[int] = set()
        self._queue = queue
        self._wildcard = f"{PREFIX}{queue}/#"
        self._consumers = consumers
        self._is_dead = is_dead
        self._expires_at = expires_at
        self._time = time
        self._topics: dict[int, str] = {}
        self._lines: dict[str, _Line] = {}
        self._dead: list[int] = []
        self._expiries: dict[int, float] = {}
        """The expiry time of each message that has one."""
        self._expiring: list[tuple[float, int]] = []
        """A heap of (expiry, offset) of the waiting messages. Entries of other messages are removed later."""

    def add(self, offset: int, message: Message) -> None:
        """Add a message. Messages must be added in offset order."""
        self._topics[offset] = delivered_topic(self._wildcard, self._queue, message.topic)
        expiry = self._expires_at(message)
        if expiry < inf:
            self._expiries[offset] = expiry

    def ready(self, offset: int) -> None:
        """Record that a message is waiting."""
        if offset in self.waiting:
            return
        self.waiting.add(offset)
        if self._is_dead(offset):
            heappush(self._dead, offset)
        if offset in self._expiries:
            heappush(self._expiring, (self._expiries[offset], offset))
            if len(self._expiring) > 64 + 2 * len(self.waiting):
                self._expiring = sorted({one for one in self._expiring if one[1] in self.waiting})
        topic = self._topics[offset]
        for line in self._lines.values():
            if line.matches(topic):
                heappush(line.heap, offset)
                if len(line.heap) > 64 + 2 * len(self.waiting):
                    line.heap = sorted({one for one in line.heap if one in self.waiting})

    def leased(self, offset: int) -> None:
        """Record that a consumer got a message."""
        self.waiting.discard(offset)

    def gone(self, offset: int) -> None:
        """Forget a message. The message may be unknown."""
        self.waiting.discard(offset)
        self._topics.pop(offset, None)
        self._expiries.pop(offset, None)

    @property
    def next_expiry(self) -> float:
        """Return when the first waiting message expires, or infinity."""
        heap = self._expiring
        while heap and heap[0][1] not in self.waiting:
            heappop(heap)
        return heap[0][0] if heap else inf

    def peek(self) -> int | None:
        """Return the offset of the next message, or None."""
        best = self._first(self._dead)
        if best is not None:
            return best
        if self._expiring and self.next_expiry <= self._time():
            return self._expiring[0][1]
        for topic_filter in self._consumers.free_filters():
            first = self._first(self._line(topic_filter).heap)
            if first is not None and (best is None or first < best):
                best = first
        return best

    def choose(self, offset: int) -> Consumer | None:
        """Return the consumer for a message, or None if no consumer can take it."""
        topic = self._topics[offset]
        return self._consumers.choose_if(lambda one: self._line(one).matches(topic))

    def forget(self, topic_filter: str) -> None:
        """Record that no consumer uses this filter any more."""
        self._lines.pop(topic_filter, None)

    def _line(self, topic_filter: str) -> _Line:
        line = self._lines.get(topic_filter)
        if line is None:
            line = self._lines[topic_filter] = _Line(topic_filter, self._queue)
            line.heap = [one for one in self.waiting if line.matches(self._topics[one])]
            heapify(line.heap)
        return line

    def _first(self, heap: list[int]) -> int | None:
        while heap and heap[0] not in self.waiting:
            heappop(heap)
        return heap[0] if heap else None
