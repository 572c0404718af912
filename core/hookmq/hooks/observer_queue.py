"""One plugin's queue of events to observe.

Each hook has a lane with its own size limit. A full lane drops its oldest event and counts it. A flood of publishes
therefore cannot displace a disconnect. Asynchronous implementations are awaited on the event loop. Others run in a
worker thread, several events in one batch.

Twenty failures in a row open the circuit breaker. For thirty seconds, new events are dropped and counted. Then one
event is tried; if it succeeds, the queue continues.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from hookmq.hooks.async_calls import HeldAwaitable, refuse, spawn, words
from hookmq.hooks.chain import HookImplementation
from hookmq.hooks.observer_lane import LONGEST, EventRun, Lane
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.model.runtime import Cancel, Runtime, Timer

FAILURES: Final = 20
"""Failures in a row that open the circuit breaker."""
OPEN_FOR: Final = 30.0
"""Seconds that the circuit breaker stays open."""
BATCH: Final = 64
"""Maximum number of events passed to a plugin on the event loop before the loop handles other work."""
THREAD_BATCH: Final = 2048
"""Maximum number of events passed to a plugin in one call in a thread."""


_Work = tuple[Callable[..., Any], Sequence[tuple[Any, ...]], int]
"""A function, the arguments of its calls, and their depth of recursion."""


class ObserverQueue:
    """One plugin's queue and its consumer."""

    __slots__ = (
        "_batch", "_began", "_breaker", "_cancel", "_growing", "_idle", "_number", "_running", "_runtime", "_timer",
        "_turn", "closed", "failures", "lanes", "open_until", "plugin_id",
    )  # fmt: skip

    def __init__(self, plugin_id: str) -> None:
        self.plugin_id = plugin_id
        self.lanes: dict[str, Lane] = {}
        self.failures = 0
        self.open_until: float | None = None
        self._runtime: Runtime | None = None
        self._number = 0
        self._growing: EventRun | None = None
        """The last run, if single events may be added to it."""
        self._turn = 0
        self.closed = False
        self._running = False
        self._batch: deque[EventRun] = deque()
        """The runs that the plugin is currently processing."""
        self._cancel: Cancel | None = None
        self._timer: Timer | None = None
        self._breaker: Timer | None = None
        self._began = 0.0
        self._idle: list[Callable[[], None]] = []

    def bind(self, runtime: Runtime) -> None:
        """Set the runtime and start the consumer."""
        self._runtime = runtime
        self._start()

    def lane(self, call: HookImplementation, limit: int) -> Lane:
        """Return the lane for the call's hook. If the lane exists, it continues with the new call and size limit."""
        lane = self.lanes.get(call.hook)
        if lane is None:
            lane = self.lanes[call.hook] = Lane(call, limit)
        lane.call, lane.limit = call, limit
        return lane

    @property
    def waiting(self) -> int:
        """The number of unfinished events."""
        return sum(map(len, self._batch)) + sum(lane.waiting for lane in self.lanes.values())

    def put(self, lane: Lane, args: tuple[Any, ...]) -> None:
        """Add an event to a lane."""
        if self.open_until is not None or self.closed:
            lane.dropped += 1
            return
        depth = DEPTH.get()
        run = self._growing
        if (
            run is not None
            and run.lane is lane
            and run.depth == depth
            and len(run.events) < LONGEST
        ):
            run.events.append(args)
            lane.grown(1)
        else:
            self._number += 1
            self._growing = run = EventRun(lane, self._number, [args], depth)
            lane.add(run)
        if not self._running:
            self._start()

    def put_all(self, lane: Lane, events: list[Any]) -> None:
        """Add several events to a lane. The list must not change afterwards."""
        if self.open_until is not None or self.closed:
            lane.dropped += len(events)
            return
        if not events:
            return
        self._number += 1
        self._growing = None
        lane.add(EventRun(lane, self._number, events, DEPTH.get()))
        if not self._running:
            self._start()

    def when_idle(self, call: Callable[[], None]) -> None:
        """Run `call` once no events are waiting, possibly at once. An open circuit counts as idle because it may remain
        open."""
        if self.open_until is not None or not (self._running or self.waiting):
            call()
        else:
            self._idle.append(call)

    def stop(self) -> int:
        """Stop the consumer permanently and drop waiting events. Return the number of dropped events."""
        self.closed = True
        cancel = self._cancel
        self._rest()
        if self._breaker is not None:
            self._breaker.cancel()
        lost = self.waiting
        for run in self._batch:
            run.lane.dropped += len(run)
        self._batch.clear()
        for lane in self.lanes.values():
            lane.clear()
        self._growing = None
        self._idle.clear()
        self._running = False
        if cancel is not None:
            cancel()
        return lost

    def _start(self) -> None:
        if self._runtime is not None and not self._running and self.waiting:
            self._running = True
            # Start in the turn after the next: this turn's packets for clients leave first.
            self._runtime.call_soon(self._soon)

    def _soon(self) -> None:
        if self._runtime is not None:
            self._runtime.call_soon(self._next)

    def _next(self) -> None:
        """Pass the next events to the plugin."""
        runtime = self._runtime
        if runtime is None or not self._running or self._cancel is not None:
            return
        if not self._batch:
            self._fill()
        if not self._batch:
            self._running = False
            self._tell_idle()
            return
        call = self._batch[0].lane.call
        self._began = runtime.now()
        if call.is_async:
            self._timer = runtime.call_later(call.timeout, self._late)
            self._cancel = spawn(runtime, self._consume(self._turn), self._consumed)
        else:
            self._cancel = runtime.run_blocking(partial(_work, self._threaded()), self._worked)

    def _fill(self) -> None:
        """Take the oldest events of all lanes, in order."""
        self._growing = None
        lanes = [lane for lane in self.lanes.values() if lane.waiting]
        room = BATCH if any(lane.call.is_async for lane in lanes) else THREAD_BATCH
        while room > 0 and lanes:
            first = lanes[0] if len(lanes) == 1 else min(lanes, key=_oldest)
            run = first.take(room)
            self._batch.append(run)
            room -= len(run)
            if not first.waiting:
                lanes.remove(first)

    def _threaded(self) -> list[_Work]:
        """Return the events at the start of the batch that can be passed to the thread together. After a failure, return
        only one event.
        """
        due: list[_Work] = []
        for run in self._batch:
            call = run.lane.call
            if call.is_async:
                break
            if self.failures:
                return [(call.function, run.events[run.at : run.at + 1], run.depth)]
            due.append((call.function, run.left(), run.depth))
        return due

    def _pop(self) -> HookImplementation:
        """Remove the first event of the batch and return its call."""
        run = self._batch[0]
        run.at += 1
        if run.at >= len(run.events):
            self._batch.popleft()
        return run.lane.call

    # on the loop -------------------------------------------------------------------------------------------------

    async def _consume(self, turn: int) -> None:
        """Await asynchronous implementations, one event at a time, until an event needs a thread.

        After a cancellation, the batch belongs to another call. The coroutine must not touch it then, even if the
        plugin swallows the cancellation.
        """
        batch = self._batch
        while batch and self.open_until is None:
            run = batch[0]
            call = run.lane.call
            if not call.is_async:
                return
            stats = call.stats
            self._began = stats.clock()
            timed = stats.begin()
            wrong: BaseException | str
            DEPTH.set(run.depth)  # messages that it publishes respond to this event
            try:
                answer = await call.function(*run.events[run.at])
                wrong = refuse(call, answer) if hasattr(type(answer), "__await__") else ""
            except _ENDS:
                raise
            except BaseException as error:  # including a CancelledError that the plugin raised
                if turn != self._turn:
                    raise
                wrong = error
            if turn != self._turn:
                return
            self._pop()
            stats.end(timed)
            if isinstance(wrong, BaseException) or wrong:
                self._failed(call, wrong)
                wrong = ""  # otherwise its traceback and this frame reference each other
            else:
                stats.ok += 1
                self.failures = 0

    def _consumed(self, result: Any, error: BaseException | None) -> None:
        self._rest()
        if error is not None and self._batch:
            self._failed(self._pop(), error)
        self._again()

    def _late(self) -> None:
        """Handle the batch's timeout. If the current event started after the timer did, its time is not up yet."""
        runtime, cancel = self._runtime, self._cancel
        self._timer = None
        if runtime is None or cancel is None or not self._batch:
            return
        call = self._batch[0].lane.call
        left = self._began + call.timeout - runtime.now()
        if left > 1e-6:
            self._timer = runtime.call_later(left, self._late)
            return
        self._pop()
        self._rest()
        cancel()
        self._failed(call, f"timed out after {call.timeout:g} s", timeout=True)
        self._again()

    # from the thread ---------------------------------------------------------------------------------------------

    def _worked(self, result: Any, error: BaseException | None) -> None:
        self._rest()
        if error is not None:
            # The thread itself failed at an unknown event. Attribute the failure to the first event.
            self._failed(self._pop(), error)
            self._again()
            return
        runtime = self._runtime
        count, outcomes = result
        seconds = (runtime.now() - self._began) / count if runtime is not None else 0.0
        done = 0
        for index, outcome in outcomes:
            self._succeeded(index - done, seconds)
            done = index + 1
            run = self._batch[0]
            call = run.lane.call
            call.stats.timed_calls(1, seconds)
            if isinstance(outcome, BaseException):
                self._pop()
                self._failed(call, outcome)
            elif runtime is not None:
                # The implementation returned an awaitable, so the thread stopped at this event.
                self._began = runtime.now()
                self._timer = runtime.call_later(call.timeout, self._late)
                self._cancel = at_depth(run.depth, spawn, runtime, outcome.take(), self._awaited)
                return
        self._succeeded(count - done, seconds)
        self._again()

    def _awaited(self, result: Any, error: BaseException | None) -> None:
        self._rest()
        call = self._pop()
        if error is not None:
            self._failed(call, error)
        elif hasattr(type(result), "__await__"):
            self._failed(call, refuse(call, result))
        else:
            call.stats.ok += 1
            self.failures = 0
        self._again()

    def _succeeded(self, count: int, seconds: float) -> None:
        """Remove `count` events that a thread has processed, and count them. Each took `seconds`."""
        while count > 0:
            run = self._batch[0]
            size = min(count, len(run))
            count -= size
            run.at += size
            if not run:
                self._batch.popleft()
            stats = run.lane.call.stats
            stats.timed_calls(size, seconds)
            stats.ok += size
            self.failures = 0

    # the circuit -------------------------------------------------------------------------------------------------

    def _failed(
        self, call: HookImplementation, error: BaseException | str, timeout: bool = False
    ) -> None:
        if isinstance(error, BaseException):
            call.stats.failed(words(error), timeout, error)
        else:
            call.stats.failed(error, timeout)
        self.failures += 1
        runtime = self._runtime
        if self.failures >= FAILURES and self.open_until is None and runtime is not None:
            self.open_until = runtime.now() + OPEN_FOR
            runtime.log(
                "error", "plugin.circuit_open", plugin=self.plugin_id, failures=self.failures
            )
            self._breaker = runtime.call_later(OPEN_FOR, self._half_open)

    def _half_open(self) -> None:
        self.open_until = self._breaker = None
        # One more failure opens the circuit again.
        self.failures = FAILURES - 1
        self._again()

    def _rest(self) -> None:
        """End the call that processes the current batch."""
        if self._timer is not None:
            self._timer.cancel()
        self._cancel = self._timer = None
        self._turn += 1

    def _again(self) -> None:
        self._running = False
        if self.open_until is None:
            self._start()
            if not self._running:
                self._tell_idle()
        else:
            self._tell_idle()

    def _tell_idle(self) -> None:
        idle, self._idle = self._idle, []
        for call in idle:
            call()


def _oldest(lane: Lane) -> int:
    return lane.runs[0].number


def _work(work: list[_Work]) -> tuple[int, list[tuple[int, Exception | HeldAwaitable]]]:
    """Process events in the thread. Return their number, and each error with the index of its event.

    Stop after the first event for which the plugin returns an awaitable. This awaitable is then the last outcome.
    """
    outcomes: list[tuple[int, Exception | HeldAwaitable]] = []
    count = 0
    before = current = DEPTH.get()
    try:
        for function, events, depth in work:
            if depth != current:
                DEPTH.set(depth)  # messages that it publishes respond to this event
                current = depth
            for args in events:
                try:
                    answer = function(*args)
                except Exception as error:
                    outcomes.append((count, error))
                else:
                    if answer is not None and hasattr(type(answer), "__await__"):
                        outcomes.append((count, HeldAwaitable(answer)))
                        return count + 1, outcomes
                count += 1
    finally:
        DEPTH.set(before)
    return count, outcomes


_ENDS: Final = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end the program or this coroutine. They do not count as plugin failures."""
