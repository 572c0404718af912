"""Test chapter 3.3.1.3: retained messages, and the subscription options that affect RETAIN."""

from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from bytememory import LEVELS, join
from hookmq_testing import Harness
from statements import edge, statement

NO_LOCAL, RAP, NEW_ONLY, NEVER = 0x04, 0x08, 0x10, 0x20


def reader(harness: Harness, level: int, *filters: tuple[m.Field, int]) -> ByteClient:
    client = join(harness, "", level)
    client.subscribe(*filters)
    return client


@statement(
    "MQTT-3.3.1-5",
    "MQTT311-3.3.1-5",
    "MQTT311-3.3.1-6",
    "MQTT311-3.3.1-8",
    "MQTT-3.3.2-3",
    "MQTT311-3.3.2-3",
)
@edge(26)
@LEVELS
def test_a_new_subscription_gets_the_newest_retained_messages(harness: Harness, level: int) -> None:
    sender = join(harness, "sender", level)
    for topic in ("a/x", "a/y", "b"):
        for payload in (b"old", b"new"):
            sender.publish(topic, payload + topic[-1:].encode(), 1, 1, retain=True)
    client = reader(harness, level, ("a/+", 0))
    found = [m.split_publish(frame, level) for frame in client.take_frames()]
    assert sorted(found) == [
        (0x31, b"a/x", 0, [], b"newx"),
        (0x31, b"a/y", 0, [], b"newy"),
    ]


@statement("MQTT311-3.3.1-5", "MQTT311-3.8.4-6", "MQTT-3.8.4-8")
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_retained_messages_keep_their_qos(
    harness: Harness, level: int, qos: int, granted: int
) -> None:
    join(harness, "sender", level).publish("t", b"x", qos, 1, retain=True)
    client = reader(harness, level, ("t", granted))
    given = min(qos, granted)
    client.expect(m.publish("t", b"x", given, 1 if given else 0, level=level, retain=True))


@statement("MQTT311-3.3.1-7", "MQTT-3.3.1-5")
@LEVELS
def test_qos_0_replaces_a_retained_message(harness: Harness, level: int) -> None:
    sender = join(harness, "sender", level)
    sender.publish("t", b"one", 2, 1, retain=True)
    sender.publish("t", b"two", retain=True)
    reader(harness, level, ("t", 2)).expect(m.publish("t", b"two", level=level, retain=True))


@statement("MQTT-3.3.1-6", "MQTT-3.3.1-7", "MQTT311-3.3.1-10", "MQTT311-3.3.1-11")
@edge(27)
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_payload_clears(harness: Harness, level: int, qos: int) -> None:
    live = reader(harness, level, ("t", qos))
    sender = join(harness, "sender", level)
    sender.publish("t", b"x", retain=True)
    live.expect(m.publish("t", b"x", level=level))
    sender.publish("t", b"", qos, 1, retain=True)
    live.expect(m.publish("t", b"", qos, 1 if qos else 0, level=level))  # like any other message
    reader(harness, level, ("t", 0)).expect()
    # Clearing a topic without a retained message retains nothing.
    sender.publish("never", b"", qos, 2, retain=True)
    reader(harness, level, ("never", 0)).expect()


@statement("MQTT-3.3.1-8", "MQTT311-3.3.1-12")
@LEVELS
@pytest.mark.parametrize("payload", [b"other", b""])
def test_without_retain_nothing_is_stored(harness: Harness, level: int, payload: bytes) -> None:
    sender = join(harness, "sender", level)
    sender.publish("t", b"kept", retain=True)
    sender.publish("t", payload)
    sender.publish("u", payload)
    client = reader(harness, level, ("#", 0))
    client.expect(m.publish("t", b"kept", level=level, retain=True))


@statement("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.8.4-4")
@edge(25)
@pytest.mark.parametrize(
    ("handling", "first", "again"),
    [(0, True, True), (NEW_ONLY, True, False), (NEVER, False, False)],
)
def test_retain_handling(harness: Harness, handling: int, first: bool, again: bool) -> None:
    kept = m.publish("t", b"x", retain=True)
    join(harness, "sender").publish("t", b"x", retain=True)
    keep: dict[str, Any] = {"clean": False, "properties": m.session_expiry(100)}
    client = join(harness, **keep)
    client.subscribe(("t", handling))
    client.expect(*([kept] if first else []))
    client.subscribe(("t", handling))
    client.expect(*([kept] if again else []))
    client.close()
    client = join(harness, present=True, **keep)
    client.subscribe(("t", handling))  # the subscription exists since the previous connection
    client.expect(*([kept] if again else []))
    client.unsubscribe("t")
    client.subscribe(("t", handling))  # a new subscription again
    client.expect(*([kept] if first else []))


@edge(25)
def test_retain_handling_3(harness: Harness) -> None:
    join(harness).send(m.subscribe(1, ("t", 0x30))).refused(0x82)


@statement("MQTT311-3.8.4-3", "MQTT311-3.3.1-6")
@LEVELS
def test_subscribing_again_sends_them_again(harness: Harness, level: int) -> None:
    join(harness, "sender", level).publish("t", b"x", retain=True)
    client = join(harness, "c", level)
    for _ in range(2):
        client.subscribe(("t", 0))
        client.expect(m.publish("t", b"x", level=level, retain=True))


@edge(25)
def test_shared_subscriptions_get_none(harness: Harness) -> None:
    join(harness, "sender").publish("t", b"x", retain=True)
    reader(harness, 5, ("$share/g/t", 1)).expect()


@statement("MQTT-3.3.1-12", "MQTT-3.3.1-13")
@edge(26)
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_as_published(harness: Harness, retain: bool, qos: int) -> None:
    """Retain As Published applies only to live messages. Retained messages sent after a SUBSCRIBE
    always have RETAIN.
    """
    plain, as_published = reader(harness, 5, ("t", qos)), reader(harness, 5, ("t", qos | RAP))
    sender = join(harness, "sender")
    number = 1 if qos else 0
    for turn in range(2):
        sender.publish("t", b"x", qos, 1 + turn, retain=retain)
        plain.expect(m.publish("t", b"x", qos, number and turn + 1))
        as_published.expect(m.publish("t", b"x", qos, number and turn + 1, retain=retain))
    if retain:
        for options in (qos, qos | RAP):
            late = reader(harness, 5, ("t", options))
            late.expect(m.publish("t", b"x", qos, number, retain=True))


@statement("MQTT311-3.3.1-9")
@edge(26)
@pytest.mark.parametrize("sender_level", [4, 5])
def test_live_messages_to_3_have_no_retain(harness: Harness, sender_level: int) -> None:
    client = reader(harness, 4, ("t", 2))
    sender = join(harness, "sender", sender_level)
    for number in (1, 2):
        sender.publish("t", b"x", 2, number, retain=True)
        client.expect(m.publish("t", b"x", 2, number, level=4))


@statement("MQTT-4.7.2-1", "MQTT311-4.7.2-1")
@edge(34)
@LEVELS
def test_wildcards_do_not_match_retained_dollar_topics(harness: Harness, level: int) -> None:
    join(harness, "sender").publish("$internal/a", b"x", retain=True)
    for name in ("#", "+/a", "+/#"):
        reader(harness, level, (name, 0)).expect()
    for name in ("$internal/#", "$internal/+", "$internal/a"):
        client = reader(harness, level, (name, 0))
        client.expect(m.publish("$internal/a", b"x", level=level, retain=True))


@statement("MQTT-3.3.4-5", "MQTT-3.3.4-3")
@edge(30)
def test_retained_messages_carry_the_new_subscriptions_identifier(harness: Harness) -> None:
    join(harness, "sender").publish("a/b", b"x", retain=True)
    client = join(harness)
    for number, name in enumerate(("a/b", "a/+", "#"), 5):
        client.subscribe((name, 0), properties=m.identifier(number))
        client.expect(m.publish("a/b", b"x", retain=True, properties=m.identifier(number)))
    client.subscribe(("+/b", 0))
    client.expect(m.publish("a/b", b"x", retain=True))


@statement("MQTT-3.8.3-3")
@edge(31)
def test_no_local_holds_for_who_retained_it(harness: Harness) -> None:
    """With No Local, a client does not receive a retained message that it published itself. The
    standard leaves this open.
    """
    client = join(harness)
    client.subscribe(("t", NO_LOCAL | RAP))
    client.publish("t", b"x", retain=True)
    client.expect()
    reader(harness, 5, ("t", NO_LOCAL)).expect(m.publish("t", b"x", retain=True))
