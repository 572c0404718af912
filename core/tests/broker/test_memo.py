"""Test which publishes a connection remembers as authorized, and how many it remembers."""

from collections.abc import Callable

import pytest
from hookmq.hooks.verdicts import Allow
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


@pytest.fixture
def plugin() -> HookRecorder:
    recorder = HookRecorder("authorize")
    recorder.answer("authorize", Allow())
    return recorder


@pytest.fixture
def harness(broker_harness: Make, plugin: HookRecorder) -> Harness:
    return broker_harness(plugins=[plugin])


def test_each_connection_has_its_own_memo(harness: Harness, plugin: HookRecorder) -> None:
    one = harness.connect("one", session_expiry_interval=60)
    one.publish("t", b"")
    harness.connect("two").publish("t", b"")
    one.reconnect()
    one.publish("t", b"")
    assert len(plugin.calls()) == 3


def test_the_memo_of_a_connection_is_bounded(broker_harness: Make, plugin: HookRecorder) -> None:
    config = {"broker": {"authz_cache": 3}}
    harness = broker_harness(plugins=[plugin], config=config)
    one = harness.connect("one")
    for number in range(10):
        one.publish(f"t/{number}", b"")
    assert [key[1] for key in one.connection.decisions or ()] == ["t/7", "t/8", "t/9"]
    assert len(one.connection.memo) == 3
    assert harness.broker.state.remembered == 6
    one.publish("t/9", b"")
    one.publish("t/0", b"")
    assert len(plugin.calls()) == 11
    one.disconnect()
    assert harness.broker.state.remembered == 0


def test_the_memos_of_all_connections_are_bounded(
    broker_harness: Make, plugin: HookRecorder
) -> None:
    config = {"broker": {"authz_cache_total": 5}}
    harness = broker_harness(plugins=[plugin], config=config)
    clients = [harness.connect(f"c{number}") for number in range(4)]
    for client in clients:
        for number in range(4):
            client.publish(f"t/{number}", b"")
            assert harness.broker.state.remembered <= 5
    assert harness.broker.state.remembered == 5
    for client in clients:
        client.disconnect()
    assert harness.broker.state.remembered == 0
    harness.connect("new").publish("t/0", b"")
    assert harness.broker.state.remembered == 2


@pytest.mark.parametrize("setting", ["authz_cache", "authz_cache_total"])
def test_a_bound_of_zero_remembers_nothing(
    broker_harness: Make, plugin: HookRecorder, setting: str
) -> None:
    harness = broker_harness(plugins=[plugin], config={"broker": {setting: 0}})
    one = harness.connect("one")
    for _ in range(3):
        one.publish("t", b"", 1, expect=0x10)
    assert len(plugin.calls()) == 3
    assert harness.broker.state.remembered == 0
