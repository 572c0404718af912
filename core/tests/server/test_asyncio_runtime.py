"""Test the runtime on asyncio and uvloop."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hookmq.model.runtime import Runtime
from hookmq.server.asyncio_runtime import AsyncioRuntime


@pytest.fixture
async def runtime() -> AsyncIterator[AsyncioRuntime]:
    runtime = AsyncioRuntime(threads=1)
    yield runtime
    await runtime.close()


class Outcome:
    """A `done` callback that records its arguments."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, BaseException | None]] = []
        self._event = asyncio.Event()

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.told.append((result, error))
        self._event.set()

    async def once(self) -> tuple[Any, BaseException | None]:
        async with asyncio.timeout(60):
            await self._event.wait()
        assert len(self.told) == 1
        return self.told[0]


async def turns(count: int = 3) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(count):
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future


async def test_is_a_runtime(runtime: AsyncioRuntime) -> None:
    checked: Runtime = runtime
    assert checked.now() <= time.monotonic()
    assert abs(checked.time() - time.time()) < 60
    assert 0 <= checked.random() < 1
    assert len(checked.token(16)) == 32
    assert checked.token(16) != checked.token(16)


async def test_calls_run_in_a_later_turn_in_order(runtime: AsyncioRuntime) -> None:
    ran: list[int] = []
    for number in range(5):
        runtime.call_soon(lambda number=number: ran.append(number))  # type: ignore[misc]
    assert ran == []
    await turns()
    assert ran == [0, 1, 2, 3, 4]


async def test_timers(runtime: AsyncioRuntime) -> None:
    ran = asyncio.Event()
    cancelled: list[int] = []
    timer = runtime.call_later(0.001, lambda: cancelled.append(1))
    timer.cancel()
    timer.cancel()
    runtime.call_later(0.002, ran.set)
    async with asyncio.timeout(60):
        await ran.wait()
    assert cancelled == []


async def answer(value: int) -> int:
    return value


async def fail() -> None:
    raise LookupError("gone")


async def test_spawn_tells_in_a_later_turn(runtime: AsyncioRuntime) -> None:
    good, bad = Outcome(), Outcome()
    runtime.spawn(answer(7), good)
    runtime.spawn(fail(), bad)
    assert good.told == bad.told == []
    assert await good.once() == (7, None)
    assert isinstance((await bad.once())[1], LookupError)


async def test_spawn_takes_a_future(runtime: AsyncioRuntime) -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    outcome = Outcome()
    runtime.spawn(future, outcome)
    future.set_result(9)
    assert await outcome.once() == (9, None)


async def test_nothing_is_told_after_a_cancel(runtime: AsyncioRuntime) -> None:
    outcome = Outcome()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    cancel = runtime.spawn(future, outcome)
    await turns()
    cancel()
    cancel()
    await turns()
    assert future.cancelled()
    assert outcome.told == []


async def test_a_late_cancel_is_harmless(runtime: AsyncioRuntime) -> None:
    outcome = Outcome()
    cancel = runtime.spawn(answer(1), outcome)
    await outcome.once()
    cancel()


async def test_cancellation_from_within_is_an_error(runtime: AsyncioRuntime) -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    outcome = Outcome()
    runtime.spawn(give_up(), outcome)
    assert isinstance((await outcome.once())[1], asyncio.CancelledError)


async def test_blocking_calls_run_in_a_thread(runtime: AsyncioRuntime) -> None:
    outcome, bad = Outcome(), Outcome()
    runtime.run_blocking(threading.get_ident, outcome)
    runtime.run_blocking(lambda: 1 / 0, bad)
    ident, error = await outcome.once()
    assert error is None
    assert ident != threading.get_ident()
    assert isinstance((await bad.once())[1], ZeroDivisionError)


async def test_pool_is_bounded_and_a_waiting_call_can_be_cancelled(
    runtime: AsyncioRuntime,
) -> None:
    release = threading.Event()
    first, second, third = Outcome(), Outcome(), Outcome()
    ran: list[int] = []
    runtime.run_blocking(release.wait, first)
    cancel = runtime.run_blocking(lambda: ran.append(2), second)
    runtime.run_blocking(lambda: ran.append(3), third)
    cancel()
    await turns()  # the cancel reaches the pool in the next turn
    assert ran == []
    release.set()
    await third.once()
    assert ran == [3]
    assert second.told == []


async def test_log(runtime: AsyncioRuntime, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hookmq")
    runtime.log("debug", "not.wanted")
    runtime.log("warning", "client.slow", client_id="a", bytes=3)
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == (
        "hookmq",
        "WARNING",
        "client.slow",
    )
    assert vars(record)["event"] == "client.slow"
    assert vars(record)["fields"] == {"client_id": "a", "bytes": 3}


async def test_close_cancels_what_runs() -> None:
    runtime = AsyncioRuntime()
    outcome = Outcome()
    runtime.spawn(asyncio.Event().wait(), outcome)
    await turns(1)
    await runtime.close()
    assert isinstance((await outcome.once())[1], asyncio.CancelledError)


async def test_close_does_not_wait_for_blocking_calls() -> None:
    runtime = AsyncioRuntime(threads=1)
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()
    first, second, third = Outcome(), Outcome(), Outcome()
    ran: list[int] = []

    def work() -> None:
        begun.set()
        release.wait(60)
        ended.set()

    runtime.run_blocking(work, first)
    runtime.run_blocking(lambda: ran.append(2), second)
    cancel = runtime.run_blocking(lambda: ran.append(3), third)
    cancel()
    await asyncio.to_thread(begun.wait, 60)
    await runtime.close()
    for outcome in (first, second):
        result, error = await outcome.once()
        assert result is None
        assert isinstance(error, asyncio.CancelledError)
    release.set()
    await asyncio.to_thread(ended.wait, 60)
    await turns()
    assert ran == []
    assert third.told == []
    assert len(first.told) == len(second.told) == 1


@pytest.mark.parametrize("name", ["call_soon", "call_later", "promise", "spawn", "run_blocking"])
async def test_a_thread_cannot_touch_the_loop(runtime: AsyncioRuntime, name: str) -> None:
    """A thread cannot use the event loop's methods. asyncio itself detects this only in debug mode, and uvloop never
    does.
    """
    future: Any = asyncio.get_running_loop().create_future()
    arguments: dict[str, tuple[Any, ...]] = {
        "call_soon": (print,),
        "call_later": (1.0, print),
        "promise": (),
        "spawn": (future, print),
        "run_blocking": (print, print),
    }
    outcome = Outcome()

    def work() -> None:
        assert not runtime.on_loop()
        getattr(runtime, name)(*arguments[name])

    runtime.run_blocking(work, outcome)
    _, error = await outcome.once()
    assert str(error) == f"{name}() is for the event loop, and this is a thread"


async def test_a_thread_hands_over_in_order(runtime: AsyncioRuntime) -> None:
    told: list[tuple[int, bool]] = []
    outcome = Outcome()

    def work() -> None:
        for number in range(100):
            runtime.call_threadsafe(lambda number=number: told.append((number, runtime.on_loop())))  # type: ignore[misc]

    runtime.run_blocking(work, outcome)
    await outcome.once()
    await turns()
    assert told == [(number, True) for number in range(100)]
