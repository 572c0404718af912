"""Test that recorded calls behave like the originals, including results, exceptions, coroutines and cancellation."""

import gc
from typing import Any

import pytest
from hookmq.broker.tracing.timed_calls import describe, timed_chains, topic_of
from hookmq.hooks.chain import Chains, HookImplementation
from hookmq.hooks.stats import HookStats
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Handled
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq_testing import Harness

MESSAGE = Message("a", b"")


class Recorded:
    """An `on_publish` implementation whose calls are recorded."""

    def __init__(self, harness: Harness, function: Any) -> None:
        self.entries: list[dict[str, object]] = []
        call = HookImplementation("p", "on_publish", function, stats=HookStats("p", "on_publish"))
        chains = timed_chains(harness.clock, Chains(on_publish=(call,)), self._record)
        [timed] = chains.on_publish
        assert (timed.plugin_id, timed.stats) == ("p", call.stats)
        self.call = timed.function

    def _record(self, call: HookImplementation, args: Any, fields: dict[str, object]) -> None:
        assert (call.plugin_id, args) == ("p", (None, MESSAGE))
        self.entries.append(fields)


def test_a_result_is_passed_on(broker_harness: Any) -> None:
    verdict = Deny(rule="line 3")
    found = Recorded(broker_harness(), lambda client, message: verdict)
    assert found.call(None, MESSAGE) is verdict
    [entry] = found.entries
    assert (entry["verdict"], entry["rule"], entry["microseconds"]) == ("deny", "line 3", 0)


def test_an_exception_is_passed_on_without_its_text(broker_harness: Any) -> None:
    def fail(client: Any, message: Any) -> None:
        raise KeyError("s3cr3t")

    found = Recorded(broker_harness(), fail)
    with pytest.raises(KeyError):
        found.call(None, MESSAGE)
    assert found.entries == [{"verdict": "error", "error": "KeyError", "microseconds": 0}]


def test_the_time_of_a_coroutine_includes_its_waiting(broker_harness: Any) -> None:
    harness = broker_harness()
    promise = harness.clock.promise()

    async def wait(client: Any, message: Any) -> Drop:
        await promise
        return Drop()

    found = Recorded(harness, wait)
    results: list[Any] = []
    harness.clock.spawn(found.call(None, MESSAGE), lambda *result: results.append(result))
    harness.advance(0.5)
    assert (results, found.entries) == ([], [])
    promise.set_result(None)
    harness.settle()
    assert results == [(Drop(), None)]
    assert found.entries == [{"verdict": "drop", "code": 0, "microseconds": 500_000}]


def test_a_coroutine_that_never_starts_is_closed(
    broker_harness: Any, recwarn: pytest.WarningsRecorder
) -> None:
    async def wait(client: Any, message: Any) -> None:
        raise AssertionError("it must not run")

    found = Recorded(broker_harness(), wait)
    coroutine = found.call(None, MESSAGE)
    coroutine.close()
    del coroutine
    gc.collect()
    assert not recwarn.list
    assert found.entries == []


def test_results_are_described() -> None:
    secret = {"token": "s3cr3t"}
    assert describe(None, ()) == {"verdict": "abstain"}
    assert describe(Allow(5.0, 1, rule="a:3"), ()) == {
        "verdict": "allow", "cache_for": 5.0, "max_qos": 1, "rule": "a:3",
    }  # fmt: skip
    assert describe(Accept("ann", secret, data=b"s3cr3t"), ()) == {
        "verdict": "accept", "identity": "ann",
    }  # fmt: skip
    assert describe(Challenge(b"s3cr3t"), ()) == {"verdict": "challenge"}
    assert describe(Handled(), ()) == {"verdict": "handled", "code": 0}
    assert describe(MESSAGE, (None, MESSAGE)) == {"verdict": "abstain"}
    moved = MESSAGE.replace(topic="b")
    assert describe(moved, (None, MESSAGE)) == {"verdict": "replace", "topic": "b", "qos": 0}
    other = Subscription("f", "g", 1)
    assert describe(other, (None, None)) == {"verdict": "replace", "filter": "g", "qos": 1}
    assert describe(7, ()) == {"verdict": "error", "error": "answered with int"}


def test_the_topic_of_a_call() -> None:
    def call(hook: str) -> HookImplementation:
        return HookImplementation("p", hook, print, stats=HookStats("p", hook))

    assert topic_of(call("authorize"), (None, "publish", "t", None, None)) == "t"
    assert topic_of(call("on_publish"), (None, MESSAGE)) == "a"
    assert topic_of(call("on_subscribe"), (None, Subscription("f", "m/f"))) == "m/f"
    assert topic_of(call("on_connect"), (None, object())) is None
