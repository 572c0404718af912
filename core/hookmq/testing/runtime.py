"""A runtime under a virtual clock: deterministic, in one thread, as fast as its work. For tests and simulations.

Time moves only by `advance`, and by `run_until_idle` as far as blocking calls need. Coroutines are driven by hand. They
may await each other, `sleep`, an `Event`, and anything else that yields None for "next turn", but nothing of asyncio.

A blocking call takes virtual time, drawn from the seed: its effect comes at some moment in between, its result later.
While it is made, the caller is not on the loop, and what belongs to the loop raises RuntimeError. Calls overlap and
overtake each other, as in a pool of threads. So a test that holds for many seeds holds for many interleavings.
"""

import asyncio
import heapq
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from typing import Any, Final

from hookmq.runtime import Cancel, Done

EPOCH: Final = 1_700_000_000.0
"""The epoch seconds at which a virtual clock begins."""
BLOCKING: Final = 0.02
"""Seconds that an ordinary blocking call takes at most."""
_SLOW_ONE_IN: Final = 16
_SLOW: Final = 20
"""One blocking call in so many takes up to so many times as long."""


class VirtualTimer:
    """A call that is due at a time."""

    __slots__ = ("call", "due", "order")

    def __init__(self, due: float, order: int, call: Callable[[], None]) -> None:
        self.due = due
        self.order = order
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """As `hookmq.runtime.Timer.cancel`."""
        self.call = None

    def __lt__(self, other: "VirtualTimer") -> bool:
        return (self.due, self.order) < (other.due, other.order)


class Event:
    """Awaited until it is set, by any number: ``value = await event``; `fail` raises in those who await."""

    __slots__ = ("_error", "_runtime", "_waiting", "is_set", "value")

    def __init__(self, runtime: "VirtualRuntime") -> None:
        self._runtime = runtime
        self._waiting: list[Callable[[], None]] = []
        self._error: BaseException | None = None
        self.is_set = False
        self.value: Any = None

    def set(self, value: Any = None) -> None:
        """Let those who await it go on in the next turn, with `value`."""
        self.is_set, self.value = True, value
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            self._runtime.call_soon(wake)

    def fail(self, error: BaseException) -> None:
        """Let those who await it go on with `error`."""
        self._error = error
        self.set()

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.is_set:
            yield self._waiting.append
        if self._error is not None:
            raise self._error
        return self.value


class VirtualPromise(Event):
    """`hookmq.runtime.Promise`, strict as asyncio's future is: a second result is an error, and when who awaits it is
    cancelled, so is it."""

    __slots__ = ()

    def done(self) -> bool:
        """Whether it has a result, an exception or was cancelled."""
        return self.is_set

    def set_result(self, result: Any, /) -> None:
        """Give the result; once."""
        self._once()
        self.set(result)

    def set_exception(self, exception: BaseException, /) -> None:
        """Give the exception that awaiting raises; once."""
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
            raise asyncio.InvalidStateError("it has a result")


class Task:
    """A coroutine that the runtime drives."""

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
        """Run to the next suspension."""
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
        """End it as asyncio would: CancelledError is thrown in where it waits, in the next turn."""
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
        """The way on from this suspension; when it has gone on otherwise, waking it comes too late."""
        steps = self._steps

        def wake() -> None:
            if steps == self._steps:
                self.step()

        return wake


class VirtualRuntime:
    """`hookmq.runtime.Runtime` without a world.

    `logged` holds what was logged, as (level, event, fields). `tasks` are the coroutines not yet at their end. Errors out
    of calls that were asked for are raised by `run_until_idle` and `advance`. `blocking` is how many seconds an ordinary
    blocking call takes at most; some take much longer. With 0.0 each is made in the next turn.
    """

    def __init__(self, seed: int = 0, blocking: float = BLOCKING) -> None:
        self.logged: list[tuple[str, str, dict[str, object]]] = []
        self.tasks: set[Task] = set()
        self._now = 0.0
        self._random = random.Random(seed)
        self._blocking = blocking
        self._pace = random.Random(f"blocking {seed}")
        """Of its own, so that a blocking call more changes nothing of what `random` and `token` return."""
        self._at_work = 0
        """Blocking calls under way."""
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[VirtualTimer] = []
        self._order = 0
        self._loop_thread = threading.get_ident()
        self._in_thread = False

    # hookmq.runtime.Runtime --------------------------------------------------------------------------------------

    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now

    def time(self) -> float:
        """Virtual epoch seconds."""
        return EPOCH + self._now

    def random(self) -> float:
        """The next number of a seeded sequence."""
        return self._random.random()

    def token(self, size: int) -> str:
        """Hex of `size` bytes of a seeded sequence."""
        return self._random.randbytes(size).hex()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in the next turn."""
        if self._in_thread:
            self._not_in_a_thread("call_soon")
        self._enqueue(call)

    def _enqueue(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def _not_in_a_thread(self, name: str) -> None:
        """Raise what would be a data race on a real loop."""
        raise RuntimeError(f"{name}() is for the event loop, and this is a thread")

    def on_loop(self) -> bool:
        """Whether the caller is neither inside a call of `run_blocking` nor in a thread of the test's own."""
        return not self._in_thread and threading.get_ident() == self._loop_thread

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """Run `call` in the next turn; threads of the test's own may call this as well."""
        self._enqueue(call)

    def call_later(self, delay: float, call: Callable[[], None]) -> VirtualTimer:
        """Run `call` when `delay` seconds have been advanced."""
        if self._in_thread:
            self._not_in_a_thread("call_later")
        self._order += 1
        timer = VirtualTimer(self._now + max(0.0, delay), self._order, call)
        heapq.heappush(self._timers, timer)
        return timer

    def promise(self) -> VirtualPromise:
        """A result to be given later."""
        if self._in_thread:
            self._not_in_a_thread("promise")
        return VirtualPromise(self)

    def spawn(self, awaitable: Awaitable[Any], done: Done) -> Cancel:
        """Drive `awaitable` from the next turn on."""
        if self._in_thread:
            self._not_in_a_thread("spawn")
        task = Task(self, awaitable, done)
        self.tasks.add(task)
        self.call_soon(task.step)
        return task.cancel

    def run_blocking(self, call: Callable[[], Any], done: Done) -> Cancel:
        """Make `call` at some later time and tell `done` later still; how much later, the seed says."""
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
        """Seconds of one half of a blocking call."""
        draw = self._pace.random()
        slow = _SLOW if self._pace.randrange(_SLOW_ONE_IN) == 0 else 1
        return self._blocking * slow * draw / 2

    def _after(self, delay: float, call: Callable[[], None]) -> None:
        if delay > 0.0:
            self.call_later(delay, call)
        else:
            self.call_soon(call)

    def _threaded(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Make `call` as a thread would, off the loop; its result and its error."""
        self._in_thread = True
        try:
            return call(), None
        except BaseException as error:
            return None, error
        finally:
            self._in_thread = False

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Keep it in `logged`."""
        self.logged.append((level, event, fields))

    def logs(self, level: str) -> bool:
        """All of it is kept."""
        return True

    # for coroutines ----------------------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """Await the passing of virtual time."""
        event = Event(self)
        timer = self.call_later(seconds, event.set)
        try:
            await event
        finally:
            timer.cancel()

    def event(self) -> Event:
        """Something to await that a test sets."""
        return Event(self)

    # for tests ---------------------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Run what was due at the beginning of this turn; False if nothing was."""
        count = len(self._soon)
        for _ in range(count):
            self._soon.popleft()()
        return bool(count)

    def run_until_idle(self, turns: int = 100_000) -> None:
        """Run turns until nothing is due and no blocking call is under way; time passes as far as those need. Raises
        RuntimeError after `turns` of them."""
        for _ in range(turns):
            if not self.turn() and not (self._at_work and self._next_due()):
                return
        raise RuntimeError(f"still busy after {turns} turns")

    def advance(self, seconds: float) -> None:
        """Let time pass: every timer that falls due runs at its time, in order, and with it all that follows from it.
        Blocking calls that take longer are still under way afterwards."""
        end = self._now + seconds
        if self._soon:
            self._take_turns()
        while self._next_due(end):
            self._take_turns()
        self._now = end

    def _take_turns(self, turns: int = 100_000) -> None:
        """Run turns until nothing is due at this time."""
        for _ in range(turns):
            if not self.turn():
                return
        raise RuntimeError(f"still busy after {turns} turns")

    def _next_due(self, end: float = float("inf")) -> bool:
        """Go to the next timer that is due by `end` and make its call; False if there is none."""
        while self._timers and self._timers[0].due <= end:
            timer = heapq.heappop(self._timers)
            call, timer.call = timer.call, None
            if call is not None:
                self._now = max(self._now, timer.due)
                call()
                return True
        return False

    def next_timer(self) -> float | None:
        """When the next timer is due, in `now` seconds; None if there is none."""
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        return self._timers[0].due if self._timers else None

    def run(self, awaitable: Awaitable[Any], timeout: float = 3600.0) -> Any:
        """Drive `awaitable` to its end, advancing time as needed; its result, or its error raised."""
        answers: list[tuple[Any, BaseException | None]] = []
        cancel = self.spawn(awaitable, lambda result, error: answers.append((result, error)))
        end = self._now + timeout
        self.run_until_idle()
        while not answers:
            due = self.next_timer()
            if due is None or due > end:
                cancel()
                self.run_until_idle()
                raise TimeoutError("it waits for what will not happen")
            self.advance(due - self._now)
        result, error = answers[0]
        if error is not None:
            raise error
        return result
