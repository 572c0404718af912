"""Test how a plugin client acknowledges its messages: once, with any code, and in the current turn's batch."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.plugin_delivery import PlainDelivery
from hookmq.plugin import (
    ClientHandle,
    ClientRequest,
    Delivery,
    Drop,
    DropReason,
    PluginError,
    ReasonCode,
)
from hookmq.storage.records import Dequeue, PutState
from hookmq_testing import DurableStore, Harness, HookRecorder, SlowStore

Make = Callable[..., Harness]


class Subscriber:
    """A plugin client that keeps every message it receives."""

    def __init__(self, harness: Harness, filter: str, qos: int, expiry: int = 0) -> None:
        request = ClientRequest("subscriber", session_expiry=expiry)
        self.handle: ClientHandle = harness.clock.run(harness.handle("gw").connect(request))
        self.got: list[Delivery] = []
        self.handle.on_message = self.got.append
        assert harness.clock.run(self.handle.subscribe(filter, qos)) == qos
        self.session = harness.broker.sessions["subscriber"]


@pytest.fixture
def recorder() -> HookRecorder:
    """Return a plugin that observes deliveries, which makes the broker keep a delivery for each message."""
    return HookRecorder("on_dropped", "on_delivered", id="gw")


@pytest.fixture(params=[True, False], ids=["queued", "plain"])
def kind(request: pytest.FixtureRequest) -> HookRecorder:
    """Return a plugin that makes the broker keep a delivery for each message, or one with which the broker keeps only a
    packet id.
    """
    return HookRecorder("on_dropped", *(["on_delivered"] if request.param else []), id="gw")


def observes(kind: HookRecorder) -> bool:
    return hasattr(kind, "on_delivered")


def plain(one: Delivery) -> bool:
    return type(one) is PlainDelivery


@pytest.mark.parametrize("qos", [1, 2])
def test_it_is_in_flight_until_it_is_acknowledged(
    broker_harness: Make, recorder: HookRecorder, qos: int
) -> None:
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", qos)
    harness.connect("publisher").publish("a", b"x", qos)
    harness.settle()
    (one,) = subscriber.got
    assert (one.message.payload, one.qos, one.retain, one.dup, one.identifiers) == (
        b"x", qos, False, False, (),
    )  # fmt: skip
    assert len(subscriber.session.inflight) == 1
    assert recorder.calls("on_delivered") == []
    one.acknowledge()
    assert not subscriber.session.inflight
    one.acknowledge()
    harness.settle()
    assert len(recorder.calls("on_delivered")) == 1


def test_a_second_acknowledgement_does_not_take_another_message(
    broker_harness: Make, kind: HookRecorder
) -> None:
    """Acknowledging a message twice does not acknowledge another one, although the packet id may be in use again."""
    harness = broker_harness([kind])
    subscriber = Subscriber(harness, "a", 1)
    publisher = harness.connect("publisher")
    for payload in (b"first", b"1"):
        publisher.publish("a", payload, 1)
        harness.settle()
    subscriber.got[0].acknowledge()
    assert plain(subscriber.got[1]) == (not observes(kind))
    subscriber.got[1].acknowledge()
    subscriber.session.last_packet_id = 1
    publisher.publish("a", b"2", 1)
    harness.settle()
    assert list(subscriber.session.inflight) == [2]
    subscriber.got[1].acknowledge()
    assert list(subscriber.session.inflight) == [2]
    subscriber.got[2].acknowledge()
    assert not subscriber.session.inflight


def test_a_refusal_is_a_drop(broker_harness: Make, kind: HookRecorder) -> None:
    harness = broker_harness([kind])
    subscriber = Subscriber(harness, "a", 2)
    publisher = harness.connect("publisher")
    for payload in (b"first", b"x"):
        publisher.publish("a", payload, 2)
        harness.settle()
    subscriber.got[0].acknowledge()
    subscriber.got[1].acknowledge(ReasonCode.QUOTA_EXCEEDED)
    harness.settle()
    (call,) = kind.calls("on_dropped")
    assert (call.why.reason, call.why.detail) == (DropReason.REFUSED, "0x97")
    assert (call.message.payload, call.message.qos, call.client.client_id) == (
        b"x",
        2,
        "subscriber",
    )
    assert len(kind.calls("on_delivered")) == observes(kind)
    assert not subscriber.session.inflight


def test_after_the_end_it_does_nothing(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", 1, expiry=60)
    harness.connect("publisher").publish("a", b"x", 1)
    harness.settle()
    subscriber.handle.disconnect()
    harness.settle()
    subscriber.got[0].acknowledge()
    assert len(subscriber.session.inflight) == 1, "the message will be sent again"


def test_at_qos_0_it_does_nothing(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", 0)
    harness.connect("publisher").publish("a", b"x")
    harness.settle()
    subscriber.got[0].acknowledge()
    assert harness.metrics.messages_delivered == 1


def test_a_thread_may_not_acknowledge(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", 1)
    harness.connect("publisher").publish("a", b"x", 1)
    harness.settle()
    outcome: list[BaseException | None] = []
    harness.clock.run_blocking(
        subscriber.got[0].acknowledge, lambda result, error: outcome.append(error)
    )
    harness.settle()
    (error,) = outcome
    assert isinstance(error, PluginError)
    assert "acknowledge() is for the event loop" in str(error)
    assert len(subscriber.session.inflight) == 1


def test_it_joins_the_batch_of_its_turn(broker_harness: Make, recorder: HookRecorder) -> None:
    """An acknowledgement joins the current turn's batch. It is committed together with any other records that the
    plugin makes in that turn.
    """
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([recorder], store=store)
    subscriber = Subscriber(harness, "a", 2, expiry=60)
    publisher = harness.connect("publisher")
    for payload in (b"1", b"2"):
        publisher.publish("a", payload, 2)
    harness.settle()
    store.slow = True
    state = harness.handle("gw").state

    def take() -> None:
        for one in subscriber.got:
            one.acknowledge()
        state.put("last", subscriber.got[-1].message.payload)

    harness.clock.call_soon(take)
    harness.settle()
    assert store.committing is not None
    kinds = [type(record) for record in store.committing]
    assert kinds == [Dequeue, Dequeue, PutState]
    assert not subscriber.session.inflight
    store.finish()


# --- deliveries of which the broker keeps only the packet id ----------------------------------------------------------


def test_a_plain_delivery_shows_the_same_message(broker_harness: Make) -> None:
    """A plain delivery and a queued delivery of the same message look the same to the plugin."""
    harness = broker_harness([HookRecorder("on_dropped", id="gw")])
    subscriber = Subscriber(harness, "a", 1)
    request = ClientRequest("durable", session_expiry=60)
    durable = harness.clock.run(harness.handle("gw").connect(request))
    harness.clock.run(durable.subscribe("a"))
    others: list[Delivery] = []
    durable.on_message = others.append
    publisher = harness.connect("publisher", username="someone")
    for number in range(3):
        harness.advance(1)
        publisher.publish(
            "a",
            b"%d" % number,
            content_type="text",
            message_expiry_interval=60,
            user_property=(("k", "v"),),
        )
    harness.settle()
    assert [plain(one) for one in subscriber.got] == [False, True, True]
    for one, other in zip(subscriber.got, others, strict=True):
        ours, theirs = one.message, other.message
        assert one.message is ours, "made once"
        names = (
            "topic",
            "payload",
            "qos",
            "retain",
            "properties",
            "sender",
            "origin",
            "received_at",
            "expires_at",
        )
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
        assert (one.topic, one.payload) == (ours.topic, ours.payload)
        assert (one.qos, one.retain, one.dup, one.identifiers) == (0, False, False, ())
    assert subscriber.got[2].message.expires_at == subscriber.got[2].message.received_at + 60


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"mount_point": "m/"}, {}),
        ({}, {"no_local": True}),
        ({}, {"identifier": 5}),
    ],
)
def test_what_needs_a_decision_is_not_plain(
    broker_harness: Make, fields: dict[str, Any], options: dict[str, int]
) -> None:
    harness = broker_harness([HookRecorder("on_dropped", id="gw")])
    client = harness.clock.run(harness.handle("gw").connect(ClientRequest("c", **fields)))
    got: list[Delivery] = []
    client.on_message = got.append
    harness.clock.run(client.subscribe("a", 1, **options))
    publisher = harness.connect("publisher")
    for _ in range(3):
        publisher.publish(f"{fields.get('mount_point', '')}a", b"x", 1)
    harness.settle()
    assert [(one.topic, one.identifiers) for one in got] == [
        ("a", (5,) if "identifier" in options else ())
    ] * 3
    assert not any(plain(one) for one in got)


def test_a_plugin_decides_on_each_delivery(broker_harness: Make) -> None:
    recorder = HookRecorder("on_deliver", id="gw")
    harness = broker_harness([recorder])
    for qos in (0, 1):
        recorder.answer("on_deliver", None, Drop(), None)
        subscriber = Subscriber(harness, "a", qos)
        publisher = harness.connect("publisher")
        for number in range(3):
            publisher.publish("a", b"%d" % number, qos)
        harness.settle()
        assert [one.payload for one in subscriber.got] == [b"0", b"2"]
        subscriber.handle.disconnect()
        harness.settle()


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("publisher_kind", ["socket", "three", "plugin", "batch"])
def test_messages_overtake_none_that_waits(
    broker_harness: Make, qos: int, publisher_kind: str
) -> None:
    """While a client is paused, its messages are queued, and later messages wait behind them. Once the queue is empty,
    messages are delivered directly again.
    """
    harness = broker_harness([HookRecorder("on_dropped", id="gw")])
    subscriber = Subscriber(harness, "a", qos)
    plugin = harness.clock.run(harness.handle("gw").connect(ClientRequest("publisher")))
    socket = harness.connect("socket", version=4 if publisher_kind == "three" else 5)

    def publish(*numbers: int) -> None:
        if publisher_kind == "batch":
            harness.clock.run(plugin.publish_many([("a", b"%d" % n, qos) for n in numbers]))
        for number in numbers:
            if publisher_kind == "plugin":
                plugin.publish_later("a", b"%d" % number, qos)
            elif publisher_kind != "batch":
                socket.publish("a", b"%d" % number, qos)
        harness.settle()

    publish(0, 1, 2)
    subscriber.handle.pause()
    publish(3, 4, 5)
    assert len(subscriber.got) == 3
    subscriber.handle.resume()
    publish(6, 7, 8)
    assert [int(one.payload) for one in subscriber.got] == list(range(9))
    assert [plain(one) for one in subscriber.got] == [False, True, True, *[False] * 3, *[True] * 3]
    harness.handle("gw")
    subscriber.handle.acknowledge_many(subscriber.got)
    assert not subscriber.session.inflight
    shown = harness.metrics.snapshot()
    assert shown["messages_delivered"] == 9


def test_plain_deliveries_keep_the_window(broker_harness: Make) -> None:
    harness = broker_harness([HookRecorder("on_dropped", id="gw")])
    request = ClientRequest("c", receive_maximum=2)
    client = harness.clock.run(harness.handle("gw").connect(request))
    got: list[Delivery] = []
    client.on_message = got.append
    harness.clock.run(client.subscribe("a", 1))
    publisher = harness.connect("publisher")
    for number in range(6):
        publisher.publish("a", b"%d" % number, 1)
    harness.settle()
    for number in range(1, 7):
        assert [int(one.payload) for one in got] == list(range(min(6, number + 1)))
        got[number - 1].acknowledge()
        harness.settle()
    assert not harness.broker.sessions["c"].inflight


def test_a_plain_delivery_of_a_client_that_was_taken_over(broker_harness: Make) -> None:
    harness = broker_harness([HookRecorder("on_dropped", id="gw")])
    subscriber = Subscriber(harness, "a", 1)
    publisher = harness.connect("publisher")
    for payload in (b"1", b"2"):
        publisher.publish("a", payload, 1)
    harness.settle()
    assert plain(subscriber.got[1])
    other = harness.connect("subscriber", auto_ack=False)
    other.subscribe("a", 1)
    for payload in (b"3", b"4"):
        publisher.publish("a", payload, 1)
    harness.settle()
    session = harness.broker.sessions["subscriber"]
    held = list(session.inflight)
    assert len(held) == 2
    subscriber.got[1].acknowledge()
    assert list(session.inflight) == held


def test_many_are_acknowledged_in_one_call(broker_harness: Make, kind: HookRecorder) -> None:
    harness = broker_harness([kind])
    subscriber = Subscriber(harness, "a", 2)
    publisher = harness.connect("publisher")
    for number in range(6):
        publisher.publish("a", b"%d" % number, number % 3)
    harness.settle()
    assert len(subscriber.session.inflight) == 4
    subscriber.handle.acknowledge_many(iter(subscriber.got[:3]))
    assert len(subscriber.session.inflight) == 2
    subscriber.handle.acknowledge_many(subscriber.got, ReasonCode.QUOTA_EXCEEDED)
    harness.settle()
    assert not subscriber.session.inflight
    assert [call.message.payload for call in kind.calls("on_dropped")] == [b"4", b"5"]


def test_deliveries_of_another_client_are_not_acknowledged(broker_harness: Make) -> None:
    harness = broker_harness([HookRecorder("on_dropped", id="gw")])
    subscriber = Subscriber(harness, "a", 1)
    other = harness.clock.run(harness.handle("gw").connect(ClientRequest("other")))
    for _ in range(2):
        harness.connect("publisher").publish("a", b"x", 1)
    harness.settle()
    wrong: list[tuple[Any, str]] = [
        ([*subscriber.got, "x"], r"deliveries\[2\] was not delivered to the client 'subscriber'"),
        (5, "the deliveries are int, not iterable"),
    ]
    for given, text in wrong:
        with pytest.raises(PluginError, match=text):
            subscriber.handle.acknowledge_many(given)
    with pytest.raises(
        PluginError, match=r"deliveries\[0\] was not delivered to the client 'other'"
    ):
        other.acknowledge_many(subscriber.got)
    with pytest.raises(PluginError, match="the code is int, not ReasonCode"):
        subscriber.handle.acknowledge_many(subscriber.got, 0)  # type: ignore[arg-type]
    assert len(subscriber.session.inflight) == 2
