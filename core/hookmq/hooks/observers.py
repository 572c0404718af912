"""Call observers after an event, without making the broker wait.

Each observing plugin has one queue with one consumer, so it sees events one at a time and in order. Within the queue,
each hook has a lane with its own size limit. A full lane drops its oldest event and counts it. A flood of publishes
therefore cannot displace a disconnect. Asynchronous implementations are awaited on the event loop. Others run in a
worker thread, several events in one batch.

Twenty failures in a row open the circuit breaker. For thirty seconds, new events are dropped and counted. Then one
event is tried; if it succeeds, the queue continues.

Observers never raise exceptions into the broker. Without observers, this module does nothing.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

from hookmq.hooks.async_calls import HeldAwaitable, refuse, spawn, words
from hookmq.hooks.chain import HookImplementation, Narrowing
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.model.client import ClientInfo
from hookmq.model.message import Message
from hookmq.model.runtime import Cancel, Runtime, Timer
from hookmq.model.subscription import Subscription

FAILURES: Final = 20
"""Failures in a row that open the circuit breaker."""
OPEN_FOR: Final = 30.0
"""Seconds that the circuit breaker stays open."""
BATCH: Final = 64
"""Maximum number of events passed to a plugin on the event loop before the loop handles other work."""
THREAD_BATCH: Final = 512
"""Maximum number of events passed to a plugin in one call of a thread."""


class Lane:
    """The events waiting for one plugin's implementation of one hook."""

    __slots__ = ("call", "dropped", "events", "limit")

    def __init__(self, call: HookImplementation, limit: int) -> None:
        self.call = call
        self.limit = limit
        self.events: deque[tuple[int, tuple[Any, ...], int]] = deque()
        self.dropped = 0


class ObserverQueue:
    """One plugin's queue and its consumer."""

    __slots__ = (
        "_batch", "_began", "_breaker", "_cancel", "_idle", "_one_lane", "_running", "_runtime", "_sequence", "_timer",
        "_turn", "closed", "failures", "lanes", "open_until", "plugin_id",
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
        self._one_lane = False
        """Whether all events of the batch are from one lane."""
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
        """Return the lane for the call's hook. An existing lane continues with the new call and size limit."""
        lane = self.lanes.get(call.hook)
        if lane is None:
            lane = self.lanes[call.hook] = Lane(call, limit)
        lane.call, lane.limit = call, limit
        return lane

    @property
    def waiting(self) -> int:
        """The number of unfinished events."""
        return len(self._batch) + sum(len(lane.events) for lane in self.lanes.values())

    def put(self, lane: Lane, args: tuple[Any, ...]) -> None:
        """Add an event to a lane."""
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

    def put_all(self, lane: Lane, events: Sequence[tuple[Any, ...]]) -> None:
        """Add several events to a lane."""
        if self.open_until is not None or self.closed:
            lane.dropped += len(events)
            return
        waiting = lane.events
        sequence, depth = self._sequence, DEPTH.get()
        for args in events:
            sequence += 1
            waiting.append((sequence, args, depth))
        self._sequence = sequence
        while len(waiting) > lane.limit:
            waiting.popleft()
            lane.dropped += 1
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
        call = self._batch[0][0].call
        self._began = runtime.now()
        if call.is_async:
            self._timer = runtime.call_later(call.timeout, self._late)
            self._cancel = spawn(runtime, self._consume(self._turn), self._consumed)
        else:
            due = self._batch if self._one_lane and not self.failures else self._threaded()
            work = [(lane.call.function, args, depth) for lane, args, depth in due]
            self._cancel = runtime.run_blocking(partial(_work, work), self._worked)

    def _fill(self) -> None:
        """Take the oldest events of all lanes, in order."""
        lanes = [lane for lane in self.lanes.values() if lane.events]
        room = BATCH if any(lane.call.is_async for lane in lanes) else THREAD_BATCH
        self._one_lane = len(lanes) == 1
        if self._one_lane:
            lane = lanes[0]
            events = lane.events
            for _ in range(min(room, len(events))):
                _, args, depth = events.popleft()
                self._batch.append((lane, args, depth))
            return
        while room and lanes:
            first = min(lanes, key=_oldest)
            self._batch.append((first, *first.events.popleft()[1:]))
            if not first.events:
                lanes.remove(first)
            room -= 1

    def _threaded(self) -> list[tuple[Lane, tuple[Any, ...], int]]:
        """Return the events at the start of the batch to pass to the thread together. After a failure, return only
        one event."""
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
        """Await asynchronous implementations, one event at a time, until an event needs a thread.

        After a cancel, the batch belongs to another call. The coroutine must then not touch it, even if the plugin
        catches the cancellation.
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
            DEPTH.set(depth)  # messages that it publishes respond to this event
            try:
                answer = await lane.call.function(*args)
                wrong = refuse(lane.call, answer) if hasattr(type(answer), "__await__") else ""
            except _ENDS:
                raise
            except BaseException as error:  # including a CancelledError that the plugin raised
                if turn != self._turn:
                    raise
                wrong = error
            if turn != self._turn:
                return
            batch.popleft()
            stats.end(timed)
            if isinstance(wrong, BaseException) or wrong:
                self._failed(lane.call, wrong)
                wrong = ""  # otherwise its traceback and this frame reference each other
            else:
                stats.ok += 1
                self.failures = 0

    def _consumed(self, result: Any, error: BaseException | None) -> None:
        self._rest()
        if error is not None and self._batch:
            self._failed(self._batch.popleft()[0].call, error)
        self._again()

    def _late(self) -> None:
        """Handle the batch's timeout. The current event may have started after the timer."""
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
        self._failed(call, f"timed out after {call.timeout:g} s", timeout=True)
        self._again()

    # from the thread ---------------------------------------------------------------------------------------------

    def _worked(self, result: Any, error: BaseException | None) -> None:
        self._rest()
        if error is not None:
            # The thread itself failed at an unknown event. Attribute the failure to the first event.
            self._failed(self._batch.popleft()[0].call, error)
            self._again()
            return
        runtime = self._runtime
        outcomes: list[Any] = result
        total = runtime.now() - self._began if runtime is not None else 0.0
        if self._one_lane and outcomes.count(None) == len(outcomes):
            self._all_worked(total, len(outcomes))
            return
        seconds = total / len(outcomes)
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
                # The implementation returned an awaitable, so the thread stopped at this event.
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

    def _all_worked(self, seconds: float, count: int) -> None:
        """Count events of one lane that a thread has processed without a failure."""
        stats = self._batch[0][0].call.stats
        stats.calls += count
        stats.seconds += seconds
        stats.timed += count
        stats.ok += count
        self.failures = 0
        if count == len(self._batch):
            self._batch.clear()
        else:
            for _ in range(count):
                self._batch.popleft()
        self._again()

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
        """End the current batch's call."""
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


def _listener(event: tuple[ClientInfo | None, Message, int]) -> str:
    client = event[0]
    return client.listener if client is not None else ""


def _oldest(lane: Lane) -> int:
    return lane.events[0][0]


def _work(work: list[tuple[Callable[..., Any], tuple[Any, ...], int]]) -> list[Any]:
    """Process events in the thread and return their outcomes: None, an error, or an awaitable. Stop after the first
    awaitable."""
    outcomes: list[Any] = []
    before = current = DEPTH.get()
    try:
        for function, args, depth in work:
            if depth != current:
                DEPTH.set(depth)  # messages that it publishes respond to this event
                current = depth
            try:
                answer = function(*args)
            except Exception as error:
                outcomes.append(error)
                continue
            if answer is not None and hasattr(type(answer), "__await__"):
                outcomes.append(HeldAwaitable(answer))
                break
            outcomes.append(None)
    finally:
        DEPTH.set(before)
    return outcomes


class ObservedHook(NamedTuple):
    """One plugin's implementation of one observer hook, and its lane's size limit."""

    instance: PluginInstance
    call: HookImplementation
    limit: int


_Route = tuple[ObserverQueue, Lane, Narrowing | None]


class Observers:
    """All observers of one set of plugins."""

    def __init__(self) -> None:
        self.queues: dict[str, ObserverQueue] = {}
        self._watches: tuple[tuple[ObservedHook, ObserverQueue, Lane], ...] = ()
        self._routes: dict[str | None, dict[str, tuple[_Route, ...]]] = {}
        self._named: frozenset[str] = frozenset()
        self._runtime: Runtime | None = None

    def bind(self, runtime: Runtime, watches: Iterable[ObservedHook]) -> None:
        """Set the observers. Plugins that already have a queue keep it."""
        self._runtime = runtime
        self.queues = {}
        made = []
        for watch in watches:
            kept = watch.instance.kept
            if kept.queue is None:
                kept.queue = ObserverQueue(watch.instance.id)
            queue: ObserverQueue = kept.queue
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
        """Queue an event for observers of `hook` that serve `listener`. `args` are the hook's arguments without
        `broker`. Never blocks."""
        for queue, lane, wanted in self._routes_of(listener).get(hook, ()):
            if wanted is None or wanted(_about(hook, args)):
                queue.put(lane, args)

    def notify_published(self, events: Sequence[tuple[ClientInfo | None, Message, int]]) -> None:
        """Queue events for observers of `on_published`: the publisher, the message, and how many matched."""
        for listener, group in groupby(events, _listener):
            of_one = list(group)
            for queue, lane, wanted in self._routes_of(listener).get("on_published", ()):
                if wanted is None:
                    queue.put_all(lane, of_one)
                else:
                    queue.put_all(lane, [args for args in of_one if wanted(args[1].topic)])

    def wants(self, hook: str, listener: str, topic: str) -> bool:
        """Return whether any observer of `hook` serves `listener` and wants events about `topic`."""
        return any(
            wanted is None or wanted(topic)
            for _, _, wanted in self._routes_of(listener).get(hook, ())
        )

    def drain(self, done: Callable[[int], None], deadline: float) -> None:
        """Call `done` with 0 once no events are waiting. After `deadline` seconds, drop the remaining events and call
        `done` with their number.

        Does not wait for an open circuit.
        """
        drain(self.queues.values(), self._runtime, done, deadline)

    def _routes_of(self, listener: str) -> dict[str, tuple[_Route, ...]]:
        key = listener if listener in self._named else None
        routes = self._routes.get(key)
        if routes is None:
            routes = self._routes[key] = self._route(key)
        return routes

    def _route(self, listener: str | None) -> dict[str, tuple[_Route, ...]]:
        routes: dict[str, tuple[_Route, ...]] = {}
        for watch, queue, lane in self._watches:
            listeners = watch.instance.entry.listeners
            if listeners is None or listener in listeners:
                hook = watch.call.hook
                routes[hook] = (*routes.get(hook, ()), (queue, lane, watch.call.topic))
        return routes


def drain(
    queues: Iterable[ObserverQueue],
    runtime: Runtime | None,
    done: Callable[[int], None],
    deadline: float,
) -> None:
    """Drain the given queues. See `Observers.drain`."""
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
    """Wait until all queues are idle. The count starts one too high, so it cannot reach zero before all queues were
    registered."""

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


def _about(hook: str, args: tuple[Any, ...]) -> str:
    """Return an event's topic, or its filter if it is about a subscription."""
    if hook == "on_retained":
        return str(args[0])
    if hook == "on_denied":
        return str(args[2])
    value = args[1]
    if isinstance(value, Subscription):
        return value.topic_filter
    return str(getattr(value, "topic", ""))


_ENDS: Final = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end the program or this coroutine. They do not count as plugin failures."""
