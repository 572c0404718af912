"""Test awaited results, calls in a thread, and their timeouts, without using a particular hook."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.async_calls import (
    FAILED,
    HeldAwaitable,
    Waiting,
    in_thread,
    refuse,
    run_alone,
    words,
)
from hookmq.hooks.chain import HookImplementation
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.hooks.stats import HookStats
from hookmq_testing.runtime import Event, VirtualRuntime


class Awaitable:
    """An awaitable that must never be awaited. It counts how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def __await__(self) -> Any:
        raise AssertionError("awaited")

    def close(self) -> None:
        self.closed += 1


def call(function: Callable[..., Any] = lambda: None, **given: Any) -> HookImplementation:
    return HookImplementation(
        "p", "on_connect", function, stats=HookStats("p", "on_connect"), **given
    )


def test_an_awaitable_from_a_thread_is_closed_unless_it_is_taken() -> None:
    lost, taken = Awaitable(), Awaitable()
    held = in_thread(lambda one: one, (lost,))
    assert isinstance(held, HeldAwaitable)
    del held
    assert lost.closed == 1
    held = in_thread(lambda one: one, (taken,))
    assert held.take() is taken
    del held
    assert taken.closed == 0


def test_a_plain_answer_of_a_thread_is_not_held() -> None:
    assert in_thread(lambda a, b: a + b, (1, 2)) == 3


def test_one_answer_and_no_deadline_after_it(runtime: VirtualRuntime) -> None:
    answers: list[Any] = []
    waiting, one = Waiting(runtime), call()

    async def answer() -> str:
        return "yes"

    waiting.start(one, (), answer(), -1.0, answers.append)
    assert one.stats.pending == 1
    runtime.advance(60)
    assert (answers, one.stats.pending, one.stats.timeout) == (["yes"], 0, 0)


def test_a_deadline_answers_with_a_failure_and_nothing_follows(runtime: VirtualRuntime) -> None:
    answers: list[Any] = []
    waiting, one, event = Waiting(runtime), call(timeout=5.0), Event(runtime)

    async def answer() -> str:
        await event
        return "late"

    waiting.start(one, (), answer(), -1.0, answers.append)
    runtime.advance(4.9)
    assert answers == []
    runtime.advance(0.2)
    assert (answers, one.stats.pending, one.stats.timeout) == ([FAILED], 0, 1)
    event.set()
    runtime.advance(1)
    assert answers == [FAILED]


def test_a_cancelled_wait_resumes_nothing(runtime: VirtualRuntime) -> None:
    answers: list[Any] = []
    waiting, one = Waiting(runtime), call(lambda: "yes", blocking=True)
    waiting.start(one, (), None, -1.0, answers.append)
    waiting.cancel()
    waiting.cancel()
    runtime.advance(60)
    assert (answers, one.stats.pending) == ([], 0)


def test_the_depth_of_publishing_is_kept_across_a_wait(runtime: VirtualRuntime) -> None:
    depths: list[int] = []
    waiting = Waiting(runtime)

    async def answer() -> None:
        depths.append(DEPTH.get())

    at_depth(3, waiting.start, call(), (), answer(), -1.0, lambda _: depths.append(DEPTH.get()))
    runtime.advance(1)
    assert depths == [3, 3]
    assert DEPTH.get() == 0


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (42, "answered with int, which on_connect does not accept"),
        (Awaitable(), "answered with Awaitable, which cannot be awaited here"),
    ],
)
def test_a_wrong_answer_is_named_and_an_awaitable_closed(answer: Any, text: str) -> None:
    assert refuse(call(), answer) == text
    assert getattr(answer, "closed", 1) == 1


def test_an_error_is_one_line() -> None:
    assert words(ValueError("broken")) == "ValueError: broken"
    assert words(KeyboardInterrupt()) == "KeyboardInterrupt"


def raises() -> None:
    raise ValueError("no")


async def later() -> str:
    return "ignored"


async def later_raises() -> None:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("function", "blocking", "worked"),
    [
        (lambda: None, False, True),
        (lambda: "ignored", False, True),
        (raises, False, False),
        (later, False, True),
        (later_raises, False, False),
        (lambda: None, True, True),
        (raises, True, False),
    ],
)
def test_a_call_of_its_own_is_counted_and_told_once(
    runtime: VirtualRuntime, function: Callable[..., Any], blocking: bool, worked: bool
) -> None:
    told: list[bool] = []
    one = call(function, blocking=blocking)
    run_alone(runtime, one, (), told.append)
    runtime.advance(60)
    assert told == [worked]
    assert (one.stats.ok, one.stats.error) == (int(worked), int(not worked))
    assert (one.stats.calls, one.stats.pending) == (1, 0)
