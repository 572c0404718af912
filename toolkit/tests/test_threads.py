"""Test that `in_thread` returns the result of a blocking call, or raises its error, in a later turn."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hookmq.plugin import Cancel
from hookmq_testing import AsyncioRuntime, VirtualRuntime
from hookmq_toolkit.threads import in_thread

Outcome = list[tuple[Any, BaseException | None]]


def _awaited(clock: VirtualRuntime, awaitable: Awaitable[Any]) -> tuple[Outcome, Cancel]:
    outcome: Outcome = []

    async def wait() -> Any:
        return await awaitable

    return outcome, clock.spawn(wait(), lambda value, error: outcome.append((value, error)))


def test_the_result_arrives_in_a_later_turn() -> None:
    clock = VirtualRuntime()
    outcome, _ = _awaited(clock, in_thread(clock, lambda: 7))
    assert outcome == []
    clock.advance(60)
    assert outcome == [(7, None)]


def test_the_error_of_the_call_is_raised() -> None:
    clock = VirtualRuntime()

    def fail() -> None:
        raise OSError("full")

    outcome, _ = _awaited(clock, in_thread(clock, fail))
    clock.advance(60)
    ((value, error),) = outcome
    assert value is None
    assert isinstance(error, OSError)


@pytest.mark.parametrize("call", [lambda: 7, lambda: [][0]])
async def test_a_cancelled_coroutine_is_left_alone(call: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    runtime = AsyncioRuntime(loop)
    failures: list[object] = []
    loop.set_exception_handler(lambda loop, context: failures.append(context))
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def counted() -> object:
        begun.set()
        assert go.wait(60)
        ended.set()
        return call()

    async def wait() -> object:
        return await in_thread(runtime, counted)

    task = asyncio.create_task(wait())
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    assert await asyncio.to_thread(ended.wait, 60)
    await in_thread(runtime, lambda: None)  # usually ends after it
    assert failures == []
