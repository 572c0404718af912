"""Test a session's record: what a restarted broker knows about the session and its client."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Accept, Allow, Limits
from hookmq.model.client import Scope
from hookmq.model.events import Action
from hookmq.mqtt.packets import SubscribeRequest
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, will

Make = Callable[..., Harness]


@pytest.fixture
def store() -> DurableStore:
    return DurableStore()


@pytest.fixture
def harness(broker_harness: Make, store: DurableStore) -> Harness:
    return broker_harness(store=store)


def durable(harness: Harness, name: str, expiry: int = 600, **options: Any) -> MemoryClient:
    return harness.connect(name, session_expiry_interval=expiry, **options)


def test_sessions_are_back(harness: Harness) -> None:
    client = durable(harness, "one")
    old = harness.connect("old", 4, clean_start=False)
    gone = harness.connect("gone")
    harness.restart()
    assert set(harness.broker.sessions) == {"one", "old"}
    assert client.reconnect().session_present
    assert old.reconnect().session_present
    assert not gone.reconnect().session_present


def test_the_identity_of_an_offline_client_survives_a_restart(
    broker_harness: Make, store: DurableStore
) -> None:
    recorder = HookRecorder("on_connect", "authorize")
    recorder.answer("on_connect", Accept("alice", {"tenant": "a"}, limits=Limits(queue_messages=2)))
    recorder.answer("authorize", Allow())
    harness = broker_harness(plugins=[recorder], store=store)
    client = durable(
        harness,
        "one",
        username="al",
        scope=Scope("inner", mount_point="m/"),
        will=will("bye", b"x", delay=10),
    )
    client.subscribe("t", 1)
    client.drop()
    recorder.clear()
    harness.restart()
    session = harness.broker.sessions["one"]
    info = session.client
    assert (info.identity, info.claims, info.username) == ("alice", {"tenant": "a"}, "al")
    assert (info.listener, info.scope.mount_point, info.peer.host) == ("inner", "m/", "192.0.2.1")
    assert session.queue_messages == 2
    harness.advance(11)
    (asked,) = [call for call in recorder.calls("authorize") if call.action is Action.WILL]
    assert (asked.client.identity, asked.topic) == ("alice", "m/bye")
    pub = harness.connect("pub", scope=Scope("inner", mount_point="m/"))
    for number in range(4):
        pub.publish("t", b"%d" % number, 1)
    client.reconnect()
    assert [message.payload for message in client.messages] == [b"0", b"1"]


def test_subscriptions_keep_their_options(harness: Harness) -> None:
    client = durable(harness, "one")
    client.subscribe(
        [
            SubscribeRequest("a/#", 1, no_local=True, retain_as_published=True),
            SubscribeRequest("b", 2, retain_handling=2),
            SubscribeRequest("$share/g/c", 1),
            SubscribeRequest("dropped", 1),
        ],
        identifier=7,
    )
    client.unsubscribe("dropped")
    before = dict(harness.broker.sessions["one"].subscriptions)
    harness.restart()
    assert harness.broker.sessions["one"].subscriptions == before
    client.reconnect()
    client.publish("a/1", b"own", 1)
    harness.connect("pub").publish("a/1", b"other", 1, retain=True)
    message = client.expect_message("a/1", b"other", 1, retain=True)
    assert message.properties.subscription_identifier == (7,)


def test_a_rewritten_subscription_is_back_under_its_own_name(
    broker_harness: Make, store: DurableStore
) -> None:
    recorder = HookRecorder("on_subscribe")
    recorder.answer("on_subscribe", lambda subscription: subscription.replace(topic_filter="real"))
    harness = broker_harness(plugins=[recorder], store=store)
    client = durable(harness, "one")
    client.subscribe("asked", 1)
    harness.restart()
    client.reconnect()
    harness.connect("pub").publish("real", b"x", 1, expect=0)
    client.expect_message("real", b"x")
    assert client.unsubscribe("asked").codes == (0,)
    assert store.subscriptions == {}
