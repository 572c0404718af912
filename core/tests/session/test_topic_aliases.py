"""Test the topic aliases that the broker assigns to a client's messages."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.client import Scope
from hookmq.mqtt.packets import Publish
from hookmq_testing import Harness, MemoryClient
from hookmq_testing.decoder import Decoder
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Harness]
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 1000}


def on_the_wire(client: MemoryClient) -> list[Publish]:
    """Return the PUBLISH packets sent on this connection, as they were encoded."""
    client.harness.settle()
    decoder = Decoder(5, server=False)
    return [p for p in decoder.feed(client.raw_received) if isinstance(p, Publish)]


# --- of the client ------------------------------------------------------------------------------------------------------


# --- of the broker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_given_on_the_first_message(harness: Harness, qos: int) -> None:
    """[MQTT-3.1.2-26, 3.3.2-11] The first topics are assigned aliases, from 1 to the client's maximum."""
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
        ("c", None),  # all aliases are in use
        ("", 1),
        ("c", 2),  # the second time; of the aliased topics, b was used least recently
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
    """[MQTT-3.1.2-27] A client that allows no aliases gets none."""
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


def test_a_resent_message_has_its_whole_topic(harness: Harness) -> None:
    """[MQTT-3.3.2-7], edge case 22: a resent message carries its full topic, because a new connection has no aliases
    yet.
    """
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
    """A client can always resolve an alias, whatever the mix of topics, QoS and sizes, and with or without a commit in
    between.
    """
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
        for qos in range(3):  # a commit may delay QoS 2 messages, so others overtake them
            found = [(m.topic, m.payload, m.qos) for m in client.messages if m.qos == qos]
            assert found == [one for one in expected if one[2] == qos]
        aliases = {p.properties.topic_alias for p in on_the_wire(client)}
        assert aliases <= {None, *range(1, maximum + 1)}
