"""Publishes waiting for room in a journal.

If a journal is full, a message for it cannot be stored and must not be acknowledged. MQTT 5.0 clients then receive a
reason code. MQTT 3.x has no such code, and most 3.x clients resend a PUBLISH only after they reconnect. Their
acknowledgements therefore wait here until there is room. Each journal receives its publishes in order.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from hookmq.broker.timers import Deadline, TimerQueue
from hookmq.storage.protocols import BoundedJournal

EVERY: Final = 0.1
"""Seconds between two checks for room."""
MAX_BYTES: Final = 64 << 20
"""Maximum number of bytes that may wait for room, across all clients."""
SLICE: Final = 64
"""Publishes that continue in one turn."""


class Parked:
    """A waiting PUBLISH. `go` is called once all `journals` have room, or `gone` if the `owner` leaves first."""

    __slots__ = ("go", "gone", "journals", "owner", "size")

    def __init__(
        self,
        owner: object,
        journals: tuple[BoundedJournal, ...],
        size: int,
        go: Callable[[], None],
        gone: Callable[[], None],
    ) -> None:
        self.owner = owner
        self.journals = journals
        self.size = size
        self.go = go
        self.gone = gone


class Parking:
    """All clients' publishes that are waiting for room in a journal. `schedule` is called after some of them have been
    resumed.
    """

    __slots__ = (
        "_deadlines", "_due", "_guarded", "_owners", "_queues", "_schedule", "bytes", "max_bytes", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        deadlines: TimerQueue,
        guarded: Callable[[Callable[[], None]], None],
        schedule: Callable[[], None],
    ) -> None:
        self.bytes = 0
        """Bytes waiting for room."""
        self.waiting = 0
        """Publishes waiting for room."""
        self.max_bytes = MAX_BYTES
        self._deadlines = deadlines
        self._guarded = guarded
        self._schedule = schedule
        # Many publishes wait if a journal has been full for a while. `leave` and the check for room must not visit them
        # all.
        self._queues: dict[BoundedJournal, OrderedDict[Parked, None]] = {}
        """The publishes waiting for each journal, oldest first."""
        self._owners: dict[object, OrderedDict[Parked, None]] = {}
        """Each owner's waiting publishes, oldest first."""
        self._due: Deadline | None = None

    def without_room(self, journals: Sequence[BoundedJournal]) -> tuple[BoundedJournal, ...]:
        """Return the `journals` that are full or have older publishes waiting."""
        owed = self._queues
        for journal in journals:
            if journal.full or journal in owed:
                return tuple(one for one in journals if one in owed or one.full)
        return ()

    def park(self, one: Parked) -> bool:
        """Add `one` to the waiting publishes. Return False if too many bytes are already waiting."""
        if self.bytes + one.size > self.max_bytes:
            return False
        self.bytes += one.size
        self.waiting += 1
        for journal in one.journals:
            self._queues.setdefault(journal, OrderedDict())[one] = None
        self._owners.setdefault(one.owner, OrderedDict())[one] = None
        if self._due is None:
            self._due = self._deadlines.after(EVERY, self._look)
        return True

    def leave(self, owner: object) -> None:
        """Drop all waiting publishes of `owner`. These publishes were not acknowledged, so the client resends them."""
        for one in list(self._owners.get(owner, ())):
            self._remove(one)
            self._guarded(one.gone)

    def _remove(self, one: Parked) -> None:
        self.bytes -= one.size
        self.waiting -= 1
        for journal in one.journals:
            queue = self._queues[journal]
            del queue[one]
            if not queue:
                del self._queues[journal]
        mine = self._owners[one.owner]
        del mine[one]
        if not mine:
            del self._owners[one.owner]

    def _look(self) -> None:
        self._due = None
        left = SLICE
        for journal in list(self._queues):
            while left and not journal.full:
                one = self._first(journal)
                if one is None:
                    break
                left -= 1
                self._remove(one)
                self._guarded(one.go)
        if self._queues and self._due is None:
            self._due = self._deadlines.after(EVERY if left else 0.0, self._look)
        if left < SLICE:
            self._schedule()

    def _first(self, journal: BoundedJournal) -> Parked | None:
        """Return the oldest publish for `journal` if it is also the oldest for all its other journals and they all have
        room."""
        queue = self._queues.get(journal)
        if queue is None:
            return None
        one = next(iter(queue))
        for other in one.journals:
            if other.full or next(iter(self._queues[other])) is not one:
                return None
        return one


__all__ = ["MAX_BYTES", "Parked", "Parking"]
