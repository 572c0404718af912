"""The runtime of one simulated node: its clock differs from the real time, and its process can be paused or end."""

from collections.abc import Callable
from functools import partial

from hookmq_testing.runtime import VirtualTimer
from hookmq_testing.wire import Clock


class NodeClock(Clock):
    """The clock of a process. `world` is the clock of the whole simulation, which alone advances.

    `offset` is the error of the wall clock in seconds, `rate` the speed of the monotonic clock. `departures` has the real
    times of the log events that name a node that has left. `drained` is called when the node logs that it is drained.
    """

    def __init__(self, world: Clock, seed: int, offset: float = 0.0, rate: float = 1.0) -> None:
        super().__init__(seed)
        self.ended = False
        self.departures: list[float] = []
        self.drained: Callable[[], None] = _nothing
        self._world = world
        self._offset = offset
        self._rate = rate
        self._paused = False
        self._pauses: list[tuple[float, float]] = []
        """When the pauses that have ended began and ended."""
        self._pause = 0.0
        """When the last pause began."""
        self._held: list[VirtualTimer] = []

    # hookmq.model.runtime.Runtime --------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the node's monotonic time."""
        return self._world.now() * self._rate

    def time(self) -> float:
        """Return the node's wall clock."""
        return self._world.time() + self._offset

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in the next turn, unless the process is paused or has ended by then."""
        self._world.call_soon(partial(self._run, call))

    def _enqueue(self, call: Callable[[], None]) -> None:
        self.call_soon(call)

    def call_later(self, delay: float, call: Callable[[], None]) -> VirtualTimer:
        """Run `call` after `delay` seconds of the node's clock."""
        timer = self._world.call_later(delay / self._rate, call)
        timer.call = partial(self._due, timer, call)
        return timer

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Keep the event."""
        if event == "cluster.member_left":
            self.departures.append(self._world.now())
        elif event == "cluster.node_drained":
            self.drained()
        super().log(level, event, at=round(self._world.now(), 3), **fields)

    # faults ------------------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether the process is stopped."""
        return self._paused

    def pause(self) -> None:
        """Stop the process, as SIGSTOP does."""
        if not self._paused:
            self._paused, self._pause = True, self._world.now()

    def resume(self) -> None:
        """Let the process go on, as SIGCONT does. Everything that became due meanwhile runs now, in order."""
        if self._paused:
            self._paused = False
            self._pauses.append((self._pause, self._world.now()))
        held, self._held = self._held, []
        for timer in held:
            self._world.call_soon(partial(self._held_call, timer))

    def was_paused(self, start: float, end: float) -> bool:
        """Return whether the process was stopped at any time between `start` and `end`."""
        if self._paused and self._pause <= end:
            return True
        return any(begun <= end and ended >= start for begun, ended in self._pauses)

    def end(self) -> None:
        """End the process: nothing more runs."""
        self.ended = True
        self._held.clear()
        self.tasks.clear()

    # parts -------------------------------------------------------------------------------------------------------

    def _held_call(self, timer: VirtualTimer) -> None:
        call = timer.call
        if call is not None:  # it may have been cancelled meanwhile
            timer.call = None
            self._run(call)

    def _run(self, call: Callable[[], None]) -> None:
        if self._paused:
            self._held.append(VirtualTimer(0.0, 0, call))
        elif not self.ended:
            self.turns += 1
            call()

    def _due(self, timer: VirtualTimer, call: Callable[[], None]) -> None:
        if self._paused:
            timer.call = call
            self._held.append(timer)
        elif not self.ended:
            call()


def _nothing() -> None:
    """Do nothing."""
