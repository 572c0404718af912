"""Expire retained messages, using one deadline for all of them.

Entries form a heap ordered by time. Replacing or clearing a message cancels its entry, which frees the topic at once.
If more than half of the entries are cancelled, the heap is rebuilt. Memory therefore grows with the number of retained
messages, not with the number of publishes.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from hookmq.broker.publishers import Publisher
from hookmq.broker.timers import Deadline, TimerQueue
from hookmq.model.message import Message
from hookmq.model.runtime import Runtime
from hookmq.session.inflight import Outgoing
from hookmq.session.session import Session

SLICE: Final = 64
"""Messages to expire in one turn."""
LOOK: Final = 3600.0
"""The longest time between checks of the clock, in seconds, because the clock may be set at any time."""
_EARLY: Final = 0.001
"""Seconds by which a message may expire early: timers use a different clock and round differently."""
_SPARE: Final = 16
"""The heap is never rebuilt for this many cancelled entries or fewer."""

FORMS: Final = 16
"""Encodings of one message to keep."""
SMALL: Final = 256
"""Size in bytes above which only one encoding of a message is kept."""


class Expiry:
    """The expiry of the message retained for `topic`, in epoch seconds. `topic` is None once the entry has been cancelled
    or has expired.
    """

    __slots__ = ("topic", "when")

    def __init__(self, when: float, topic: str) -> None:
        self.when = when
        self.topic: str | None = topic

    def __lt__(self, other: "Expiry") -> bool:
        return self.when < other.when


class Kept(Outgoing):
    """A retained message with its expiry (None if it never expires) and its publisher (None if not a client).

    `rights` is the sum of `Publishers.rights` and `Publisher.rights` when `authorize` was last asked about the
    message. It is negative if the message was denied, and 0 if `authorize` was never asked. The verdict holds until
    the monotonic time `until`. `asking` lists the sessions waiting for a verdict. A `volatile` message has no
    record.
    """

    __slots__ = ("asking", "expiry", "publisher", "rights", "until", "volatile")

    def __init__(
        self, message: Message, publisher: Publisher | None = None, volatile: bool = False
    ) -> None:
        super().__init__(message)
        self.expiry: Expiry | None = None
        self.publisher = publisher
        self.volatile = volatile
        self.rights = 0
        self.until = inf
        self.asking: list[Session] | None = None

    @property
    def most(self) -> int:
        """Return how many encodings to keep. Each one holds a copy of the payload. Each subscription identifier and each
        second of remaining lifetime needs its own encoding.
        """
        return FORMS if self.size <= SMALL else 1

    def without_id(self) -> Outgoing:
        """Implement `Outgoing.without_id`. A large message's encodings are not shared, so `most` can limit them."""
        return super().without_id() if self.size <= SMALL else Outgoing(self.message)


class Expiries:
    """All expiries of one broker. `expire` is called with each topic whose message has expired, a slice per turn."""

    __slots__ = ("_armed", "_cancelled", "_deadlines", "_due", "_expire", "_heap", "_runtime")

    def __init__(
        self, runtime: Runtime, deadlines: TimerQueue, expire: Callable[[str], None]
    ) -> None:
        self._runtime = runtime
        self._deadlines = deadlines
        self._expire = expire
        self._heap: list[Expiry] = []
        self._cancelled = 0
        self._due: Deadline | None = None
        self._armed = 0.0

    def __len__(self) -> int:
        """Return the size of the heap, including cancelled entries."""
        return len(self._heap)

    def add(self, when: float, topic: str) -> Expiry:
        """Call `expire` with `topic` at `when`, in epoch seconds."""
        entry = Expiry(when, topic)
        heappush(self._heap, entry)
        if self._due is None or when < self._armed:
            self._arm()
        return entry

    def cancel(self, entry: Expiry) -> None:
        """Prevent the call for `entry`; do nothing if it has already been made."""
        if entry.topic is None:
            return
        entry.topic = None
        self._cancelled += 1
        if self._cancelled > _SPARE and self._cancelled * 2 > len(self._heap):
            self._heap = [kept for kept in self._heap if kept.topic is not None]
            heapify(self._heap)
            self._cancelled = 0

    def _arm(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._heap:
            self._armed = self._heap[0].when
            delay = min(max(0.0, self._armed - self._runtime.time()), LOOK)
            self._due = self._deadlines.after(delay, self.run)

    def run(self) -> None:
        """Expire the next slice of due messages."""
        self._due = None
        now = self._runtime.time() + _EARLY
        left = SLICE
        heap = self._heap
        while left and heap and heap[0].when <= now:
            entry = heappop(heap)
            topic, entry.topic = entry.topic, None
            if topic is None:
                self._cancelled -= 1
                continue
            left -= 1
            self._expire(topic)
            heap = self._heap
        self._arm()
