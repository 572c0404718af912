"""Wait for plugins. Handles awaited results, calls in threads, timeouts and failures."""

from collections.abc import Callable
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from typing import Any, Final

from hookmq.hooks.chain import HookImplementation
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.model.runtime import Cancel, Done, Runtime, Timer


class Failed:
    """Type of `FAILED`."""

    __slots__ = ()


FAILED: Final = Failed()
"""Marks the result of a failed implementation. The failure has already been counted and logged."""


class HeldAwaitable:
    """An awaitable returned by a call in a thread. It is closed if nothing calls `take`."""

    __slots__ = ("_awaitable",)

    def __init__(self, awaitable: Any) -> None:
        self._awaitable = awaitable

    def take(self) -> Any:
        """Return the awaitable, which the caller must then await."""
        awaitable, self._awaitable = self._awaitable, None
        return awaitable

    def __del__(self) -> None:
        if self._awaitable is not None:
            put_away(self._awaitable)


def in_thread(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call `function` from a worker thread. Return its result, wrapped in `HeldAwaitable` if it is awaitable."""
    answer = function(*args)
    return HeldAwaitable(answer) if hasattr(type(answer), "__await__") else answer


def put_away(awaitable: Any) -> None:
    """Close an awaitable that will not be awaited."""
    close = getattr(awaitable, "close", None) or getattr(awaitable, "cancel", None)
    if close is not None:
        close()


def spawn(runtime: Runtime, awaitable: Any, done: Done) -> Cancel:
    """Run `awaitable` in the runtime. The returned `Cancel` also closes a coroutine that has not started, because a
    runtime may discard such a coroutine without awaiting it.
    """
    cancel = runtime.spawn(awaitable, done)

    def close() -> None:
        cancel()
        if iscoroutine(awaitable) and getcoroutinestate(awaitable) == CORO_CREATED:
            awaitable.close()

    return close


class Waiting:
    """Waits for a chain's asynchronous calls, one at a time, with a timeout for each."""

    __slots__ = ("_began", "_call", "_cancel", "_depth", "_resume", "_runtime", "_timer")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._call: HookImplementation | None = None
        self._cancel: Cancel | None = None
        self._resume: Callable[[Any], object] | None = None
        self._timer: Timer | None = None
        self._began = -1.0
        self._depth = 0

    def start(
        self,
        call: HookImplementation,
        args: tuple[Any, ...],
        answer: Any,
        began: float,
        resume: Callable[[Any], object],
    ) -> Cancel:
        """Await `answer`, or run a blocking call in a thread. Then call `resume` with the result or `FAILED`.

        Returns `cancel`.
        """
        if call.blocking:
            began = call.stats.begin()
        self._call, self._began, self._resume = call, began, resume
        self._depth = DEPTH.get()
        call.stats.pending += 1
        self._timer = self._runtime.call_later(call.timeout, self._late)
        if call.blocking:
            work = partial(at_depth, self._depth, in_thread, call.function, args)
            self._cancel = self._runtime.run_blocking(work, self._returned)
        else:
            self._cancel = spawn(self._runtime, answer, self._awaited)
        return self.cancel

    def cancel(self) -> None:
        """Cancel the call, because its result is no longer needed."""
        if self._call is None:
            return
        self._call.stats.pending -= 1
        cancel = self._cancel
        self._end()
        if cancel is not None:
            cancel()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._call = self._cancel = self._resume = self._timer = None

    def _returned(self, result: Any, error: BaseException | None) -> None:
        call = self._call
        if call is None:
            return
        if isinstance(result, HeldAwaitable):
            self._cancel = at_depth(self._depth, spawn, self._runtime, result.take(), self._awaited)
            return
        self._awaited(result, error)

    def _awaited(self, result: Any, error: BaseException | None) -> None:
        call, resume = self._call, self._resume
        if call is None or resume is None:
            return
        stats = call.stats
        stats.pending -= 1
        stats.end(self._began)
        self._end()
        if error is not None:
            stats.failed(words(error), cause=error)
            result = FAILED
        elif hasattr(type(result), "__await__"):
            result = nonsense(call, result)
        at_depth(self._depth, resume, result)

    def _late(self) -> None:
        call, resume, cancel = self._call, self._resume, self._cancel
        if call is None or resume is None:
            return
        stats = call.stats
        stats.pending -= 1
        stats.end(self._began)
        self._end()
        if cancel is not None:
            cancel()
        stats.failed(f"no answer within {call.timeout:g} s", timeout=True)
        at_depth(self._depth, resume, FAILED)


def run_alone(
    runtime: Runtime, call: HookImplementation, args: tuple[Any, ...], done: Callable[[bool], None]
) -> None:
    """Run one implementation and ignore its result. `done` is called with True if the implementation succeeded, possibly
    before this function returns.
    """

    def ended(answer: Any) -> None:
        worked = answer is not FAILED
        if worked:
            call.stats.ok += 1
        done(worked)

    if call.blocking:
        Waiting(runtime).start(call, args, None, -1.0, ended)
        return
    began = call.stats.begin()
    try:
        answer = call.function(*args)
    except Exception as error:
        answer = failure(call, error)
    if hasattr(type(answer), "__await__"):
        Waiting(runtime).start(call, args, answer, began, ended)
        return
    call.stats.end(began)
    ended(answer)


def words(error: BaseException) -> str:
    """Describe an error in one line."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def refuse(call: HookImplementation, answer: Any) -> str:
    """Return the error message for a result that the hook does not accept. If the result is awaitable, close it."""
    kind = type(answer)
    if not hasattr(kind, "__await__"):
        return f"answered with {kind.__name__}, which {call.hook} does not accept"
    put_away(answer)
    return f"answered with {kind.__name__}, which cannot be awaited here"


def nonsense(call: HookImplementation, answer: Any) -> Failed:
    """Count and log a result that the hook does not accept. Return `FAILED`."""
    call.stats.failed(refuse(call, answer))
    return FAILED


def failure(call: HookImplementation, error: BaseException) -> Failed:
    """Count and log an exception. Return `FAILED`."""
    call.stats.failed(words(error), cause=error)
    return FAILED
