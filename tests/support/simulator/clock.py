"""Virtual time: one event heap for the whole world, and the runtime of one broker process."""

import heapq
from collections.abc import Callable, Iterator
from functools import partial

from hookmq_testing.runtime import EPOCH, VirtualRuntime, VirtualTimer


class Clock:
    """Runs events in time order. Events at the same time run in the order in which they were scheduled."""

    __slots__ = ("_events", "_number", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Schedule `call` to run at `when`, or now if that time has passed."""
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, call))

    def after(self, delay: float, call: Callable[[], None]) -> None:
        """Schedule `call` to run after `delay` seconds."""
        self.at(self.now + delay, call)

    def until(self, end: float) -> Iterator[None]:
        """Run all events due by `end`, yielding after each."""
        events = self._events
        while events and events[0][0] <= end:
            self.now, _, call = heapq.heappop(events)
            call()
            yield
        self.now = end


class SimRuntime(VirtualRuntime):
    """The runtime of one broker process.

    Its event loop takes a turn `lag` seconds after an event arrives. Events that arrive in the meantime share that turn.
    `kill` discards everything that is scheduled.
    """

    def __init__(
        self,
        clock: Clock,
        seed: int,
        lag: float,
        logged: Callable[[str, str, dict[str, object]], None],
    ) -> None:
        super().__init__(seed)
        self.clock = clock
        self.lag = lag
        self.dead = False
        self._told = logged
        self._turn_is_due = False

    def now(self) -> float:
        """Return the seconds since the start of the world."""
        return self.clock.now

    def time(self) -> float:
        """Return the virtual epoch time in seconds."""
        return EPOCH + self.clock.now

    def _enqueue(self, call: Callable[[], None]) -> None:
        self._soon.append(call)
        if not self._turn_is_due:
            self._turn_is_due = True
            self.clock.after(self.lag, self._take_turn)

    def call_later(self, delay: float, call: Callable[[], None]) -> VirtualTimer:
        """Schedule `call`, as `VirtualRuntime.call_later` does."""
        if self._in_thread:
            self._not_in_a_thread("call_later")
        timer = VirtualTimer(self.clock.now + max(0.0, delay), 0, call)
        self.clock.at(timer.due, partial(self._due, timer))
        return timer

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Pass a log entry to the world."""
        self._told(level, event, fields)

    def kill(self) -> None:
        """End the process immediately."""
        self.dead = True
        self._soon.clear()
        for task in self.tasks:
            task.ended = True
            close = getattr(task._iterator, "close", None)
            if close is not None:
                close()
        self.tasks.clear()

    def _take_turn(self) -> None:
        self._turn_is_due = False
        if not self.dead:
            self.turn()

    def _due(self, timer: VirtualTimer) -> None:
        call, timer.call = timer.call, None
        if call is not None and not self.dead:
            call()
