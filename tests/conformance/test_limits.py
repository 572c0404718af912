"""Test chapters 3.1.2.11 and 3.2.2.3: the limits on packet size, QoS, retain and aliases that
clients and broker announce.
"""

from typing import Any

import mqttbytes as m
import pytest
from bytememory import LEVELS, in_memory, join
from hookmq.plugin import Deny, Plugin, ReasonCode, hookimpl
from hookmq_testing import Harness
from statements import edge, statement

# --- maximum packet size ------------------------------------------------------------------------------------------------


@statement("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@edge(20)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_of_the_maximum_size_is_sent_and_a_larger_one_is_not(
    harness: Harness, qos: int
) -> None:
    client = join(harness, properties=m.packet_size(60))
    client.subscribe(("t", qos))
    sender = join(harness, "sender")
    number = 1 if qos else 0
    fits = m.publish("t", bytes(60 - (8 if qos else 6)), qos, number)
    assert len(fits) == 60
    payload = m.split_publish(fits)[4]
    sender.publish("t", payload + b"!", qos, 1)
    client.expect()
    sender.publish("t", payload, qos, 2)
    client.expect(fits)  # with the packet id that the dropped message would have used
    assert len(harness.broker.sessions["c"].inflight) == number


@statement("MQTT-3.1.2-25", "MQTT-3.3.4-9")
@edge(20)
def test_a_dropped_publish_takes_no_room_and_is_not_kept(harness: Harness) -> None:
    properties = m.packet_size(60) + m.receive_maximum(1) + m.session_expiry(100)
    client = join(harness, properties=properties)
    client.subscribe(("t", 2))
    sender = join(harness, "sender")
    for number in (1, 2, 3):
        sender.publish("t", bytes(100), number % 2 + 1, number)
    sender.publish("t", b"small", 1, 9)
    client.expect(m.publish("t", b"small", 1, 1))
    client.close()
    sender.publish("t", bytes(100), 1, 10)
    sender.publish("t", b"tiny", 1, 11)
    client = join(harness, "c", clean=False, present=True, properties=properties)
    client.expect(m.publish("t", b"small", 1, 1, dup=True))
    client.send(m.puback(1))
    client.expect(m.publish("t", b"tiny", 1, 2))


@statement("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@edge(20)
def test_resent_messages_fit_the_maximum_packet_size(harness: Harness) -> None:
    keep: dict[str, Any] = {"clean": False}
    client = join(harness, properties=m.session_expiry(100), **keep)
    client.subscribe(("t", 2))
    sender = join(harness, "sender")
    sender.publish("t", bytes(100), 2, 1)
    sender.publish("t", b"small", 2, 2)
    assert len(client.take_frames()) == 2
    client.close()
    properties = m.session_expiry(100) + m.packet_size(60)
    client = join(harness, present=True, properties=properties, **keep)
    client.expect(m.publish("t", b"small", 2, 2, dup=True))
    assert list(harness.broker.sessions["c"].inflight) == [2]


@statement("MQTT-3.1.2-24")
@edge(20)
def test_size_counts_with_aliases_and_properties(harness: Harness) -> None:
    client = join(harness, properties=m.packet_size(60))
    client.subscribe(("t", 0), properties=m.identifier(7))
    sender = join(harness, "sender")
    for size in range(20, 60):
        sender.publish("t", bytes(size), properties=m.user("a", "b"))
        whole = m.publish("t", bytes(size), properties=m.user("a", "b") + m.identifier(7))
        client.expect(*([whole] if len(whole) <= 60 else []))


@statement("MQTT-3.1.2-24")
@edge(20)
@pytest.mark.parametrize("size", [1, 2, 4, 5, 12])
def test_a_connack_that_the_client_cannot_take_is_not_sent(harness: Harness, size: int) -> None:
    client = in_memory(harness).connect(properties=m.packet_size(size))
    for frame in client.take_frames():
        assert len(frame) <= size
        assert frame[3] == 0x95
    assert client.wire.closed
    assert not harness.broker.sessions


@statement("MQTT-3.1.2-24")
@edge(20)
def test_a_suback_that_the_client_cannot_take_is_not_sent(harness: Harness) -> None:
    many = [(f"t/{number}", 0) for number in range(60)]
    names = [name for name, _ in many]
    client = join(harness, properties=m.packet_size(64))
    client.send(m.subscribe(1, *many[:59]))
    assert len(client.take_one()) == 64
    client.send(m.subscribe(1, *many)).refused(0x95)
    client = join(harness, properties=m.packet_size(64))
    client.send(m.unsubscribe(1, *names[:59]))
    assert len(client.take_one()) == 64
    client.send(m.unsubscribe(1, *names)).refused(0x95)


WHY = "no " * 20


class Censor(Plugin):
    """A plugin that denies with a long reason string."""

    @hookimpl
    def on_connect(self, client: Any, connect: Any) -> Any:
        return Deny(reason=WHY) if client.client_id == "denied" else None

    @hookimpl
    def authorize(self, client: Any, action: Any, topic: str) -> Any:
        if topic.startswith("kick"):
            return Deny(reason=WHY, disconnect=True)
        return Deny(reason=WHY) if topic.startswith("no") else None


LONG = m.reason_string(WHY)
REASONS = [
    pytest.param(
        m.publish("no", b"", 1, 7), b"\x40", m.puback(7, 0x87), m.puback(7, 0x87, LONG),
        marks=statement("MQTT-3.4.2-2", "MQTT-3.4.2-3", "MQTT-3.4.2-1"),
    ),
    pytest.param(
        m.publish("no", b"", 2, 7), b"\x50", m.pubrec(7, 0x87), m.pubrec(7, 0x87, LONG),
        marks=statement("MQTT-3.5.2-2", "MQTT-3.5.2-3", "MQTT-3.5.2-1"),
    ),
    pytest.param(
        m.subscribe(7, ("no", 0)), b"\x90", m.suback(7, 0x87),
        m.packet(0x90, b"\x00\x07", m.section(LONG), b"\x87"),
        marks=statement("MQTT-3.9.2-1", "MQTT-3.9.2-2", "MQTT-3.9.3-2"),
    ),
]  # fmt: skip


@statement("MQTT-3.1.2-24")
@edge(20)
@pytest.mark.parametrize(("packet", "kind", "short", "long"), REASONS)
def test_reason_strings_are_left_out_rather_than_too_large(
    broker_harness: Any, packet: bytes, kind: bytes, short: bytes, long: bytes
) -> None:
    harness = broker_harness([Censor])
    assert short[:1] == long[:1] == kind
    for size, answer in ((1000, long), (len(long), long), (len(long) - 1, short), (40, short)):
        client = join(harness, properties=m.packet_size(size))
        client.send(packet)
        client.expect(answer)


@statement("MQTT-3.14.2-3", "MQTT-3.14.2-4", "MQTT-3.1.2-24")
@edge(20)
def test_disconnect_leaves_its_reason_out(broker_harness: Any) -> None:
    harness = broker_harness([Censor])
    long = m.disconnect(0x87, LONG)
    for size, answer in ((len(long), long), (len(long) - 1, m.disconnect(0x87)), (40, None)):
        client = join(harness, properties=m.packet_size(size))
        client.send(m.publish("kick", b""))
        client.ends(answer or m.disconnect(0x87))


@statement("MQTT-3.2.2-19", "MQTT-3.2.2-20", "MQTT-3.1.2-24")
@edge(20)
def test_connack_leaves_its_reason_out(broker_harness: Any) -> None:
    harness = broker_harness([Censor])
    long = m.packet(0x20, b"\x00\x87", m.section(LONG))
    for size, answer in ((len(long), long), (len(long) - 1, b"\x20\x03\x00\x87\x00")):
        client = in_memory(harness).connect("denied", properties=m.packet_size(size))
        client.ends(answer)
    # Even the bare CONNACK is too large.
    in_memory(harness).connect("denied", properties=m.packet_size(4)).ends()


@statement(
    "MQTT-3.6.2-2", "MQTT-3.6.2-3", "MQTT-3.7.2-2", "MQTT-3.7.2-3", "MQTT-3.11.2-1", "MQTT-3.11.2-2"
)
def test_packets_that_never_carry_a_reason(harness: Harness) -> None:
    client = join(harness, properties=m.packet_size(40))
    client.send(m.pubrec(5))
    client.expect(m.pubrel(5, 0x92))
    client.send(m.pubrel(6))
    client.expect(m.pubcomp(6, 0x92))
    client.send(m.unsubscribe(7, "x"))
    client.expect(m.unsuback(7, 0x11))


@statement("MQTT-3.1.2-29")
@edge(48)
@pytest.mark.parametrize(
    ("asked", "told"),
    [(b"", True), (m.problem_information(1), True), (m.problem_information(0), False)],
)
def test_request_problem_information(broker_harness: Any, asked: bytes, told: bool) -> None:
    harness = broker_harness([Censor])
    client = join(harness, properties=asked)
    section = m.section(LONG) if told else b""
    client.send(m.publish("no", b"", 1, 1))
    client.expect(m.packet(0x40, b"\x00\x01\x87", section))
    client.send(m.publish("no", b"", 2, 2))
    client.expect(m.packet(0x50, b"\x00\x02\x87", section))
    client.send(m.subscribe(3, ("no", 0)))
    client.expect(m.packet(0x90, b"\x00\x03", section or b"\0", b"\x87"))
    client.subscribe(("t", 0))
    client.publish("t", properties=m.user("a", "b"))
    client.expect(m.publish("t", properties=m.user("a", "b")))  # PUBLISH keeps its user properties
    client.publish("kick")
    client.ends(m.disconnect(0x87, LONG))
    denied = in_memory(harness).connect("denied", properties=asked)
    denied.ends(m.packet(0x20, b"\x00\x87", m.section(LONG)))


@statement("MQTT-3.2.2-15", "MQTT-4.13.1-1")
@edge(21)
def test_a_packet_above_our_maximum(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"max_packet_size": 300}})
    client = in_memory(harness).connect()
    assert m.packet_size(300) in client.accepted()
    fits = m.publish("t", bytes(300 - 7))
    assert len(fits) == 300
    client.send(fits)
    client.expect()
    client.send(m.publish("t", bytes(300 - 6))[:4])  # the fixed header is enough
    client.refused(0x95)
    for level in (4, 5):
        client = join(harness, "d", level)
        client.send(m.publish("t", bytes(400), level=level)).refused(0x95)


# --- response information -----------------------------------------------------------------------------------------------


@statement("MQTT-3.1.2-28")
@edge(49)
def test_response_information_is_told_who_asks(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"response_information": "replies/"}})
    for asked, told in (
        (b"", False),
        (m.response_information(0), False),
        (m.response_information(1), True),
    ):
        properties = in_memory(harness).connect(properties=asked).accepted()
        assert (b"\x1a" + m.text("replies/") in properties) is told
        assert [one[0] for one in properties].count(0x1A) == told


# --- QoS and retain -----------------------------------------------------------------------------------------------------


@statement("MQTT-3.2.2-9", "MQTT-3.2.2-10", "MQTT-3.2.2-11", "MQTT-3.2.2-12", "MQTT-3.2.2-7")
@edge(23)
@pytest.mark.parametrize("most", [0, 1, 2])
def test_maximum_qos(broker_harness: Any, most: int) -> None:
    harness = broker_harness(config={"broker": {"max_qos": most}})
    client = in_memory(harness).connect()
    told = [one for one in client.accepted() if one[0] == 0x24]
    assert told == ([bytes((0x24, most))] if most < 2 else [])
    client.send(m.subscribe(1, ("a", 0), ("b", 1), ("c", 2)))
    client.expect(m.suback(1, 0, min(1, most), most))
    for qos in range(3):
        client = join(harness, "d")
        client.publish("t", b"", qos, 1)
        will = in_memory(harness).connect("e", will=("w", b""), will_qos=qos)
        if qos > most:
            client.refused(0x9B)
            will.not_accepted(0x9B)
        else:
            assert not client.wire.closed
            will.accepted()


@statement("MQTT-3.2.2-13", "MQTT-3.2.2-14", "MQTT-3.2.2-7")
@edge(23)
def test_retain_unavailable(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"retain_available": False}})
    client = in_memory(harness).connect()
    assert b"\x25\x00" in client.accepted()
    client.publish("t", b"x", retain=True)
    client.refused(0x9A)
    in_memory(harness).connect(will=("w", b""), will_retain=True).not_accepted(0x9A)
    client = join(harness)
    client.subscribe(("t", 0))
    client.expect()


@statement("MQTT-3.2.2-8")
@edge(23)
def test_nothing_is_told_that_is_the_default(harness: Harness) -> None:
    found = {one[0] for one in in_memory(harness).connect().accepted()}
    assert not found & {0x24, 0x25, 0x28, 0x29, 0x2A}


UNAVAILABLE = [
    ("wildcard_available", 0x28, m.subscribe(1, ("a/+", 0)), 0xA2),
    ("wildcard_available", 0x28, m.subscribe(1, ("a", 0), ("$share/g/#", 0)), 0xA2),
    ("subscription_identifiers_available", 0x29, m.subscribe(1, ("a", 0), properties=m.identifier(1)), 0xA1),
    ("shared_available", 0x2A, m.subscribe(1, ("$share/g/a", 0)), 0x9E),
]  # fmt: skip


@edge(24)
@pytest.mark.parametrize(("setting", "property", "packet", "code"), UNAVAILABLE)
def test_subscriptions_that_are_unavailable(
    broker_harness: Any, setting: str, property: int, packet: bytes, code: int
) -> None:
    harness = broker_harness(config={"broker": {setting: False}})
    client = in_memory(harness).connect()
    assert bytes((property, 0)) in client.accepted()
    client.send(packet).refused(code)
    join(harness).subscribe(("a", 0))


@edge(24)
def test_one_request_may_be_refused_with_such_a_code(broker_harness: Any) -> None:
    class Picky(Plugin):
        @hookimpl
        def authorize(self, client: Any, action: Any, topic: str) -> Any:
            return Deny(ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED) if "#" in topic else None

    client = join(broker_harness([Picky]))
    client.send(m.subscribe(1, ("a", 0), ("#", 0)))
    client.expect(m.suback(1, 0, 0xA2))


@statement("MQTT311-3.8.3-2")
def test_wildcards_unavailable_in_3(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"wildcard_available": False}})
    client = join(harness, "c", 4)
    client.send(m.subscribe(1, ("a/#", 1), ("a/b", 1), ("+", 1), level=4))
    client.expect(m.suback(1, 0x80, 1, 0x80, level=4))
    client.publish("a/b", b"once")
    client.expect(m.publish("a/b", b"once", level=4))


# --- topic aliases from the client --------------------------------------------------------------------------------------


@statement("MQTT-3.3.2-12")
@edge(22)
def test_every_alias_that_was_offered(harness: Harness) -> None:
    client = in_memory(harness).connect()
    assert m.alias_maximum(64) in client.accepted()
    client.subscribe(("#", 0))
    for number in (1, 2, 63, 64):
        client.publish(f"t/{number}", b"1", properties=m.alias(number))
        client.publish("", b"2", properties=m.alias(number))
        client.expect(m.publish(f"t/{number}", b"1"), m.publish(f"t/{number}", b"2"))
    client.publish("other", b"3", properties=m.alias(64))  # assigns the alias to another topic
    client.publish("", b"4", properties=m.alias(64))
    client.expect(m.publish("other", b"3"), m.publish("other", b"4"))


@statement("MQTT-3.3.2-8", "MQTT-3.3.2-9", "MQTT-3.2.2-17")
@edge(22)
@pytest.mark.parametrize("number", [0, 65, 65535])
@pytest.mark.parametrize("topic", ["t", ""])
def test_aliases_out_of_range(harness: Harness, number: int, topic: str) -> None:
    join(harness).send(m.publish(topic, b"x", properties=m.alias(number))).refused(0x94)


@statement("MQTT-3.2.2-18")
@edge(22)
def test_no_aliases_offered(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"topic_alias_maximum": 0}})
    client = in_memory(harness).connect()
    assert not [one for one in client.accepted() if one[0] == 0x22]
    client.publish("t", b"x", properties=m.alias(1))
    client.refused(0x94)


@statement("MQTT-3.3.2-7", "MQTT-4.7.3-1")
@edge(22)
def test_unknown_alias_and_no_topic(harness: Harness) -> None:
    join(harness).send(m.publish("", b"x", properties=m.alias(1))).refused(0x82)
    join(harness).send(m.publish("", b"x")).refused(0x82)
    # Aliases end with the connection, even if the session continues.
    keep: dict[str, Any] = {"clean": False, "properties": m.session_expiry(100)}
    client = join(harness, "d", **keep)
    client.publish("t", b"x", properties=m.alias(1))
    client.close()
    client = join(harness, "d", present=True, **keep)
    client.publish("", b"x", properties=m.alias(1))
    client.refused(0x82)


@statement("MQTT-3.3.2-7")
@edge(22)
def test_aliases_of_two_directions_and_connections_are_independent(harness: Harness) -> None:
    reader = join(harness, "reader", properties=m.alias_maximum(5))
    reader.subscribe(("#", 0))
    one, two = join(harness, "one"), join(harness, "two")
    one.publish("t/one", properties=m.alias(3))
    two.publish("t/two", properties=m.alias(3))
    # The broker assigns its own aliases, with the first message on each topic.
    reader.expect(
        m.publish("t/one", properties=m.alias(1)), m.publish("t/two", properties=m.alias(2))
    )
    one.publish("", b"1", properties=m.alias(3))
    two.publish("", b"2", properties=m.alias(3))
    reader.expect(
        m.publish("", b"1", properties=m.alias(1)), m.publish("", b"2", properties=m.alias(2))
    )
    reader.publish("mine", properties=m.alias(1))
    reader.expect(m.publish("mine", properties=m.alias(3)))
    two.publish("", b"3", properties=m.alias(3))
    reader.expect(m.publish("", b"3", properties=m.alias(2)))


# --- topic aliases from the broker --------------------------------------------------------------------------------------


@statement("MQTT-3.1.2-27", "MQTT-3.3.2-8")
@pytest.mark.parametrize("properties", [b"", m.alias_maximum(0)])
def test_no_aliases_towards_who_offers_none(harness: Harness, properties: bytes) -> None:
    client = join(harness, properties=properties)
    client.subscribe(("#", 0))
    for _ in range(5):
        client.publish("t", b"x", properties=m.alias(7))
        client.expect(m.publish("t", b"x"))


@statement("MQTT-3.1.2-26", "MQTT-3.3.2-8", "MQTT-3.3.2-11")
@pytest.mark.parametrize("most", [1, 3])
def test_our_aliases_are_in_range_and_stand_for_what_was_said(harness: Harness, most: int) -> None:
    client = join(harness, properties=m.alias_maximum(most))
    client.subscribe(("#", 0))
    sender = join(harness, "sender")
    known: dict[bytes, bytes] = {}
    used = 0
    for turn in range(5):
        for name in (b"a", b"b", b"c", b"d"):
            sender.publish(name, bytes((turn,)))
            _, topic, _, properties, payload = client.take_publish()
            aliases = [one for one in properties if one[0] == 0x23]
            if aliases:
                assert 1 <= int.from_bytes(aliases[0][1:], "big") <= most
                if topic:
                    known[aliases[0]] = topic
                else:
                    used += 1
                    topic = known[aliases[0]]
            assert (topic, payload) == (name, bytes((turn,)))
    assert used  # some aliases were used


@statement("MQTT-3.3.2-7", "MQTT-3.1.2-26")
@edge(22)
def test_resent_messages_have_no_alias_of_an_earlier_connection(harness: Harness) -> None:
    keep: dict[str, Any] = {
        "clean": False, "properties": m.session_expiry(100) + m.alias_maximum(5)
    }  # fmt: skip
    client = join(harness, **keep)
    client.subscribe(("t", 1))
    sender = join(harness, "sender")
    for number in range(1, 5):
        sender.publish("t", b"x", 1, number)
    assert any(m.split_publish(frame)[1] == b"" for frame in client.take_frames())
    client.close()
    client = join(harness, present=True, **keep)
    topics = []
    told = set()
    for frame in client.take_frames():
        first, topic, _, properties, _ = m.split_publish(frame)
        assert first == 0x3A
        told |= {one for one in properties if topic}
        assert topic or properties[0] in told
        topics.append(topic)
    assert len(topics) == 4
    assert topics[0] == b"t"


@edge(20, 21)
@LEVELS
def test_a_size_is_the_whole_packets(harness: Harness, level: int) -> None:
    """The maximum packet size applies to the whole packet. MQTT 3.1.1 cannot announce one, but the
    broker's own limit applies.
    """
    client = join(harness, "c", level)
    client.subscribe(("t", 0))
    payload = bytes(1_000_000)
    client.publish("t", payload)
    client.expect(m.publish("t", payload, level=level))
    client.publish("t", bytes(1_048_576))
    client.refused(0x95)
