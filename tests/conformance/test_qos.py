"""Test chapters 4.3 to 4.6 and packets 3.4 to 3.7: acknowledgements, QoS exchanges across
connections, and order.
"""

from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from bytememory import LEVELS, join
from hookmq_testing import Harness
from statements import edge, statement


def keep(level: int) -> dict[str, Any]:
    return {
        "level": level, "clean": False, "properties": m.session_expiry(1000) if level == 5 else b""
    }  # fmt: skip


def back(harness: Harness, level: int) -> ByteClient:
    return join(harness, "c", present=True, **keep(level))


def reader(harness: Harness, level: int, qos: int) -> ByteClient:
    client = join(harness, "c", **keep(level))
    client.subscribe(("t", qos))
    return client


# --- from us to the client ----------------------------------------------------------------------------------------------


@statement("MQTT-4.3.1-1", "MQTT311-4.3.1-1")
@LEVELS
def test_qos_0_is_sent_once(harness: Harness, level: int) -> None:
    client = reader(harness, level, 0)
    join(harness, "sender", level).publish("t", b"x", 2, 1)
    client.expect(m.publish("t", b"x", level=level))
    client.close()
    back(harness, level).expect()


@statement(
    "MQTT-4.3.2-1", "MQTT-4.3.2-2", "MQTT-4.3.2-3", "MQTT-4.4.0-1", "MQTT311-4.3.2-1", "MQTT311-4.4.0-1",
    "MQTT311-2.3.1-4",
)  # fmt: skip
@edge(43)
@LEVELS
def test_qos_1_until_puback(harness: Harness, level: int) -> None:
    client = reader(harness, level, 1)
    sender = join(harness, "sender", level)
    sender.publish("t", b"1", 1, 1)
    sender.publish("t", b"2", 1, 2)
    one, two = (m.publish("t", bytes((48 + n,)), 1, n, level=level) for n in (1, 2))
    client.expect(one, two)
    harness.advance(100)
    client.expect()  # not again on a living connection
    client.send(m.puback(1))
    client.close()
    client = back(harness, level)
    client.expect(m.publish("t", b"2", 1, 2, level=level, dup=True))
    client.send(m.puback(2))
    client.close()
    back(harness, level).expect()


@statement(
    "MQTT-4.3.3-1", "MQTT-4.3.3-2", "MQTT-4.3.3-3", "MQTT-4.3.3-4", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-4.4.0-1",
    "MQTT311-4.3.3-1", "MQTT311-4.4.0-1",
)  # fmt: skip
@edge(43)
@LEVELS
def test_qos_2_until_pubcomp(harness: Harness, level: int) -> None:
    client = reader(harness, level, 2)
    join(harness, "sender", level).publish("t", b"x", 2, 1)
    client.expect(m.publish("t", b"x", 2, 1, level=level))
    client.close()
    client = back(harness, level)
    client.expect(m.publish("t", b"x", 2, 1, level=level, dup=True))
    client.send(m.pubrec(1))
    client.expect(m.pubrel(1))
    harness.advance(100)
    client.expect()
    for _ in range(2):  # PUBLISH never again, PUBREL until PUBCOMP
        client.close()
        client = back(harness, level)
        client.expect(m.pubrel(1))
    client.send(m.pubcomp(1))
    client.expect()
    client.close()
    back(harness, level).expect()


@edge(43)
@statement("MQTT-4.4.0-1", "MQTT311-4.4.0-1", "MQTT311-4.6.0-6")
@LEVELS
def test_everything_is_sent_again_in_order(harness: Harness, level: int) -> None:
    client = reader(harness, level, 2)
    sender = join(harness, "sender", level)
    for number in range(1, 6):
        sender.publish("t", bytes((number,)), 1 + number % 2, number)
    client.take()
    client.send(m.pubrec(3))
    client.expect(m.pubrel(3))
    client.send(m.puback(2))
    client.close()
    sender.publish("t", b"\x06", 1, 6)
    back(harness, level).expect(
        m.publish("t", b"\x01", 2, 1, level=level, dup=True),
        m.pubrel(3),
        m.publish("t", b"\x04", 1, 4, level=level, dup=True),
        m.publish("t", b"\x05", 2, 5, level=level, dup=True),
        m.publish("t", b"\x06", 1, 6, level=level),
    )


@statement("MQTT-4.4.0-1")
@edge(43)
def test_no_repetition_on_a_living_connection(broker_harness: Any) -> None:
    """The broker retransmits nothing on an open MQTT 5 connection, even if retransmission is configured for MQTT 3."""
    harness = broker_harness(config={"session": {"retry_interval": 10.0}})
    client = reader(harness, 5, 2)
    join(harness, "sender").publish("t", b"x", 2, 1)
    client.expect(m.publish("t", b"x", 2, 1))
    harness.advance(1000)
    client.expect()
    client.send(m.pubrec(1))
    client.expect(m.pubrel(1))
    harness.advance(1000)
    client.expect()


@statement("MQTT-4.3.3-4", "MQTT-4.4.0-2")
@edge(40)
@pytest.mark.parametrize("code", [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99])
def test_a_pubrec_that_refuses(harness: Harness, code: int) -> None:
    client = reader(harness, 5, 2)
    sender = join(harness, "sender")
    sender.publish("t", b"x", 2, 1)
    client.expect(m.publish("t", b"x", 2, 1))
    client.send(m.pubrec(1, code))
    client.expect()  # no PUBREL
    # As if 65,534 other messages had followed: the id is free.
    harness.broker.sessions["c"].last_packet_id = 0
    sender.publish("t", b"y", 2, 2)
    client.expect(m.publish("t", b"y", 2, 1))
    client.send(m.pubrec(1, code))
    client.close()
    back(harness, 5).expect()


@statement("MQTT-4.4.0-2")
@pytest.mark.parametrize("code", [0x80, 0x87, 0x99])
def test_a_puback_that_refuses(harness: Harness, code: int) -> None:
    client = reader(harness, 5, 1)
    join(harness, "sender").publish("t", b"x", 1, 1)
    client.expect(m.publish("t", b"x", 1, 1))
    client.send(m.puback(1, code))
    client.close()
    back(harness, 5).expect()


@statement("MQTT-4.3.3-4")
@pytest.mark.parametrize(
    "pubrec", [m.pubrec(1), m.pubrec(1, 0), m.pubrec(1, 0x10), m.pubrec(1, 0, m.user("a", "b"))]
)
def test_a_pubrec_that_does_not_refuse(harness: Harness, pubrec: bytes) -> None:
    client = reader(harness, 5, 2)
    join(harness, "sender").publish("t", b"x", 2, 1)
    client.expect(m.publish("t", b"x", 2, 1))
    client.send(pubrec)
    client.expect(m.pubrel(1))


@statement("MQTT-4.3.3-7", "MQTT-4.3.3-13")
@edge(28)
def test_a_message_that_was_sent_does_not_expire(harness: Harness) -> None:
    client = reader(harness, 5, 2)
    properties = m.expiry(5)
    join(harness, "sender").publish("t", b"x", 2, 1, properties=properties)
    client.expect(m.publish("t", b"x", 2, 1, properties=properties))
    client.close()
    harness.advance(100)
    client = back(harness, 5)
    first, topic, packet_id, _, payload = client.take_publish()
    assert (first, topic, packet_id, payload) == (0x3C, b"t", 1, b"x")
    client.send(m.pubrec(1))
    client.expect(m.pubrel(1))
    client.close()
    harness.advance(100)
    client = back(harness, 5)
    client.expect(m.pubrel(1))
    client.send(m.pubcomp(1))
    client.expect()


@statement("MQTT-4.3.3-13")
def test_the_senders_exchange_is_not_cut_short_by_expiry(harness: Harness) -> None:
    sender = join(harness, "sender")
    reader(harness, 5, 0)
    sender.publish("t", b"x", 2, 1, properties=m.expiry(1))
    sender.expect(m.pubrec(1))
    harness.advance(10)
    sender.send(m.pubrel(1))
    sender.expect(m.pubcomp(1))


@edge(41)
@statement("MQTT-3.6.2-1", "MQTT-3.7.2-1", "MQTT-4.3.3-11", "MQTT311-4.3.3-2")
@LEVELS
def test_unknown_ids_are_no_reason_to_disconnect(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    unknown = 0x92 if level == 5 else None
    client.send(m.pubrel(77))
    client.expect(m.pubcomp(77, unknown))
    client.send(m.pubrec(78))
    client.expect(m.pubrel(78, unknown))
    client.send(m.puback(79), m.pubcomp(80))
    client.expect()


# --- from the client to us ----------------------------------------------------------------------------------------------


@statement("MQTT-4.3.2-4", "MQTT-4.3.2-5", "MQTT311-4.3.2-2")
@edge(42)
@LEVELS
def test_qos_1_with_the_same_id_is_a_new_message(harness: Harness, level: int) -> None:
    client = reader(harness, level, 0)
    sender = join(harness, "sender", level)
    for dup in (False, True, True):
        sender.publish("t", b"x", 1, 5, dup=dup)
        sender.expect(m.puback(5))
        client.expect(m.publish("t", b"x", level=level))


@statement(
    "MQTT-4.3.3-8",
    "MQTT-4.3.3-10",
    "MQTT-4.3.3-11",
    "MQTT-4.3.3-12",
    "MQTT311-4.3.3-2",
    "MQTT-2.2.1-5",
)
@edge(42)
@LEVELS
@pytest.mark.parametrize("dup", [False, True])
def test_qos_2_is_delivered_once(harness: Harness, level: int, dup: bool) -> None:
    client = reader(harness, level, 0)
    sender = join(harness, "sender", level)
    for _ in range(2):  # the second time, it is a new message
        sender.publish("t", b"x", 2, 5)
        sender.expect(m.pubrec(5))
        client.expect(m.publish("t", b"x", level=level))
        for _ in range(2):
            sender.publish("t", b"x", 2, 5, dup=dup)
            sender.expect(m.pubrec(5))
            client.expect()
        sender.send(m.pubrel(5))
        sender.expect(m.pubcomp(5))
    sender.send(m.pubrel(5))  # a repeated PUBREL: the id is now unknown
    sender.expect(m.pubcomp(5, 0x92 if level == 5 else None))


@statement("MQTT-4.3.3-10", "MQTT-3.1.2-5", "MQTT311-4.3.3-2", "MQTT311-3.1.2-4")
@edge(42)
@LEVELS
def test_qos_2_is_delivered_once_over_two_connections(harness: Harness, level: int) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("t", 0))
    sender = join(harness, "c", **keep(level))
    sender.publish("t", b"x", 2, 5)
    watcher.expect(m.publish("t", b"x"))
    sender.close()
    sender = back(harness, level)
    sender.publish("t", b"x", 2, 5, dup=True)
    sender.expect(m.pubrec(5))
    watcher.expect()
    sender.close()
    sender = back(harness, level)
    sender.send(m.pubrel(5))
    sender.expect(m.pubcomp(5))


@statement("MQTT-4.3.3-9")
@edge(40)
def test_an_id_refused_is_free(broker_harness: Any) -> None:
    from hookmq.plugin import Deny, Plugin, hookimpl

    class Censor(Plugin):
        @hookimpl
        def on_publish(self, client: Any, message: Any) -> Any:
            return Deny() if message.payload == b"bad" else None

    harness = broker_harness([Censor])
    client = reader(harness, 5, 0)
    sender = join(harness, "sender")
    sender.publish("t", b"bad", 2, 5)
    sender.expect(m.pubrec(5, 0x87))
    sender.publish("t", b"good", 2, 5)
    sender.expect(m.pubrec(5))
    client.expect(m.publish("t", b"good"))


BAD_CODES = [
    pytest.param(m.puback(1, 0x01), marks=statement("MQTT-3.4.2-1")),
    pytest.param(m.puback(1, 0x92), marks=statement("MQTT-3.4.2-1")),
    pytest.param(m.pubrec(1, 0x01), marks=statement("MQTT-3.5.2-1")),
    pytest.param(m.pubrec(1, 0x92), marks=statement("MQTT-3.5.2-1")),
    pytest.param(m.pubrel(1, 0x10), marks=statement("MQTT-3.6.2-1")),
    pytest.param(m.pubrel(1, 0x80), marks=statement("MQTT-3.6.2-1")),
    pytest.param(m.pubcomp(1, 0x10), marks=statement("MQTT-3.7.2-1")),
    pytest.param(m.pubcomp(1, 0x87), marks=statement("MQTT-3.7.2-1")),
]


@statement("MQTT-4.13.1-1")
@pytest.mark.parametrize("packet", BAD_CODES)
def test_codes_out_of_place(harness: Harness, packet: bytes) -> None:
    join(harness).send(packet).refused(0x81, 0x82)


@edge(44)
@pytest.mark.parametrize("make", [m.puback, m.pubrec, m.pubrel, m.pubcomp])
def test_short_forms(harness: Harness, make: Any) -> None:
    first = make(9)[0]
    for packet in (make(9), make(9, 0), make(9, 0) + b"", m.packet(first, b"\x00\x09\x00\x00")):
        client = join(harness)
        client.send(packet, m.PINGREQ)
        assert client.take_frames()[-1] == m.PINGRESP
    for packet in (
        m.packet(first, b"\x00"),
        m.packet(first, b""),
        m.packet(first, b"\x00\x09\x00\x02\x1f"),
    ):
        join(harness).send(packet).refused(0x81)


# --- order and receipt --------------------------------------------------------------------------------------------------


@statement("MQTT-4.6.0-5", "MQTT-4.6.0-6", "MQTT311-4.6.0-5", "MQTT311-4.6.0-6")
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_keep_their_order(harness: Harness, level: int, qos: int) -> None:
    client = reader(harness, level, qos)
    sender = join(harness, "sender", level)
    packets = [
        m.publish("t", bytes((number,)), qos, number, level=level) for number in range(1, 101)
    ]
    sender.send(*packets[:50])
    for packet in packets[50:]:
        sender.send(packet)
    found = [m.split_publish(frame, level)[4] for frame in client.take_frames()]
    assert found == [bytes((number,)) for number in range(1, 101)]
    answers = sender.take_frames()
    make = {0: None, 1: m.puback, 2: m.pubrec}[qos]
    assert answers == ([make(number) for number in range(1, 101)] if make else [])


@statement("MQTT-4.6.0-5", "MQTT311-4.6.0-6")
@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
def test_order_holds_for_what_was_queued(harness: Harness, level: int, qos: int) -> None:
    client = reader(harness, level, qos)
    client.close()
    sender = join(harness, "sender", level)
    for number in range(1, 21):
        sender.publish("t", bytes((number,)), qos, number)
    client = back(harness, level)
    sender.publish("t", b"\x15", qos, 21)
    found = [m.split_publish(frame, level)[4] for frame in client.take_frames()]
    assert found == [bytes((number,)) for number in range(1, 22)]


@statement("MQTT311-4.6.0-6", "MQTT-4.6.0-5")
@LEVELS
def test_pubrels_keep_the_order_of_pubrecs(harness: Harness, level: int) -> None:
    client = reader(harness, level, 2)
    sender = join(harness, "sender", level)
    for number in range(1, 5):
        sender.publish("t", b"", 2, number)
    client.take()
    client.send(*map(m.pubrec, (2, 1, 4, 3)))
    client.expect(*map(m.pubrel, (2, 1, 4, 3)))


@statement("MQTT-4.5.0-1", "MQTT311-4.5.0-1", "MQTT311-3.1.2-5")
@LEVELS
def test_every_session_that_matches_gets_the_message(harness: Harness, level: int) -> None:
    names = [f"reader{number}" for number in range(4)]
    for number, name in enumerate(names):
        client = join(harness, name, **keep(level))
        client.subscribe(("t" if number % 2 else "#", 1))
        client.close()
    join(harness, "other", **keep(level)).subscribe(("u", 1))
    join(harness, "sender", level).publish("t", b"x", 1, 1)
    for name in names:
        client = join(harness, name, present=True, **keep(level))
        client.expect(m.publish("t", b"x", 1, 1, level=level))
    join(harness, "other", present=True, **keep(level)).expect()
