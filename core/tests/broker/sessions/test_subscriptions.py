"""Test a session's subscriptions: how they are replaced and removed, and how long they last."""

from typing import Any

import pytest
from hookmq.mqtt.packets import Puback, Publish, Pubrel, Unsuback
from hookmq_testing import Harness, MemoryClient

VERSIONS = (3, 4, 5)


ABSENT = 0x11


def kept(version: int = 5) -> dict[str, Any]:
    return {"clean_start": False, **({"session_expiry_interval": 10000} if version == 5 else {})}


def payloads(client: MemoryClient) -> list[bytes]:
    """Remove the unread messages and return their payloads."""
    client.harness.settle()
    found = [p.payload for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_replaced(harness: Harness, version: int) -> None:
    """[MQTT-3.8.4-3] [MQTT311-3.8.4-3] Subscribing again to the same filter replaces its QoS and options. The client
    then receives one copy of each message.
    """
    client = harness.connect("c", version)
    publisher = harness.connect("p")
    for granted in (0, 2, 1, 0, 2):
        client.subscribe("t", granted)
        for _ in range(2):
            publisher.publish("t", b"x", 2)
            client.expect_message("t", b"x", granted)
    client.expect_nothing()
    assert len(harness.broker.state.router) == 1


def test_replaced_options(harness: Harness) -> None:
    """[MQTT-3.8.4-3] Subscribing again also replaces the options No Local and Retain As Published."""
    client = harness.connect("c")
    for on in (False, True, False):
        client.subscribe("t", 0, no_local=on, retain_as_published=on, retain_handling=2)
        for _ in range(2):
            client.publish("t", b"mine")
        assert len(payloads(client)) == (0 if on else 2)
        harness.connect("p").publish("t", b"x", retain=True)
        client.expect_message("t", b"x", retain=on)


def test_no_message_is_lost_while_replacing(harness: Harness) -> None:
    """[MQTT-3.8.4-4] [MQTT311-3.8.4-3] No message is lost while a subscription is replaced, whether it is queued or
    published in the same turn as the SUBSCRIBE.
    """
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    with harness.together():
        for number in range(10):
            publisher.publish("t", b"%d" % number, 1)
            client.send_subscribe("t", 1 + number % 2)
    client.auto_ack = True
    client.ack(client.expect_message())
    assert [m.payload for m in client.messages] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("durable", [False, True])
def test_unsubscribe(harness: Harness, version: int, durable: bool) -> None:
    """[MQTT-3.10.4-1, 3.10.4-2, 3.10.4-4, 3.10.4-5, 3.10.4-6, 3.11.3-1, 3.11.3-2, 2.2.1-6]
    [MQTT311-3.10.4-1, 3.10.4-2, 3.10.4-4, 3.10.4-5, 3.10.4-6], edge case 45: UNSUBSCRIBE compares
    filters exactly, and every UNSUBSCRIBE is answered.
    """
    client = harness.connect("c", version, **(kept(version) if durable else {}))
    client.subscribe(["a/b", "a/+", "$share/g/a/b"])
    publisher = harness.connect("p")
    publisher.publish("a/b", b"1")
    publisher.publish("a/b", b"2")
    assert len(payloads(client)) == 4
    number = client.send_unsubscribe(["a/#", "a/b", "a/b", "A/+", "$share/h/a/b", "$share/g/a/b"])
    answer = client.next()
    codes = (ABSENT, 0, ABSENT, ABSENT, ABSENT, 0) if version == 5 else ()
    assert answer == Unsuback(number, codes)
    publisher.publish("a/b", b"3")
    assert payloads(client) == [b"3"]  # the subscription to a/+ remains
    client.unsubscribe("a/+")
    publisher.publish("a/b", b"4")
    client.expect_nothing()
    assert not harness.broker.sessions["c"].subscriptions
    assert len(harness.broker.state.router) == 0
    assert harness.broker.state.groups == {}
    if durable:
        client.reconnect()
        publisher.publish("a/b", b"5")
        client.expect_nothing()


def test_deliveries_in_flight_are_completed_after_unsubscribe(harness: Harness) -> None:
    """[MQTT-3.10.4-3] [MQTT311-3.10.4-3], edge case 53: deliveries in flight are completed after
    UNSUBSCRIBE.
    """
    client = harness.connect("c", auto_ack=False, **kept())
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    for qos in (1, 2, 2):
        publisher.publish("t", b"%d" % qos, qos, expect=0)
    one, two, three = (m.packet_id for m in client.messages)
    payloads(client)
    client.unsubscribe("t")
    publisher.publish("t", b"late", 1, expect=0x10)
    client.ack(client.messages[1])
    assert client.next() == Pubrel(two)
    client.reconnect()
    again = [p for p in client.unread if isinstance(p, Publish | Pubrel)]
    assert [(type(p), p.packet_id) for p in again] == [
        (Publish, one),
        (Pubrel, two),
        (Publish, three),
    ]
    client.unread.clear()
    client.send(Puback(one))
    assert sorted(harness.broker.sessions["c"].inflight) == [two, three]


@pytest.mark.parametrize("version", VERSIONS)
def test_subscriptions_last_as_long_as_the_session(harness: Harness, version: int) -> None:
    """[MQTT-3.1.2-23, 4.1.0-1] Subscriptions keep their options and identifiers, and end with the session."""
    options: dict[str, Any] = {"identifier": 7, "retain_as_published": True} if version == 5 else {}
    client = harness.connect("c", version, **kept(version))
    client.subscribe("t", 1, **options)
    client.reconnect()
    publisher = harness.connect("p")
    publisher.publish("t", b"x", 2, retain=True)
    message = client.expect_message("t", b"x", 1, retain=version == 5)
    assert message.properties.subscription_identifier == ((7,) if version == 5 else None)
    client.reconnect(clean_start=True)
    publisher.publish("t", b"x", 2)
    client.expect_nothing()
    assert len(harness.broker.state.router) == 0
