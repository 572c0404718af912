"""A plugin acts on clients through its handle."""

from collections.abc import Callable

import pytest
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, HookRecorder, will

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


def test_disconnect(harness: Harness) -> None:
    broker = harness.handle("mine")
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    one = harness.connect("one", will=will("bye"))
    two = harness.connect("two", 4, will=will("bye"))
    assert not broker.disconnect("nobody")
    assert broker.disconnect("one", reason="maintenance")
    packet = one.expect_disconnect(0x98)
    assert packet is not None
    assert packet.properties.reason_string == "maintenance"
    watcher.expect_message("bye")
    assert broker.disconnect("two", ReasonCode.QUOTA_EXCEEDED, drop_will=True)
    two.expect_closed()
    watcher.expect_nothing()
    assert not broker.disconnect("one")


def test_disconnecting_a_client_within_its_own_hook(harness: Harness, mine: HookRecorder) -> None:
    mine.answer(
        "on_publish", lambda client: harness.handle("mine").disconnect(client.client_id) and None
    )
    sub, one = harness.connect("sub"), harness.connect("one")
    sub.subscribe("t")
    one.publish("t", b"", 1)
    one.expect_disconnect(0x98)
    assert not harness.logged("internal.error")
