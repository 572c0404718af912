"""The expiry of retained messages, behind one deadline.

Entries are a heap by time. A replaced or cleared message cancels its entry: that lets go of the topic at once, and the
heap is rebuilt when more than half of it is cancelled. So the memory follows the retained messages, not the publishes.
"""

from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from hookmq.broker.deadlines import Deadline, Deadlines
from hookmq.broker.publishers import Publisher
from hookmq.qos import Outgoing
from hookmq.runtime import Runtime
from hookmq.session import Session
from hookmq.types import Message

SLICE: Final = 64
"""Messages that expire in one turn."""
LOOK: Final = 3600.0
"""Longest time in seconds between two looks at the clock, which may be set meanwhile."""
_EARLY: Final = 0.001
"""A message expires up to so many seconds early: a timer measures another clock, and rounds otherwise."""
_SPARE: Final = 16
"""Cancelled entries that are always left in the heap."""

FORMS: Final = 16
"""Encodings of one message kept at a time."""
SMALL: Final = 256
"""Bytes of a retained message above which only one of its encodings is kept."""


class Expiry:
    """When the message of `topic` expires, in epoch seconds; `topic` is None once cancelled or called."""

    __slots__ = ("topic", "when")

    def __init__(self, when: float, topic: str) -> None:
        self.when = when
        self.topic: str | None = topic

    def __lt__(self, other: "Expiry") -> bool:
        return self.when < other.when


class Kept(Outgoing):
    """A retained message, its expiry (None if it never expires) and its publisher (None if no client published it).

    `rights` tells when `authorize` was asked last whether the publisher may publish it: what `Publishers.rights` and
    `Publisher.rights` came to, negative if it may not, 0 if it was not asked. That holds `until` a time of the monotonic
    clock. `asking` are the sessions that wait for the answer.

    At most `most` encodings of it are kept: each holds a copy of the payload, and every second to the expiry and every
    subscription identifier makes another one.
    """

    __slots__ = ("asking", "expiry", "publisher", "rights", "until")

    def __init__(self, message: Message, publisher: Publisher | None = None) -> None:
        super().__init__(message)
        self.expiry: Expiry | None = None
        self.publisher = publisher
        self.rights = 0
        self.until = inf
        self.asking: list[Session] | None = None

    @property
    def most(self) -> int:
        """How many encodings to keep."""
        return FORMS if self.size <= SMALL else 1

    def anew(self) -> Outgoing:
        """See `Outgoing.anew`. The encodings of a large one are not shared, so that `most` bounds them."""
        return super().anew() if self.size <= SMALL else Outgoing(self.message)


class Expiries:
    """All expiries of one broker. `expire` is called with each topic whose time has come, a slice of them in a turn."""

    __slots__ = ("_armed", "_cancelled", "_deadlines", "_due", "_expire", "_heap", "_runtime")

    def __init__(
        self, runtime: Runtime, deadlines: Deadlines, expire: Callable[[str], None]
    ) -> None:
        self._runtime = runtime
        self._deadlines = deadlines
        self._expire = expire
        self._heap: list[Expiry] = []
        self._cancelled = 0
        self._due: Deadline | None = None
        self._armed = 0.0

    def __len__(self) -> int:
        """Entries held, cancelled ones included: what the memory is for."""
        return len(self._heap)

    def add(self, when: float, topic: str) -> Expiry:
        """Have `expire` called with `topic` at `when` (epoch seconds)."""
        entry = Expiry(when, topic)
        heappush(self._heap, entry)
        if self._due is None or when < self._armed:
            self._arm()
        return entry

    def cancel(self, entry: Expiry) -> None:
        """Never call for `entry`; harmless after the call."""
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
            self._due = self._deadlines.after(delay, partial(_run, self))

    def run(self) -> None:
        """Expire the next slice of what is due; for the deadline."""
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


def _run(expiries: Expiries) -> None:
    expiries.run()
