"""A runtime with a virtual clock: deterministic, single-threaded and fast. It is meant for tests and simulations.

Time passes only in `advance`, and in `run_until_idle` as far as blocking calls need it. Coroutines may await each
other, `sleep`, an `Event`, and anything that yields None for "next turn", but nothing from asyncio.

A blocking call takes virtual time, which the seed determines. The call runs partway through that time, and its result
is available at the end. The call does not run on the event loop, so it gets a RuntimeError if it uses the loop's
methods. Calls overlap and overtake each other, as in a thread pool. A test that passes with many seeds covers many
interleavings.
"""

import asyncio
import heapq
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from typing import Any, Final

from hookmq.model.runtime import Cancel, Done

EPOCH: Final = 1_700_000_000.0
"""The Unix time, in seconds, at which a virtual clock starts."""
BLOCKING: Final = 0.02
"""Longest duration of an ordinary blocking call, in seconds."""
_SLOW_ONE_IN: Final = 16
_SLOW: Final = 20
"""One blocking call in `_SLOW_ONE_IN` takes up to this many times as long."""


class VirtualTimer:
    """A scheduled call."""

    __slots__ = ("call", "due", "order")

    def __init__(self, due: float, order: int, call: Callable[[], None]) -> None:
        self.due = due
        self.order = order
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Cancel the call; see `hookmq.model.runtime.Timer.cancel`."""
        self.call = None

    def __lt__(self, other: "VirtualTimer") -> bool:
        return (self.due, self.order) < (other.due, other.order)


class Event:
    """An awaitable that tests set: ``value = await event``. Use `fail` instead to raise an error in the awaiting
    coroutines."""

    __slots__ = ("_error", "_runtime", "_waiting", "is_set", "value")

    def __init__(self, runtime: "VirtualRuntime") -> None:
        self._runtime = runtime
        self._waiting: list[Callable[[], None]] = []
        self._error: BaseException | None = None
        self.is_set = False
        self.value: Any = None

    def set(self, value: Any = None) -> None:
        """Resume all awaiting coroutines in the next turn, with `value`."""
        self.is_set, self.value = True, value
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            self._runtime.call_soon(wake)

    def fail(self, error: BaseException) -> None:
        """Raise `error` in all awaiting coroutines."""
        self._error = error
        self.set()

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.is_set:
            yield self._waiting.append
        if self._error is not None:
            raise self._error
        return self.value


class VirtualPromise(Event):
    """A `Promise` as strict as an asyncio future. A second result is an error, and cancelling the awaiting coroutine
    cancels the promise."""

    __slots__ = ()

    def done(self) -> bool:
        """Return whether the promise has a result or an exception, or was cancelled."""
        return self.is_set

    def set_result(self, result: Any, /) -> None:
        """Set the result. Call it once."""
        self._once()
        self.set(result)

    def set_exception(self, exception: BaseException, /) -> None:
        """Set the exception that awaiting raises. Call it once."""
        self._once()
        self.fail(exception)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from super().__await__())
        except (asyncio.CancelledError, GeneratorExit):
            if not self.is_set:
                self.fail(asyncio.CancelledError())
            raise

    def _once(self) -> None:
        if self.is_set:
            raise asyncio.InvalidStateError("the promise already has a result")


class Task:
    """A coroutine that the runtime runs."""

    __slots__ = (
        "_cancelled", "_context", "_done", "_iterator", "_running", "_runtime", "_steps", "_throw_next", "ended",
    )  # fmt: skip

    def __init__(self, runtime: "VirtualRuntime", awaitable: Awaitable[Any], done: Done) -> None:
        self._runtime = runtime
        self._iterator: Any = awaitable if hasattr(awaitable, "send") else awaitable.__await__()
        self._done: Done | None = done
        self._context = copy_context()
        self._steps = 0
        self._running = False
        self._cancelled = False
        self._throw_next = False
        self.ended = False

    def step(self, error: BaseException | None = None) -> None:
        """Run the coroutine until its next suspension."""
        if self.ended:
            return
        self._steps += 1
        self._running = True
        result: Any = None
        failure: BaseException | None = None
        try:
            if error is not None:
                wanted = self._context.run(self._iterator.throw, error)
            elif hasattr(self._iterator, "send"):
                wanted = self._context.run(self._iterator.send, None)
            else:
                wanted = self._context.run(next, self._iterator)
        except StopIteration as stop:
            self.ended, result = True, stop.value
        except (KeyboardInterrupt, SystemExit):
            self.ended = True
            raise
        except BaseException as problem:
            self.ended, failure = True, problem
        finally:
            self._running = False
        if self.ended:
            self._runtime.tasks.discard(self)
            done, self._done = self._done, None
            if done is not None:
                done(result, failure)
        elif self._throw_next:
            self._throw_next = False
            self._runtime.call_soon(self._throw)
        elif wanted is None:
            self._runtime.call_soon(self.step)
        elif callable(wanted):
            wanted(self._wake())
        else:
            foreign = RuntimeError(f"a virtual runtime cannot await {type(wanted).__name__}")
            self._runtime.call_soon(lambda: self.step(foreign))

    def cancel(self) -> None:
        """Cancel the task as asyncio does: raise CancelledError in the coroutine in the next turn."""
        self._done = None
        if self.ended or self._cancelled:
            return
        self._cancelled = True
        if not self._steps:
            self.ended = True
            self._runtime.tasks.discard(self)
            close = getattr(self._iterator, "close", None)
            if close is not None:
                close()
        elif self._running:
            self._throw_next = True
        else:
            self._runtime.call_soon(self._throw)

    def _throw(self) -> None:
        self.step(asyncio.CancelledError())

    def _wake(self) -> Callable[[], None]:
        """Return a function that resumes the coroutine. The function does nothing if the coroutine has already
        continued.
        """
        steps = self._steps

        def wake() -> None:
            if steps == self._steps:
                self.step()

        return wake


class VirtualRuntime:
    """A `hookmq.model.runtime.Runtime` for tests.

    `logged` holds all log events as (level, event, fields). `tasks` holds the running coroutines. `run_until_idle` and
    `advance` raise the errors of scheduled calls. `blocking` is the longest duration of an ordinary blocking call in
    seconds; some calls take much longer. With 0.0, each call runs in the next turn.
    """

    def __init__(self, seed: int = 0, blocking: float = BLOCKING) -> None:
        self.logged: list[tuple[str, str, dict[str, object]]] = []
        self.tasks: set[Task] = set()
        self._now = 0.0
        self._random = random.Random(seed)
        self._blocking = blocking
        self._pace = random.Random(f"blocking {seed}")
        """A separate generator, so that blocking calls do not change what `random` and `token` return."""
        self._at_work = 0
        """Number of blocking calls in progress."""
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[VirtualTimer] = []
        self._order = 0
        self._loop_thread = threading.get_ident()
        self._in_thread = False

    # hookmq.model.runtime.Runtime --------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return virtual seconds since the start."""
        return self._now

    def time(self) -> float:
        """Return the virtual Unix time in seconds."""
        return EPOCH + self._now

    def random(self) -> float:
        """Return the next number of a seeded sequence."""
        return self._random.random()

    def token(self, size: int) -> str:
        """Return the next `size` bytes of a seeded sequence, in hex."""
        return self._random.randbytes(size).hex()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in the next turn."""
        if self._in_thread:
            self._not_in_a_thread("call_soon")
        self._enqueue(call)

    def _enqueue(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def _not_in_a_thread(self, name: str) -> None:
        """Raise RuntimeError for a call that would be a data race on a real event loop."""
        raise RuntimeError(f"{name}() is for the event loop, and this is a thread")

    def on_loop(self) -> bool:
        """Return whether the caller is on the event loop, not in a `run_blocking` call or another test thread."""
        return not self._in_thread and threading.get_ident() == self._loop_thread

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """Run `call` in the next turn. Any thread in the test may call this."""
        self._enqueue(call)

    def call_later(self, delay: float, call: Callable[[], None]) -> VirtualTimer:
        """Run `call` once time has advanced by `delay` seconds."""
        if self._in_thread:
            self._not_in_a_thread("call_later")
        self._order += 1
        timer = VirtualTimer(self._now + max(0.0, delay), self._order, call)
        heapq.heappush(self._timers, timer)
        return timer

    def promise(self) -> VirtualPromise:
        """Return a new promise."""
        if self._in_thread:
            self._not_in_a_thread("promise")
        return VirtualPromise(self)

    def spawn(self, awaitable: Awaitable[Any], done: Done) -> Cancel:
        """Start running `awaitable` in the next turn."""
        if self._in_thread:
            self._not_in_a_thread("spawn")
        task = Task(self, awaitable, done)
        self.tasks.add(task)
        self.call_soon(task.step)
        return task.cancel

    def run_blocking(self, call: Callable[[], Any], done: Done) -> Cancel:
        """Run `call` at a later time, and `done` later still. The seed determines both times."""
        if self._in_thread:
            self._not_in_a_thread("run_blocking")
        before = self._takes() if self._blocking else 0.0
        after = self._takes() if self._blocking else 0.0
        wanted = [True]
        outcome: list[Any] = [None, None]
        self._at_work += 1

        def run() -> None:
            outcome[:] = self._threaded(call)
            self._after(after, end)

        def end() -> None:
            if wanted:
                wanted.clear()
                self._at_work -= 1
                done(outcome[0], outcome[1])

        def cancel() -> None:
            if wanted:
                wanted.clear()
                self._at_work -= 1

        self._after(before, run)
        return cancel

    def _takes(self) -> float:
        """Return half the duration of a blocking call, in seconds."""
        draw = self._pace.random()
        slow = _SLOW if self._pace.randrange(_SLOW_ONE_IN) == 0 else 1
        return self._blocking * slow * draw / 2

    def _after(self, delay: float, call: Callable[[], None]) -> None:
        if delay > 0.0:
            self.call_later(delay, call)
        else:
            self.call_soon(call)

    def _threaded(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Run `call` as a thread would. Return its result and its error."""
        self._in_thread = True
        try:
            return call(), None
        except BaseException as error:
            return None, error
        finally:
            self._in_thread = False

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Append the event to `logged`."""
        self.logged.append((level, event, fields))

    def logs(self, level: str) -> bool:
        """Return True: every level is logged."""
        return True

    # for coroutines ----------------------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """Wait for virtual time to pass."""
        event = Event(self)
        timer = self.call_later(seconds, event.set)
        try:
            await event
        finally:
            timer.cancel()

    def event(self) -> Event:
        """Return a new event."""
        return Event(self)

    # for tests ---------------------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Run all calls that are due at the start of this turn. Return False if there are none."""
        count = len(self._soon)
        for _ in range(count):
            self._soon.popleft()()
        return bool(count)

    def run_until_idle(self, turns: int = 100_000) -> None:
        """Run turns until nothing is due and no blocking call is running. Raises RuntimeError after `turns` turns.

        Time passes only as far as blocking calls need it.
        """
        for _ in range(turns):
            if not self.turn() and not (self._at_work and self._next_due()):
                return
        raise RuntimeError(f"still busy after {turns} turns")

    def advance(self, seconds: float) -> None:
        """Advance virtual time by `seconds`. Timers run in order, each at its due time. Calls that a timer schedules
        without a delay run directly after it.

        Blocking calls that take longer are still running afterwards.
        """
        end = self._now + seconds
        if self._soon:
            self._take_turns()
        while self._next_due(end):
            self._take_turns()
        self._now = end

    def _take_turns(self, turns: int = 100_000) -> None:
        """Run turns until nothing is due at the current time."""
        for _ in range(turns):
            if not self.turn():
                return
        raise RuntimeError(f"still busy after {turns} turns")

    def _next_due(self, end: float = float("inf")) -> bool:
        """Advance to the next timer that is due by `end` and run it. Return False if there is none."""
        while self._timers and self._timers[0].due <= end:
            timer = heapq.heappop(self._timers)
            call, timer.call = timer.call, None
            if call is not None:
                self._now = max(self._now, timer.due)
                call()
                return True
        return False

    def next_timer(self) -> float | None:
        """Return when the next timer is due, as a value of `now`, or None if there is no timer."""
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        return self._timers[0].due if self._timers else None

    def run(self, awaitable: Awaitable[Any], timeout: float = 3600.0) -> Any:
        """Run `awaitable` to completion, advancing time as needed. Return its result or raise its error."""
        answers: list[tuple[Any, BaseException | None]] = []
        cancel = self.spawn(awaitable, lambda result, error: answers.append((result, error)))
        end = self._now + timeout
        self.run_until_idle()
        while not answers:
            due = self.next_timer()
            if due is None or due > end:
                cancel()
                self.run_until_idle()
                raise TimeoutError("the awaitable will never finish")
            self.advance(due - self._now)
        result, error = answers[0]
        if error is not None:
            raise error
        return result
