"""Await blocking calls."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hookmq.plugin import Runtime

T = TypeVar("T")


def in_thread(runtime: Runtime, call: Callable[[], T]) -> Awaitable[T]:
    """Run `call` in a thread, and return an awaitable for its result. Awaiting it raises any exception that `call`
    raises.

    Call this function on the event loop. If the awaiting coroutine is cancelled, `call` still runs to
    completion.
    """
    result = runtime.promise()

    def done(value: Any, error: BaseException | None) -> None:
        if result.done():
            return  # The awaiting coroutine was cancelled.
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    runtime.run_blocking(call, done)
    return result
