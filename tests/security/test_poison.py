"""Test poisoned messages: CVE-2017-7653 (mosquitto), CVE-2026-67418 (RabbitMQ), GHSA-52qw-whmv-87c5
(aedes).

Whatever one client publishes, subscribers receive only valid packets and stay connected.
"""

import itertools
from collections.abc import Callable
from typing import Any

import mqtt5
import mqttbytes as m
import pytest
from attacks import HOSTILE_NAMES, at_rest
from byteclient import ByteClient
from bytememory import in_memory, join
from hookmq.mqtt.packets import Pingresp, Publish
from hookmq_testing import Harness
from hookmq_testing.decoder import Decoder
from hypothesis import given
from hypothesis import strategies as st

TEXTS = (
    b"", b"a", b"a/b", "größe".encode(), "\ufeff".encode(), "\U0010ffff".encode(), "\ufffe".encode(), b"\x01\x1f",
    b"a\0b", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x82", b"+", b"a/#", b"$SYS/x", b"/",
    b"//", b"x" * 300,
)  # fmt: skip
NUMBERS = (0, 1, 2, 127, 128, 255, 65535)


def every_property() -> list[bytes]:
    """Return every valid property and some invalid ones, with valid and invalid values."""
    made = [m.payload_format(n) for n in NUMBERS if n < 256]
    made += [
        bytes((kind, n)) for kind in (0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A) for n in (0, 1, 2)
    ]
    made += [
        bytes((kind,)) + n.to_bytes(4, "big") for kind in (0x02, 0x11, 0x18, 0x27) for n in NUMBERS
    ]
    made += [
        bytes((kind,)) + n.to_bytes(2, "big") for kind in (0x13, 0x21, 0x22, 0x23) for n in NUMBERS
    ]
    made += [m.identifier(n) for n in (0, 1, 128, 268_435_455)]
    made += [
        bytes((kind,)) + m.text(t)
        for kind in (0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F)
        for t in TEXTS
    ]
    made += [m.user(a, b) for a, b in itertools.product(TEXTS[:12], TEXTS[:12])]
    made += [bytes((kind,)) for kind in range(256)]
    made += [b"\x26\0\1a", b"\x03\xff\xffa", b"\x0b\x80\x80\x80\x80\x01", b"\x02\0"]
    return made


class Room:
    """Subscribers of each kind, and a marker message that shows whether they are still served."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        v5 = [b"", m.alias_maximum(10), m.receive_maximum(2), m.packet_size(400)]
        self.subscribers = [join(harness, f"five{n}", properties=p) for n, p in enumerate(v5)]
        self.subscribers.append(join(harness, "four", 4))
        self.subscribers.append(join(harness, "three", 3))
        self.decoders = [Decoder(client.level, server=False) for client in self.subscribers]
        for number, client in enumerate(self.subscribers):
            properties = m.identifier(7) if number == 1 else b""
            options = 2 if client.level < 5 else 2 | 8 * (number == 2)
            client.subscribe(("#", options), ("$x/#", options), properties=properties)
        self.marker = join(harness, "marker")
        self.received: list[list[Publish]] = [[] for _ in self.subscribers]

    def attack(self, sender: ByteClient, *packets: bytes) -> None:
        """Send hostile packets."""
        if not sender.wire.closed:
            sender.send(*packets)

    def check(self) -> None:
        """Assert that every subscriber is still connected and received only packets that our decoder and another one
        accept.
        """
        self.marker.publish("marker", b"well")
        for number, client in enumerate(self.subscribers):
            before = len(self.received[number])
            while data := client.take():
                decoder = self.decoders[number]
                found = decoder.feed(data)
                assert decoder.error is None, f"{decoder.error}: {data.hex(' ')}"
                for frame in m.frames(data) if client.level == 5 else ():
                    _, size = mqtt5.read(memoryview(frame))
                    assert size == len(frame)
                answers = []
                for packet in found:
                    if isinstance(packet, Publish):
                        assert packet.topic or packet.properties.topic_alias
                        self.received[number].append(packet)
                        if packet.qos:
                            answer = m.puback if packet.qos == 1 else m.pubrec
                            answers.append(answer(packet.packet_id))
                    elif type(packet).__name__ == "Pubrel":
                        answers.append(m.pubcomp(packet.packet_id))  # type: ignore[union-attr]
                client.send(*answers)
            assert not client.wire.closed
            assert any(p.payload == b"well" for p in self.received[number][before:])
            client.send(m.PINGREQ)
            assert [type(p) for p in self.decoders[number].feed(client.take())] == [Pingresp]


def sender_of(harness: Harness, name: str, level: int = 5) -> ByteClient:
    client = join(harness, name, level)
    client.take()
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_property_and_text(harness: Harness, qos: int) -> None:
    room = Room(harness)
    packets = [m.publish("t", b"x", qos, 1, properties=p) for p in every_property()]
    packets += [m.publish(t, b"x", qos, 1) for t in TEXTS]
    packets += [m.publish(t, b"x", qos, 1, properties=m.alias(1)) for t in TEXTS]
    for number, packet in enumerate(packets):
        sender = sender_of(harness, f"s{number}")
        room.attack(sender, packet)
        sender.close()
        if number % 20 == 0:
            room.check()
    room.check()
    assert len(room.received[0]) > 100


def test_every_text_of_older_clients(harness: Harness) -> None:
    room = Room(harness)
    for level, text, qos in itertools.product((3, 4), TEXTS, (0, 1, 2)):
        sender = sender_of(harness, "s", level)
        room.attack(sender, m.publish(text, b"x", qos, 1, level=level, retain=True))
        sender.close()
        harness.advance(10)
    room.check()
    again = join(harness, "later")  # gets the retained message
    again.subscribe(("#", 2))
    decoder = Decoder(5, server=False)
    assert decoder.feed(again.take())
    assert decoder.error is None


def test_every_will(harness: Harness) -> None:
    """Wills with hostile contents do no harm when they are published, because their contents are
    checked at CONNECT.
    """
    room = Room(harness)
    for number, (text, properties) in enumerate(
        [(t, b"") for t in TEXTS] + [(b"w", p) for p in every_property()]
    ):
        client = in_memory(harness)
        client.connect(
            f"w{number}", will=(text, b"x"), will_properties=properties, will_qos=number % 3
        )
        client.close()
        harness.advance(1)
    harness.advance(100_000)
    room.check()
    assert len(room.received[0]) > 50


def test_hostile_names_everywhere(broker_harness: Callable[..., Harness]) -> None:
    harness = broker_harness(config={"broker": {"text": "tolerant"}})
    room = Room(harness)
    for name in HOSTILE_NAMES:
        sender = in_memory(harness)
        sender.connect(name, username=name[:60])
        topic = name if not set(name) & set("+#") else "t"
        properties = m.user(name, name) + m.content_type(name) + m.response_topic(topic)
        room.attack(sender, m.publish(topic, name.encode(), 1, 1, properties=properties))
        sender.close()
        room.check()
    assert len(room.received[0]) > 2 * len(HOSTILE_NAMES) - 5


PROPERTY = st.sampled_from(every_property()) | st.binary(max_size=12)
STEP = st.tuples(
    st.sampled_from([0, 1]),
    st.integers(0, 255),
    st.sampled_from(TEXTS) | st.binary(max_size=12),
    st.lists(PROPERTY, max_size=3),
    st.binary(max_size=20),
    st.sampled_from(["", "cut", "more", "length"]),
)


@given(st.lists(STEP, max_size=25))
def test_two_senders(steps: list[Any]) -> None:
    """Two clients may send arbitrary packets at once, and reconnect after being disconnected,
    without affecting subscribers.
    """
    with Harness() as harness:
        room = Room(harness)
        senders = [sender_of(harness, "one", 5), sender_of(harness, "two", 4)]
        for which, flags, topic, properties, payload, spoil in steps:
            level = 5 - which
            if senders[which].wire.closed:
                harness.advance(10)
                senders[which] = sender_of(harness, ("one", "two")[which], level)
            data = m.publish(
                topic,
                payload,
                flags >> 1 & 3,
                1 + flags,
                level=level,
                properties=b"".join(properties),
            )
            if spoil == "cut":
                data = data[: len(data) // 2]
            elif spoil == "more":
                data += payload
            elif spoil == "length":
                data = data[:1] + m.varint(flags) + data[2:]
            first = 0x30 | flags & 0x0F if flags < 200 else flags
            room.attack(senders[which], bytes((first,)) + data[1:])
        room.check()
        for sender in senders:
            sender.close()
        assert at_rest(harness)["fan_outs"] == 0
