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
from hookmq.hooks.chain import HookImplementation
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.observer_lane import LONGEST, EventRun, Lane, TopicMemo
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
        """The runs that are being passed to the plugin."""
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
        """Return the events at the start of the batch to pass to the thread together. After a failure, return only
        one event."""
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

        After a cancel, the batch belongs to another call. The coroutine must then not touch it, even if the plugin
        catches the cancellation.
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
        """Handle the batch's timeout. The current event may have started after the timer."""
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


Published = tuple[ClientInfo | None, Message, int]
"""An event of `on_published`."""


def _listener(event: Published) -> str:
    client = event[0]
    return client.listener if client is not None else ""


def _oldest(lane: Lane) -> int:
    return lane.runs[0].number


def _work(work: list[_Work]) -> tuple[int, list[tuple[int, Exception | HeldAwaitable]]]:
    """Process events in the thread. Return their number, and each error with the index of its event.

    Stop after the first event for which an awaitable is returned, which is then the last outcome.
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


class ObservedHook(NamedTuple):
    """One plugin's implementation of one observer hook, and its lane's size limit."""

    instance: PluginInstance
    call: HookImplementation
    limit: int


_Route = tuple[ObserverQueue, Lane, TopicMemo | None]


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
            if wanted is None or wanted[_about(hook, args)]:
                queue.put(lane, args)

    def notify_published(self, events: list[Published]) -> None:
        """Queue events for observers of `on_published`: the publisher, the message, and how many matched. The list must
        not change afterwards."""
        if not self._named:
            self._notify_published("", events)
            return
        for listener, group in groupby(events, _listener):
            self._notify_published(listener, list(group))

    def _notify_published(self, listener: str, events: list[Published]) -> None:
        for queue, lane, wanted in self._routes_of(listener).get("on_published", ()):
            if wanted is None:
                queue.put_all(lane, events)
            else:
                queue.put_all(lane, [args for args in events if wanted[args[1].topic]])

    def wants(self, hook: str, listener: str, topic: str) -> bool:
        """Return whether any observer of `hook` serves `listener` and wants events about `topic`."""
        return any(
            wanted is None or wanted[topic]
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
                hook, topic = watch.call.hook, watch.call.topic
                wanted = TopicMemo(topic) if topic is not None else None
                routes[hook] = (*routes.get(hook, ()), (queue, lane, wanted))
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
