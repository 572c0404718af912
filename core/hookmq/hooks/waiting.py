"""Waiting for a plugin: answers that are awaited, calls in a thread, deadlines, and what becomes of failures."""

from collections.abc import Callable
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from typing import Any, Final

from hookmq.hooks.chains import Call
from hookmq.hooks.depth import DEPTH, at_depth
from hookmq.runtime import Cancel, Done, Runtime, Timer


class Failed:
    """The type of `FAILED`."""

    __slots__ = ()


FAILED: Final = Failed()
"""The answer of an implementation that failed; it was counted and logged."""


class Held:
    """An awaitable on its way out of a thread. If it is cancelled there, nobody takes it and it is closed."""

    __slots__ = ("_awaitable",)

    def __init__(self, awaitable: Any) -> None:
        self._awaitable = awaitable

    def take(self) -> Any:
        """The awaitable, to be awaited."""
        awaitable, self._awaitable = self._awaitable, None
        return awaitable

    def __del__(self) -> None:
        if self._awaitable is not None:
            put_away(self._awaitable)


def in_thread(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """In the thread: what `function` answers, held where it must be awaited."""
    answer = function(*args)
    return Held(answer) if hasattr(type(answer), "__await__") else answer


def put_away(awaitable: Any) -> None:
    """Close what nobody will await."""
    close = getattr(awaitable, "close", None) or getattr(awaitable, "cancel", None)
    if close is not None:
        close()


def spawn(runtime: Runtime, awaitable: Any, done: Done) -> Cancel:
    """Spawn `awaitable`. The cancel also closes a coroutine that had not begun: a runtime may drop it unawaited."""
    cancel = runtime.spawn(awaitable, done)

    def close() -> None:
        cancel()
        if iscoroutine(awaitable) and getcoroutinestate(awaitable) == CORO_CREATED:
            awaitable.close()

    return close


class Waiting:
    """The part of a run that waits: at most one call at a time, with its deadline."""

    __slots__ = ("_began", "_call", "_cancel", "_depth", "_resume", "_runtime", "_timer")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._call: Call | None = None
        self._cancel: Cancel | None = None
        self._resume: Callable[[Any], object] | None = None
        self._timer: Timer | None = None
        self._began = -1.0
        self._depth = 0

    def on(self, call: Call, awaitable: Any, began: float, resume: Callable[[Any], object]) -> None:
        """Await it, then `resume` with its result or with `FAILED`."""
        self._start(call, began, resume)
        self._cancel = spawn(self._runtime, awaitable, self._awaited)

    def in_thread(self, call: Call, args: tuple[Any, ...], resume: Callable[[Any], object]) -> None:
        """Call it in a thread, await what that returns if need be, then `resume`."""
        self._start(call, call.stats.begin(), resume)
        self._cancel = self._runtime.run_blocking(
            partial(at_depth, self._depth, in_thread, call.function, args), self._returned
        )

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        if self._call is None:
            return
        self._call.stats.pending -= 1
        cancel = self._cancel
        self._end()
        if cancel is not None:
            cancel()

    def _start(self, call: Call, began: float, resume: Callable[[Any], object]) -> None:
        self._call, self._began, self._resume = call, began, resume
        self._depth = DEPTH.get()
        call.stats.pending += 1
        self._timer = self._runtime.call_later(call.timeout, self._late)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._call = self._cancel = self._resume = self._timer = None

    def _returned(self, result: Any, error: BaseException | None) -> None:
        call = self._call
        if call is None:
            return
        if isinstance(result, Held):
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


def words(error: BaseException) -> str:
    """An error in one line."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def refuse(call: Call, answer: Any) -> str:
    """Put away an answer that the hook does not have, so that nothing is left unawaited; what to say about it."""
    kind = type(answer)
    if not hasattr(kind, "__await__"):
        return f"answered with {kind.__name__}, which {call.hook} does not have"
    put_away(answer)
    return f"answered with {kind.__name__}, which is not awaited here"


def nonsense(call: Call, answer: Any) -> Failed:
    """Count and log an answer that the hook does not have; the answer to go on with."""
    call.stats.failed(refuse(call, answer))
    return FAILED


def failure(call: Call, error: BaseException) -> Failed:
    """Count and log an exception; the answer to go on with."""
    call.stats.failed(words(error), cause=error)
    return FAILED
