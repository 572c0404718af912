"""Topic aliases in both directions: a property of one connection and one hop."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.codec import Decoder, Publish
from hookmq.properties import Properties
from hookmq.testing import Harness, MemoryClient
from hookmq.types import Scope
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Harness]
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 1000}
INVALID = 0x94


def send(client: MemoryClient, topic: str, alias: int, payload: bytes = b"x", qos: int = 0) -> None:
    client.publish(topic, payload, qos, topic_alias=alias, expect=0 if qos else None)


def on_the_wire(client: MemoryClient) -> list[Publish]:
    """What was sent to it on this connection, as it was sent."""
    client.harness.settle()
    decoder = Decoder(5, server=False)
    return [p for p in decoder.feed(client.raw_received) if isinstance(p, Publish)]


# --- of the client ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_taken_and_remapped(harness: Harness, qos: int) -> None:
    """[MQTT-3.3.2-12], edge 22: every alias up to the maximum, mapped and mapped again; never forwarded."""
    subscriber = harness.connect("s")
    subscriber.subscribe("#", 2)
    client = harness.connect("c")
    assert client.connack is not None
    maximum = client.connack.properties.topic_alias_maximum
    assert maximum == 64
    for alias in (1, 2, 64):
        send(client, f"t/{alias}", alias, qos=qos)
        for _ in range(2):
            send(client, "", alias, qos=qos)
        for _ in range(3):
            message = subscriber.expect_message(f"t/{alias}", b"x", qos)
            assert not message.properties
    send(client, "other", 2, qos=qos)
    send(client, "", 2, qos=qos)
    send(client, "", 64, qos=qos)
    assert [m.topic for m in subscriber.messages][-3:] == ["other", "other", "t/64"]


def test_beside_the_fast_path(harness: Harness) -> None:
    """The topic is known to it; the alias must be taken all the same."""
    subscriber = harness.connect("s")
    subscriber.subscribe("#")
    client = harness.connect("c")
    for _ in range(3):
        client.publish("t")
    send(client, "t", 5)
    client.publish("t")
    send(client, "", 5)
    client.publish("u")
    send(client, "u", 5)
    send(client, "", 5)
    assert [m.topic for m in subscriber.messages] == ["t"] * 6 + ["u"] * 3


@pytest.mark.parametrize("alias", [0, 65, 65535])
@pytest.mark.parametrize("topic", ["t", ""])
@pytest.mark.parametrize("qos", [0, 1])
def test_out_of_range(harness: Harness, alias: int, topic: str, qos: int) -> None:
    """[MQTT-3.3.2-8, 3.3.2-9, 3.2.2-17]"""
    subscriber = harness.connect("s")
    subscriber.subscribe("#")
    client = harness.connect("c")
    client.publish(topic, b"", qos, topic_alias=alias)
    client.expect_disconnect(INVALID)
    subscriber.expect_nothing()


def test_none_are_offered(broker_harness: Make) -> None:
    """[MQTT-3.2.2-18]: absent in CONNACK means none."""
    harness = broker_harness(config={"broker": {"topic_alias_maximum": 0}})
    client = harness.connect("c")
    assert client.connack is not None
    assert client.connack.properties.topic_alias_maximum is None
    send(client, "t", 1)
    client.expect_disconnect(INVALID)


def test_unknown(harness: Harness) -> None:
    """Edge 22: an alias that stands for nothing, or neither alias nor topic."""
    client = harness.connect("c")
    send(client, "t", 1)
    send(client, "", 2)
    client.expect_disconnect(0x82)
    client = harness.connect("c")
    client.raw(b"\x30\x03\x00\x00\x00")
    client.expect_disconnect(0x82)


def test_twice_in_one_packet(harness: Harness) -> None:
    """Edge 38"""
    client = harness.connect("c")
    client.raw(b"\x30\x0a\x00\x01t\x06\x23\x00\x01\x23\x00\x01")
    client.expect_disconnect(0x82)


def test_gone_with_the_connection(harness: Harness) -> None:
    """[MQTT-3.3.2-7]: also where the session goes on."""
    client = harness.connect("c", **KEPT)
    send(client, "t", 1)
    client.reconnect()
    assert client.session_present
    send(client, "", 1)
    client.expect_disconnect(0x82)


def test_each_connection_has_its_own(harness: Harness) -> None:
    subscriber = harness.connect("s")
    subscriber.subscribe("#")
    one, two = harness.connect("one"), harness.connect("two")
    send(one, "a", 1)
    send(two, "b", 1)
    send(one, "", 1)
    send(two, "", 1)
    assert [m.topic for m in subscriber.messages] == ["a", "b", "a", "b"]


def test_a_wrong_topic_maps_nothing(harness: Harness) -> None:
    """[MQTT-3.3.2-2]"""
    client = harness.connect("c")
    client.raw(b"\x30\x08\x00\x02a+\x03\x23\x00\x01")
    client.expect_disconnect(0x90)


def test_a_repeated_qos_2_publish(harness: Harness) -> None:
    """Its alias is taken though its message was taken before."""
    subscriber = harness.connect("s")
    subscriber.subscribe("#")
    client = harness.connect("c", auto_ack=False)
    client.publish("a", b"", 2, packet_id=1)
    client.publish("a", b"", 2, packet_id=1, topic_alias=7, dup=True)
    send(client, "", 7)
    assert [m.topic for m in subscriber.messages] == ["a", "a"]


# --- of the broker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_given_on_the_first_message(harness: Harness, qos: int) -> None:
    """[MQTT-3.1.2-26, 3.3.2-11]: no more than the client offers, in 1 to its maximum. The first to come is named."""
    client = harness.connect("c", topic_alias_maximum=2)
    client.subscribe("#", 1)
    publisher = harness.connect("p", 4)
    for _ in range(3):
        for topic in ("a", "b"):
            publisher.publish(topic, b"x", qos)
    sent = [(p.topic, p.properties.topic_alias) for p in on_the_wire(client)]
    assert sent == [("a", 1), ("b", 2)] + [("", 1), ("", 2)] * 2
    assert [m.topic for m in client.messages] == ["a", "b"] * 3


def test_the_least_recently_used_goes_to_what_is_seen_again(harness: Harness) -> None:
    client = harness.connect("c", topic_alias_maximum=2)
    client.subscribe("#", 1)
    publisher = harness.connect("p", 4)
    topics = ["a", "b", "c", "a", "c", "b", "a", "c", "b"]
    for topic in topics:
        publisher.publish(topic, b"x")
    assert [m.topic for m in client.messages] == topics
    assert [(p.topic, p.properties.topic_alias) for p in on_the_wire(client)] == [
        ("a", 1),
        ("b", 2),
        ("c", None),  # all are taken
        ("", 1),
        ("c", 2),  # seen again: b was used before a
        ("b", None),
        ("", 1),
        ("", 2),
        ("b", 1),
    ]


def test_topics_that_come_once_take_nothing_away(harness: Harness) -> None:
    client = harness.connect("c", topic_alias_maximum=2)
    client.subscribe("#")
    publisher = harness.connect("p", 4)
    publisher.publish("a")
    publisher.publish("b")
    for number in range(3000):
        publisher.publish(f"once/{number}")
    publisher.publish("a")
    aliases = client.connection.aliases
    assert aliases is not None
    assert aliases._given.keys() == {"a", "b"}
    assert len(aliases._seen) == 8
    assert on_the_wire(client)[-1].topic == ""


def test_none_for_who_offers_none(harness: Harness) -> None:
    """[MQTT-3.1.2-27]"""
    clients = [
        harness.connect("a"),
        harness.connect("b", topic_alias_maximum=0),
        harness.connect("c", 4),
    ]
    for client in clients:
        client.subscribe("#")
    publisher = harness.connect("p")
    for _ in range(4):
        publisher.publish("t")
    for client in clients:
        assert [m.topic for m in client.messages] == ["t"] * 4
        assert not any(m.properties for m in client.messages)


def test_the_brokers_own_bound(broker_harness: Make) -> None:
    for most in (0, 1):
        harness = broker_harness(config={"broker": {"outbound_topic_alias": most}})
        client = harness.connect("c", topic_alias_maximum=100)
        client.subscribe("#")
        publisher = harness.connect("p")
        for _ in range(3):
            for topic in ("a", "b"):
                publisher.publish(topic)
        used = {p.properties.topic_alias for p in on_the_wire(client)}
        assert used == ({None} if most == 0 else {None, 1})


def test_what_comes_again_names_its_topic(harness: Harness) -> None:
    """[MQTT-3.3.2-7], edge 22: the new connection knows no alias."""
    client = harness.connect("c", auto_ack=False, topic_alias_maximum=5, **KEPT)
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    for number in range(4):
        publisher.publish("t", b"%d" % number, 1 + number % 2)
    client.reconnect()
    again = on_the_wire(client)
    assert [p.payload for p in again] == [b"0", b"1", b"2", b"3"]
    assert again[0].topic == "t"
    assert [m.topic for m in client.messages] == ["t"] * 8
    client.reconnect(topic_alias_maximum=None)
    assert [p.topic for p in on_the_wire(client)] == ["t"] * 4


@pytest.mark.parametrize("mount", ["", "mount/"])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("at", range(4))
def test_given_by_a_packet_that_was_not_sent(
    harness: Harness, mount: str, qos: int, at: int
) -> None:
    """[MQTT-3.1.2-25]: a PUBLISH that is too large gives nothing; whichever of the first ones it is."""
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
    """As before, where the smaller maximum is that of a new connection."""
    client = harness.connect("c", auto_ack=False, **KEPT)
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    for size in (1, 60, 1, 60, 1):
        publisher.publish("t", b"x" * size, 1)
    client.received.clear()
    client.reconnect(topic_alias_maximum=5, maximum_packet_size=50)
    assert [(m.topic, len(m.payload)) for m in client.messages] == [("t", 1)] * 3
    assert harness.metrics.dropped == {("too_large", "out"): 2}


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 2), st.sampled_from([0, 0, 0, 60])),
        max_size=40,
    ),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["", "m/"]),
)
def test_a_client_always_knows_what_is_meant(
    messages: list[tuple[str, int, int]], maximum: int, kept: bool, mount: str
) -> None:
    """Any mixture of topics, QoS and sizes, with and without a commit between."""
    with Harness() as harness:
        scope = Scope(mount_point=mount)
        client = harness.connect(
            "c",
            scope=scope,
            topic_alias_maximum=maximum,
            maximum_packet_size=60,
            **(KEPT if kept else {}),
        )
        client.subscribe("#", 2)
        publisher = harness.connect("p", scope=scope)
        with harness.together():
            for number, (topic, qos, size) in enumerate(messages):
                publisher.publish(topic, b"%d" % number + b"x" * size, qos)
        expected = [
            (topic, b"%d" % number, qos)
            for number, (topic, qos, size) in enumerate(messages)
            if not size
        ]
        for qos in range(3):  # a commit may hold QoS 2 back, behind others
            found = [(m.topic, m.payload, m.qos) for m in client.messages if m.qos == qos]
            assert found == [one for one in expected if one[2] == qos]
        aliases = {p.properties.topic_alias for p in on_the_wire(client)}
        assert aliases <= {None, *range(1, maximum + 1)}


def test_never_forwarded(harness: Harness) -> None:
    """Edge 22: what the publisher numbers is its own affair, whatever else the message carries."""
    client = harness.connect("c")
    client.subscribe("t")
    publisher = harness.connect("p")
    publisher.publish("t", topic_alias=9, content_type="x")
    assert client.expect_message("t").properties == Properties(content_type="x")
    publisher.publish("t", b"kept", retain=True, topic_alias=9)
    client.expect_message("t")
    client.subscribe("t")
    assert client.expect_message("t", b"kept").properties == Properties()
