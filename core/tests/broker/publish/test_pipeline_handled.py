"""Test `Handled`. If a plugin takes over a message, the message is acknowledged after the commit, and neither delivered
nor retained.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Handled
from hookmq.model.message import Message
from hookmq.mqtt.packets import Puback
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.records import PutRetained
from hookmq_testing import DurableStore, Harness, HookRecorder, SlowStore, will

Make = Callable[..., Harness]


@pytest.fixture
def taker() -> HookRecorder:
    recorder = HookRecorder("on_publish", "on_will", id="taker")
    recorder.answer("on_publish", Handled())
    recorder.answer("on_will", Handled())
    return recorder


@pytest.fixture
def other() -> HookRecorder:
    return HookRecorder("on_publish", "on_published", "on_dropped", "on_retained", id="other")


@pytest.fixture
def harness(broker_harness: Make, taker: HookRecorder, other: HookRecorder) -> Harness:
    return broker_harness(plugins=[taker, other])


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_it_is_acknowledged_and_goes_nowhere(
    harness: Harness, taker: HookRecorder, other: HookRecorder, version: int, qos: int
) -> None:
    sub, pub = harness.connect("sub"), harness.connect("pub", version)
    sub.subscribe("#", 2)
    pub.publish("t", b"x", qos, retain=True, expect=0)
    sub.expect_nothing()
    assert len(taker.calls("on_publish")) == 1
    assert other.calls() == []  # no later plugin, and no observer
    assert len(harness.broker.state.retained) == 0
    assert harness.metrics.dropped == {}
    assert harness.metrics.messages_handled == 1
    stats = harness.hooks.plugins[0].stats("on_publish")
    assert (stats.handled, stats.drop, stats.error) == (1, 0, 0)


def test_its_code_is_in_the_acknowledgement(harness: Harness, taker: HookRecorder) -> None:
    taker.answer("on_publish", Handled(ReasonCode.NO_MATCHING_SUBSCRIBERS))
    harness.connect("pub").publish("t", b"x", 1, expect=0x10)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("later", [True, False])
def test_the_acknowledgement_waits_for_what_the_hook_recorded(
    broker_harness: Make, taker: HookRecorder, qos: int, later: bool
) -> None:
    inner = DurableStore()
    store = SlowStore(inner, slow=False)
    harness = broker_harness(plugins=[taker], store=store)
    pub = harness.connect("pub")

    def keep(message: Message) -> Handled:
        harness.broker.state.committer.add(PutRetained(message, 0))
        return Handled()

    event = harness.clock.event()

    async def keep_later(message: Message) -> Handled:
        await event
        return keep(message)

    answer: Any = keep_later if later else keep
    taker.answer("on_publish", lambda message: answer(message))
    store.slow = True
    pub.publish("t", b"x", qos, expect=None)
    harness.settle()
    event.set()
    harness.settle()
    pub.expect_nothing()
    assert not inner.retained
    store.finish(all=False)
    harness.settle()
    assert inner.retained["t"].message.payload == b"x"
    if qos == 1:
        assert pub.expect(Puback).code == 0
    else:
        store.slow = False
        store.finish()
        harness.settle()
        assert [type(packet).__name__ for packet in pub.received[-2:]] == ["Pubrec", "Pubcomp"]


def test_a_crash_before_the_commit_leaves_it_with_the_client(
    broker_harness: Make, taker: HookRecorder
) -> None:
    inner = DurableStore()
    store = SlowStore(inner, slow=False)
    harness = broker_harness(plugins=[taker], store=store)
    pub = harness.connect("pub", session_expiry_interval=60)

    def keep(message: Message) -> Handled:
        harness.broker.state.committer.add(PutRetained(message, 0))
        return Handled()

    taker.answer("on_publish", lambda message: keep(message))
    store.slow = True
    pub.publish("t", b"x", 2, expect=None)
    harness.settle()
    pub.expect_nothing()
    harness.restart(store=inner)
    # Neither the retained message nor the packet id was stored.
    assert (inner.retained, inner.received) == ({}, set())


def test_a_will_may_be_taken_over(
    broker_harness: Make, taker: HookRecorder, other: HookRecorder
) -> None:
    store = DurableStore()
    harness = broker_harness(plugins=[taker, other], store=store)
    sub = harness.connect("sub")
    sub.subscribe("#")
    harness.connect("one", will=will("bye", b"x"), session_expiry_interval=5).drop()
    harness.advance(10)
    sub.expect_nothing()
    assert len(taker.calls("on_will")) == 1
    assert (harness.metrics.messages_handled, harness.metrics.dropped) == (1, {})
    assert store.sessions == {}  # nothing will publish it again


def test_a_plugins_message_may_be_taken_over(harness: Harness, taker: HookRecorder) -> None:
    assert harness.clock.run(harness.handle("other").publish_and_wait("t", b"x", 1)) == 0
    assert harness.metrics.messages_handled == 1


@pytest.mark.parametrize("hook", ["on_subscribe", "on_deliver"])
def test_other_hooks_cannot_take_over(broker_harness: Make, hook: str) -> None:
    recorder = HookRecorder(hook, id="taker")
    recorder.answer(hook, Handled())
    harness = broker_harness(plugins=[recorder])
    sub = harness.connect("sub")
    codes = sub.subscribe("t").codes
    harness.connect("pub").publish("t", b"x")
    if hook == "on_subscribe":
        assert codes == (0x83,)
    else:
        sub.expect_message("t", b"x")
    assert harness.hooks.plugins[0].stats(hook).error == 1
    assert harness.metrics.messages_handled == 0
