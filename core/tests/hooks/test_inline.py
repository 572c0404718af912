"""A chain called by the fast path has the same result as with `run_transform`, and no plugin is called twice."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.call import run_transform
from hookmq.hooks.chain import HookImplementation, any_matches
from hookmq.hooks.inline import Answered, ask, continue_transform, inline_calls
from hookmq.hooks.stats import HookStats
from hookmq.hooks.verdicts import Deny, Drop, Handled
from hookmq.model.message import Message
from hookmq_testing.runtime import VirtualRuntime

MESSAGE = Message("t/1", b"x", 1, sender="c1", origin="client", received_at=5.0)
OTHER = MESSAGE.replace(payload=b"y")


def call(
    runtime: VirtualRuntime, name: str, answer: Callable[[Message], Any], **given: Any
) -> HookImplementation:
    """Return an `on_publish` implementation that returns the result of `answer`."""
    stats = HookStats(name, "on_publish", True)
    stats.bind(runtime.now, runtime.log)
    function: Callable[..., Any] = lambda client, message: answer(message)  # noqa: E731
    return HookImplementation(name, "on_publish", function, stats=stats, **given)


def failing(message: Message) -> None:
    raise ValueError("broken")


async def _later(answer: Any) -> Any:
    return answer


ANSWERS: dict[str, Callable[[Message], Any]] = {
    "None": lambda message: None,
    "the message": lambda message: message,
    "another": lambda message: message.replace(payload=message.payload + b"!"),
    "a higher QoS": lambda message: message.replace(qos=2),
    "Drop": lambda message: Drop(),
    "Deny": lambda message: Deny(),
    "Handled": lambda message: Handled(),
    "an error": failing,
    "nonsense": lambda message: 42,
    "later None": lambda message: _later(None),
    "later another": lambda message: _later(OTHER),
    "later Drop": lambda message: _later(Drop()),
}
COUNTED = (
    "calls", "pending", "abstain", "replace", "drop", "deny", "error", "timeout", "timed", "last_error",
)  # fmt: skip


@pytest.mark.parametrize("on_error", ["deny", "pass"])
@pytest.mark.parametrize("second", ANSWERS)
@pytest.mark.parametrize("first", ANSWERS)
def test_the_result_is_that_of_run_transform(first: str, second: str, on_error: str) -> None:
    ends = []
    for inline in (True, False):
        runtime = VirtualRuntime()
        seen: list[Any] = []

        def watch(
            name: str, answer: Callable[[Message], Any], seen: list[Any] = seen
        ) -> Callable[[Message], Any]:
            def watched(message: Message) -> Any:
                seen.append((name, message.payload))
                return answer(message)

            return watched

        calls = (
            call(runtime, "one", watch("one", ANSWERS[first]), on_error=on_error),
            call(runtime, "two", watch("two", ANSWERS[second]), on_error=on_error),
            call(runtime, "three", watch("three", ANSWERS["None"])),
        )
        told: list[Any] = []
        done = lambda result, by: told.append((described(result), by))  # noqa: B023, E731
        if inline:
            answered = ask(calls, None, MESSAGE) or Answered()
            continue_transform(runtime, calls, None, MESSAGE, done, answered)
        else:
            run_transform(runtime, calls, None, MESSAGE, done)
        runtime.run_until_idle()
        ends.append((told, seen, [[getattr(one.stats, name) for name in COUNTED] for one in calls]))
    assert ends[0] == ends[1]
    assert len(ends[0][0]) == 1


def described(result: Any) -> Any:
    return (result.payload, result.qos) if isinstance(result, Message) else result


def test_all_abstain(runtime: VirtualRuntime) -> None:
    calls = tuple(call(runtime, str(number), ANSWERS["None"]) for number in range(3))
    for _ in range(65):
        assert ask(calls, None, MESSAGE) is None
    for one in calls:
        assert (one.stats.calls, one.stats.abstain, one.stats.timed) == (65, 65, 2)


def test_the_calls_after_an_answer_are_left(runtime: VirtualRuntime) -> None:
    calls = (
        call(runtime, "one", ANSWERS["None"]),
        call(runtime, "two", ANSWERS["Drop"]),
        call(runtime, "three", ANSWERS["None"]),
    )
    answered = ask(calls, None, MESSAGE)
    assert answered is not None
    assert (answered.call, answered.answer) == (calls[1], Drop())
    assert [one.stats.calls for one in calls] == [1, 1, 0]


def test_a_message_that_moves_meets_plugins_of_its_new_topic(runtime: VirtualRuntime) -> None:
    moving = call(runtime, "moving", lambda message: message.replace(topic="new"))
    narrowed = call(runtime, "narrowed", lambda message: Drop(), topic=any_matches(("new",)))
    chain = (moving, narrowed)
    calls = inline_calls(chain, "t/1")
    assert calls == (moving,)
    answered = ask(calls, None, MESSAGE)
    assert answered is not None
    told: list[Any] = []
    continue_transform(
        runtime, chain, None, MESSAGE, lambda result, by: told.append((result, by)), answered
    )
    assert told == [(Drop(), "narrowed")]


def test_a_chain_that_may_wait_is_not_inline(runtime: VirtualRuntime) -> None:
    sync = call(runtime, "sync", ANSWERS["None"])
    for waits in ({"is_async": True}, {"blocking": True}):
        other = call(runtime, "other", ANSWERS["None"], topic=any_matches(("a/#",)), **waits)
        assert inline_calls((sync, other), "a/b") is None
        assert inline_calls((sync, other), "t") == (sync,)
    assert inline_calls((), "t") == ()
