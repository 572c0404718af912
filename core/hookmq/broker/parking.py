"""Publishes that wait for room in a journal.

A full journal cannot take what its publisher would be acknowledged for. MQTT 5.0 clients are told so. MQTT 3.x has no
code for it, and most of its clients repeat a PUBLISH only after a reconnect. So their acknowledgements wait here until
there is room. Order is kept for each journal: nothing is journaled past what waits for the same one.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from hookmq.broker.deadlines import Deadline, Deadlines
from hookmq.store import BoundedJournal

EVERY: Final = 0.1
"""Seconds between two looks whether there is room."""
MAX_BYTES: Final = 64 << 20
"""Bytes that may wait for room, of all clients together."""
SLICE: Final = 64
"""Publishes that go on in one turn."""


class Parked:
    """One PUBLISH that waits: `go` is called when all of `journals` have room, `gone` when its `owner` left before."""

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
    """All of one broker's publishes that wait for room. `schedule` is called when some went on."""

    __slots__ = (
        "_deadlines",
        "_due",
        "_guarded",
        "_owners",
        "_queues",
        "_schedule",
        "bytes",
        "max_bytes",
        "waiting",
    )

    def __init__(
        self,
        deadlines: Deadlines,
        guarded: Callable[[Callable[[], None]], None],
        schedule: Callable[[], None],
    ) -> None:
        self.bytes = 0
        """Bytes that wait."""
        self.waiting = 0
        """Publishes that wait."""
        self.max_bytes = MAX_BYTES
        self._deadlines = deadlines
        self._guarded = guarded
        self._schedule = schedule
        # Many wait when a journal has been full for a time: leaving, and looking for room, must not visit all of them.
        self._queues: dict[BoundedJournal, OrderedDict[Parked, None]] = {}
        """What waits for each journal, by age."""
        self._owners: dict[object, OrderedDict[Parked, None]] = {}
        """What waits of each owner, by age."""
        self._due: Deadline | None = None

    def without_room(self, journals: Sequence[BoundedJournal]) -> tuple[BoundedJournal, ...]:
        """Return those of `journals` that are full, or for which others wait already."""
        owed = self._queues
        for journal in journals:
            if journal.full or journal in owed:
                return tuple(one for one in journals if one in owed or one.full)
        return ()

    def park(self, one: Parked) -> bool:
        """Have `one` wait; False if too much waits already."""
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
        """Let go of all that `owner` had waiting: it was not acknowledged, and is repeated."""
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
        """Return what is next for `journal` if all its journals have room and it is next for each: it overtakes none."""
        queue = self._queues.get(journal)
        if queue is None:
            return None
        one = next(iter(queue))
        for other in one.journals:
            if other.full or next(iter(self._queues[other])) is not one:
                return None
        return one


__all__ = ["MAX_BYTES", "Parked", "Parking"]
