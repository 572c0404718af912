"""Test chapters 3.8 to 3.11: SUBSCRIBE, UNSUBSCRIBE, the responses to them, and the resulting deliveries."""

from typing import Any

import mqttbytes as m
import pytest
from bytememory import LEVELS, in_memory, join
from hookmq.plugin import Deny, Plugin, hookimpl
from hookmq_testing import Harness
from statements import edge, statement

NO_LOCAL = 0x04


@statement("MQTT-3.8.3-2", "MQTT-3.10.3-2", "MQTT311-3.8.3-3", "MQTT311-3.10.3-2", "MQTT-4.13.1-1")
@LEVELS
def test_without_a_filter_the_connection_ends(harness: Harness, level: int) -> None:
    join(harness, "c", level).send(m.subscribe(1, level=level)).refused(0x82)
    join(harness, "c", level).send(m.unsubscribe(1, level=level)).refused(0x82)


@statement("MQTT-3.8.3-1", "MQTT-3.8.3-2", "MQTT-3.10.3-1", "MQTT311-3.8.3-1", "MQTT311-3.10.3-1")
@LEVELS
def test_truncated_filters_end_the_connection(harness: Harness, level: int) -> None:
    section = m.section(b"", level)
    for rest in (b"\x00\x01t", b"\x00\x05abc\x00", b"\x00\x01t\x00\x00", b"\x00"):  # no options
        join(harness, "c", level).send(m.packet(0x82, b"\x00\x01", section, rest)).refused(0x81)
    for rest in (b"\x00\x05abc", b"\x00\x01t\x00", b"\x00"):
        join(harness, "c", level).send(m.packet(0xA2, b"\x00\x01", section, rest)).refused(0x81)


@statement("MQTT-3.8.3-5")
@edge(32)
@pytest.mark.parametrize(
    ("options", "code"), [(0x40, 0x81), (0x80, 0x81), (0xC1, 0x81), (0x03, 0x82)]
)
def test_bad_options(harness: Harness, options: int, code: int) -> None:
    client = join(harness)
    client.send(m.subscribe(1, ("a", 0), ("t", options))).refused(code)


@statement("MQTT311-3.8.3-4")
@edge(32)
@pytest.mark.parametrize("options", [0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFE])
def test_bad_requested_qos_in_3(harness: Harness, options: int) -> None:
    join(harness, "c", 4).send(m.subscribe(1, ("a", 0), ("t", options), level=4)).refused()


@edge(29)
@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (m.identifier(0), 0x82),
        (m.identifier(1) + m.identifier(2), 0x82),
        (m.identifier(1) * 2, 0x82),
    ],
)
def test_bad_identifiers(harness: Harness, properties: bytes, code: int) -> None:
    join(harness).send(m.subscribe(1, ("t", 0), properties=properties)).refused(code)


@edge(29, 30)
@statement("MQTT-3.3.4-3")
@pytest.mark.parametrize("number", [1, 127, 128, 16_383, 16_384, 2_097_152, 268_435_455])
def test_identifiers_of_every_size(harness: Harness, number: int) -> None:
    client = join(harness)
    client.subscribe(("t", 1), properties=m.identifier(number))
    client.publish("t", b"x", 1, 1)
    client.expect(m.publish("t", b"x", 1, 1, properties=m.identifier(number)), m.puback(1))


class Censor(Plugin):
    @hookimpl
    def authorize(self, client: Any, action: Any, topic: str) -> Any:
        return Deny() if topic.startswith("no") else None


@statement(
    "MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.8.4-7", "MQTT-3.9.3-1", "MQTT-3.9.3-2",
    "MQTT311-3.8.4-1", "MQTT311-3.8.4-2", "MQTT311-3.8.4-4", "MQTT311-3.8.4-5", "MQTT311-3.9.3-1",
    "MQTT311-3.9.3-2",
)  # fmt: skip
@edge(45)
@LEVELS
def test_one_suback_with_a_code_for_each_filter_in_order(broker_harness: Any, level: int) -> None:
    harness = broker_harness([Censor])
    client = join(harness, "c", level)
    filters = [("a", 0), ("no/1", 1), ("b", 2), ("c", 1), ("no/2", 0), ("a", 1)]
    client.send(m.subscribe(0x0102, *filters, level=level))
    denied = 0x87 if level == 5 else 0x80
    client.expect(m.suback(0x0102, 0, denied, 2, 1, denied, 1, level=level))
    # as if each had arrived alone: the last subscription to "a" applies, and refused ones deliver nothing
    sender = join(harness, "sender")
    for topic in ("a", "b", "c"):
        sender.publish(topic, b"x", 2, 1)
        sender.send(m.pubrel(1))
    client.expect(
        m.publish("a", b"x", 1, 1, level=level),
        m.publish("b", b"x", 2, 2, level=level),
        m.publish("c", b"x", 1, 3, level=level),
    )


@statement("MQTT-3.8.4-8", "MQTT311-3.8.4-6", "MQTT-3.8.4-7")
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_qos_is_the_lower_of_both(harness: Harness, level: int, qos: int, granted: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("t", granted))
    sender = join(harness, "sender", level)
    given = min(qos, granted)
    for number in (1, 2):
        sender.publish("t", b"x", qos, number)
        client.expect(m.publish("t", b"x", given, number if given else 0, level=level))


@statement("MQTT-3.8.4-3", "MQTT-3.8.4-4", "MQTT311-3.8.4-3")
@edge(29)
@LEVELS
def test_subscribing_again_replaces(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    sender = join(harness, "sender", level)
    for granted in (2, 0, 1):
        client.subscribe(("t", granted))
        sender.publish("t", bytes((granted,)), 2, 1)
        sender.send(m.pubrel(1))
        _, _, packet_id, _, payload = client.take_publish()  # one copy
        assert payload == bytes((granted,))
        assert (packet_id != 0) is (granted > 0)
    if level == 5:
        client.subscribe(("t", 0), properties=m.identifier(3))
        client.subscribe(("t", 0), properties=m.identifier(4))
        sender.publish("t", b"x")
        client.expect(m.publish("t", b"x", properties=m.identifier(4)))
        client.subscribe(("t", 0x08))  # subscribing without an identifier removes it
        sender.publish("t", b"x", retain=True)
        client.expect(m.publish("t", b"x", retain=True))
        client.subscribe(("t", NO_LOCAL | 0x20))
        client.publish("t", b"x")
        client.expect()


@statement("MQTT-3.8.4-4", "MQTT311-3.8.4-3")
@LEVELS
def test_no_message_is_lost_while_replacing(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("t", 1))
    client.send(
        m.publish("t", b"1", 1, 1, level=level),
        m.subscribe(9, ("t", 1), level=level),
        m.publish("t", b"2", 1, 2, level=level),
    )
    frames = client.take_frames()
    payloads = [m.split_publish(one, level)[4] for one in frames if one[0] >> 4 == 3]
    assert payloads == [b"1", b"2"]
    assert m.suback(9, 1, level=level) in frames


@statement("MQTT-3.8.3-3")
@edge(31)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local(harness: Harness, qos: int) -> None:
    keep: dict[str, Any] = {"clean": False, "properties": m.session_expiry(100)}
    client = join(harness, **keep)
    client.subscribe(("t", qos | NO_LOCAL))
    other = join(harness, "other")
    number = 1 if qos else 0
    for turn in range(2):
        client.publish("t", b"mine", qos, 1 + turn)
        assert all(frame[0] >> 4 != 3 for frame in client.take_frames())
        other.publish("t", b"others", qos, 1 + turn)
        client.expect(m.publish("t", b"others", qos, number and turn + 1))
    # It is the client id that counts, not the connection.
    client.close()
    client = join(harness, present=True, **keep)
    client.take()
    client.publish("t", b"mine", qos, 9)
    assert all(frame[0] >> 4 != 3 for frame in client.take_frames())


@statement("MQTT-3.8.3-3")
@edge(31)
def test_an_overlap_without_no_local_delivers(harness: Harness) -> None:
    client = join(harness)
    client.subscribe(("t", NO_LOCAL | 2), ("+", 0))
    client.publish("t", b"mine")
    client.expect(m.publish("t", b"mine"))


@statement("MQTT-3.8.3-4")
@edge(31)
def test_no_local_with_a_shared_subscription(harness: Harness) -> None:
    join(harness).send(m.subscribe(1, ("$share/g/t", NO_LOCAL))).refused(0x82)


@statement("MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT311-3.3.5-1")
@edge(30)
@LEVELS
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_overlapping_subscriptions(harness: Harness, level: int, order: tuple[int, ...]) -> None:
    client = join(harness, "c", level)
    names = ("a/b", "a/+", "#")
    for granted, name in zip(order, names, strict=True):
        properties = m.identifier(granted + 1) if level == 5 and name != "#" else b""
        client.subscribe((name, granted), properties=properties)
    join(harness, "sender", level).publish("a/b", b"x", 2, 1)
    frame = client.take_one()  # one copy, with all identifiers
    first, topic, packet_id, properties_found, payload = m.split_publish(frame, level)
    assert (first, topic, packet_id, payload) == (0x34, b"a/b", 1, b"x")
    if level == 5:
        assert sorted(properties_found) == sorted(m.identifier(one + 1) for one in order[:2])


@statement("MQTT-3.3.4-4")
@edge(30)
def test_the_same_identifier_may_be_used_twice(harness: Harness) -> None:
    client = join(harness)
    client.subscribe(("a", 0), ("+", 0), properties=m.identifier(9))
    join(harness, "sender").publish("a", b"x")
    properties = client.take_publish()[3]
    assert set(properties) == {m.identifier(9)}


@statement("MQTT-3.3.4-5", "MQTT-3.3.4-3")
@edge(30)
def test_a_shared_subscription_is_a_copy_of_its_own(harness: Harness) -> None:
    client = join(harness)
    client.subscribe(("t", 0), properties=m.identifier(1))
    client.subscribe(("$share/g/t", 0), properties=m.identifier(2))
    client.subscribe(("$share/h/t", 0))
    join(harness, "sender").publish("t", b"x")
    found = [m.split_publish(frame)[3] for frame in client.take_frames()]
    assert sorted(found) == [[], [m.identifier(1)], [m.identifier(2)]]


# --- UNSUBSCRIBE --------------------------------------------------------------------------------------------------------


@statement(
    "MQTT-3.10.4-1", "MQTT-3.10.4-4", "MQTT-3.10.4-5", "MQTT-3.10.4-6", "MQTT-3.11.3-1", "MQTT-3.11.3-2",
    "MQTT311-3.10.4-1", "MQTT311-3.10.4-4", "MQTT311-3.10.4-5", "MQTT311-3.10.4-6",
)  # fmt: skip
@edge(45)
@LEVELS
def test_unsubscribe_is_by_the_text(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("a/b", 0), ("a/+", 0))
    client.send(m.unsubscribe(3, "a/c", "A/b", "a/#", "#", "a/b/", level=level))
    client.expect(m.unsuback(3, *[0x11] * 5, level=level))
    client.publish("a/b", b"x")
    client.expect(m.publish("a/b", b"x", level=level))
    client.send(m.unsubscribe(4, "x", "a/b", "a/b", "a/+", level=level))
    client.expect(m.unsuback(4, 0x11, 0, 0x11, 0, level=level))
    client.publish("a/b", b"x")
    client.expect()


@statement("MQTT-3.10.4-1")
@edge(33)
def test_unsubscribe_names_the_whole_shared_filter(harness: Harness) -> None:
    client = join(harness)
    client.subscribe(("$share/g/t", 0), ("t", 0))
    client.send(m.unsubscribe(1, "$share/h/t", "t"))
    client.expect(m.unsuback(1, 0x11, 0))
    client.publish("t", b"x")
    client.expect(m.publish("t", b"x"))
    client.unsubscribe("$share/g/t")
    client.publish("t", b"x")
    client.expect()


@statement("MQTT-3.10.4-2", "MQTT-3.10.4-3", "MQTT311-3.10.4-2", "MQTT311-3.10.4-3")
@edge(53)
@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
def test_started_deliveries_are_finished(harness: Harness, level: int, qos: int) -> None:
    keep: dict[str, Any] = {
        "clean": False, "properties": m.session_expiry(100) if level == 5 else b""
    }  # fmt: skip
    client = join(harness, "c", level, **keep)
    client.subscribe(("t", qos))
    sender = join(harness, "sender", level)
    sender.publish("t", b"started", qos, 1)
    client.expect(m.publish("t", b"started", qos, 1, level=level))
    client.unsubscribe("t")
    sender.publish("t", b"too late", qos, 2)
    client.expect()
    client.close()
    sender.publish("t", b"too late", qos, 3)
    client = join(harness, "c", level, present=True, **keep)
    client.expect(m.publish("t", b"started", qos, 1, level=level, dup=True))
    if qos == 1:
        client.send(m.puback(1))
        client.expect()
    else:
        client.send(m.pubrec(1))
        client.expect(m.pubrel(1))
        client.send(m.pubcomp(1))
        client.expect()
    assert not harness.broker.sessions["c"].inflight


@edge(53)
@LEVELS
def test_in_one_segment(harness: Harness, level: int) -> None:
    """If SUBSCRIBE and PUBLISH share a segment, SUBACK and the messages may arrive in any order. Each of them arrives
    once.
    """
    client = in_memory(harness, level)
    client.connect()
    client.accepted()
    client.send(
        m.subscribe(1, ("t", 0), level=level),
        m.publish("t", b"x", level=level),
        m.unsubscribe(2, "t", level=level),
        m.publish("t", b"y", level=level),
    )
    wanted = [
        m.suback(1, 0, level=level),
        m.publish("t", b"x", level=level),
        m.unsuback(2, 0, level=level),
    ]
    assert sorted(client.take_frames()) == sorted(wanted)
