"""Wait until observers have no more events, up to a deadline."""

from collections.abc import Callable, Iterable

from hookmq.hooks.observer_queue import ObserverQueue
from hookmq.model.runtime import Runtime, Timer


def drain(
    queues: Iterable[ObserverQueue],
    runtime: Runtime | None,
    done: Callable[[int], None],
    deadline: float,
) -> None:
    """Call `done` with 0 once all queues are idle. After `deadline` seconds, drop the remaining events and call `done`
    with their number. See `Observers.drain`.
    """
    left = list(queues)
    if runtime is None:
        done(sum(queue.stop() for queue in left))
        return
    state = _Drain(left, done)
    state.timer = runtime.call_later(deadline, state.late)
    for queue in left:
        queue.when_idle(state.one)
    state.one()


class _Drain:
    """Waits until all queues are idle. The count of busy queues starts one too high, so that it cannot reach zero before
    all queues have been registered.
    """

    __slots__ = ("_done", "_missing", "_queues", "timer")

    def __init__(self, queues: list[ObserverQueue], done: Callable[[int], None]) -> None:
        self._queues = queues
        self._missing = len(queues) + 1
        self._done: Callable[[int], None] | None = done
        self.timer: Timer | None = None

    def one(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.late()

    def late(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        if self.timer is not None:
            self.timer.cancel()
        done(sum(queue.stop() for queue in self._queues))
