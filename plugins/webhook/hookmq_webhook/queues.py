"""Where events wait: in memory, bounded, or on disk (`hookmq_webhook.outbox`), where they outlive the broker. Both number
them from 0 and hand them out in that order; of what arrived they are told by `done`, in any order."""

from collections import deque
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol

from hookmq_webhook.events import Event

Drop = Literal["oldest", "newest"]
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

    rereads: bool
    """Whether `page` tells what it told before and is not `done` once more, to whoever begins there."""

    @property
    def start(self) -> int:
        """The number that sending begins with."""

    @property
    def waiting(self) -> int:
        """Events that did not arrive yet."""

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        """Tell `done` the next events from number `after` on: at most `count`, of about `size` bytes; at once or later.
        That the next page begins where this one did says that there is nothing more for now."""

    def done(self, number: int) -> None:
        """This one needs no further attempt."""


class MemoryQueue:
    """For `best_effort`: bounded in events and bytes, also those on their way; what is too much is dropped and told to
    `dropped`. `name` begins the ids of its events."""

    start = 0
    rereads = False

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
        self._events: deque[Numbered] = deque()
        self._bytes = 0
        self._next = 0
        self._handed: dict[int, int] = {}
        """Sizes of what is on its way, by number."""

    def bound(self, max_events: int, max_bytes: int, drop: Drop) -> None:
        """Other bounds, for what comes from now on."""
        self._max_events, self._max_bytes, self._drop = max_events, max_bytes, drop

    @property
    def waiting(self) -> int:
        return len(self._events) + len(self._handed)

    @property
    def size(self) -> int:
        """Bytes that it holds, about."""
        return self._bytes

    def put(self, event: Event) -> None:
        """Take an event. It never waits."""
        size = size_of(event)
        numbered = Numbered(self._next, event, size, f"{self._name}-{self._next}")
        self._next += 1
        while self.waiting and (
            self.waiting >= self._max_events or self._bytes + size > self._max_bytes
        ):
            if self._drop == "newest" or not self._events:
                self._dropped(event)
                return
            oldest = self._events.popleft()
            self._bytes -= oldest.size
            self._dropped(oldest.event)
        self._events.append(numbered)
        self._bytes += size

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        taken: list[Numbered] = []
        while self._events and len(taken) < count and (size > 0 or not taken):
            one = self._events.popleft()
            size -= one.size
            self._handed[one.number] = one.size
            taken.append(one)
        done(taken, taken[-1].number + 1 if taken else after, None)

    def done(self, number: int) -> None:
        self._bytes -= self._handed.pop(number)


def size_of(event: Event) -> int:
    """What an event costs in memory, about."""
    data = sum(len(str(value)) for value in event.data.values())
    return PER_EVENT + len(event.payload or b"") + len(event.topic or "") + data
