import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

import pytest
from hookmq.plugin import Runtime
from hookmq_testing.runtime import BLOCKING, EPOCH, VirtualRuntime

Told = list[tuple[Any, BaseException | None]]


@pytest.fixture
def runtime() -> VirtualRuntime:
    return VirtualRuntime()


@pytest.fixture
def spawn(runtime: VirtualRuntime) -> Callable[[Awaitable[Any]], tuple[Told, Any]]:
    def spawn(awaitable: Awaitable[Any]) -> tuple[Told, Any]:
        told: Told = []
        return told, runtime.spawn(awaitable, lambda result, error: told.append((result, error)))

    return spawn


Spawn = Callable[[Awaitable[Any]], tuple[Told, Any]]


def test_it_is_a_runtime(runtime: VirtualRuntime) -> None:
    checked: Runtime = runtime  # mypy says so
    assert checked.now() == 0.0


def test_time_moves_only_when_advanced(runtime: VirtualRuntime) -> None:
    seen: list[float] = []
    for delay in (3.0, 1.0, 2.0, 1.0):
        runtime.call_later(delay, lambda: seen.append(runtime.now()))
    runtime.run_until_idle()
    assert seen == []
    runtime.advance(2.5)
    assert seen == [1.0, 1.0, 2.0]
    assert (runtime.now(), runtime.time(), runtime.next_timer()) == (2.5, EPOCH + 2.5, 3.0)


def test_timers_of_one_time_run_in_the_order_of_their_making(runtime: VirtualRuntime) -> None:
    seen: list[str] = []
    for name in "abc":
        runtime.call_later(1.0, lambda name=name: seen.append(name))  # type: ignore[misc]
    runtime.advance(1.0)
    assert seen == ["a", "b", "c"]


def test_a_cancelled_timer_never_runs(runtime: VirtualRuntime) -> None:
    timer = runtime.call_later(1.0, lambda: pytest.fail("it ran"))
    timer.cancel()
    timer.cancel()
    runtime.advance(2.0)
    assert runtime.next_timer() is None


def test_a_timer_may_set_another_that_is_due(runtime: VirtualRuntime) -> None:
    seen: list[float] = []

    def first() -> None:
        runtime.call_later(1.0, lambda: seen.append(runtime.now()))

    runtime.call_later(1.0, first)
    runtime.advance(2.0)
    assert seen == [2.0]


def test_call_soon_keeps_order_and_waits_a_turn(runtime: VirtualRuntime) -> None:
    seen: list[str] = []

    def first() -> None:
        seen.append("a")
        runtime.call_soon(lambda: seen.append("c"))

    runtime.call_soon(first)
    runtime.call_soon(lambda: seen.append("b"))
    assert runtime.turn()
    assert seen == ["a", "b"]
    assert runtime.turn()
    assert seen == ["a", "b", "c"]
    assert not runtime.turn()


def test_endless_turns_are_an_error(runtime: VirtualRuntime) -> None:
    def again() -> None:
        runtime.call_soon(again)

    again()
    with pytest.raises(RuntimeError, match="still busy after 10 turns"):
        runtime.run_until_idle(10)


def test_a_coroutine_runs_in_a_later_turn(runtime: VirtualRuntime, spawn: Spawn) -> None:
    async def work() -> int:
        return 7

    told, _ = spawn(work())
    assert told == []
    runtime.run_until_idle()
    assert told == [(7, None)]
    assert not runtime.tasks


def test_sleeping_and_waiting(runtime: VirtualRuntime, spawn: Spawn) -> None:
    event = runtime.event()

    async def inner() -> Any:
        await runtime.sleep(1.0)
        return await event

    async def work() -> Any:
        return (await inner(), await event, runtime.now())

    told, _ = spawn(work())
    runtime.advance(5.0)
    assert told == []
    event.set("go")
    runtime.run_until_idle()
    assert told == [(("go", "go", 5.0), None)]


def test_an_error_is_told(runtime: VirtualRuntime, spawn: Spawn) -> None:
    event = runtime.event()

    async def work() -> None:
        await event

    told, _ = spawn(work())
    runtime.run_until_idle()
    error = ValueError("no")
    event.fail(error)
    runtime.run_until_idle()
    assert told == [(None, error)]


class Nap:
    """An awaitable that uses neither an event loop nor a coroutine."""

    def __await__(self) -> Generator[None, None, str]:
        yield
        yield
        return "rested"


class Plain:
    """An awaitable whose iterator has no `send`."""

    def __await__(self) -> Any:
        return iter([None, None])


def test_awaitables_that_are_no_coroutines(runtime: VirtualRuntime, spawn: Spawn) -> None:
    first, _ = spawn(Nap())
    second, _ = spawn(Plain())
    runtime.run_until_idle()
    assert first == [("rested", None)]
    assert second == [(None, None)]


def test_an_asyncio_future_cannot_be_awaited(runtime: VirtualRuntime, spawn: Spawn) -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()

    async def work() -> None:
        await future

    told, _ = spawn(work())
    runtime.run_until_idle()
    loop.close()
    ((_, error),) = told
    assert isinstance(error, RuntimeError)
    assert "a virtual runtime cannot await" in str(error)


def test_cancel_throws_where_it_waits(runtime: VirtualRuntime, spawn: Spawn) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await runtime.sleep(1.0)
        except asyncio.CancelledError:
            await runtime.sleep(1.0)
            seen.append("cleaned up")
            raise

    told, cancel = spawn(work())
    runtime.run_until_idle()
    cancel()
    cancel()
    runtime.advance(5.0)
    assert (told, seen) == ([], ["cleaned up"])
    assert not runtime.tasks
    cancel()


def test_cancel_before_the_first_step_closes(runtime: VirtualRuntime, spawn: Spawn) -> None:
    async def work() -> None:
        pytest.fail("it ran")

    told, cancel = spawn(work())
    cancel()
    runtime.run_until_idle()
    assert told == []
    assert not runtime.tasks


def test_a_coroutine_may_cancel_itself(runtime: VirtualRuntime, spawn: Spawn) -> None:
    cancels: list[Callable[[], None]] = []
    seen: list[str] = []

    async def work() -> None:
        cancels[0]()
        seen.append("went on to where it waits")
        await runtime.sleep(1.0)
        seen.append("and no further")

    told, cancel = spawn(work())
    cancels.append(cancel)
    runtime.advance(5.0)
    assert seen == ["went on to where it waits"]
    assert told == []
    assert not runtime.tasks


def test_a_late_wake_up_is_stale(runtime: VirtualRuntime, spawn: Spawn) -> None:
    event = runtime.event()
    seen: list[float] = []

    async def work() -> None:
        try:
            await event
        except asyncio.CancelledError:
            await runtime.sleep(2.0)
            seen.append(runtime.now())

    _, cancel = spawn(work())
    runtime.run_until_idle()
    cancel()
    event.set()  # wakes the coroutine in the same turn in which the cancellation is raised
    runtime.advance(3.0)
    assert seen == [2.0]
    assert not runtime.tasks


def test_blocking_calls_take_time_and_overtake_each_other() -> None:
    """Blocking calls take time and overtake each other. Their durations and order depend only on
    the seed.
    """

    def life(seed: int) -> list[tuple[str, int, float]]:
        runtime = VirtualRuntime(seed)
        seen: list[tuple[str, int, float]] = []

        def note(word: str, number: int) -> None:
            seen.append((word, number, runtime.now()))

        for number in range(50):
            runtime.run_blocking(
                partial(note, "made", number),
                lambda _, error, number=number: note("told", number),  # type: ignore[misc]
            )
        runtime.advance(0.0)
        assert seen == []
        runtime.run_until_idle()
        return seen

    seen = life(1)
    assert seen == life(1)
    assert seen != life(2)
    for word in ("made", "told"):
        numbers = [number for kind, number, _ in seen if kind == word]
        assert sorted(numbers) == list(range(50))
        assert numbers != sorted(numbers)
    made = {number: when for word, number, when in seen if word == "made"}
    told = {number: when for word, number, when in seen if word == "told"}
    assert all(0 < made[number] < told[number] < 1 for number in made)
    assert max(told.values()) > BLOCKING  # a few calls take long


def test_advance_leaves_blocking_calls_under_way() -> None:
    runtime = VirtualRuntime()
    told: Told = []
    runtime.run_blocking(lambda: 7, lambda *outcome: told.append(outcome))
    cancel = runtime.run_blocking(lambda: 8, lambda *outcome: told.append(outcome))
    runtime.advance(0.0)
    assert told == []
    cancel()
    cancel()
    runtime.run_until_idle()
    assert told == [(7, None)]
    runtime.run_until_idle()  # and waits for nothing


def test_blocking_calls_that_take_no_time_run_in_the_next_turn() -> None:
    runtime = VirtualRuntime(blocking=0.0)
    told: Told = []
    runtime.run_blocking(lambda: 7, lambda *outcome: told.append(outcome))
    runtime.run_blocking(lambda: 1 // 0, lambda *outcome: told.append(outcome))
    cancel = runtime.run_blocking(lambda: 8, lambda *outcome: told.append(outcome))
    assert told == []
    runtime.turn()
    cancel()
    assert told == []
    runtime.run_until_idle()
    assert told[0] == (7, None)
    assert isinstance(told[1][1], ZeroDivisionError)
    assert len(told) == 2


def test_a_promise_is_strict(runtime: VirtualRuntime, spawn: Spawn) -> None:
    promise = runtime.promise()

    async def work() -> Any:
        return await promise

    told, _ = spawn(work())
    runtime.run_until_idle()
    assert not promise.done()
    promise.set_result(3)
    runtime.run_until_idle()
    assert told == [(3, None)]
    assert promise.done()
    with pytest.raises(asyncio.InvalidStateError):
        promise.set_exception(ValueError())


def test_a_promise_ends_with_the_one_who_awaits_it(runtime: VirtualRuntime, spawn: Spawn) -> None:
    promise = runtime.promise()

    async def work() -> Any:
        return await promise

    told, cancel = spawn(work())
    runtime.run_until_idle()
    cancel()
    runtime.run_until_idle()
    assert promise.done()
    assert told == []


def test_run_advances_as_far_as_needed(runtime: VirtualRuntime) -> None:
    async def work() -> float:
        await runtime.sleep(90.0)
        return runtime.now()

    assert runtime.run(work()) == 90.0
    with pytest.raises(TimeoutError):
        runtime.run(_forever(runtime))
    assert not runtime.tasks


async def _forever(runtime: VirtualRuntime) -> None:
    await runtime.event()


def test_chance_is_seeded() -> None:
    one, other = VirtualRuntime(5), VirtualRuntime(5)
    assert [one.random(), one.token(4)] == [other.random(), other.token(4)]
    assert len(one.token(8)) == 16
    assert 0.0 <= one.random() < 1.0


def test_the_log_is_kept(runtime: VirtualRuntime) -> None:
    runtime.log("info", "client.connected", client="c")
    assert runtime.logged == [("info", "client.connected", {"client": "c"})]


@pytest.mark.parametrize("name", ["call_soon", "call_later", "promise", "spawn", "run_blocking"])
def test_calls_for_the_event_loop_are_refused_in_a_thread(name: str) -> None:
    """Calls that belong to the event loop are refused in a thread. On a real event loop, they would
    be a data race that no test detects.
    """
    runtime = VirtualRuntime()
    told: list[Any] = []

    def work() -> None:
        runtime.call_threadsafe(lambda: told.append("handed over"))
        coroutine = runtime.sleep(1)
        arguments: dict[str, tuple[Any, ...]] = {
            "call_soon": (print,),
            "call_later": (1.0, print),
            "promise": (),
            "spawn": (coroutine, print),
            "run_blocking": (print, print),
        }
        try:
            getattr(runtime, name)(*arguments[name])
        finally:
            coroutine.close()

    runtime.run_blocking(work, lambda result, error: told.append(str(error)))
    runtime.advance(10)
    refused = f"{name}() is for the event loop, and this is a thread"
    assert sorted(told) == sorted(["handed over", refused])
    runtime.call_soon(lambda: told.append("on"))
    runtime.advance(1)
    assert told[-1] == "on"
