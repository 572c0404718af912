"""Define event queues, and implement the in-memory queue. `hookmq_webhook.outbox` implements the queue on disk.

Both queues number events from 0 and return them in that order. `done` may be called for events in any order.
"""

from bisect import bisect_left
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple, Protocol

from hookmq_webhook.events import Event, pack, unpack

Drop = Literal["oldest", "newest"]
SLACK: Final = 64
"""Number of removed entries that a list may contain, in addition to one for each event."""
PER_EVENT: Final = 64
"""Approximate overhead of an event in bytes, in addition to its contents."""


class Numbered(NamedTuple):
    """An event with its number, its approximate size in bytes, and its id, which is the same at every attempt."""

    number: int
    event: Event
    size: int
    id: str = ""


Row = tuple[int, bytes, int, str]
"""A packed `Numbered`, as it is passed to the sending process and back."""


def packed(one: Numbered) -> Row:
    """Pack an event with its number. Raises ValueError; see `hookmq_webhook.events.pack`."""
    return one.number, pack(one.event), one.size, one.id


def unpacked(row: Row) -> Numbered:
    """Return what `packed` packed."""
    number, data, size, id = row
    return Numbered(number, unpack(data), size, id)


Page = Callable[[list[Numbered], int, Exception | None], None]
"""Called with a page of events, the number at which the next page begins, and the error or None."""


class Queue(Protocol):
    """The queue interface that the dispatcher uses."""

    bounded: bool
    """True if the queue drops events to limit its own size. The dispatcher may then leave any number of events behind."""

    @property
    def start(self) -> int:
        """Number of the first event to send."""

    @property
    def waiting(self) -> int:
        """Number of events that have not arrived."""

    @property
    def oldest(self) -> float | None:
        """Approximate time of the oldest event that has not arrived, in seconds since 1970, or None."""

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        """Pass the events starting at number `after` to `done`, immediately or later.

        A page contains at most `count` events, of about `size` bytes in total. If the next page begins at `after`
        again, there are no more events for now. Events that were not removed with `Queue.done` are returned again if a
        page covers them.
        """

    def taken(self, number: int) -> None:
        """Record that the dispatcher holds this event in memory."""

    def left(self, number: int) -> None:
        """Record that the dispatcher does not hold this event in memory, and will read it again."""

    def done(self, number: int) -> None:
        """Remove an event that needs no further attempt."""


class MemoryQueue:
    """The in-memory queue for `best_effort`. Its limits in events and bytes include the events being sent.

    If the queue is full, it drops the new event, or the oldest event that the dispatcher does not hold. The dropped
    event is passed to `dropped`. Event ids begin with `name`.
    """

    start = 0
    bounded = True

    def __init__(
        self,
        name: str,
        max_events: int,
        max_bytes: int,
        drop: Drop,
        dropped: Callable[[Event], None],
    ) -> None:
        self._name = name
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._drop = drop
        self._dropped = dropped
        self._rows: list[Numbered] = []
        """Events in order, including some that have been removed."""
        self._sizes: dict[int, int] = {}
        """Sizes of the events that have not been removed, by number."""
        self._bytes = 0
        self._next = 0
        self._taken: set[int] = set()
        self._left: list[int] = []
        """A heap with the numbers of events that were `left`. Some may have been taken again or removed."""
        self._read_to = 0
        """Number after the last event that was ever returned."""

    def bound(self, max_events: int, max_bytes: int, drop: Drop) -> None:
        """Replace the limits. They apply to new events."""
        self._max_events, self._max_bytes, self._drop = max_events, max_bytes, drop

    @property
    def waiting(self) -> int:
        return len(self._sizes)

    @property
    def size(self) -> int:
        """Approximate size of the waiting events in bytes."""
        return self._bytes

    @property
    def end(self) -> int:
        """Number of the next event."""
        return self._next

    def begin_again(self) -> None:
        """Record that no event is in the dispatcher's memory any more."""
        self._taken.clear()
        self._left.clear()
        self._read_to = 0

    def clear(self) -> None:
        """Discard all events."""
        self._rows, self._left = [], []
        self._sizes.clear()
        self._taken.clear()
        self._bytes = 0

    @property
    def oldest(self) -> float | None:
        """Implement `Queue.oldest`."""
        return next((one.event.time for one in self._rows if one.number in self._sizes), None)

    def put(self, event: Event) -> None:
        """Add an event. If the queue is full, drop this or older events. Never blocks."""
        size = size_of(event)
        numbered = Numbered(self._next, event, size, f"{self._name}-{self._next}")
        self._next += 1
        while self._sizes and (
            len(self._sizes) >= self._max_events or self._bytes + size > self._max_bytes
        ):
            oldest = self._oldest() if self._drop == "oldest" else None
            if oldest is None:
                self._dropped(event)
                return
            self._remove(oldest.number)
            self._dropped(oldest.event)
        self._rows.append(numbered)
        self._sizes[numbered.number] = size
        self._bytes += size

    def _oldest(self) -> Numbered | None:
        """Return the oldest event that the dispatcher does not hold in memory, or None."""
        while self._left:
            number = heappop(self._left)
            if number in self._sizes and number not in self._taken:
                return self._rows[self._at(number)]
        for at in range(self._at(self._read_to), len(self._rows)):
            if self._rows[at].number in self._sizes:
                self._read_to = self._rows[at].number  # earlier events need not be checked again
                return self._rows[at]
        return None

    def _at(self, number: int) -> int:
        return bisect_left(self._rows, number, key=_number)

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        found: list[Numbered] = []
        for at in range(self._at(after), len(self._rows)):
            if len(found) >= count or (size <= 0 and found):
                break
            one = self._rows[at]
            if one.number in self._sizes:
                size -= one.size
                found.append(one)
        following = found[-1].number + 1 if found else after
        self._read_to = max(self._read_to, following)
        done(found, following, None)

    def taken(self, number: int) -> None:
        self._taken.add(number)

    def left(self, number: int) -> None:
        self._taken.discard(number)
        heappush(self._left, number)
        if len(self._left) > 2 * len(self._sizes) + SLACK:
            there = {n for n in self._left if n in self._sizes and n not in self._taken}
            self._left = sorted(there)

    def done(self, number: int) -> None:
        self._taken.discard(number)
        if number in self._sizes:  # otherwise the queue was cleared
            self._remove(number)

    def _remove(self, number: int) -> None:
        self._bytes -= self._sizes.pop(number)
        if len(self._rows) > 2 * len(self._sizes) + SLACK:
            self._rows = [one for one in self._rows if one.number in self._sizes]


def _number(one: Numbered) -> int:
    return one.number


def size_of(event: Event) -> int:
    """Return the approximate size of an event in memory, in bytes."""
    data = sum(len(str(value)) for value in event.data.values())
    return PER_EVENT + len(event.payload or b"") + len(event.topic or "") + data
