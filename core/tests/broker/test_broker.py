"""Test that a broker can be drained and reloaded."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.client import Scope
from hookmq.model.events import Action, EndedBy
from hookmq.mqtt.packets import Connack, Puback, Suback
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.records import PutSession
from hookmq_testing import DurableStore, Harness, HookRecorder, SlowStore, will
from hookmq_testing.plugins import instance_of

Make = Callable[..., Harness]


def drain(harness: Harness, reference: str = "") -> list[str]:
    """Start draining. Return a list to which "done" is added at the end."""
    told: list[str] = []
    harness.broker.drain(reference, lambda: told.append("done"))
    return told


# --- drain --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["", "other.example:1883"])
def test_drain_tells_everybody(broker_harness: Make, reference: str) -> None:
    harness = broker_harness()
    five, four, three = (harness.connect(f"v{version}", version) for version in (5, 4, 3))
    told = drain(harness, reference)
    harness.settle()
    packet = five.expect_disconnect(0x9C if reference else 0x8B)
    assert packet is not None
    assert packet.properties.server_reference == (reference or None)
    four.expect_closed()
    three.expect_closed()
    assert told == ["done"]
    assert not harness.broker.connections


def test_drain_with_nobody_there(broker_harness: Make) -> None:
    harness = broker_harness()
    told = drain(harness)
    harness.settle()
    assert told == ["done"]


def test_no_connection_is_accepted_while_draining(broker_harness: Make) -> None:
    harness = broker_harness()
    waiting = harness.open()
    drain(harness)
    harness.settle()
    assert waiting.closed
    late = harness.open()
    assert late.closed
    assert late.received == []
    assert harness.metrics.connections_refused == 2


def test_drain_while_a_plugin_decides(broker_harness: Make) -> None:
    plugin = HookRecorder("on_connect", "on_publish")
    harness = broker_harness(plugins=[plugin])
    pub = harness.connect("pub", auto_ack=False)
    plugin.answer("on_connect", harness.clock.event())
    plugin.answer("on_publish", harness.clock.event())
    pub.publish("t", b"", 1)
    new = harness.connect("new", expect=None)
    told = drain(harness)
    harness.settle()
    assert new.expect(Connack).code == 0x88
    assert new.closed
    pub.expect_disconnect(0x8B)
    assert told == ["done"]
    assert not harness.clock.tasks
    assert harness.hooks.in_flight() == 0


def test_drain_commits_what_is_left_before_it_is_done(broker_harness: Make) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(store=store)
    one = harness.connect("one", session_expiry_interval=60)
    pub = harness.connect("pub", session_expiry_interval=60)
    one.subscribe("t", 1)
    store.slow = True
    pub.publish("t", b"x", 1)
    told = drain(harness)
    harness.settle()
    assert told == []
    store.finish(all=False)
    harness.settle()
    assert told == []
    ended = [r.session for r in store.committing or () if isinstance(r, PutSession)]
    assert {record.client_id for record in ended} == {"one", "pub"}
    assert all(record.ended_at is not None for record in ended)
    store.finish()
    harness.settle()
    assert told == ["done"]


def test_acknowledgements_of_this_turn_are_sent_before_the_drain(broker_harness: Make) -> None:
    harness = broker_harness()
    pub = harness.connect("pub", auto_ack=False)
    harness._together += 1
    pub.publish("t", b"", 1)
    harness._together -= 1
    harness.clock.turn()
    drain(harness)
    pub.expect(Puback)
    pub.expect_disconnect(0x8B)


def test_drain_after_the_store_failed(broker_harness: Make) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(store=store)
    one = harness.connect("one", session_expiry_interval=60)
    harness.broker.on_failure = lambda reason: None
    store.slow = True
    one.publish("t", b"x", 1, retain=True)
    store.fail()
    told = drain(harness)
    harness.settle()
    assert told == ["done"]  # the drain does not wait for a commit that will never finish
    one.expect_disconnect(0x8B)


def test_wills_and_observers_at_drain(broker_harness: Make) -> None:
    store = DurableStore()
    plugin = HookRecorder("on_disconnect")
    harness = broker_harness(plugins=[plugin], store=store)
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe("bye", 1)
    away.disconnect()
    harness.connect("one", will=will("bye", b"now", 1))
    harness.connect("two", session_expiry_interval=600, will=will("bye", b"later", 1, delay=60))
    plugin.clear()
    drain(harness)
    harness.settle()
    assert {(call.reason.code, call.reason.by, call.reason.will) for call in plugin.calls()} == {
        (ReasonCode.SERVER_SHUTTING_DOWN, EndedBy.SERVER, True)
    }
    assert [message.payload for message in store.messages.values()] == [b"now"]
    # The other will is stored until its delay has passed.
    assert store.sessions["two"].session.will is not None


# --- reload -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
def test_reload_keeps_connections_and_their_sessions(broker_harness: Make, version: int) -> None:
    harness = broker_harness()
    sub, pub = harness.connect("sub", version), harness.connect("pub", version)
    sub.subscribe("t", 1)
    pub.publish("t", b"before", 1, expect=0)
    harness.reload({"broker": {"fan_out_batch": 5}})
    pub.publish("t", b"after", 1, expect=0)
    assert [message.payload for message in sub.messages] == [b"before", b"after"]
    assert len(harness.broker.connections) == 2
    assert harness.broker.settings.broker.fan_out_batch == 5


@pytest.mark.parametrize("qos", [0, 1])
def test_a_plugin_that_is_added_gets_the_very_next_message(broker_harness: Make, qos: int) -> None:
    harness = broker_harness()
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 1)
    for _ in range(3):
        pub.publish("t", b"x", qos)  # on the fast path
    assert pub.connection.memo
    hooks = ("authorize", "on_publish", "on_deliver", "on_published", "on_delivered")
    plugin = HookRecorder(*hooks)
    plugin.answer("on_publish", lambda message: message.replace(payload=b"in"))
    plugin.answer("on_deliver", lambda message: message.replace(payload=message.payload + b"+out"))
    harness.reload(plugins=[plugin])
    plugin.clear()
    pub.publish("t", b"x", qos)
    sub.unread.clear()
    harness.settle()
    assert sub.messages[-1].payload == b"in+out"
    assert sorted(call.hook for call in plugin.calls()) == sorted(hooks)
    assert len(sub.messages) == 4


@pytest.mark.parametrize("qos", [0, 1])
def test_a_removed_plugin_is_no_longer_asked(broker_harness: Make, qos: int) -> None:
    plugin = HookRecorder("authorize", "on_publish", "on_deliver", "on_published", "on_delivered")
    plugin.answer("on_publish", lambda message: message.replace(payload=b"changed"))
    harness = broker_harness(plugins=[plugin])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 1)
    pub.publish("t", b"x", qos)
    sub.expect_message("t", b"changed")
    harness.reload(plugins=[])
    plugin.clear()
    for _ in range(3):
        pub.publish("t", b"x", qos)
        sub.expect_message("t", b"x")
    assert plugin.calls() == []
    assert pub.connection.memo  # nothing prevents the fast path any more


def test_a_pending_decision_stays_with_the_plugin_that_was_called(broker_harness: Make) -> None:
    old = HookRecorder("on_publish", id="old")
    harness = broker_harness(plugins=[old])
    event = harness.clock.event()
    old.answer("on_publish", event)
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 1)
    pub.publish("t", b"1", 1)
    pub.publish("t", b"2", 1)
    new = HookRecorder("on_publish", id="new")
    new.answer("on_publish", Deny())
    harness.reload(plugins=[new])
    assert (len(old.calls()), len(new.calls())) == (1, 0)
    pub.expect_nothing()
    event.set(None)
    assert [pub.expect(Puback).code for _ in range(2)] == [0, 0x87]
    assert [message.payload for message in sub.messages] == [b"1"]
    assert (len(old.calls()), len(new.calls())) == (1, 1)


def test_a_reload_discards_cached_decisions(broker_harness: Make) -> None:
    plugin = HookRecorder("authorize")
    plugin.answer("authorize", Allow())
    harness = broker_harness(plugins=[plugin])
    pub = harness.connect("pub")
    pub.publish("t", b"", 1)
    stricter = HookRecorder("authorize")
    stricter.answer("authorize", Deny())
    harness.reload(plugins=[stricter])
    pub.unread.clear()
    pub.publish("t", b"", 1, expect=0x87)
    harness.reload({"authz": {"default": "deny"}}, plugins=[])
    pub.publish("u", b"", 1, expect=0x87)
    harness.reload({"authz": {"default": "allow"}})
    pub.publish("u", b"", 1, expect=0x10)


@pytest.mark.parametrize("mode", ["disconnect", "silent"])
def test_subscriptions_are_asked_about_again(broker_harness: Make, mode: Any) -> None:
    harness = broker_harness(config={"broker": {"on_revoke": mode}})
    one, two = harness.connect("one"), harness.connect("two")
    away = harness.connect("away", session_expiry_interval=60)
    for client in (one, away):
        client.subscribe(["fine", "secret"], 1)
    two.subscribe("fine", 1)
    away.disconnect()
    acl = HookRecorder("authorize")
    acl.answer("authorize", lambda topic: Deny() if topic == "secret" else Allow())
    harness.reload(plugins=[acl])
    assert {(c.client.client_id, c.topic) for c in acl.calls() if c.action is Action.SUBSCRIBE} == {
        ("one", "fine"), ("one", "secret"), ("two", "fine"), ("away", "fine"), ("away", "secret"),
    }  # fmt: skip
    two.ping()
    if mode == "disconnect":
        one.expect_disconnect(0x87)
    else:
        one.ping()
        assert set(harness.broker.sessions["one"].subscriptions) == {"fine"}
    assert set(harness.broker.sessions["away"].subscriptions) == {"fine"}


def test_connections_keep_what_connack_promised(broker_harness: Make) -> None:
    harness = broker_harness()
    old = harness.connect("old")
    sub = harness.connect("sub")
    sub.subscribe("#", 2)
    old.publish("alias", b"", topic_alias=20)
    harness.reload(
        {
            "broker": {
                "max_qos": 0,
                "retain_available": False,
                "max_packet_size": 1000,
                "topic_alias_maximum": 2,
                "receive_maximum": 1,
                "wildcard_available": False,
                "shared_available": False,
                "subscription_identifiers_available": False,
            }
        }
    )
    new = harness.connect("new")
    assert new.connack is not None
    told = new.connack.properties
    assert (told.maximum_qos, told.retain_available, told.maximum_packet_size) == (0, 0, 1000)
    # The older connection does not know the new limits, so its packets are not errors.
    old.publish("t", bytes(5000), 2, expect=0)
    old.publish("t", b"x", 1, retain=True, expect=0)
    old.publish("", b"x", topic_alias=20)
    old.publish("other", b"x", topic_alias=21)
    assert old.subscribe(["a/#", "$share/g/b"], identifier=3).codes == (0, 0)
    old.ping()
    assert len(sub.messages) == 5
    new.publish("t", b"x", 1)
    new.expect_disconnect(0x9B)


def test_a_client_never_gets_more_than_it_takes_from_an_older_connection(
    broker_harness: Make,
) -> None:
    harness = broker_harness(config={"broker": {"max_packet_size": 100000}})
    old = harness.connect("old")
    harness.reload({"broker": {"max_packet_size": 1000}})
    small = harness.connect("small", maximum_packet_size=2000)
    small.subscribe("t", 1)
    for _ in range(3):
        old.publish("t", bytes(5000), 1)  # the old connection's limit allows this
        old.publish("t", bytes(5000), 0)
    small.ping()
    small.expect_nothing()
    assert harness.metrics.dropped == {("too_large", "out"): 6}


def test_new_limits_hold_for_new_connections(broker_harness: Make) -> None:
    harness = broker_harness()
    harness.reload({"broker": {"max_connections": 1}})
    harness.connect("one")
    assert harness.open().closed
    harness.reload({"broker": {"max_connections": 2}})
    harness.connect("two")


def test_a_session_that_was_being_asked_about_goes_on(broker_harness: Make) -> None:
    slow = HookRecorder("authorize")
    slow.answer("authorize", Allow())
    harness = broker_harness(plugins=[slow])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 1)
    event = harness.clock.event()
    slow.answer("authorize", lambda action: event if action is Action.SUBSCRIBE else Allow())
    harness.handle("recorder").invalidate_authz()
    harness.reload(plugins=[])
    pub.publish("t", b"x", 1)
    sub.expect_nothing()
    event.set(Allow())
    sub.expect_message("t", b"x")
    assert harness.broker.sessions["sub"].paused == 0


def test_listeners_keep_their_own_chains(broker_harness: Make) -> None:
    harness = broker_harness()
    inner = harness.connect("in", scope=Scope("inner"))
    outer = harness.connect("out", scope=Scope("outer"))
    plugin = HookRecorder("authorize")
    plugin.answer("authorize", Deny())
    harness.reload(plugins=[instance_of(plugin, listeners=("outer",))])
    inner.publish("t", b"", 1, expect=0x10)
    outer.publish("t", b"", 1, expect=0x87)
    outer.send_subscribe("t")
    assert outer.expect(Suback).codes == (0x87,)
