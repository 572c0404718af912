"""Test that a pending decision delays only PUBLISH packets from the same client, in order and within limits.

Acknowledgements and PINGRESP are still sent.
"""

from collections.abc import Callable, Coroutine
from itertools import product
from typing import Any

import pytest
from hookmq.hooks.instance import HookOptions
from hookmq.hooks.verdicts import Accept, Allow, Deny
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
)
from hookmq.plugin import Plugin, hookimpl
from hookmq.storage.records import Enqueue
from hookmq_testing import Harness, HookRecorder, SlowStore, VirtualRuntime, make_plugin, will
from hookmq_testing.plugins import instance_of

Make = Callable[..., Harness]


class Patient(HookRecorder):
    """A plugin that records its calls. For topics below ``slow``, it awaits an event before it answers. For other
    topics, it answers at once.
    """

    def __init__(self, *hooks: str, id: str = "patient", **options: Any) -> None:
        super().__init__(*hooks, id=id, **options)
        self.clock: VirtualRuntime
        self.open = 0
        self.closed = 0
        self.events: list[Any] = []

    def decide(self, verdict: Any = None) -> None:
        """Complete the first pending call with `verdict`."""
        self.events.pop(0).set(verdict)

    async def wait(self) -> Any:
        event = self.clock.event()
        self.events.append(event)
        self.open += 1
        try:
            return await event
        finally:
            self.closed += 1


def patient(
    make: Make, hook: str, timeout: float = 600.0, **options: Any
) -> tuple[Harness, Patient]:
    """Return a harness with one plugin that waits in `hook` for topics below ``slow``."""
    recorder = Patient(hook)

    def about(name: str) -> Any:
        return recorder.wait() if name.startswith("slow") else None

    answers: dict[str, Callable[..., Any]] = {
        "on_publish": lambda message: about(message.topic),
        "on_subscribe": lambda subscription: about(subscription.filter),
        "authorize": lambda topic: about(topic),
        "on_connect": lambda client: about(client.client_id),
    }
    recorder.answer(hook, answers[hook])
    entry = instance_of(recorder, hooks={hook: HookOptions(timeout=timeout)})
    harness = make(plugins=[entry], **options)
    recorder.clock = harness.clock
    return harness, recorder


# --- held packets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("hook", ["on_publish", "authorize"])
def test_acknowledgements_and_pings_pass_a_publish_that_waits(
    broker_harness: Make, hook: str, version: int
) -> None:
    harness, plugin = patient(broker_harness, hook)
    one = harness.connect("one", version, auto_ack=False)
    one.subscribe("in/#", 2)
    pub = harness.connect("pub")
    pub.publish("in/1", b"", 1)
    pub.publish("in/2", b"", 2)
    pub.publish("in/3", b"", 2)
    first, second, third = one.messages
    one.ack(third)
    one.expect(Pubrel)
    mine = one.publish("mine", b"", 2)
    one.expect(Pubrec)
    one.unread.clear()
    session = harness.broker.sessions["one"]
    assert len(session.inflight) == 3

    waits = one.publish("slow/1", b"", 1)
    one.expect_nothing()
    one.ping()
    one.ack(first)
    one.ack(second)
    assert one.expect(Pubrel) == Pubrel(second.packet_id)
    one.send(Pubcomp(second.packet_id), Pubcomp(third.packet_id))
    assert session.inflight == {}
    one.send(Pubrel(mine))
    assert one.expect(Pubcomp) == Pubcomp(mine)

    subscribed = one.send_subscribe("more")
    behind = one.publish("fast", b"", 1)
    unsubscribed = one.send_unsubscribe("more")
    one.send(Pingreq())
    one.expect(Pingresp)
    one.expect_nothing()
    assert "more" not in session.subscriptions

    plugin.decide(Allow() if hook == "authorize" else None)
    answers = [one.next() for _ in range(4)]
    assert [type(answer) for answer in answers] == [Puback, Suback, Puback, Unsuback]
    got = [getattr(answer, "packet_id", 0) for answer in answers]
    assert got == [waits, subscribed, behind, unsubscribed]
    one.expect_nothing()


@pytest.mark.parametrize("hook", ["on_subscribe", "authorize"])
def test_publish_does_not_overtake_a_subscribe_that_waits(broker_harness: Make, hook: str) -> None:
    harness, plugin = patient(broker_harness, hook)
    one = harness.connect("one")
    asked = one.send_subscribe(["fast", "slow/1", "slow/2"], 1)
    one.publish("slow/2", b"own", 1) if hook == "on_subscribe" else one.publish("fast", b"own", 1)
    one.ping()
    one.expect_nothing()
    plugin.decide(Allow() if hook == "authorize" else None)
    one.expect_nothing()  # a third filter is still undecided
    plugin.decide(Deny() if hook == "authorize" else None)
    codes = (1, 1, 0x87) if hook == "authorize" else (1, 1, 1)
    assert one.next() == Suback(asked, codes)
    assert {type(one.next()), type(one.next())} == {Publish, Puback}


def test_packets_behind_connect_are_held_during_the_decision(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_connect")
    one = harness.open()
    one.send(
        Connect("slow", 5, True, 0),
        Subscribe(1, (SubscribeRequest("t", 1),)),
        Publish("t", b"x", 1, packet_id=2),
        Pingreq(),
    )
    one.expect_nothing()
    plugin.decide(Accept())
    assert [type(one.next()) for _ in range(2)] == [Connack, Suback]
    assert {type(one.next()) for _ in range(3)} == {Publish, Puback, Pingresp}


def test_order_is_kept_across_many_that_wait(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish")
    one, sub = harness.connect("one"), harness.connect("sub")
    sub.subscribe("#", 1)
    topics = ["slow/1", "fast/1", "slow/2", "slow/3", "fast/2"]
    with harness.together():
        for topic in topics:
            one.publish(topic, b"", 1)
    got = 0
    for _ in range(3):
        # One at a time: the decision on the next one may depend on this one.
        assert len(plugin.events) == 1
        plugin.decide()
        harness.settle()
        assert len(sub.messages) > got
        got = len(sub.messages)
    assert [message.topic for message in sub.messages] == topics
    assert [one.expect(Puback).packet_id for _ in topics] == [1, 2, 3, 4, 5]


def test_publish_to_oneself(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish", config={"session": {"max_inflight": 1}})
    one = harness.connect("one")
    one.subscribe("slow/#", 2)
    for number in range(3):
        one.publish("slow/1", b"%d" % number, 2)
    for _ in range(3):
        plugin.decide()
        harness.settle()
    assert [message.payload for message in one.messages] == [b"0", b"1", b"2"]
    assert [one.expect(Pubcomp).packet_id for _ in range(3)] == [2, 3, 4]


@pytest.mark.parametrize("overflow", ["pending", "backpressure"])
def test_two_clients_that_publish_to_each_other(broker_harness: Make, overflow: str) -> None:
    config = {"session": {"max_inflight": 1, "inflight_overflow": overflow}}
    harness, plugin = patient(broker_harness, "on_publish", config=config)
    a, b = harness.connect("a"), harness.connect("b")
    a.subscribe("slow/a", 1)
    b.subscribe("slow/b", 1)
    with harness.together():
        for number in range(4):
            a.publish("slow/b", b"%d" % number, 1)
            b.publish("slow/a", b"%d" % number, 1)
    now = harness.clock.now()
    for _ in range(8):
        plugin.decide()
        harness.settle()
    for client in (a, b):
        assert [message.payload for message in client.messages] == [b"0", b"1", b"2", b"3"]
        assert [client.expect(Puback).packet_id for _ in range(4)] == [2, 3, 4, 5]
    assert harness.clock.now() == now  # everything happened without waiting for a timeout


def test_others_are_not_held(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish", timeout=10.0)
    slow, pub, sub = (harness.connect(name) for name in ("slow", "pub", "sub"))
    sub.subscribe("#", 1)
    slow.publish("slow/1", b"", 1)
    for _ in range(9):
        harness.advance(1)
        now = harness.clock.now()
        pub.publish("fast", b"", 1, expect=0)
        sub.expect_message("fast")
        harness.connect("another").subscribe("x")
        assert harness.clock.now() == now
    slow.expect_nothing()
    harness.advance(1.5)
    assert slow.expect(Puback).code == 0x83
    assert plugin.closed == 1


def test_each_client_waits_for_its_own(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish")
    clients = [harness.connect(name) for name in ("a", "b", "c")]
    for client in clients:
        client.publish("slow/1", b"", 1)
    plugin.events[1].set(Deny())
    assert clients[1].expect(Puback).code == 0x87
    clients[0].expect_nothing()
    plugin.events[2].set(None)
    assert clients[2].expect(Puback).code == 0x10
    clients[0].expect_nothing()


class Thread(Plugin):
    """A plugin with a blocking hook, which the broker calls in a thread."""

    blocking = True

    @hookimpl
    def on_publish(self, message: Message) -> Message:
        return message.replace(payload=message.payload.upper())


def test_a_plugin_in_a_thread_holds_its_client_alone(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[make_plugin(Thread)])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 1)
    with harness.together():
        pub.publish("t", b"a", 1)
        pub.send(Pingreq())
    assert isinstance(pub.next(), Pingresp)
    pub.expect(Puback)
    sub.expect_message("t", b"A")


# --- clients that leave -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "how"),
    [
        *product(
            ["on_publish", "authorize", "on_subscribe"], ["drop", "protocol", "takeover", "kick"]
        ),
        ("on_connect", "drop"),
        ("on_connect", "protocol"),
    ],
)
def test_a_client_that_leaves_cancels_its_pending_decision(
    broker_harness: Make, hook: str, how: str
) -> None:
    harness, plugin = patient(broker_harness, hook)
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    if hook == "on_connect":
        one = harness.connect("slow", expect=None)
    else:
        one = harness.connect("one")
        if hook == "on_subscribe":
            one.send_subscribe("slow/1")
        else:
            one.publish("slow/1", b"", 1)
    one.publish("behind", b"", 1)
    harness.settle()
    assert (plugin.open, plugin.closed) == (1, 0)
    assert harness.hooks.in_flight() == 1
    if how == "drop":
        one.drop()
    elif how == "protocol":
        one.raw(b"\x00\x00")
    elif how == "takeover":
        harness.connect("one", clean_start=False)
    else:
        assert harness.handle("patient").disconnect("one")
    harness.settle()
    assert (plugin.open, plugin.closed) == (1, 1)
    assert not harness.clock.tasks
    assert harness.hooks.in_flight() == 0
    assert one.closed
    plugin.decide()  # too late
    watcher.expect_nothing()
    session = harness.broker.sessions.get("one")
    assert session is None or "slow/1" not in session.subscriptions


def test_a_coroutine_that_had_not_begun_is_closed(broker_harness: Make) -> None:
    recorder = HookRecorder("on_publish")

    async def never() -> None:
        raise AssertionError("it began")

    asked: list[Coroutine[Any, Any, None]] = []

    def ask(message: Message) -> Coroutine[Any, Any, None]:
        asked.append(never())
        return asked[-1]

    recorder.answer("on_publish", ask)
    harness = broker_harness(plugins=[recorder])
    one = harness.connect("one")
    with harness.together():
        one.publish("t", b"", 1)
        one.raw(b"\x00\x00")  # ends the connection in the turn in which the plugin is called
    assert one.closed
    assert len(asked) == 1
    assert asked[0].cr_frame is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", [4, 5])
def test_goodbye_behind_a_publish_that_waits(broker_harness: Make, version: int) -> None:
    harness, plugin = patient(broker_harness, "on_publish")
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    one = harness.connect("one", version, will=will("bye"))
    one.send(Publish("slow/1", b"x"), Publish("behind", b"y"), Disconnect())
    one.wire.lose()
    harness.settle()
    watcher.expect_nothing()
    plugin.decide()
    watcher.expect_message("slow/1", b"x")
    watcher.expect_message("behind", b"y")
    harness.advance(10)
    watcher.expect_nothing()  # no will, because the client sent DISCONNECT
    assert "one" not in harness.broker.sessions
    assert len(harness.broker.connections) == 1


def test_keep_alive_does_not_end_who_said_goodbye(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish")
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    one = harness.connect("one", keep_alive=2, will=will("bye"))
    one.send(Publish("slow/1", b"x"), Disconnect())
    one.wire.lose()
    harness.advance(20)
    plugin.decide()
    watcher.expect_message("slow/1", b"x")
    watcher.expect_nothing()


def test_goodbye_behind_a_publish_that_is_never_decided(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish", timeout=5.0)
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    one = harness.connect("one", will=will("bye"))
    one.send(Publish("slow/1", b"x"), Disconnect())
    one.wire.lose()
    harness.advance(6)
    watcher.expect_nothing()
    assert "one" not in harness.broker.sessions
    assert plugin.closed == 1


def test_vanishing_behind_a_publish_that_waits(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish")
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    one = harness.connect("one", will=will("bye", b"gone"))
    one.send(Publish("slow/1", b"x"), Publish("behind", b"y"))
    one.drop()
    watcher.expect_message("bye", b"gone")
    plugin.decide()
    watcher.expect_nothing()


# --- bounds -------------------------------------------------------------------------------------------------------------


def test_held_packets_are_bounded_and_none_is_lost(broker_harness: Make) -> None:
    config = {"broker": {"max_held_inbound_bytes": 1024}}
    harness, plugin = patient(broker_harness, "on_publish", config=config)
    one, sub = harness.connect("one"), harness.connect("sub")
    sub.subscribe("#", 1)
    one.publish("slow/1", b"first", 1)
    assert one.wire.reading
    sent = [b"%03d" % number + bytes(200) for number in range(12)]
    for payload in sent:
        one.publish("fast", payload, 1)
    assert not one.wire.reading
    assert one.connection.held_bytes <= 1024 + 250
    assert len(one.wire._inbound) >= 6  # the other packets have not even been read
    sub.expect_nothing()
    plugin.decide()
    harness.settle()
    assert one.wire.reading
    assert [message.payload for message in sub.messages] == [b"first", *sent]
    assert [one.expect(Puback).packet_id for _ in range(13)] == list(range(1, 14))
    assert one.connection.held_bytes == 0


def test_reading_stops_again_when_something_else_waits(broker_harness: Make) -> None:
    config = {"broker": {"max_held_inbound_bytes": 1024}}
    harness, plugin = patient(broker_harness, "on_publish", config=config)
    one, sub = harness.connect("one"), harness.connect("sub")
    sub.subscribe("#", 1)
    for number in range(10):
        one.publish(f"slow/{number}", bytes(400), 1)
    for number in range(10):
        assert len(plugin.events) == 1
        assert one.wire.reading == (number >= 7)
        plugin.decide()
        harness.settle()
    assert [message.topic for message in sub.messages] == [f"slow/{n}" for n in range(10)]


def test_reading_does_not_stay_stopped_for_ever(broker_harness: Make) -> None:
    config = {"broker": {"max_held_inbound_bytes": 1024, "hold_timeout": 30.0}}
    harness, plugin = patient(broker_harness, "on_publish", config=config)
    one = harness.connect("one")
    harness.advance(100)
    one.publish("slow/1", b"", 1)
    harness.advance(100)  # waiting alone does not violate the protocol
    one.publish("fast", bytes(2000), 1)
    assert not one.wire.reading
    harness.advance(29)
    assert not one.closed
    harness.advance(2)
    one.expect_disconnect(0x89)
    assert plugin.closed == 1


def test_the_time_counts_anew_each_time_that_reading_stops(broker_harness: Make) -> None:
    config = {"broker": {"max_held_inbound_bytes": 1024, "hold_timeout": 30.0}}
    harness, plugin = patient(broker_harness, "on_publish", config=config)
    one = harness.connect("one")
    for _ in range(4):
        one.publish("slow/1", b"", 1)
        one.publish("fast", bytes(2000), 1)
        harness.advance(20)
        plugin.decide()
        one.expect(Puback)
        one.expect(Puback)
    harness.advance(100)
    one.expect_nothing()


def test_keep_alive_rests_while_reading_is_stopped(broker_harness: Make) -> None:
    config = {"broker": {"max_held_inbound_bytes": 1024}}
    harness, plugin = patient(broker_harness, "on_publish", config=config)
    one = harness.connect("one", keep_alive=10)
    one.publish("slow/1", b"", 1)
    one.publish("fast", bytes(2000), 1)
    harness.advance(50)  # the broker cannot read the client's PINGREQ
    one.expect_nothing()
    plugin.decide()
    one.expect(Puback)
    one.expect(Puback)
    harness.advance(14)
    one.ping()
    harness.advance(16)
    one.expect_disconnect(0x8D)


def test_a_client_that_waits_and_only_pings_stays(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish")
    one = harness.connect("one", keep_alive=10)
    one.publish("slow/1", b"", 1)
    for _ in range(20):
        harness.advance(9)
        one.ping()
    one.expect_nothing()
    plugin.decide()
    one.expect(Puback)


def test_a_client_that_waits_and_is_silent_does_not(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish")
    one = harness.connect("one", keep_alive=10)
    one.publish("slow/1", b"", 1)
    harness.advance(16)
    one.expect_disconnect(0x8D)
    assert plugin.closed == 1


def test_a_fault_in_what_was_held_ends_the_connection_in_its_turn(broker_harness: Make) -> None:
    harness, plugin = patient(broker_harness, "on_publish")
    one = harness.connect("one")
    sub = harness.connect("sub")
    sub.subscribe("#")
    fine = encode(Publish("fast", b"before"), 5)
    wrong = b"\x30\x05\x00\x03a/#\x00"[:2] + b"\x00\x02a#\x00"
    one.publish("slow/1", b"")
    one.raw(fine + wrong + encode(Publish("fast", b"after"), 5))
    one.expect_nothing()
    plugin.decide()
    one.expect_disconnect(0x90)
    assert [message.payload for message in sub.messages] == [b"", b"before"]


def test_a_decision_and_a_commit_wait_one_after_the_other(broker_harness: Make) -> None:
    store = SlowStore(slow=False)
    harness, plugin = patient(broker_harness, "on_publish", store=store)
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe("#", 1)
    away.disconnect()
    one = harness.connect("one")
    store.slow = True
    first = one.publish("slow/1", b"", 1)
    second = one.publish("fast", b"", 1)
    assert store.committing is None
    plugin.decide()
    one.expect_nothing()
    assert len(store.records(Enqueue)) == 2
    store.finish()
    assert [one.expect(Puback).packet_id for _ in range(2)] == [first, second]


def test_a_will_that_waits_holds_nobody(broker_harness: Make) -> None:
    recorder = HookRecorder("authorize", id="patient")
    harness = broker_harness(plugins=[recorder])
    one = harness.connect("one", will=will("bye", b"x"))
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    event = harness.clock.event()
    recorder.answer("authorize", lambda action: event if action is Action.WILL else Allow())
    one.drop()
    watcher.publish("other", b"", 1, expect=0)
    watcher.expect_message("other")
    watcher.expect_nothing()
    event.set(Allow())
    watcher.expect_message("bye", b"x")
