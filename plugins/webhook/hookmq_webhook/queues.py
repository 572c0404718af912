"""Where events wait: in memory, bounded, or on disk (`hookmq_webhook.outbox`), where they outlive the broker. Both number
them from 0 and hand them out in that order; of what arrived they are told by `done`, in any order."""

from bisect import bisect_left
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple, Protocol

from hookmq_webhook.events import Event

Drop = Literal["oldest", "newest"]
SLACK: Final = 64
"""What is gone may take so much room, beyond as much again as what is there."""
PER_EVENT: Final = 64
"""Bytes that an event costs beside what it holds."""


class Numbered(NamedTuple):
    """An event, its number, its size in bytes, about, and the id that it is known by wherever it is sent."""

    number: int
    event: Event
    size: int
    id: str = ""


Page = Callable[[list[Numbered], int, Exception | None], None]
"""Told a page of events, the number that the next page begins with, and why there is none, if it could not be read."""


class Queue(Protocol):
    """What the dispatcher takes events from."""

    bounded: bool
    """Whether it gives events up by itself, so that any number of them may be left in it."""

    @property
    def start(self) -> int:
        """The number that sending begins with."""

    @property
    def waiting(self) -> int:
        """Events that did not arrive yet."""

    @property
    def oldest(self) -> float | None:
        """Epoch seconds of the oldest event that did not arrive yet, about; None if there is none."""

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        """Tell `done` the next events from number `after` on: at most `count`, of about `size` bytes; at once or later.
        That the next page begins where this one did says that there is nothing more for now. What was told and is not
        `done` is told again to whoever begins there."""

    def taken(self, number: int) -> None:
        """The dispatcher has this one in memory."""

    def left(self, number: int) -> None:
        """And not any more, or never: it will ask again."""

    def done(self, number: int) -> None:
        """This one needs no further attempt."""


class MemoryQueue:
    """For `best_effort`: bounded in events and bytes, also those on their way; what is too much is dropped and told to
    `dropped`, the oldest of those that the dispatcher does not have. `name` begins the ids of its events."""

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
        """In order, some of them gone already."""
        self._sizes: dict[int, int] = {}
        """By number, of those that are there."""
        self._bytes = 0
        self._next = 0
        self._taken: set[int] = set()
        self._left: list[int] = []
        """A heap of those that were left; some of them taken again, or gone."""
        self._told = 0
        """The number after the last that was ever told."""

    def bound(self, max_events: int, max_bytes: int, drop: Drop) -> None:
        """Other bounds, for what comes from now on."""
        self._max_events, self._max_bytes, self._drop = max_events, max_bytes, drop

    @property
    def waiting(self) -> int:
        return len(self._sizes)

    @property
    def size(self) -> int:
        """Bytes that it holds, about."""
        return self._bytes

    @property
    def oldest(self) -> float | None:
        """As that of `Queue`."""
        return next((one.event.time for one in self._rows if one.number in self._sizes), None)

    def put(self, event: Event) -> None:
        """Take an event. It never waits."""
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
        """Of those that the dispatcher does not have."""
        while self._left:
            number = heappop(self._left)
            if number in self._sizes and number not in self._taken:
                return self._rows[self._at(number)]
        for at in range(self._at(self._told), len(self._rows)):
            if self._rows[at].number in self._sizes:
                self._told = self._rows[at].number  # those before it are not looked at again
                return self._rows[at]
        return None

    def _at(self, number: int) -> int:
        return bisect_left(self._rows, number, key=_number)

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        told: list[Numbered] = []
        for at in range(self._at(after), len(self._rows)):
            if len(told) >= count or (size <= 0 and told):
                break
            one = self._rows[at]
            if one.number in self._sizes:
                size -= one.size
                told.append(one)
        following = told[-1].number + 1 if told else after
        self._told = max(self._told, following)
        done(told, following, None)

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
        self._remove(number)

    def _remove(self, number: int) -> None:
        self._bytes -= self._sizes.pop(number)
        if len(self._rows) > 2 * len(self._sizes) + SLACK:
            self._rows = [one for one in self._rows if one.number in self._sizes]


def _number(one: Numbered) -> int:
    return one.number


def size_of(event: Event) -> int:
    """What an event costs in memory, about."""
    data = sum(len(str(value)) for value in event.data.values())
    return PER_EVENT + len(event.payload or b"") + len(event.topic or "") + data
