"""Test revocation. Live and stored subscriptions are authorized again, and messages wait for the verdict."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hookmq.broker.sessions import revocation as revoke
from hookmq.hooks.instance import HookOptions
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.events import Action, DropReason
from hookmq.model.settings import AuthzSettings
from hookmq.mqtt.packets import Connack, Publish, Suback
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.records import Dequeue, DropSubscription
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore
from hookmq_testing.plugins import instance_of

Make = Callable[..., Harness]


class Rights(HookRecorder):
    """A plugin that allows every filter except those in `revoked`. If `late` is set, verdicts wait for `decide`."""

    def __init__(self, *hooks: str, **options: Any) -> None:
        super().__init__(*hooks, id="rights", **options)
        self.revoked: set[str] = set()
        self.late = False
        self.waiting: list[tuple[str, Any]] = []
        self.harness: Harness
        self.answer("authorize", self._judge)

    def _judge(self, action: Action, topic: str) -> Any:
        if action is not Action.SUBSCRIBE:
            return Allow()
        if self.late:
            event = self.harness.clock.event()
            self.waiting.append((topic, event))
            return event
        return self._verdict(topic)

    def _verdict(self, topic: str) -> Allow | Deny:
        return Deny() if topic in self.revoked else Allow()

    def decide(self) -> None:
        """Answer all waiting requests."""
        waiting, self.waiting = self.waiting, []
        for topic, event in waiting:
            event.set(self._verdict(topic))
        self.harness.settle()

    def take(self, *filters: str, client: str | None = None, only: str | None = None) -> None:
        """Revoke the filters, and make the broker authorize subscriptions again."""
        self.revoked |= set(filters)
        self.harness.handle("rights").invalidate_authz(client, only)
        self.harness.settle()


def start(
    make: Make, mode: str = "silent", store: Any = None, **session: Any
) -> tuple[Harness, Rights, HookRecorder]:
    rights = Rights("authorize")
    observer = HookRecorder("on_dropped", "on_denied", "on_unsubscribed", id="observer")
    harness = make(
        plugins=[instance_of(rights, hooks={"authorize": HookOptions(timeout=60.0)}), observer],
        config={"broker": {"on_revoke": mode}, "session": session},
        store=store,
    )
    rights.harness = harness
    return harness, rights, observer


def filters(harness: Harness, name: str) -> set[str]:
    return set(harness.broker.sessions[name].subscriptions)


# --- live subscriptions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_a_live_subscription_is_taken_away_and_its_client_told(
    broker_harness: Make, version: int
) -> None:
    harness, rights, observer = start(broker_harness, "disconnect")
    one, two = harness.connect("one", version), harness.connect("two", version)
    one.subscribe("t")
    two.subscribe("u")
    rights.take("t")
    one.expect_disconnect(0x87)
    two.expect_nothing()
    (denied,) = observer.calls("on_denied")
    assert (denied.client.client_id, denied.action, denied.topic) == ("one", Action.SUBSCRIBE, "t")
    assert (denied.code, denied.rule) == (0x87, "rights")
    (ended,) = observer.calls("on_unsubscribed")
    assert (ended.client.client_id, ended.subscription.filter) == ("one", "t")


def test_silently(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness)
    one, pub = harness.connect("one"), harness.connect("pub")
    one.subscribe(["t", "u"], 1)
    pub.publish("t", b"before", 1, expect=0)
    one.expect_message("t", b"before")
    rights.take("t")
    pub.publish("t", b"after", 1, expect=0x10)
    pub.publish("u", b"still", 1, expect=0)
    one.expect_message("u", b"still")
    one.expect_nothing()
    assert one.unsubscribe("t").codes == (0x11,)
    assert one.subscribe("t").codes == (0x87,)


def test_only_the_client_or_the_filter_named_is_asked_about(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness)
    for name in ("one", "two"):
        harness.connect(name).subscribe(["a/1", "a/#", "b", "$share/g/a/+"])
    rights.clear()

    def asked() -> list[tuple[str, str]]:
        return [(call.client.client_id, call.topic) for call in rights.calls()]

    rights.take(client="two")
    assert asked() == [("two", name) for name in ("a/1", "a/#", "b", "a/+")]
    rights.clear()
    rights.take(only="a/1")
    mine = ["a/1", "a/#", "a/+"]
    assert asked() == [(name, filter) for name in ("one", "two") for filter in mine]
    rights.clear()
    rights.take(client="one", only="b")
    assert asked() == [("one", "b")]
    rights.clear()
    rights.take(client="nobody")
    rights.take(only="c")
    assert asked() == []


def test_much_is_asked_in_slices(broker_harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revoke, "SLICE", 3)
    harness, rights, _ = start(broker_harness)
    one, pub = harness.connect("one"), harness.connect("pub")
    one.subscribe([f"t/{number}" for number in range(10)])
    rights.clear()
    rights.revoked = {"t/9"}
    harness.handle("rights").invalidate_authz()
    asked = [len(rights.calls())]
    while harness.clock.turn():
        asked.append(len(rights.calls()))
    assert asked[0] == 3
    assert list(dict.fromkeys(asked)) == [3, 6, 9, 10]
    assert filters(harness, "one") == {f"t/{number}" for number in range(9)}
    pub.publish("t/1", b"x")
    one.expect_message("t/1")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("durable", [False, True])
def test_messages_wait_until_it_is_decided(broker_harness: Make, durable: bool, qos: int) -> None:
    harness, rights, _ = start(broker_harness)
    one = harness.connect("one", session_expiry_interval=60 if durable else 0)
    other, pub = harness.connect("other"), harness.connect("pub")
    one.subscribe("t", qos)
    other.subscribe("t", qos)
    rights.late = True
    rights.take(client="one")
    for number in range(3):
        pub.publish("t", b"%d" % number, qos, expect=0)
        other.expect_message("t")
    one.ping()
    one.expect_nothing()
    rights.decide()
    assert [message.payload for message in one.messages] == [b"0", b"1", b"2"]
    pub.publish("t", b"3", qos)
    assert one.messages[-1].payload == b"3"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_that_waited_for_a_decision_are_dropped_if_it_is_denied(
    broker_harness: Make, qos: int
) -> None:
    harness, rights, observer = start(broker_harness)
    one, pub = harness.connect("one"), harness.connect("pub")
    one.subscribe(["t", "u"], 2)
    rights.late = True
    rights.take("t", client="one")
    pub.publish("t", b"secret", qos)
    pub.publish("u", b"fine", qos)
    pub.publish("t", b"secret", qos)
    one.expect_nothing()
    rights.decide()
    one.expect_message("u", b"fine", qos)
    one.expect_nothing()
    dropped = observer.calls("on_dropped")
    assert [call.why.reason for call in dropped] == [DropReason.REVOKED] * 2
    assert {call.message.payload for call in dropped} == {b"secret"}
    session = harness.broker.sessions["one"]
    assert (session.queued, session.queued_bytes, harness.broker.state.queued_bytes) == (0, 0, 0)


def test_messages_that_wait_for_a_decision_are_bounded(broker_harness: Make) -> None:
    harness, rights, observer = start(broker_harness, queue_messages=2)
    one, pub = harness.connect("one"), harness.connect("pub")
    one.subscribe("t", 1)
    rights.late = True
    rights.take()
    for number in range(5):
        pub.publish("t", b"%d" % number, 1)
    harness.settle()
    assert [call.why.reason for call in observer.calls("on_dropped")] == [DropReason.QUEUE_FULL] * 3
    rights.decide()
    assert [message.payload for message in one.messages] == [b"0", b"1"]


def test_overlapping_subscriptions(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness)
    one, pub = harness.connect("one"), harness.connect("pub")
    one.subscribe(["t/1", "t/#"], 1)
    rights.late = True
    rights.take("t/1")
    pub.publish("t/1", b"x", 1)
    rights.decide()
    one.expect_message("t/1", b"x")  # the client may still read t/#
    assert filters(harness, "one") == {"t/#"}


def test_a_revoked_member_leaves_its_group(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness)
    one, two, pub = (harness.connect(name) for name in ("one", "two", "pub"))
    one.subscribe("$share/g/t", 1)
    two.subscribe("$share/g/t", 1)
    rights.late = True
    rights.take(client="one")
    pub.publish("t", b"1", 1)
    pub.publish("t", b"2", 1)
    assert len(two.messages) == 2  # messages go to the member whose permission is not being checked
    rights.revoked = {"t"}
    rights.decide()
    assert filters(harness, "one") == set()
    pub.publish("t", b"3", 1)
    assert len(two.messages) == 3
    one.expect_nothing()


def test_retained_messages_that_are_still_to_come(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness, max_inflight=2)
    pub = harness.connect("pub")
    for number in range(5):
        pub.publish(f"r/{number}", b"x", 1, retain=True)
    one = harness.connect("one", auto_ack=False)
    one.subscribe("r/#", 1)
    assert len(one.messages) == 2
    rights.take("r/#")
    for message in one.messages:
        one.ack(message)
    assert len(one.messages) == 2
    one.expect_message("r/0")
    one.expect_message("r/1")
    one.expect_nothing()


def test_a_client_that_subscribes_anew_meanwhile(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness)
    one, pub = harness.connect("one"), harness.connect("pub")
    one.subscribe("t", 1)
    rights.late = True
    rights.take()
    rights.late = False
    assert one.subscribe("t", 1, retain_handling=2).codes == (1,)
    rights.revoked = {"t"}
    rights.decide()  # this decision is about the replaced subscription
    pub.publish("t", b"x", 1)
    one.expect_message("t", b"x")
    assert filters(harness, "one") == {"t"}


def test_a_client_that_leaves_meanwhile(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness, "disconnect")
    one, two = harness.connect("one"), harness.connect("two", session_expiry_interval=60)
    for client in (one, two):
        client.subscribe("t", 1)
    rights.late = True
    rights.take("t")
    one.drop()
    two.drop()
    rights.decide()
    assert set(harness.broker.sessions) == {"two"}
    assert filters(harness, "two") == set()
    assert harness.broker.sessions["two"].paused == 0


@pytest.mark.parametrize("fault", [ValueError("broken"), "timeout"])
def test_undecided_delivers_nothing_and_destroys_nothing(broker_harness: Make, fault: Any) -> None:
    harness, _rights, observer = start(broker_harness)
    one, away = (harness.connect(name, session_expiry_interval=600) for name in ("one", "away"))
    pub = harness.connect("pub")
    one.subscribe("t", 1)
    away.subscribe("t", 1)
    away.disconnect()
    harness.fail("rights", "authorize", fault)
    harness.handle("rights").invalidate_authz(filter="t")
    harness.settle()
    harness.advance(61)
    # The plugin failed, so the client may still have the permission. It must neither read more nor lose its messages.
    one.expect_disconnect(0x83)
    harness.heal()
    pub.publish("t", b"x", 1, expect=0)
    for client in (one, away):
        assert filters(harness, client.client_id) == {"t"}
        client.reconnect()
        client.expect_message("t", b"x")
    assert observer.calls("on_unsubscribed") == []


# --- stored subscriptions -----------------------------------------------------------------------------------------------


def away(harness: Harness, wanted: list[str], count: int) -> tuple[MemoryClient, MemoryClient]:
    """Return an offline durable client with `count` messages queued for each of its filters, and the publisher."""
    one = harness.connect("one", session_expiry_interval=600)
    one.subscribe(wanted, 1)
    one.disconnect()
    pub = harness.connect("pub")
    for number in range(count):
        for filter in wanted:
            pub.publish(filter, b"%d" % number, 1, expect=0)
    return one, pub


def test_a_stored_subscription_is_taken_away_with_its_queue(broker_harness: Make) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness, rights, observer = start(broker_harness, store=store)
    one, pub = away(harness, ["t", "u"], 3)
    rights.take("t")
    assert filters(harness, "one") == {"u"}
    assert DropSubscription("one", "t") in store.committed[-1]
    assert len([r for r in store.committed[-1] if isinstance(r, Dequeue)]) == 3
    dropped = observer.calls("on_dropped")
    assert [(call.client.client_id, call.why.reason) for call in dropped] == [
        ("one", DropReason.REVOKED)
    ] * 3
    pub.publish("t", b"after", 1, expect=0x10)
    one.reconnect()
    assert [message.topic for message in one.messages] == ["u", "u", "u"]
    one.expect(Publish)


@pytest.mark.parametrize("page", [1, 2, 3])
def test_revoked_messages_in_the_store_are_dropped_when_read(
    broker_harness: Make, page: int
) -> None:
    store = DurableStore()
    harness, rights, observer = start(broker_harness, store=store, queue_page=page)
    one = harness.connect("one", session_expiry_interval=600)
    one.subscribe(["t", "u", "t/#"], 1)
    one.disconnect()
    pub = harness.connect("pub")
    for topic in ("u", "t", "t", "t", "t", "t", "u", "t", "t", "t/1", "u"):
        pub.publish(topic, b"x", 1)
    rights.take("t", "t/#")
    one.reconnect()
    assert [message.topic for message in one.messages] == ["u", "u", "u"]
    assert len(observer.calls("on_dropped")) == 8
    session = harness.broker.sessions["one"]
    assert (session.queued, session.stored, session.queued_bytes) == (0, 0, 0)
    assert harness.broker.state.queued_bytes == 0
    assert store.queues == {}
    assert store.messages == {}
    pub.publish("u", b"more", 1)
    assert one.messages[-1].payload == b"more"


def test_stored_messages_that_another_filter_permits_are_kept(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness, store=DurableStore(), queue_page=1)
    one = harness.connect("one", session_expiry_interval=600)
    one.subscribe([("t/1", 2), ("t/#", 1)])
    one.disconnect()
    pub = harness.connect("pub")
    for number in range(4):
        pub.publish("t/1", b"%d" % number, 1)
    rights.take("t/1")
    one.reconnect()
    assert [message.payload for message in one.messages] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("late", [False, True])
def test_rights_are_asked_about_again_at_resume(broker_harness: Make, late: bool) -> None:
    harness, rights, _ = start(broker_harness)
    one, _ = away(harness, ["t", "u"], 2)
    rights.revoked = {"t"}  # nothing notifies the broker
    rights.late = late
    rights.clear()
    one.reconnect()
    assert {call.topic for call in rights.calls() if call.action is Action.SUBSCRIBE} == {"t", "u"}
    if late:
        one.expect_nothing()
        rights.decide()
    assert [message.topic for message in one.messages] == ["u", "u"]
    assert filters(harness, "one") == {"u"}


def test_messages_in_flight_wait_for_the_decision(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness)
    one = harness.connect("one", session_expiry_interval=600, auto_ack=False)
    one.subscribe("t", 1)
    harness.connect("pub").publish("t", b"x", 1)
    one.expect_message("t", dup=False)
    rights.late = True
    one.reconnect(auto_ack=True)
    one.expect_nothing()
    rights.decide()
    one.expect_message("t", dup=True)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("mode", ["silent", "disconnect"])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("when", ["away", "resumed", "connected"])
def test_revoked_messages_in_flight_are_not_sent_again(
    broker_harness: Make, qos: int, mode: str, when: str, restart: bool
) -> None:
    """After a revocation, unacknowledged messages are not resent, because a retransmission also requires permission."""
    store = DurableStore()
    harness, rights, _ = start(broker_harness, mode, store)
    one = harness.connect("one", session_expiry_interval=100, auto_ack=False)
    one.subscribe(["t", "u"], 2)
    pub = harness.connect("pub")
    for topic in ("t", "u"):
        pub.publish(topic, b"x", qos, expect=0)
        one.expect_message(topic, b"x")
    if when == "connected":
        rights.take("t")
    one.drop()
    if when == "away":
        rights.take("t")
    elif when == "resumed":
        rights.revoked.add("t")
    if restart:
        harness.restart()
    again = harness.connect(
        "one", clean_start=False, session_expiry_interval=100, auto_ack=False, expect=None
    )
    if when == "resumed" and mode == "disconnect":
        again.expect_disconnect(0x87)
        again = harness.connect("one", clean_start=False, session_expiry_interval=100)
    else:
        assert again.expect(Connack).session_present
    again.expect_message("u", b"x", dup=True)
    again.expect_nothing()


def test_stored_messages_remain_revoked_after_a_restart(broker_harness: Make) -> None:
    store = DurableStore()
    harness, rights, observer = start(broker_harness, store=store, queue_page=1, max_inflight=1)
    one = harness.connect("one", session_expiry_interval=600, auto_ack=False)
    one.subscribe(["t", "u"], 1)
    one.drop()
    pub = harness.connect("pub")
    for topic in ("u", "t", "t", "t", "u"):
        pub.publish(topic, b"x", 1, expect=0)
    rights.take("t")
    harness.restart()
    one.reconnect(auto_ack=True)
    assert [message.topic for message in one.messages] == ["u", "u"]
    assert len(observer.calls("on_dropped")) == 3
    assert not store.queues
    one.reconnect()
    assert not store.sessions["one"].session.revoked


def test_a_resumed_client_is_disconnected_where_that_is_configured(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness, "disconnect")
    one, _ = away(harness, ["t", "u"], 2)
    rights.revoked = {"t"}
    one.reconnect()
    one.expect_disconnect(0x87)
    assert not any(message.topic == "t" for message in one.messages)
    assert filters(harness, "one") == {"u"}
    one.reconnect()
    assert [message.topic for message in one.messages] == ["u", "u"]


def test_without_a_plugin_nobody_is_asked_at_resume(broker_harness: Make) -> None:
    harness = broker_harness()
    one, _ = away(harness, ["t"], 2)
    one.reconnect()
    assert len(one.messages) == 2
    assert harness.metrics.authz_cache_misses == 0


def test_subscribing_again_after_the_right_came_back(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness, store=DurableStore(), queue_page=1)
    one, pub = away(harness, ["t"], 3)
    rights.take("t")
    one.reconnect()
    assert one.messages == []
    rights.revoked = set()
    rights.take()
    one.send_subscribe("t", 1)
    assert one.expect(Suback).codes == (1,)
    pub.publish("t", b"new", 1, expect=0)
    assert [message.payload for message in one.messages] == [b"new"]


def test_the_code_of_the_denial_is_told(broker_harness: Make) -> None:
    harness, rights, observer = start(broker_harness)
    one = harness.connect("one")
    one.subscribe("t")
    rights.answer("authorize", Deny(ReasonCode.QUOTA_EXCEEDED))
    rights.take()
    assert [call.code for call in observer.calls("on_denied")] == [0x97]


def test_a_right_that_stands_for_less_lowers_the_subscription(broker_harness: Make) -> None:
    harness, rights, _ = start(broker_harness)
    subscriber = harness.connect(
        "s", version=5, clean_start=False, properties={"session_expiry_interval": 60}
    )
    publisher = harness.connect("p", version=5)
    assert subscriber.subscribe("a/+", 2).codes == (2,)
    rights.answer("authorize", Allow(max_qos=1))
    harness.handle("rights").invalidate_authz()
    harness.settle()
    publisher.publish("a/1", b"x", 1)
    subscriber.expect_message("a/1", b"x", qos=1)
    rights.answer("authorize", Allow())
    publisher.publish("a/2", b"y", 1)
    subscriber.expect_message("a/2", b"y", qos=1)
    assert harness.broker.sessions["s"].subscriptions["a/+"].qos == 1


def test_a_subscription_that_is_no_longer_allowed_after_a_restart(broker_harness: Make) -> None:
    """After a restart without an access plugin, `authz.default` decides on subscriptions too, even if they were granted
    earlier.
    """
    harness = broker_harness(store=DurableStore())
    client = harness.connect("c", session_expiry_interval=600)
    client.subscribe("a", 1)
    client.drop()
    harness.connect("pub").publish("a", b"x", 1, expect=0)
    harness.restart(replace(harness.settings, authz=AuthzSettings("deny")))
    back = client.reconnect(expect=None)
    assert not harness.broker.sessions["c"].subscriptions
    assert not back.messages
