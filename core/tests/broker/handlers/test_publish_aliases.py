"""Test topic aliases that clients set."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq_testing import Harness, MemoryClient

Make = Callable[..., Harness]


KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 1000}


INVALID = 0x94


def send(client: MemoryClient, topic: str, alias: int, payload: bytes = b"x", qos: int = 0) -> None:
    client.publish(topic, payload, qos, topic_alias=alias, expect=0 if qos else None)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_taken_and_remapped(harness: Harness, qos: int) -> None:
    """[MQTT-3.3.2-12], edge case 22: a client can set and change every alias up to the maximum. Aliases are never
    forwarded.
    """
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
    """A PUBLISH can set an alias even if the fast path already knows the topic."""
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
    """[MQTT-3.3.2-8, 3.3.2-9, 3.2.2-17] An alias of 0 or above the maximum is refused."""
    subscriber = harness.connect("s")
    subscriber.subscribe("#")
    client = harness.connect("c")
    client.publish(topic, b"", qos, topic_alias=alias)
    client.expect_disconnect(INVALID)
    subscriber.expect_nothing()


def test_none_are_offered(broker_harness: Make) -> None:
    """[MQTT-3.2.2-18] A CONNACK without Topic Alias Maximum allows no aliases."""
    harness = broker_harness(config={"broker": {"topic_alias_maximum": 0}})
    client = harness.connect("c")
    assert client.connack is not None
    assert client.connack.properties.topic_alias_maximum is None
    send(client, "t", 1)
    client.expect_disconnect(INVALID)


def test_unknown(harness: Harness) -> None:
    """Edge case 22: a PUBLISH with an alias that was not set, or with neither alias nor topic, is a
    protocol error.
    """
    client = harness.connect("c")
    send(client, "t", 1)
    send(client, "", 2)
    client.expect_disconnect(0x82)
    client = harness.connect("c")
    client.raw(b"\x30\x03\x00\x00\x00")
    client.expect_disconnect(0x82)


def test_twice_in_one_packet(harness: Harness) -> None:
    """Edge case 38: two aliases in one packet are a protocol error."""
    client = harness.connect("c")
    client.raw(b"\x30\x0a\x00\x01t\x06\x23\x00\x01\x23\x00\x01")
    client.expect_disconnect(0x82)


def test_gone_with_the_connection(harness: Harness) -> None:
    """[MQTT-3.3.2-7] Aliases end with the connection, even if the session continues."""
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
    """[MQTT-3.3.2-2] A PUBLISH with an invalid topic does not set its alias."""
    client = harness.connect("c")
    client.raw(b"\x30\x08\x00\x02a+\x03\x23\x00\x01")
    client.expect_disconnect(0x90)


def test_a_repeated_qos_2_publish(harness: Harness) -> None:
    """A repeated QoS 2 PUBLISH sets its alias, even though the message was already received."""
    subscriber = harness.connect("s")
    subscriber.subscribe("#")
    client = harness.connect("c", auto_ack=False)
    client.publish("a", b"", 2, packet_id=1)
    client.publish("a", b"", 2, packet_id=1, topic_alias=7, dup=True)
    send(client, "", 7)
    assert [m.topic for m in subscriber.messages] == ["a", "a"]
