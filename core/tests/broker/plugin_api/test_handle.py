"""Test that each plugin has its own handle, with a clock, a log and counters."""

from collections.abc import Callable

import pytest
from hookmq.hooks.verdicts import Allow
from hookmq.model.metrics import Metrics
from hookmq_testing import Harness, HookRecorder
from hookmq_testing.runtime import EPOCH

Make = Callable[..., Harness]


@pytest.fixture
def mine() -> HookRecorder:
    return HookRecorder("on_publish", id="mine")


@pytest.fixture
def other() -> HookRecorder:
    return HookRecorder("on_publish", "authorize", "on_published", "on_dropped", id="other")


@pytest.fixture
def harness(broker_harness: Make, mine: HookRecorder, other: HookRecorder) -> Harness:
    return broker_harness(plugins=[mine, other])


def test_clock_metrics_and_log(harness: Harness) -> None:
    broker = harness.handle("mine")
    harness.advance(5)
    assert (broker.now(), broker.time()) == (5.0, EPOCH + 5)
    assert isinstance(broker.metrics, Metrics)
    assert broker.metrics is harness.metrics
    broker.log("warning", "mine.noticed", what="this")
    assert harness.logs[-1] == ("warning", "mine.noticed", {"plugin": "mine", "what": "this"})


def test_each_plugin_has_its_own_handle(harness: Harness, other: HookRecorder) -> None:
    assert harness.handle("mine") is not harness.handle("other")
    other.answer("authorize", Allow())
    harness.connect("one").publish("t", b"")
    assert {id(call.broker) for call in other.calls("authorize")} == {id(harness.handle("other"))}
