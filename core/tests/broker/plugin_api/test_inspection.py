"""A plugin reads the broker's state through its handle."""

from collections.abc import Callable

import pytest
from hookmq_testing import Harness, HookRecorder

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


def test_clients(harness: Harness) -> None:
    broker = harness.handle("mine")
    assert broker.clients() == []
    one, two = harness.connect("one", session_expiry_interval=60), harness.connect("two")
    assert [client.client_id for client in broker.clients()] == ["one", "two"]
    assert broker.client("one") is harness.broker.sessions["one"].client
    assert broker.client("three") is None
    one.disconnect()
    two.disconnect()
    assert broker.client("one") is None  # a session, but no connection
    assert broker.clients() == []


def test_retained(harness: Harness) -> None:
    pub = harness.connect("pub")
    pub.publish("a/1", b"1", retain=True)
    pub.publish("a/2", b"2", retain=True, message_expiry_interval=5)
    pub.publish("b", b"3", retain=True)
    broker = harness.handle("mine")
    assert sorted(message.topic for message in broker.retained("a/#")) == ["a/1", "a/2"]
    harness.advance(6)
    assert [message.topic for message in broker.retained("a/#")] == ["a/1"]
    with pytest.raises(Exception, match="filter"):
        broker.retained("a/#/b")
