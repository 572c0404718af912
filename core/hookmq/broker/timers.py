"""All of a broker's deadlines, run by one timer: keep alive, session expiry, will delay, back-pressure.

Deadlines form a heap. A cancelled deadline remains in it until it reaches the top; if most are cancelled, the heap is
rebuilt. If many are due at once, for example when 100,000 sessions expire together, they are called in slices, one per
turn.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from hookmq.model.runtime import Runtime, Timer

SLICE: Final = 64
"""Calls per turn. The most expensive common call, ending a session, takes about 30 microseconds."""


class Deadline:
    """A call that is due at `when`, in seconds on the runtime's monotonic clock."""

    __slots__ = ("call", "order", "owner", "when")

    def __init__(
        self, when: float, order: int, call: Callable[[], None], owner: "TimerQueue"
    ) -> None:
        self.when = when
        self.order = order
        self.call: Callable[[], None] | None = call
        self.owner = owner

    def __lt__(self, other: "Deadline") -> bool:
        return self.when < other.when or (self.when == other.when and self.order < other.order)

    def cancel(self) -> None:
        """Prevent the call; do nothing if it has already been made."""
        if self.call is not None:
            self.call = None
            self.owner.forget()


class TimerQueue:
    """All deadlines of one broker. Calls due at the same time run in the order in which they were set."""

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
        """Return the number of pending deadlines."""
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
        """Cancel all deadlines, as if the process had ended."""
        self._heap = []
        self._cancelled = 0
        self._arm()

    def forget(self) -> None:
        """Count a cancelled deadline. Only `Deadline.cancel` calls this."""
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
            delay = max(0.0, self._armed - self._runtime.now())
            self._timer = self._runtime.call_later(delay, self._run)

    def _run(self) -> None:
        self._timer = None
        now = self._runtime.now()
        left = SLICE
        newest = self._next
        while left and self._heap and self._heap[0].when <= now:
            if self._heap[0].order > newest:
                break  # set by one of these calls, perhaps to continue a slice: run it in the next turn
            entry = heappop(self._heap)
            call = entry.call
            if call is None:
                self._cancelled -= 1
                continue
            entry.call = None
            left -= 1
            self._guarded(call)
        self._arm()
