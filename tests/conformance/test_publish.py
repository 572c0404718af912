"""Test chapter 3.3: the flags, topic, properties and expiry of received and sent PUBLISH packets."""

from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from bytememory import LEVELS, join
from hookmq.plugin import Action, Deny, Plugin, hookimpl
from hookmq_testing import Harness
from statements import edge, statement


@statement("MQTT-3.3.1-4", "MQTT311-3.3.1-4", "MQTT-4.13.1-1", "MQTT311-4.8.0-1")
@edge(39)
@LEVELS
@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E, 0x3F])
def test_qos_3_ends_the_connection(harness: Harness, level: int, first: int) -> None:
    packet = m.publish("t", b"x", 1, 1, level=level)
    join(harness, "c", level).send(bytes((first,)) + packet[1:]).refused(0x81)


@statement("MQTT-3.3.1-2", "MQTT311-3.3.1-2")
@edge(39)
@LEVELS
def test_dup_with_qos_0_ends_the_connection(harness: Harness, level: int) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("t", 0))
    client = join(harness, "c", level)
    client.publish("t", b"x", dup=True)
    client.refused(0x81)
    watcher.expect()


@statement(
    "MQTT-3.3.1-3",
    "MQTT-3.3.1-2",
    "MQTT-4.3.1-1",
    "MQTT311-3.3.1-2",
    "MQTT311-3.3.1-3",
    "MQTT311-4.3.1-1",
)
@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_dup_is_of_one_hop(harness: Harness, level: int, qos: int, granted: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("t", granted))
    join(harness, "sender", level).publish("t", b"x", qos, 9, dup=True)
    given = min(qos, granted)
    client.expect(m.publish("t", b"x", given, 1 if given else 0, level=level))


@statement("MQTT-3.3.1-1", "MQTT311-3.3.1-1")
@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
def test_a_resent_publish_has_dup(harness: Harness, level: int, qos: int) -> None:
    keep: dict[str, Any] = {
        "clean": False, "properties": m.session_expiry(100) if level == 5 else b""
    }  # fmt: skip
    client = join(harness, "c", level, **keep)
    client.subscribe(("t", qos))
    join(harness, "sender", level).publish("t", b"x", qos, 1)
    client.expect(m.publish("t", b"x", qos, 1, level=level))
    for _ in range(2):
        client.close()
        client = join(harness, "c", level, present=True, **keep)
        client.expect(m.publish("t", b"x", qos, 1, level=level, dup=True))


@statement("MQTT-3.3.2-1", "MQTT311-3.3.2-1", "MQTT-4.13.1-1")
@LEVELS
def test_truncated_publishes(harness: Harness, level: int) -> None:
    for body in (b"", b"\x00", b"\x00\x05abc", b"\xff\xffabc"):
        join(harness, "c", level).send(m.packet(0x30, body)).refused(0x81)
    for body in (b"\x00\x01t", b"\x00\x01t\x00"):  # no packet id
        join(harness, "c", level).send(m.packet(0x32, body)).refused(0x81)
    if level == 5:  # no property section
        join(harness).send(m.packet(0x30, b"\x00\x01t")).refused(0x81)
        join(harness).send(m.packet(0x30, b"\x00\x01t\x05\x01\x00")).refused(0x81)


@statement("MQTT-3.3.2-2", "MQTT-4.7.0-1", "MQTT311-3.3.2-2", "MQTT311-4.7.1-1")
@edge(35)
@LEVELS
@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a#", "+a", "$SYS/#"])
def test_wildcards_in_a_topic_end_the_connection(harness: Harness, level: int, topic: str) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("#", 0))
    for qos in range(3):
        join(harness, "c", level).send(m.publish(topic, b"x", qos, 1, level=level)).refused(
            0x81, 0x82, 0x90
        )
    watcher.expect()


@statement("MQTT-4.7.3-1", "MQTT311-4.7.3-1")
@LEVELS
def test_an_empty_topic_ends_the_connection(harness: Harness, level: int) -> None:
    for qos in range(3):
        packet = m.publish("", b"x", qos, 1, level=level)
        join(harness, "c", level).send(packet).refused(0x82, 0x90)


@statement("MQTT-3.3.2-14")
@edge(35)
@pytest.mark.parametrize("topic", ["a/+", "#"])
def test_wildcards_in_a_response_topic_end_the_connection(harness: Harness, topic: str) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("t", 0))
    join(harness).send(m.publish("t", b"x", properties=m.response_topic(topic))).refused(0x82)
    watcher.expect()


@statement("MQTT-3.3.4-6")
@edge(29)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscription_identifier_from_a_client(harness: Harness, qos: int) -> None:
    packet = m.publish("t", b"x", qos, 1, properties=m.identifier(1))
    join(harness).send(packet).refused(0x82)


@statement(
    "MQTT-3.3.4-1",
    "MQTT-3.4.2-1",
    "MQTT-3.5.2-1",
    "MQTT311-3.3.4-1",
    "MQTT-4.3.2-4",
    "MQTT-4.3.3-8",
)
@edge(44, 47)
@LEVELS
def test_the_answer_goes_by_qos(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.publish("t", b"x", 0)
    client.expect()
    none = 0x10 if level == 5 else None  # no matching subscribers
    client.publish("t", b"x", 1, 5)
    client.expect(m.puback(5, none))
    client.publish("t", b"x", 2, 6)
    client.expect(m.pubrec(6, none))
    join(harness, "reader").subscribe(("t", 0))
    client.publish("t", b"x", 1, 7)
    client.expect(m.puback(7))  # the short form is 0x00
    client.publish("t", b"x", 2, 8)
    client.expect(m.pubrec(8))


# --- properties that travel ---------------------------------------------------------------------------------------------

TRAVELLING = [
    pytest.param(m.payload_format(0), marks=statement("MQTT-3.3.2-4")),
    pytest.param(m.payload_format(1), marks=statement("MQTT-3.3.2-4")),
    pytest.param(m.response_topic("back/to/me"), marks=statement("MQTT-3.3.2-15")),
    pytest.param(m.response_topic(b"\xef\xbb\xbfx"), marks=statement("MQTT-3.3.2-15")),
    pytest.param(m.correlation(bytes(range(256))), marks=statement("MQTT-3.3.2-16")),
    pytest.param(m.correlation(b""), marks=statement("MQTT-3.3.2-16")),
    pytest.param(m.content_type("text/plain"), marks=statement("MQTT-3.3.2-20")),
    pytest.param(m.content_type(""), marks=statement("MQTT-3.3.2-20")),
    pytest.param(
        m.user("b", "1") + m.user("a", "2") + m.user("b", "1") + m.user("", ""),
        marks=statement("MQTT-3.3.2-17", "MQTT-3.3.2-18"),
    ),
]


@edge(52)
@pytest.mark.parametrize("properties", TRAVELLING)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_forwarded_as_they_are(
    harness: Harness, qos: int, properties: bytes
) -> None:
    client = join(harness)
    old = join(harness, "old", 4)
    client.subscribe(("t", qos))
    old.subscribe(("t", qos))
    number = 1 if qos else 0
    sender = join(harness, "sender")
    for turn in range(3):  # the second and third message may take the fast path
        sender.publish("t", b"x", qos, 1 + turn, properties=properties)
        id = number and turn + 1
        client.expect(m.publish("t", b"x", qos, id, properties=properties))
        old.expect(m.publish("t", b"x", qos, id, level=4))
    sender.publish("t", b"kept", retain=True, properties=properties)
    client.take()
    late = join(harness, "late")
    late.subscribe(("t", 0))
    late.expect(m.publish("t", b"kept", retain=True, properties=properties))


@statement(
    "MQTT-3.3.2-4",
    "MQTT-3.3.2-15",
    "MQTT-3.3.2-16",
    "MQTT-3.3.2-17",
    "MQTT-3.3.2-18",
    "MQTT-3.3.2-20",
    "MQTT-3.3.2-7",
)
@edge(22)
def test_properties_of_one_hop_are_not_forwarded(harness: Harness) -> None:
    client = join(harness)
    client.subscribe(("t", 0))
    others = [m.user("a", "1"), m.content_type("x"), m.correlation(b"y"), m.user("a", "2")]
    sender = join(harness, "sender")
    sender.publish("t", b"x", properties=others[0] + m.alias(5) + b"".join(others[1:]))
    _, topic, _, found, payload = client.take_publish()
    assert (topic, payload) == (b"t", b"x")
    assert sorted(found) == sorted(others)
    assert [one for one in found if one[0] == 0x26] == [others[0], others[3]]


@edge(52)
@LEVELS
def test_a_message_of_3_has_no_properties_in_5(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("t", 0))
    join(harness, "old", 4).publish("t", b"\x00\x01")
    client.expect(m.publish("t", b"\x00\x01", level=level))


# --- expiry -------------------------------------------------------------------------------------------------------------


@statement("MQTT-3.3.2-5", "MQTT-3.3.2-6", "MQTT-4.5.0-1")
@edge(28)
@pytest.mark.parametrize("qos", [1, 2])
def test_expiry_while_queued(harness: Harness, qos: int) -> None:
    keep: dict[str, Any] = {"clean": False, "properties": m.session_expiry(1000)}
    client = join(harness, **keep)
    client.subscribe(("t", qos))
    client.close()
    sender = join(harness, "sender")
    for number, seconds in enumerate((10, 30, 100), 1):
        sender.publish("t", b"x", qos, number, properties=m.expiry(seconds))
    sender.publish("t", b"forever", qos, 4)
    harness.advance(30)
    client = join(harness, present=True, **keep)
    client.expect(
        m.publish("t", b"x", qos, 1, properties=m.expiry(70)),
        m.publish("t", b"forever", qos, 2),
    )


@statement("MQTT-3.3.2-6", "MQTT-3.3.2-5")
@edge(27, 28)
def test_expiry_of_retained_messages(harness: Harness) -> None:
    sender = join(harness, "sender")
    sender.publish("t", b"x", retain=True, properties=m.expiry(100))
    for number, (seconds, left) in enumerate(((0, 100), (40, 60), (59, 1), (1, None))):
        harness.advance(seconds)
        client = join(harness, f"late{number}")
        client.subscribe(("t", 0))
        if left is None:
            client.expect()
        else:
            client.expect(m.publish("t", b"x", retain=True, properties=m.expiry(left)))


@statement("MQTT-3.3.2-6")
@edge(28)
def test_expiry_is_forwarded_at_once_and_never_to_3(harness: Harness) -> None:
    client, old = join(harness), join(harness, "old", 4)
    client.subscribe(("t", 0))
    old.subscribe(("t", 0))
    for seconds in (1, 0xFFFFFFFF):
        join(harness, "sender").publish("t", b"x", properties=m.expiry(seconds))
        client.expect(m.publish("t", b"x", properties=m.expiry(seconds)))
        old.expect(m.publish("t", b"x", level=4))


@statement("MQTT-3.3.2-5", "MQTT-3.3.2-6")
@edge(28)
def test_expiry_while_there_is_no_room(harness: Harness) -> None:
    client = join(harness, properties=m.receive_maximum(1))
    client.subscribe(("t", 1))
    sender = join(harness, "sender")
    for number, seconds in enumerate((1, 10, 50), 1):
        sender.publish("t", bytes((number,)), 1, number, properties=m.expiry(seconds))
    client.expect(m.publish("t", b"\x01", 1, 1, properties=m.expiry(1)))
    harness.advance(20)
    client.send(m.puback(1))  # the first message is in flight and does not expire
    client.expect(m.publish("t", b"\x03", 1, 2, properties=m.expiry(30)))


# --- permissions ------------------------------------------------------------------------------------------------------


class Censor(Plugin):
    @hookimpl
    def authorize(self, client: Any, action: Action, topic: str) -> Any:
        return Deny() if topic == "no" and action is Action.PUBLISH else None


@statement("MQTT311-3.3.5-2", "MQTT-3.4.2-1", "MQTT-3.5.2-1")
@edge(46)
@LEVELS
def test_a_publish_that_is_not_allowed(broker_harness: Any, level: int) -> None:
    harness = broker_harness([Censor])
    watcher = join(harness, "watcher", level)
    watcher.subscribe(("no", 2))
    client = join(harness, "c", level)
    denied = 0x87 if level == 5 else None
    client.publish("no", b"x", 0, 0, retain=True)
    client.expect()
    client.publish("no", b"x", 1, 1)
    client.expect(m.puback(1, denied))
    client.publish("no", b"x", 2, 2)
    client.expect(m.pubrec(2, denied))
    if level == 4:  # the exchange goes on as usual
        client.send(m.pubrel(2))
        client.expect(m.pubcomp(2))
    watcher.expect()
    watcher.subscribe(("no", 0))
    watcher.expect()


@statement("MQTT311-3.3.5-2")
@edge(46)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_or_the_connection_is_closed_in_3(broker_harness: Any, qos: int) -> None:
    harness = broker_harness([Censor], config={"broker": {"mqtt3_denied_publish": "disconnect"}})
    client: ByteClient = join(harness, "c", 4)
    client.publish("no", b"x", qos, 1)
    client.ends()
