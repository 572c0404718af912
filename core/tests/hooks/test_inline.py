"""Test that a chain called by the fast path has the same result as `run_transform`, and that no plugin is
called twice.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.call import run_transform
from hookmq.hooks.chain import Calls, HookImplementation, any_matches
from hookmq.hooks.inline import Answered, ask, continue_transform, inline_calls
from hookmq.hooks.stats import HookStats
from hookmq.hooks.verdicts import Deny, Drop, Handled
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.message import Message
from hookmq.mqtt.properties import EMPTY
from hookmq_testing.runtime import VirtualRuntime

CLIENT = ClientInfo("c1", 5, None, Peer("127.0.0.1", 1), Scope("tcp"))
MESSAGE = Message("t/1", b"x", 1, sender="c1", origin="client", received_at=5.0)
FIELDS = [field.name for field in dataclasses.fields(Message)]
OTHER = MESSAGE.replace(payload=b"y")


def asked(calls: Calls) -> Message | Answered:
    """Ask the plugins in `calls` about a PUBLISH that corresponds to `MESSAGE`."""
    return ask(calls, CLIENT, "t/1", b"x", 1, EMPTY, 5.0, None)


def call(
    runtime: VirtualRuntime, name: str, answer: Callable[[Message], Any], **given: Any
) -> HookImplementation:
    """Return an `on_publish` implementation that calls `answer` and returns its result."""
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
            found = asked(calls)
            answered = found if isinstance(found, Answered) else Answered(found)
            continue_transform(runtime, calls, CLIENT, answered.message, done, answered)
        else:
            run_transform(runtime, calls, CLIENT, MESSAGE, done)
        runtime.run_until_idle()
        ends.append((told, seen, [[getattr(one.stats, name) for name in COUNTED] for one in calls]))
    assert ends[0] == ends[1]
    assert len(ends[0][0]) == 1


def described(result: Any) -> Any:
    return (result.payload, result.qos) if isinstance(result, Message) else result


def test_all_abstain(runtime: VirtualRuntime) -> None:
    calls = tuple(call(runtime, str(number), ANSWERS["None"]) for number in range(3))
    for _ in range(65):
        message = asked(calls)
        assert isinstance(message, Message)
        assert message is not MESSAGE
        assert all(getattr(message, name) == getattr(MESSAGE, name) for name in FIELDS)
    for one in calls:
        assert (one.stats.calls, one.stats.abstain, one.stats.timed) == (65, 65, 2)


def test_the_calls_after_an_answer_are_left(runtime: VirtualRuntime) -> None:
    calls = (
        call(runtime, "one", ANSWERS["None"]),
        call(runtime, "two", ANSWERS["Drop"]),
        call(runtime, "three", ANSWERS["None"]),
    )
    answered = asked(calls)
    assert isinstance(answered, Answered)
    assert (answered.call, answered.answer) == (calls[1], Drop())
    assert [one.stats.calls for one in calls] == [1, 1, 0]


def test_a_message_that_moves_meets_plugins_of_its_new_topic(runtime: VirtualRuntime) -> None:
    moving = call(runtime, "moving", lambda message: message.replace(topic="new"))
    narrowed = call(runtime, "narrowed", lambda message: Drop(), topic=any_matches(("new",)))
    chain = (moving, narrowed)
    calls = inline_calls(chain, "t/1")
    assert calls == (moving,)
    answered = asked(calls)
    assert isinstance(answered, Answered)
    told: list[Any] = []
    continue_transform(
        runtime,
        chain,
        CLIENT,
        answered.message,
        lambda result, by: told.append((result, by)),
        answered,
    )
    assert told == [(Drop(), "narrowed")]


def test_a_chain_that_may_wait_is_not_inline(runtime: VirtualRuntime) -> None:
    sync = call(runtime, "sync", ANSWERS["None"])
    for waits in ({"is_async": True}, {"blocking": True}):
        other = call(runtime, "other", ANSWERS["None"], topic=any_matches(("a/#",)), **waits)
        assert inline_calls((sync, other), "a/b") is None
        assert inline_calls((sync, other), "t") == (sync,)
    assert inline_calls((), "t") == ()


def test_a_method_that_takes_only_the_message_is_called_directly(runtime: VirtualRuntime) -> None:
    seen: list[Message] = []
    one = call(runtime, "one", ANSWERS["Drop"], direct=seen.append)
    assert isinstance(asked((one,)), Message)
    assert [message.payload for message in seen] == [b"x"]
