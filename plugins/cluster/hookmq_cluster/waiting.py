"""Await a callback, or a moment, on any runtime."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from hookmq.plugin import Runtime

T = TypeVar("T")


def answer(runtime: Runtime, call: Callable[[Callable[[T], None]], object]) -> Awaitable[T]:
    """Await what `call` passes to its callback. Only the first call of the callback counts."""
    promise = runtime.promise()

    def done(result: T) -> None:
        if not promise.done():
            promise.set_result(result)

    call(done)
    return promise


def pause(runtime: Runtime, seconds: float) -> Awaitable[None]:
    """Await the end of `seconds`."""
    promise = runtime.promise()
    runtime.call_later(seconds, partial(promise.set_result, None))
    return promise


def ended(runtime: Runtime, call: Callable[[Callable[[], None]], object]) -> Awaitable[None]:
    """Await that `call` calls its callback, which has no arguments."""
    promise = runtime.promise()
    call(partial(promise.set_result, None))
    return promise
