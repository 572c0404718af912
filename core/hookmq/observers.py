"""Observers: told what happened, never waited for.

Every plugin that observes has one queue with one consumer, so that it sees events one after another and in their order.
Within the queue each hook has a lane with a bound of its own; a full lane drops its oldest event and counts it, and a
flood of publishes cannot push out a disconnect. Asynchronous implementations are awaited on the loop, others run in a
worker thread, several events at a time. Twenty failures in a row open the circuit: for thirty seconds new events are
dropped and counted, then one event is tried, and what waited goes on if it succeeds.

Nothing here raises into the broker, and where nobody observes nothing happens.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from hookmq.hooks.chains import Call, Narrowing
from hookmq.hooks.depth import DEPTH, at_depth
from hookmq.hooks.entry import PluginInstance
from hookmq.hooks.waiting import Held, in_thread, refuse, spawn, words
from hookmq.runtime import Cancel, Runtime, Timer
from hookmq.types import Subscription

FAILURES: Final = 20
"""Failures in a row that open a circuit."""
OPEN_FOR: Final = 30.0
"""Seconds that a circuit stays open."""
BATCH: Final = 64
"""Events handed to a plugin before the loop gets its turn."""


class Lane:
    """The events of one hook that wait for one plugin."""

    __slots__ = ("call", "dropped", "events", "limit")

    def __init__(self, call: Call, limit: int) -> None:
        self.call = call
        self.limit = limit
        self.events: deque[tuple[int, tuple[Any, ...], int]] = deque()
        self.dropped = 0


class Queue:
    """One plugin's queue and its consumer."""

    __slots__ = (
        "_batch", "_began", "_breaker", "_cancel", "_idle", "_running", "_runtime", "_sequence", "_timer", "_turn",
        "closed", "failures", "lanes", "open_until", "plugin_id",
    )  # fmt: skip

    def __init__(self, plugin_id: str) -> None:
        self.plugin_id = plugin_id
        self.lanes: dict[str, Lane] = {}
        self.failures = 0
        self.open_until: float | None = None
        self._runtime: Runtime | None = None
        self._sequence = 0
        self._turn = 0
        self.closed = False
        self._running = False
        self._batch: deque[tuple[Lane, tuple[Any, ...], int]] = deque()
        self._cancel: Cancel | None = None
        self._timer: Timer | None = None
        self._breaker: Timer | None = None
        self._began = 0.0
        self._idle: list[Callable[[], None]] = []

    def bind(self, runtime: Runtime) -> None:
        """Give it the runtime; what came before begins to move."""
        self._runtime = runtime
        self._start()

    def lane(self, call: Call, limit: int) -> Lane:
        """The lane of the call's hook; one that exists goes on with the new call and bound."""
        lane = self.lanes.get(call.hook)
        if lane is None:
            lane = self.lanes[call.hook] = Lane(call, limit)
        lane.call, lane.limit = call, limit
        return lane

    @property
    def waiting(self) -> int:
        """Events not yet done with."""
        return len(self._batch) + sum(len(lane.events) for lane in self.lanes.values())

    def put(self, lane: Lane, args: tuple[Any, ...]) -> None:
        """Add an event."""
        if self.open_until is not None or self.closed:
            lane.dropped += 1
            return
        events = lane.events
        if len(events) >= lane.limit:
            events.popleft()
            lane.dropped += 1
        self._sequence += 1
        events.append((self._sequence, args, DEPTH.get()))
        if not self._running:
            self._start()

    def when_idle(self, call: Callable[[], None]) -> None:
        """Run `call` once nothing waits, at once if that is so; an open circuit counts, for it may not close."""
        if self.open_until is not None or not (self._running or self.waiting):
            call()
        else:
            self._idle.append(call)

    def stop(self) -> int:
        """End the consumer for good and drop what waits; how many events that were."""
        self.closed = True
        cancel = self._cancel
        self._rest()
        if self._breaker is not None:
            self._breaker.cancel()
        lost = self.waiting
        for lane, *_ in self._batch:
            lane.dropped += 1
        self._batch.clear()
        for lane in self.lanes.values():
            lane.dropped += len(lane.events)
            lane.events.clear()
        self._idle.clear()
        self._running = False
        if cancel is not None:
            cancel()
        return lost

    def _start(self) -> None:
        if self._runtime is not None and not self._running and self.waiting:
            self._running = True
            # Not in the next turn but in the one after it: what this turn has for clients leaves first.
            self._runtime.call_soon(self._soon)

    def _soon(self) -> None:
        if self._runtime is not None:
            self._runtime.call_soon(self._next)

    def _next(self) -> None:
        """Hand out what is due."""
        runtime = self._runtime
        if runtime is None or not self._running or self._cancel is not None:
            return
        if not self._batch:
            self._fill()
        if not self._batch:
            self._running = False
            self._tell_idle()
            return
        call = self._batch[0][0].call
        self._began = runtime.now()
        if call.is_async:
            self._timer = runtime.call_later(call.timeout, self._late)
            self._cancel = spawn(runtime, self._consume(self._turn), self._consumed)
        else:
            work = [(lane.call.function, args, depth) for lane, args, depth in self._threaded()]
            self._cancel = runtime.run_blocking(partial(_work, work), self._worked)

    def _fill(self) -> None:
        """Take the oldest events of all lanes, in their order."""
        lanes = [lane for lane in self.lanes.values() if lane.events]
        room = BATCH
        while room and lanes:
            first = min(lanes, key=_oldest)
            self._batch.append((first, *first.events.popleft()[1:]))
            if not first.events:
                lanes.remove(first)
            room -= 1

    def _threaded(self) -> list[tuple[Lane, tuple[Any, ...], int]]:
        """The events at the head of the batch that go to the thread together; after a failure one alone."""
        due: list[tuple[Lane, tuple[Any, ...], int]] = []
        for event in self._batch:
            if event[0].call.is_async:
                break
            due.append(event)
            if self.failures:
                break
        return due

    # on the loop -------------------------------------------------------------------------------------------------

    async def _consume(self, turn: int) -> None:
        """Await asynchronous implementations one after another, as far as the batch has them.

        When it was cancelled the turn is over: whatever the plugin makes of that, the batch is another's.
        """
        batch = self._batch
        while batch and self.open_until is None:
            lane, args, depth = batch[0]
            if not lane.call.is_async:
                return
            stats = lane.call.stats
            self._began = stats.clock()
            timed = stats.begin()
            wrong: BaseException | str
            DEPTH.set(depth)  # what it publishes answers this event, whatever was before it
            try:
                answer = await lane.call.function(*args)
                wrong = refuse(lane.call, answer) if hasattr(type(answer), "__await__") else ""
            except _ENDS:
                raise
            except BaseException as error:  # a CancelledError of the plugin's own making, too
                if turn != self._turn:
                    raise
                wrong = error
            if turn != self._turn:
                return
            batch.popleft()
            stats.end(timed)
            if isinstance(wrong, BaseException) or wrong:
                self._failed(lane.call, wrong)
                wrong = ""  # else its traceback and this frame hold each other
            else:
                stats.ok += 1
                self.failures = 0

    def _consumed(self, result: Any, error: BaseException | None) -> None:
        self._rest()
        if error is not None and self._batch:
            self._failed(self._batch.popleft()[0].call, error)
        self._again()

    def _late(self) -> None:
        """The timer of a batch: the first event may be newer than the timer."""
        runtime, cancel = self._runtime, self._cancel
        self._timer = None
        if runtime is None or cancel is None or not self._batch:
            return
        call = self._batch[0][0].call
        left = self._began + call.timeout - runtime.now()
        if left > 1e-6:
            self._timer = runtime.call_later(left, self._late)
            return
        self._batch.popleft()
        self._rest()
        cancel()
        self._failed(call, f"not done within {call.timeout:g} s", timeout=True)
        self._again()

    # from the thread ---------------------------------------------------------------------------------------------

    def _worked(self, result: Any, error: BaseException | None) -> None:
        self._rest()
        if error is not None:
            # The thread itself failed: the event that it was at is not known, the first answers for it.
            self._failed(self._batch.popleft()[0].call, error)
            self._again()
            return
        runtime = self._runtime
        outcomes: list[Any] = result
        seconds = (runtime.now() - self._began) / len(outcomes) if runtime is not None else 0.0
        for outcome in outcomes:
            lane = self._batch[0][0]
            stats = lane.call.stats
            stats.calls += 1
            stats.seconds += seconds
            stats.timed += 1
            if outcome is None:
                self._batch.popleft()
                stats.ok += 1
                self.failures = 0
            elif isinstance(outcome, BaseException):
                self._batch.popleft()
                self._failed(lane.call, outcome)
            elif runtime is not None:
                # It returned an awaitable, and the thread stopped there.
                self._began = runtime.now()
                self._timer = runtime.call_later(lane.call.timeout, self._late)
                depth = self._batch[0][2]
                self._cancel = at_depth(depth, spawn, runtime, outcome.take(), self._awaited)
                return
        self._again()

    def _awaited(self, result: Any, error: BaseException | None) -> None:
        self._rest()
        call = self._batch.popleft()[0].call
        if error is not None:
            self._failed(call, error)
        elif hasattr(type(result), "__await__"):
            self._failed(call, refuse(call, result))
        else:
            call.stats.ok += 1
            self.failures = 0
        self._again()

    # the circuit -------------------------------------------------------------------------------------------------

    def _failed(self, call: Call, error: BaseException | str, timeout: bool = False) -> None:
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
        # One more failure opens it again.
        self.failures = FAILURES - 1
        self._again()

    def _rest(self) -> None:
        """Nothing is handed out any more."""
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
    return lane.events[0][0]


def _work(work: list[tuple[Callable[..., Any], tuple[Any, ...], int]]) -> list[Any]:
    """In the thread: the outcome of each, None for done, or the error; what must be awaited ends it."""
    outcomes: list[Any] = []
    for function, args, depth in work:
        try:
            # what it publishes answers this event
            answer = at_depth(depth, in_thread, function, args)
        except Exception as error:
            outcomes.append(error)
            continue
        if isinstance(answer, Held):
            outcomes.append(answer)
            break
        outcomes.append(None)
    return outcomes


class Watch(NamedTuple):
    """One observer hook of one plugin: its call and how many events may wait for it."""

    instance: PluginInstance
    call: Call
    limit: int


_Route = tuple[Queue, Lane, Narrowing | None]


class Observers:
    """All observers of one set of plugins."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self._watches: tuple[tuple[Watch, Queue, Lane], ...] = ()
        self._routes: dict[str | None, dict[str, tuple[_Route, ...]]] = {}
        self._named: frozenset[str] = frozenset()
        self._runtime: Runtime | None = None

    def bind(self, runtime: Runtime, watches: Iterable[Watch]) -> None:
        """Set who observes. A plugin that was bound before, here or elsewhere, keeps its queue."""
        self._runtime = runtime
        self.queues = {}
        made = []
        for watch in watches:
            kept = watch.instance.kept
            if kept.queue is None:
                kept.queue = Queue(watch.instance.id)
            queue: Queue = kept.queue
            self.queues[watch.instance.id] = queue
            made.append((watch, queue, queue.lane(watch.call, watch.limit)))
        self._watches = tuple(made)
        self._routes = {}
        self._named = frozenset(
            name for watch in self._watches for name in watch[0].instance.entry.listeners or ()
        )
        for queue in self.queues.values():
            queue.bind(runtime)

    def notify(self, hook: str, listener: str, *args: Any) -> None:
        """Tell those who observe `hook` for `listener`; `args` are the hook's less `broker`. It never waits."""
        key = listener if listener in self._named else None
        routes = self._routes.get(key)
        if routes is None:
            routes = self._routes[key] = self._route(key)
        for queue, lane, wanted in routes.get(hook, ()):
            if wanted is None or wanted(_about(hook, args)):
                queue.put(lane, args)

    def drain(self, done: Callable[[int], None], deadline: float) -> None:
        """Tell `done` once no event waits, or `deadline` seconds from now; then what is left is dropped and counted, and
        `done` is told how many. An open circuit is not waited for."""
        drain(self.queues.values(), self._runtime, done, deadline)

    def _route(self, listener: str | None) -> dict[str, tuple[_Route, ...]]:
        routes: dict[str, tuple[_Route, ...]] = {}
        for watch, queue, lane in self._watches:
            listeners = watch.instance.entry.listeners
            if listeners is None or listener in listeners:
                hook = watch.call.hook
                routes[hook] = (*routes.get(hook, ()), (queue, lane, watch.call.topic))
        return routes


def drain(
    queues: Iterable[Queue],
    runtime: Runtime | None,
    done: Callable[[int], None],
    deadline: float,
) -> None:
    """As `Observers.drain`, for some queues."""
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
    """Counts queues that come to rest. It starts one ahead so that it cannot end before all were asked."""

    __slots__ = ("_done", "_missing", "_queues", "timer")

    def __init__(self, queues: list[Queue], done: Callable[[int], None]) -> None:
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


def _about(hook: str, args: tuple[Any, ...]) -> str:
    """The topic, or for subscriptions the filter, that an event is about."""
    if hook == "on_retained":
        return str(args[0])
    if hook == "on_denied":
        return str(args[2])
    value = args[1]
    if isinstance(value, Subscription):
        return value.topic_filter
    return str(getattr(value, "topic", ""))


_ENDS: Final = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""What ends the whole program, or our own coroutine, and is nobody's failure."""
