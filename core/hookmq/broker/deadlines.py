"""Everything that is due at a time, behind one timer: keep alive, session expiry, will delay, back-pressure.

A heap of entries; a cancelled one stays until it surfaces, and the heap is rebuilt when most of it is cancelled. What is
due at once, as a hundred thousand sessions that expired together, is called in slices, one a turn.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from hookmq.runtime import Runtime, Timer

SLICE: Final = 64
"""Calls in one turn: a session that ends, the dearest of the usual ones, takes some 30 microseconds."""


class Deadline:
    """A call that is due at `when` (the runtime's monotonic seconds)."""

    __slots__ = ("call", "order", "owner", "when")

    def __init__(
        self, when: float, order: int, call: Callable[[], None], owner: "Deadlines"
    ) -> None:
        self.when = when
        self.order = order
        self.call: Callable[[], None] | None = call
        self.owner = owner

    def __lt__(self, other: "Deadline") -> bool:
        return self.when < other.when or (self.when == other.when and self.order < other.order)

    def cancel(self) -> None:
        """Never call; harmless after the call."""
        if self.call is not None:
            self.call = None
            self.owner.forget()


class Deadlines:
    """All deadlines of one broker; calls due at one time run in the order in which they were set."""

    __slots__ = ("_armed", "_cancelled", "_guarded", "_heap", "_next", "_runtime", "_timer")

    def __init__(self, runtime: Runtime, guarded: Callable[[Callable[[], None]], None]) -> None:
        self._runtime = runtime
        self._guarded = guarded
        self._heap: list[Deadline] = []
        self._next = 0
        self._cancelled = 0
        self._timer: Timer | None = None
        self._armed = 0.0

    def __len__(self) -> int:
        """Deadlines that will still be called."""
        return len(self._heap) - self._cancelled

    def after(self, delay: float, call: Callable[[], None]) -> Deadline:
        """Run `call` in `delay` seconds."""
        when = self._runtime.now() + delay
        self._next += 1
        entry = Deadline(when, self._next, call, self)
        heappush(self._heap, entry)
        if self._timer is None or when < self._armed:
            self._arm()
        return entry

    def clear(self) -> None:
        """Call none of those that were set, as if the process had ended."""
        self._heap = []
        self._cancelled = 0
        self._arm()

    def forget(self) -> None:
        """Count a cancelled entry; for `Deadline.cancel`."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry.call is not None]
            heapify(self._heap)
            self._cancelled = 0

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._armed = self._heap[0].when
            self._timer = self._runtime.call_later(
                max(0.0, self._armed - self._runtime.now()), self._run
            )

    def _run(self) -> None:
        self._timer = None
        now = self._runtime.now()
        left = SLICE
        newest = self._next
        while left and self._heap and self._heap[0].when <= now:
            if self._heap[0].order > newest:
                break  # what a call sets waits for the next turn: it may be the rest of a slice
            entry = heappop(self._heap)
            call = entry.call
            if call is None:
                self._cancelled -= 1
                continue
            entry.call = None
            left -= 1
            self._guarded(call)
        self._arm()
