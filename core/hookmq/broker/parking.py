"""Publishes that wait for room in a journal.

A full journal cannot take what its publisher would be acknowledged for. MQTT 5.0 clients are told so. MQTT 3.x has no
code for it, and most of its clients repeat a PUBLISH only after a reconnect. So their acknowledgements wait here until
there is room. Order is kept for each journal: nothing is journaled past what waits for the same one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from hookmq.broker.deadlines import Deadline, Deadlines
from hookmq.store import BoundedJournal

EVERY: Final = 0.1
"""Seconds between two looks whether there is room."""
MAX_BYTES: Final = 64 << 20
"""Bytes that may wait for room, of all clients together."""


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
        "_owed",
        "_schedule",
        "_waiting",
        "bytes",
        "max_bytes",
    )

    def __init__(
        self,
        deadlines: Deadlines,
        guarded: Callable[[Callable[[], None]], None],
        schedule: Callable[[], None],
    ) -> None:
        self.bytes = 0
        """Bytes that wait."""
        self.max_bytes = MAX_BYTES
        self._deadlines = deadlines
        self._guarded = guarded
        self._schedule = schedule
        self._waiting: deque[Parked] = deque()
        self._owed: dict[BoundedJournal, int] = {}
        """How many wait for each journal."""
        self._due: Deadline | None = None

    @property
    def waiting(self) -> int:
        """Publishes that wait."""
        return len(self._waiting)

    def without_room(self, journals: Sequence[BoundedJournal]) -> tuple[BoundedJournal, ...]:
        """Return those of `journals` that are full, or for which others wait already."""
        owed = self._owed
        for journal in journals:
            if journal.full or journal in owed:
                return tuple(one for one in journals if one in owed or one.full)
        return ()

    def park(self, one: Parked) -> bool:
        """Have `one` wait; False if too much waits already."""
        if self.bytes + one.size > self.max_bytes:
            return False
        self.bytes += one.size
        self._waiting.append(one)
        for journal in one.journals:
            self._owed[journal] = self._owed.get(journal, 0) + 1
        if self._due is None:
            self._due = self._deadlines.after(EVERY, self._look)
        return True

    def leave(self, owner: object) -> None:
        """Let go of all that `owner` had waiting: it was not acknowledged, and is repeated."""
        left = [one for one in self._waiting if one.owner is owner]
        self._waiting = deque(one for one in self._waiting if one.owner is not owner)
        for one in left:
            self._remove(one)
            self._guarded(one.gone)

    def _remove(self, one: Parked) -> None:
        self.bytes -= one.size
        for journal in one.journals:
            self._owed[journal] -= 1
            if not self._owed[journal]:
                del self._owed[journal]

    def _look(self) -> None:
        self._due = None
        blocked: set[BoundedJournal] = set()
        waiting, self._waiting = self._waiting, deque()
        went = False
        for one in waiting:
            for journal in one.journals:
                if journal not in blocked and journal.full:
                    blocked.add(journal)
            if blocked.intersection(one.journals):
                blocked.update(one.journals)  # nothing overtakes it in any of them
                self._waiting.append(one)
                continue
            went = True
            self._remove(one)
            self._guarded(one.go)
        if self._waiting and self._due is None:
            self._due = self._deadlines.after(EVERY, self._look)
        if went:
            self._schedule()


__all__ = ["MAX_BYTES", "Parked", "Parking"]
