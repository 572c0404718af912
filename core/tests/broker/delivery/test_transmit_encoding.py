"""Test the bytes of an outgoing PUBLISH: its version, QoS, properties and topic alias."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.client import Scope
from hookmq.mqtt.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
)
from hookmq.mqtt.properties import Properties
from hookmq_testing import (
    Harness,
    HookRecorder,
    MemoryClient,
)
from hookmq_testing.decoder import Decoder
from hookmq_testing.plugins import instance_of

VERSIONS = (3, 4, 5)


@pytest.mark.parametrize("to", VERSIONS)
@pytest.mark.parametrize("of", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_every_pair_of_versions_and_qos(
    harness: Harness, of: int, to: int, qos: int, granted: int
) -> None:
    """Messages of every QoS and version reach subscribers of every QoS and version.

    [MQTT-3.3.4-1, 3.8.4-8, 2.2.1-2, 2.2.1-4, 2.2.1-5, 4.3.1-1, 4.3.2-1, 4.3.2-2, 4.3.2-4, 4.3.3-1,
    4.3.3-2, 4.3.3-8] [MQTT311-3.3.4-1, 3.8.4-6, 4.3.1-1, 4.3.2-1, 4.3.3-1]
    """
    subscriber = harness.connect("s", to)
    assert subscriber.subscribe("a/b", granted).codes == (granted,)
    publisher = harness.connect("p", of)
    # The first message takes the slow path; the others may take the fast path.
    for number in range(4):
        packet_id = publisher.publish("a/b", b"%d" % number, qos, packet_id=7 if qos else 0)
        if qos == 1:
            assert publisher.next() == Puback(7)
        elif qos == 2:
            assert publisher.next() == Pubrec(7)
            assert publisher.next() == Pubcomp(7)
        publisher.expect_nothing()
        assert packet_id == (7 if qos else 0)
        message = subscriber.expect_message(
            "a/b", b"%d" % number, min(qos, granted), retain=False, dup=False
        )
        assert bool(message.packet_id) == bool(message.qos)
        assert not message.properties
    subscriber.expect_nothing()
    assert harness.metrics.messages_received == 4
    assert harness.metrics.messages_delivered == 4
    assert not harness.metrics.dropped


FORWARDED = Properties(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answers/here",
    correlation_data=b"\0\xff",
    user_property=(("k", "1"), ("a", "x"), ("k", "1"), ("k", "2")),
)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_forwarded(harness: Harness, qos: int) -> None:
    """[MQTT-3.3.2-4, 3.3.2-15, 3.3.2-16, 3.3.2-17, 3.3.2-18, 3.3.2-20], edge cases 48 and 52: MQTT
    5 clients receive the publisher's properties unchanged and in order, including duplicates. MQTT
    3 clients do not receive them.
    """
    five = harness.connect("five", 5, request_problem_information=0)
    four = harness.connect("four", 4)
    own = harness.connect("own", 5)
    five.subscribe("t", 2)
    four.subscribe("t", 2)
    own.subscribe("t", 2, identifier=3)
    publisher = harness.connect("p")
    given = {name: getattr(FORWARDED, name) for name in (
        "payload_format_indicator", "content_type", "response_topic", "correlation_data", "user_property",
    )}  # fmt: skip
    for _ in range(2):
        # After this PUBLISH, the fast path knows the topic. It must not drop the properties below.
        publisher.publish("t", b"x", qos)
        publisher.publish("t", b"y", qos, **given)
    assert [m.properties for m in five.messages] == [Properties(), FORWARDED] * 2
    assert [m.payload for m in four.messages] == [b"x", b"y"] * 2
    with_id = FORWARDED.replace(subscription_identifier=(3,))
    assert [m.properties for m in own.messages][1::2] == [with_id, with_id]
    assert b"text/plain" not in four.raw_received


def kept(version: int = 5) -> dict[str, Any]:
    return {"clean_start": False, **({"session_expiry_interval": 10000} if version == 5 else {})}


def payloads(client: MemoryClient) -> list[bytes]:
    """Remove the unread messages and return their payloads."""
    client.harness.settle()
    found = [p.payload for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return found


def test_routes_follow_the_receivers_version(harness: Harness) -> None:
    """If a session resumes with another MQTT version, or needs its own encoding, its packets match the current
    connection.
    """
    publisher = harness.connect("p", 4)
    client = harness.connect("c", 5, **kept())
    client.subscribe("t", 0)
    many: list[dict[str, Any]] = [
        {"version": 4},
        {"version": 5, "session_expiry_interval": 99, "topic_alias_maximum": 3},
        {"topic_alias_maximum": None},
        {"version": 3, "properties": {}},
        {"version": 5, "session_expiry_interval": 99, "maximum_packet_size": 50},
    ]
    for changes in many:
        client.reconnect(**changes)
        for _ in range(4):
            publisher.publish("t", b"x")
        assert payloads(client) == [b"x"] * 4
        publisher.publish("t", b"y" * 100)
        assert len(payloads(client)) == ("maximum_packet_size" not in changes)


Make = Callable[..., Harness]


@pytest.mark.parametrize("how", ["absent", "abstains", "same object", "narrowed"])
def test_bytes_are_shared_by_all_whose_chain_changed_nothing(
    broker_harness: Make, how: str
) -> None:
    plugin = HookRecorder("on_deliver")
    if how == "same object":
        plugin.answer("on_deliver", lambda message: message)
    entry = instance_of(plugin, filters=("elsewhere",) if how == "narrowed" else None)
    harness = broker_harness(plugins=[] if how == "absent" else [entry])
    subs = [harness.connect(f"sub{number}", auto_ack=False) for number in range(10)]
    for sub in subs:
        sub.subscribe("t", 1)

    def encoded() -> int:
        """Return how many different encodings of the message are in flight to all subscribers."""
        harness.connect("pub").publish("t", b"x", 1, user_property=(("k", "v"),))
        sessions = [harness.broker.sessions[sub.client_id] for sub in subs]
        sent = {d.outgoing for session in sessions for d in session.inflight.values()}
        return sum(len(outgoing.forms or ()) for outgoing in sent)

    assert encoded() == 1
    for sub in subs:
        sub.ack(sub.expect_message("t", b"x", 1))
    plugin.answer(
        "on_deliver",
        lambda client, message: (
            message.replace(payload=b"y") if client.client_id == "sub3" else None
        ),
    )
    assert encoded() == (1 if how in ("absent", "narrowed") else 2)


KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 1000}


def on_the_wire(client: MemoryClient) -> list[Publish]:
    """Return the PUBLISH packets sent on this connection, as they were encoded."""
    client.harness.settle()
    decoder = Decoder(5, server=False)
    return [p for p in decoder.feed(client.raw_received) if isinstance(p, Publish)]


@pytest.mark.parametrize("mount", ["", "mount/"])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("at", range(4))
def test_given_by_a_packet_that_was_not_sent(
    harness: Harness, mount: str, qos: int, at: int
) -> None:
    """[MQTT-3.1.2-25] A PUBLISH that is too large to be sent sets no alias, whether it is the first message on its
    topic or a later one.
    """
    scope = Scope(mount_point=mount)
    client = harness.connect("c", scope=scope, topic_alias_maximum=2, maximum_packet_size=50)
    client.subscribe("#", 1)
    publisher = harness.connect("p", scope=scope)
    for number in range(6):
        for topic in ("t", "u", "v"):
            publisher.publish(topic, b"x" * (60 if number == at else 1), qos)
    assert [m.topic for m in client.messages] == ["t", "u", "v"] * 5
    found = [p.properties.topic_alias for p in on_the_wire(client)]
    assert set(found) == {None, 1, 2}
    assert harness.metrics.dropped == {("too_large", "out"): 3}


def test_sent_again_and_too_large(harness: Harness) -> None:
    """A retransmitted PUBLISH that is too large for the new connection sets no alias either."""
    client = harness.connect("c", auto_ack=False, **KEPT)
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    for size in (1, 60, 1, 60, 1):
        publisher.publish("t", b"x" * size, 1)
    client.received.clear()
    client.reconnect(topic_alias_maximum=5, maximum_packet_size=50)
    assert [(m.topic, len(m.payload)) for m in client.messages] == [("t", 1)] * 3
    assert harness.metrics.dropped == {("too_large", "out"): 2}


def test_never_forwarded(harness: Harness) -> None:
    """Edge case 22: the publisher's aliases apply only to its own connection, and are never forwarded."""
    client = harness.connect("c")
    client.subscribe("t")
    publisher = harness.connect("p")
    publisher.publish("t", topic_alias=9, content_type="x")
    assert client.expect_message("t").properties == Properties(content_type="x")
    publisher.publish("t", b"kept", retain=True, topic_alias=9)
    client.expect_message("t")
    client.subscribe("t")
    assert client.expect_message("t", b"kept").properties == Properties()
