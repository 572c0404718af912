"""Test that the fast path of `Connection._read` is only an optimization. The output does not reveal whether a packet
took it.

Each script runs against three brokers. The first is unchanged. The second caches nothing (``authz_cache: 0``), so every
PUBLISH takes the slow path. The third has no fast path at all (``shortcuts``). Each client must receive the same bytes
from all three. Without a fast path for acknowledgements, or with fan-out in slices, a PUBLISH may appear at a different
position among packets of other types.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.framing import frame
from hookmq.mqtt.packets import (
    Packet,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
)
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq_testing import DurableStore, Harness, MemoryClient
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

VERSIONS = (3, 4, 5)


@dataclass
class Play:
    """One broker and its clients. `heard` holds the bytes that each client received on each of its connections."""

    config: dict[str, dict[str, Any]]
    slow: bool = False
    clients: list[MemoryClient] = field(default_factory=list)
    heard: list[list[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        paged = self.config.get("session", {}).get("queue_page") == 1
        self.harness = Harness(config=self.config, store=DurableStore() if paged else None)
        self.harness.broker.state.shortcuts = not self.slow

    def connect(self, **options: Any) -> MemoryClient:
        client = self.harness.connect(f"c{len(self.clients)}", **options)
        self.clients.append(client)
        self.heard.append([])
        return client

    def reconnect(self, slot: int) -> None:
        client = self.clients[slot]
        if not client.wire.closed:
            client.resume()
            client.drop()
        self.heard[slot].append(client.raw_received)
        client.reconnect()

    def end(self) -> list[list[bytes]]:
        """Return everything received, after asserting that the broker logged no error."""
        for client in self.clients:
            client.resume()
        for client, heard in zip(self.clients, self.heard, strict=True):
            heard.append(client.raw_received)
        for client in self.clients:
            client.drop()
        assert self.harness.broker.state.writes.dirty == []
        self.harness.close()
        return self.heard

    def counted(self) -> dict[str, int]:
        """Return the counters that do not depend on which path a PUBLISH took."""
        found = self.harness.metrics.snapshot()
        return {name: value for name, value in found.items() if name not in _HOW}


_HOW = ("authz_cache_hits", "authz_cache_misses", "writes", "packets_received")
"""Counters that depend on the code path. They include the packets that follow the one that ended the connection."""


def by_kind(data: bytes) -> dict[int, list[bytes]]:
    """Return the packets in `data`, grouped by type. Packets stay in order within each group."""
    kinds: dict[int, list[bytes]] = {}
    pos = 0
    while pos < len(data):
        framed = frame(data, pos)
        assert framed is not None
        kinds.setdefault(data[pos] >> 4, []).append(data[pos : framed[1]])
        pos = framed[1]
    return kinds


def compare(
    script: Callable[[Play], None],
    config: dict[str, dict[str, Any]] | None = None,
    exact: bool = True,
) -> list[list[bytes]]:
    """Run `script` against the three brokers and compare the results. Return what the clients received.

    Pass `exact=False` for shared subscriptions. Which member receives a message depends on timing, so the third broker
    is omitted.
    """
    config = dict(config or {})
    plain = Play(config)
    forgetful = Play({**config, "broker": {**config.get("broker", {}), "authz_cache": 0}})
    slow = Play(config, slow=True)
    plays = [plain, forgetful, slow] if exact else [plain, forgetful]
    for play in plays:
        script(play)
    heard = plain.end()
    assert plain.harness.broker.state.remembered == 0
    known = [[by_kind(data) for data in one] for one in heard]
    other = forgetful.end()
    if "fan_out_batch" in config.get("broker", {}):
        # An acknowledgement may leave before the next slice or after it.
        assert [[by_kind(data) for data in one] for one in other] == known
    else:
        assert other == heard
    assert forgetful.counted() == plain.counted()
    if exact:
        assert [[by_kind(data) for data in one] for one in slow.end()] == known
        assert slow.counted() == plain.counted()
    return heard


# --- scripts by hand ----------------------------------------------------------------------------------------------------


def cast(play: Play, publisher: int) -> MemoryClient:
    """Connect subscribers of every version and QoS to all topics, and a publisher whose topics the fast path already
    knows. Return the publisher.
    """
    for version in VERSIONS:
        for qos in (0, 1, 2):
            play.connect(version=version).subscribe("#", qos)
    client = play.connect(version=publisher, auto_ack=False)
    learn(client)
    return client


def learn(client: MemoryClient) -> None:
    for qos in (0, 1, 2):
        for topic in ("t", "t/x", "é"):
            client.publish(f"{topic}{qos}", b"learn", qos, expect=0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_plain(version: int, qos: int) -> None:
    """Messages are forwarded correctly between all versions and QoS levels, with lengths encoded in one, two and three
    bytes.
    """

    def script(play: Play) -> None:
        client = cast(play, version)
        for size in (0, 1, 110, 125, 126, 127, 128, 16370, 16383, 20000):
            for topic in ("t", "t/x", "é"):
                packet_id = 1 + size if qos else 0
                packet = Publish(f"{topic}{qos}", b"x" * size, qos, packet_id=packet_id)
                client.send(packet, packet)
                client.send(Pubrel(packet_id)) if qos == 2 else None

    for heard in compare(script)[:9]:
        assert b"x" * 20000 in heard[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_variants_of_one_topic(version: int) -> None:
    """RETAIN, DUP, properties and QoS may change between messages on one topic."""
    variants = [
        Publish("t", b"x", qos, retain, dup, 9 if qos else 0, properties)
        for qos in (0, 1, 2)
        for retain in (False, True)
        for dup in (False, True)[: 1 + bool(qos)]
        for properties in (
            EMPTY,
            Properties(content_type="x"),
            Properties(message_expiry_interval=10),
            Properties(topic_alias=3),
        )[: 4 if version == 5 else 1]
    ]

    def script(play: Play) -> None:
        client = cast(play, version)
        for first in variants:
            for second in variants:
                client.send(first, second, Pubrel(9))

    compare(script)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mixed", [False, True])
def test_runs(version: int, mixed: bool) -> None:
    """Identical messages may be repeated in one segment, interspersed with similar ones.

    The similar messages differ in topic suffix, property section, first byte or length. Some subscribers do not read.
    """
    likes: list[Packet] = [
        Publish("t", b""),
        Publish("t", b"x" * 130),
        Publish("t", b"x", 1, packet_id=5),
        Publish("t", b"x", retain=True),
        Publish("t/", b"x"),
        Publish("u", b"x"),
        Pingreq(),
        *(
            Publish("t", b"x", qos, packet_id=5 * qos, properties=properties)
            for properties in (
                Properties(content_type="c"),
                Properties(content_type="d"),
                Properties(message_expiry_interval=10),
                Properties(user_property=(("k", "v" * 100),)),
                Properties(correlation_data=b"x" * 200),
            )
            for qos in (0, 1)
            if version == 5
        ),
    ]

    def script(play: Play) -> None:
        for high_water in (1, 1, 65536, 65536):
            play.connect(version=version, high_water=high_water).subscribe("#")
        if mixed:
            play.connect(version=9 - max(version, 4)).subscribe("#")
        client = play.connect(version=version)
        for first in likes:
            for second in likes:
                for slow in play.clients[:2]:
                    slow.pause()
                client.send(first, second, first)
                client.send(first, first, first, second, first, second, second, second, first)
                for slow in play.clients[:2]:
                    slow.resume()

    heard = compare(script)
    assert all(len(one[0]) > 10_000 for one in heard[:4])


SECTIONS = {
    "none": b"\x00",
    "content type": b"\x04\x03\x00\x01c",
    "payload format 0": b"\x02\x01\x00",
    "payload format 1": b"\x02\x01\x01",
    "expiry": b"\x05\x02\x00\x00\x00\x09",
    "expiry 0": b"\x05\x02\x00\x00\x00\x00",
    "alias": b"\x03\x23\x00\x01",
    "user property": b"\x07\x26\x00\x01k\x00\x01v",
    "user property twice": b"\x0e\x26\x00\x01k\x00\x01v\x26\x00\x01k\x00\x01v",
    "response topic": b"\x06\x08\x00\x03a/b",
    "correlation data": b"\x05\x09\x00\x02\x00\xff",
}
WRONG_SECTIONS = {
    "subscription identifier": b"\x02\x0b\x01",
    "response topic with a wildcard": b"\x06\x08\x00\x03a/#",
    "content type not UTF-8": b"\x04\x03\x00\x01\xff",
    "payload format 2": b"\x02\x01\x02",
    "twice": b"\x04\x01\x00\x01\x00",
    "alias 0": b"\x03\x23\x00\x00",
    "alias too high": b"\x03\x23\x01\x00",
    "unknown": b"\x02\x7f\x00",
    "of another packet": b"\x05\x11\x00\x00\x00\x01",
    "cut short": b"\x03\x03\x00\x05",
    "beyond the packet": b"\x7f\x03\x00\x01c",
    "over-long": b"\x80\x00",
}


def with_section(section: bytes, payload: bytes, qos: int) -> bytes:
    body = f"\0\x02t{qos}".encode() + (b"\x00\x05" if qos else b"") + section + payload
    return bytes((0x30 | qos << 1, len(body))) + body


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("check", [False, True])
def test_property_sections(qos: int, check: bool) -> None:
    """Any property section may follow any other, with or without pauses. Invalid sections may follow valid ones."""
    sections = list(SECTIONS.values())

    def script(play: Play) -> None:
        client = cast(play, 5)
        kept = play.connect(version=5, clean_start=False, session_expiry_interval=100)
        kept.subscribe("#", 2)
        for shift in range(len(sections)):
            for first, second in zip(sections, sections[shift:] + sections[:shift], strict=True):
                client.raw(with_section(first, b"x", qos) + with_section(second, b"\xff", qos))
                client.send(Pubrel(5))
            play.harness.advance(3)
        assert not client.closed
        for name, wrong in WRONG_SECTIONS.items():
            client.raw(with_section(sections[1], b"x", qos) + with_section(wrong, b"x", qos))
            assert client.closed, name
            play.reconnect(9)
            for section in sections[:2]:
                client.raw(with_section(section, b"x", qos))

    heard = compare(script, {"broker": {"check_payload_format": check}})
    assert all(len(one[0]) > 500 for one in heard[:9])


TAILS = {
    "length 0": b"\x30\x00",
    "length 1": b"\x30\x01\x00",
    "length 2": b"\x30\x02\x00\x01",
    "length 2, empty topic": b"\x30\x02\x00\x00",
    "length 3": b"\x30\x03\x00\x02t",
    "length 3, whole": b"\x30\x03\x00\x01t",
    "topic crosses the end": b"\x30\x04\x00\x04t/x0\x00",
    "topic crosses the end by one": b"\x30\x05\x00\x04t/x0",
    "topic ends with the packet": b"\x30\x06\x00\x04t/x0\x00",
    "QoS 1, no id": b"\x32\x06\x00\x04t/x1\x00\x01\x00",
    "QoS 1, half an id": b"\x32\x07\x00\x04t/x1\x00\x01\x00",
    "QoS 1, no properties": b"\x32\x08\x00\x04t/x1\x00\x01\x00",
    "QoS 1, id 0": b"\x32\x09\x00\x04t/x1\x00\x00\x00",
    "QoS 2, no id": b"\x34\x06\x00\x04t/x2\x00\x01\x00",
    "QoS 2, id 0": b"\x34\x09\x00\x04t/x2\x00\x00\x00",
    "QoS 3": b"\x36\x09\x00\x04t/x1\x00\x01\x00",
    "DUP with QoS 0": b"\x38\x07\x00\x04t/x0\x00",
    "over-long length": b"\x30\x87\x00\x00\x04t/x0\x00",
    "length of five bytes": b"\x30\x87\x80\x80\x80\x00\x00\x04t/x0\x00",
    "too large": b"\x30\xff\xff\x7f\x00\x04t/x0\x00",
    "properties cut short": b"\x30\x07\x00\x04t/x0\x05",
    "property unknown": b"\x30\x09\x00\x04t/x0\x02\x7f\x00",
    "over-long properties": b"\x30\x08\x00\x04t/x0\x80\x00",
    "wildcard": b"\x30\x05\x00\x03t/+",
    "not UTF-8": b"\x30\x06\x00\x03\xed\xa0\x80\x00",
    "PUBACK flags": b"\x41\x02\x00\x01",
    "PUBREC flags": b"\x52\x02\x00\x01",
    "PUBREL flags": b"\x60\x02\x00\x01",
    "PUBCOMP flags": b"\x72\x02\x00\x01",
    "PUBACK of id 0": b"\x40\x02\x00\x00",
    "PUBREL of id 0": b"\x62\x02\x00\x00",
    "unknown ids": b"\x40\x02\x77\x77\x50\x02\x77\x77\x62\x02\x77\x77\x70\x02\x77\x77",
    "ping": b"\xc0\x00",
    "disconnect": b"\xe0\x00",
    "disconnect and more": b"\xe0\x00\x30\x07\x00\x04t/x0\x00",
    "CONNECT": b"\x10\x00",
    "reserved": b"\x00\x00",
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_behind_good_ones(version: int, tail: bytes) -> None:
    """In one segment, any packets may come between messages that the fast path knows."""

    def script(play: Play) -> None:
        client = cast(play, version)
        good = [Publish(f"t/x{q}", b"good", q, packet_id=5 if q else 0) for q in (0, 1, 2)]
        data = b"".join(encode(one, version) for one in good)
        client.raw(data + tail + data)
        if not client.closed:
            client.send(Pubrel(5), Pingreq())

    compare(script)


@pytest.mark.parametrize("version", VERSIONS)
def test_split_at_every_byte(version: int) -> None:
    """A stream of packets may be split into segments at every position."""
    packets: list[Packet] = [
        Publish("t/x0", b"a" * 3),
        Publish("t/x1", b"", 1, packet_id=258),
        Publish("é2", b"b" * 130, 2, packet_id=3),
        Pubrel(3),
        Publish("t0", b""),
        Pingreq(),
        Publish("é0", b"end"),
    ]
    data = b"".join(encode(one, version) for one in packets)

    def script(play: Play) -> None:
        client = cast(play, version)
        for cut in range(len(data) + 1):
            client.raw(data[:cut])
            client.raw(data[cut:])
        for cut in range(len(data) - 1):
            client.raw(data[:cut])
            client.raw(data[cut : cut + 1])
            client.raw(data[cut + 1 :])
        for byte in data:
            client.raw(bytes((byte,)))

    heard = compare(script)
    assert all(len(one[0]) > 40_000 for one in heard[:9])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_routes_change_between_messages(version: int, qos: int) -> None:
    """Between two messages, a subscription may be created, replaced, ended, taken over or lost, in one turn
    or several.
    """

    def script(play: Play) -> None:
        publisher = play.connect(version=version)
        first = play.connect(version=4)
        second = play.connect(version=5)
        number = 0

        def say() -> None:
            nonlocal number
            for _ in range(2):
                number += 1
                publisher.publish("a/b", b"%d" % number, qos, expect=None)

        for step in range(2):
            with play.harness.together() if step else nullcontext():
                say()
                first.send_subscribe("a/b", 1)
                say()
                second.send_subscribe("a/+", 2, identifier=3)
                say()
                second.send_subscribe("a/+", 0)
                say()
                first.send_subscribe("#", 2)
                say()
                publisher.send_subscribe("a/#", 1)
                say()
                first.send_unsubscribe(["#", "a/b"])
                say()
                publisher.send_unsubscribe("a/#")
                say()
            play.reconnect(2)
            say()
            play.harness.connect("c1", 5, clean_start=False).subscribe("a/b")
            say()
            play.reconnect(0)

    compare(script)


@pytest.mark.parametrize("policy", ["newest", "oldest", "disconnect"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_slow_readers(policy: str, qos: int, kept: bool) -> None:
    """Under every drop policy, subscribers may stop reading. This includes the publisher itself."""
    config: dict[str, dict[str, Any]] = {
        "session": {"queue_drop": policy, "queue_messages": 3},
        "broker": {"max_write_buffer": 4096},
    }

    def script(play: Play) -> None:
        more: dict[str, Any] = {"high_water": 60}
        if kept:
            more |= {"clean_start": False, "session_expiry_interval": 100}
        own = play.connect(version=5, **more)
        clients = [own, play.connect(version=4, high_water=60), play.connect(version=5, **more)]
        for client in clients:
            client.subscribe("t", qos)
        for round_ in range(3):
            own.publish("t", b"before", qos)
            for client in clients[: round_ + 1]:
                client.pause()
            own.send(
                *(
                    Publish("t", b"%d" % n + b"x" * 30, qos, packet_id=n + 1 if qos else 0)
                    for n in range(12)
                )
            )
            for client in clients:
                client.resume()
            for slot, client in enumerate(clients):
                if client.closed:
                    play.reconnect(slot)
                    client.subscribe("t", qos)

    compare(script, config)


@pytest.mark.parametrize("publisher", VERSIONS)
@pytest.mark.parametrize("subscriber", VERSIONS)
@pytest.mark.parametrize("acknowledges", [False, True])
def test_one_receiver_that_is_kept(publisher: int, subscriber: int, acknowledges: bool) -> None:
    """QoS 1 messages reach a durable session.

    Its client may acknowledge them or not, be slow or offline, have no room, change its subscription's QoS, or
    reconnect.
    """

    def script(play: Play) -> None:
        more: dict[str, Any] = {"clean_start": False, "high_water": 60, "auto_ack": acknowledges}
        if subscriber == 5:
            more |= {"session_expiry_interval": 100, "receive_maximum": 20}
        one = play.connect(version=subscriber, **more)
        one.subscribe("t", 1)
        other = play.connect(version=publisher, auto_ack=False)
        sent = 0

        def burst() -> None:
            nonlocal sent
            sent += 4
            packets = [Publish("t", b"%d" % n, 1, packet_id=n) for n in range(sent - 3, sent + 1)]
            with play.harness.together():
                other.send(*packets)

        burst()
        burst()
        play.reconnect(0)
        burst()
        one.pause()
        burst()
        one.resume()
        burst()
        one.drop()
        burst()
        play.reconnect(0)
        for qos in (2, 0, 1):
            one.send_subscribe("t", qos)
            burst()
            burst()
        play.reconnect(0)

    heard = compare(script, {"session": {"queue_page": 1}})
    last = (
        b"20" if subscriber == 5 and not acknowledges else b"48"
    )  # its receive maximum is reached
    assert last in b"".join(heard[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_receive_maximum(version: int) -> None:
    """[MQTT-3.3.4-7] A client mixes QoS 1 and QoS 2 messages, up to Receive Maximum and beyond."""
    for ids in ((1, 2), (1, 2, 3), (1, 1, 2, 2), (2, 1, 3, 3)):

        def script(play: Play, ids: tuple[int, ...] = ids) -> None:
            client = cast(play, version)
            for number in ids:
                client.publish("t2", b"two", 2, packet_id=number)
                client.publish("t0", b"zero")
            client.publish("t1", b"one", 1, packet_id=100)
            client.send(Pubrel(1))
            client.publish("t1", b"one", 1, packet_id=100)

        compare(script, {"broker": {"receive_maximum": 2}})


@pytest.mark.parametrize("sizes", [(60, 255, 256, 257, 258, 259), (255,), (256,), (257,), (258,)])
def test_over_the_clients_maximum(sizes: tuple[int, ...]) -> None:
    """[MQTT-3.1.2-24] Message sizes are close to the client's Maximum Packet Size. Messages go from MQTT 3 to MQTT 5
    and vice versa.

    The maximum is small, equal to the broker's own, or larger. There is one subscriber or several.
    """

    def script(play: Play) -> None:
        for size in sizes:
            for qos in (0, 1)[: len(sizes)]:
                play.connect(version=5, maximum_packet_size=size).subscribe("#", qos)
        subscribers = list(play.clients)
        for version in VERSIONS:
            client = play.connect(version=version)
            learn(client)
            for length in (*range(40, 60), *range(116, 136), *range(235, 252)):
                for qos in (0, 1):
                    packet = Publish(f"t{qos}", b"x" * length, qos, packet_id=qos)
                    if len(encode(packet, version)) <= 256:
                        client.send(packet)
        for client in subscribers:
            largest = max(map(len, by_kind(client.raw_received)[3]))
            assert largest == min(client.connect.properties.maximum_packet_size or 0, 257)

    compare(script, {"broker": {"max_packet_size": 256}})


def test_acknowledgements() -> None:
    """Valid, invalid, repeated and unknown acknowledgements at QoS 1 and 2 arrive in every order."""
    orders = [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 1, 3), (0, 0, 2, 2)]

    def script(play: Play) -> None:
        for version in VERSIONS:
            for order in orders:
                client = play.connect(version=version, auto_ack=False, receive_maximum=4) if version == 5 else (
                    play.connect(version=version, auto_ack=False)
                )  # fmt: skip
                client.subscribe("t", 2)
                for number in range(8):
                    client.publish("t", b"%d" % number, 1 + number % 2, packet_id=50 + number)
                ids = [m.packet_id for m in client.messages][:4]
                for number in order:
                    client.send(Puback(ids[number]), Pingreq(), Pubrec(ids[number]))
                    client.raw(b"\x70\x02" + ids[number].to_bytes(2, "big"))
                client.send(*(Pubrel(50 + number) for number in range(9)))
                client.unsubscribe("t")

    compare(script)


# --- scripts at random ------------------------------------------------------------------------------------------------

TOPICS = ("t", "t/x", "u", "é")
PROPERTIES = (
    EMPTY,
    EMPTY,
    Properties(content_type="c"),
    Properties(message_expiry_interval=2),
    Properties(topic_alias=1),
    Properties(payload_format_indicator=1, user_property=(("k", "v"), ("k", "v"))),
)
FILTERS = ("t", "t/#", "+", "#", "u", "t/x")
SHARED = ("$share/g/t", "$share/g/#")


@st.composite
def packets(draw: st.DrawFn, version: int) -> bytes:
    """Draw a packet from a client, usually a valid one."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.sampled_from(sorted(TAILS.values())))
    if kind == 1:
        return encode(Pingreq(), version)
    if kind == 2:
        number = draw(st.integers(1, 4))
        return bytes((draw(st.sampled_from([0x40, 0x50, 0x62, 0x70])), 2, 0, number))
    qos = draw(st.integers(0, 2))
    size = draw(st.sampled_from([0, 1, 10, 120, 128, 240, 250]))
    packet = Publish(
        draw(st.sampled_from(TOPICS)),
        b"x" * size,
        qos,
        draw(st.integers(0, 7)) == 0,
        bool(qos) and draw(st.integers(0, 7)) == 0,
        draw(st.integers(1, 4)) if qos else 0,
        draw(st.sampled_from(PROPERTIES)) if version == 5 else EMPTY,
    )
    return encode(packet, version)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[Any, ...]], dict[str, Any]]:
    """Draw clients, steps and a configuration."""
    people = []
    for _ in range(draw(st.integers(2, 4))):
        version = draw(st.sampled_from(VERSIONS))
        options: dict[str, Any] = {
            "version": version,
            "high_water": draw(st.sampled_from([50, 65536])),
        }
        if draw(st.booleans()):
            options["clean_start"] = False
        if version == 5:
            options["session_expiry_interval"] = draw(st.sampled_from([None, 100]))
            options["receive_maximum"] = draw(st.sampled_from([None, 1, 2]))
            options["maximum_packet_size"] = draw(st.sampled_from([None, None, 100, 256]))
            options["topic_alias_maximum"] = draw(st.sampled_from([None, None, 2]))
        options["auto_ack"] = draw(st.integers(0, 4)) > 0
        people.append(options)
    steps: list[tuple[Any, ...]] = []
    slots = st.integers(0, len(people) - 1)
    for _ in range(draw(st.integers(3, 25))):
        slot = draw(slots)
        version = people[slot]["version"]
        step = draw(st.integers(0, 13))
        if step < 8:
            data = b"".join(draw(st.lists(packets(version), min_size=1, max_size=6)))
            cuts = draw(st.lists(st.integers(0, len(data)), max_size=2))
            steps.append(("feed", slot, data, sorted(cuts)))
        elif step < 10:
            filters = FILTERS + SHARED if draw(st.integers(0, 9)) == 0 else FILTERS
            request = SubscribeRequest(draw(st.sampled_from(filters)), draw(st.integers(0, 2)))
            if version == 5 and not request.filter.startswith("$"):
                request = replace(request, no_local=draw(st.booleans()))
            steps.append(("feed", slot, encode(Subscribe(9, (request,)), version), []))
        elif step == 10:
            chosen = draw(st.sampled_from(FILTERS))
            steps.append(("feed", slot, encode(Unsubscribe(9, (chosen,)), version), []))
        elif step == 11:
            steps.append(("reconnect", slot))
        elif step == 12:
            steps.append((draw(st.sampled_from(["pause", "resume"])), slot))
        else:
            steps.append(("advance", draw(st.sampled_from([1, 101]))))
    config = {
        "broker": {
            "max_packet_size": draw(st.sampled_from([256, 1048576])),
            "receive_maximum": draw(st.sampled_from([2, 1024])),
            "fan_out_batch": draw(st.sampled_from([1, 1000])),
        },
        "session": {
            "queue_drop": draw(st.sampled_from(["newest", "oldest", "disconnect"])),
            "queue_messages": draw(st.sampled_from([0, 2, 1000])),
            "queue_page": draw(st.sampled_from([1, 256])),
        },
    }
    return people, steps, config


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(scripts())
def test_at_random(
    drawn: tuple[list[dict[str, Any]], list[tuple[Any, ...]], dict[str, Any]],
) -> None:
    people, steps, config = drawn

    def script(play: Play) -> None:
        for options in people:
            play.connect(**options)
        for name, *rest in steps:
            if name == "advance":
                play.harness.advance(rest[0])
                continue
            client = play.clients[rest[0]]
            if name == "feed":
                data, cuts = rest[1], [0, *rest[2], len(rest[1])]
                for start, stop in pairwise(cuts):
                    client.raw(data[start:stop])
            elif name == "reconnect":
                play.reconnect(rest[0])
            elif name == "pause":
                client.pause()
            else:
                client.resume()

    shared = any(b"$share" in step[2] for step in steps if step[0] == "feed")
    event("shared" if shared else "not shared")
    compare(script, config, exact=not shared)
