"""Test that any packet of any version can be decoded from its bytes, however the stream is split.

`mqtt5`, an independent codec, reads and writes the same bytes.
"""

from itertools import pairwise
from typing import Any

import mqtt5
from hookmq.mqtt.decoder import decode
from hookmq.mqtt.encoder import encode, encode_publish_parts
from hookmq.mqtt.framing import frame
from hookmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    WillFields,
)
from hookmq.mqtt.properties import EMPTY, PROPERTIES, In, Properties, PropertyKind, PropertySpec
from hookmq.mqtt.property_section import encode_properties
from hookmq.mqtt.reason_codes import CLIENT_DISCONNECT, LEGAL, PacketType
from hookmq_testing.decoder import Decoder
from hypothesis import given, settings
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
TOPIC = st.text(
    st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20
)
BYTES = st.binary(max_size=40)
PACKET_ID = st.integers(1, 65535)
QOS = st.integers(0, 2)
VERSION = st.sampled_from((3, 4, 5))


def value_of(spec: PropertySpec) -> st.SearchStrategy[Any]:
    # Alias 0 is decoded too, for the connection to refuse; mqtt5 refuses it at once.
    number = st.integers(max(spec.minimum, spec.name == "topic_alias"), spec.maximum)
    if spec.name == "response_topic":
        return TOPIC
    if spec.kind is PropertyKind.PAIR:
        return st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4).map(tuple)
    if spec.repeats:
        return st.lists(number, min_size=1, max_size=3).map(tuple)
    if spec.kind is PropertyKind.STRING:
        return TEXT
    if spec.kind is PropertyKind.BINARY:
        return BYTES
    return number


def properties(where: In, version: int, *, server: bool = True) -> st.SearchStrategy[Properties]:
    """Return a strategy for the properties that `where` may have when it is received by a server, or by a client if
    `server` is false.
    """
    if version != 5:
        return st.just(EMPTY)
    values = {spec.id: value_of(spec) for spec in PROPERTIES if spec.packets & where}
    if where is In.PUBLISH and server:
        del values[0x0B]
    if where is In.SUBSCRIBE:
        values[0x0B] = values[0x0B].map(lambda ids: ids[:1])
    if where is In.DISCONNECT and not server:
        del values[0x11]

    def consistent(chosen: dict[int, Any]) -> Properties:
        if 0x15 not in chosen:
            chosen.pop(0x16, None)  # authentication data needs a method
        if where is In.AUTH:
            chosen.setdefault(0x15, "method")
        return Properties.of(chosen)

    return st.fixed_dictionaries({}, optional=values).map(consistent)


def codes(packet: PacketType, version: int) -> st.SearchStrategy[int]:
    if version != 5:
        return st.just(0)
    return st.sampled_from(sorted(map(int, LEGAL[packet])))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    will = st.builds(WillFields, TOPIC, BYTES, QOS, st.booleans(), properties(In.WILL, version))
    username = draw(st.none() | TEXT)
    return Connect(
        client_id=draw(TEXT),
        version=version,
        clean_start=draw(st.booleans()),
        keep_alive=draw(st.integers(0, 65535)),
        username=username,
        password=draw(st.none() | BYTES) if version != 4 or username is not None else None,
        will=draw(st.none() | will),
        bridge=draw(st.booleans()) if version != 5 else False,
        properties=draw(properties(In.CONNECT, version)),
    )


@st.composite
def publishes(draw: st.DrawFn, version: int, server: bool) -> Publish:
    qos = draw(QOS)
    carried = draw(properties(In.PUBLISH, version, server=server))
    return Publish(
        topic=draw(TOPIC | st.just("") if carried.topic_alias is not None else TOPIC),
        payload=draw(BYTES),
        qos=qos,
        retain=draw(st.booleans()),
        dup=draw(st.booleans()) if qos else False,
        packet_id=draw(PACKET_ID) if qos else 0,
        properties=carried,
    )


def acks(version: int) -> st.SearchStrategy[Packet]:
    kinds: list[tuple[Any, PacketType, In]] = [
        (Puback, PacketType.PUBACK, In.PUBACK),
        (Pubrec, PacketType.PUBREC, In.PUBREC),
        (Pubrel, PacketType.PUBREL, In.PUBREL),
        (Pubcomp, PacketType.PUBCOMP, In.PUBCOMP),
    ]
    return st.one_of(
        [
            st.builds(made, PACKET_ID, codes(packet, version), properties(where, version))
            for made, packet, where in kinds
        ]
    )


def requests(version: int) -> st.SearchStrategy[SubscribeRequest]:
    if version != 5:
        return st.builds(SubscribeRequest, TEXT, QOS)
    return st.builds(SubscribeRequest, TEXT, QOS, st.booleans(), st.booleans(), st.integers(0, 2))


def some(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=1, max_size=4).map(tuple)


def from_client(version: int) -> st.SearchStrategy[Packet]:
    kinds: list[st.SearchStrategy[Packet]] = [
        publishes(version, True),
        acks(version),
        st.builds(Subscribe, PACKET_ID, some(requests(version)), properties(In.SUBSCRIBE, version)),
        st.builds(Unsubscribe, PACKET_ID, some(TEXT), properties(In.UNSUBSCRIBE, version)),
        st.just(Pingreq()),
    ]
    if version == 5:
        left = st.sampled_from(sorted(map(int, CLIENT_DISCONNECT)))
        kinds += [
            st.builds(Disconnect, left, properties(In.DISCONNECT, 5)),
            st.builds(Auth, st.sampled_from((0x18, 0x19)), properties(In.AUTH, 5)),
        ]
    else:
        kinds.append(st.just(Disconnect()))
    return st.one_of(kinds)


def from_server(version: int) -> st.SearchStrategy[Packet]:
    kinds: list[st.SearchStrategy[Packet]] = [
        publishes(version, False),
        acks(version),
        st.just(Pingresp()),
    ]
    if version != 5:
        kinds += [
            st.builds(Connack, st.integers(1, 5)),
            st.builds(Connack, st.just(0), st.booleans() if version == 4 else st.just(False)),
            st.builds(Suback, PACKET_ID, some(st.sampled_from((0, 1, 2, 0x80)))),
            st.builds(Unsuback, PACKET_ID),
        ]
        return st.one_of(kinds)
    refused = st.sampled_from(sorted(map(int, LEGAL[PacketType.CONNACK] - {0})))
    gone = st.sampled_from(sorted(map(int, LEGAL[PacketType.DISCONNECT] - {4})))
    suback, unsuback = codes(PacketType.SUBACK, 5), codes(PacketType.UNSUBACK, 5)
    kinds += [
        st.builds(Connack, st.just(0), st.booleans(), properties(In.CONNACK, 5)),
        st.builds(Connack, refused, st.just(False), properties(In.CONNACK, 5)),
        st.builds(Suback, PACKET_ID, some(suback), properties(In.SUBACK, 5)),
        st.builds(Unsuback, PACKET_ID, some(unsuback), properties(In.UNSUBACK, 5)),
        st.builds(Disconnect, gone, properties(In.DISCONNECT, 5, server=False)),
        st.builds(Auth, st.sampled_from((0, 0x18)), properties(In.AUTH, 5)),
    ]
    return st.one_of(kinds)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


CUTS = st.lists(st.integers(0, 5000), max_size=20)


@settings(max_examples=40, deadline=None)
@given(
    VERSION.flatmap(lambda v: st.tuples(connects(v), st.lists(from_client(v), max_size=5))), CUTS
)
def test_packets_of_a_client_are_decoded_as_encoded(
    sent: tuple[Connect, list[Packet]], places: list[int]
) -> None:
    connect, packets = sent
    stream = b"".join(encode(p, connect.version) for p in (connect, *packets))
    decoder = Decoder()
    received = [p for piece in cut(stream, places) for p in decoder.feed(piece)]
    assert decoder.error is None
    assert received == [connect, *packets]
    assert decoder.version == connect.version
    assert decoder.buffered == 0


@settings(max_examples=40, deadline=None)
@given(VERSION.flatmap(lambda v: st.tuples(st.just(v), st.lists(from_server(v), max_size=5))), CUTS)
def test_packets_of_a_server_are_decoded_as_encoded(
    sent: tuple[int, list[Packet]], places: list[int]
) -> None:
    version, packets = sent
    stream = b"".join(encode(p, version) for p in packets)
    decoder = Decoder(version, server=False)
    received = [p for piece in cut(stream, places) for p in decoder.feed(piece)]
    assert decoder.error is None
    assert received == packets


@settings(max_examples=40, deadline=None)
@given(VERSION.flatmap(lambda v: st.tuples(st.just(v), publishes(v, False))))
def test_publish_parts_join_to_the_packet(sent: tuple[int, Publish]) -> None:
    version, packet = sent
    section = encode_properties(packet.properties) if version == 5 else None
    head, tail = encode_publish_parts(
        packet.topic.encode(), packet.payload, packet.qos, packet.retain, packet.dup, section
    )
    number = packet.packet_id.to_bytes(2, "big") if packet.qos else b""
    assert head + number + tail == encode(packet, version)


# The defaults of absent properties. mqtt5 does not write these values, and reads absent properties as these values.
DEFAULTS = {
    0x01: 0, 0x11: 0, 0x17: 1, 0x18: 0, 0x19: 0, 0x21: 65535, 0x22: 0,
    0x25: 1, 0x28: 1, 0x29: 1, 0x2A: 1,
}  # fmt: skip


def plain(carried: Properties) -> Properties:
    return Properties.of({i: v for i, v in carried.values.items() if DEFAULTS.get(i) != v})


def comparable(packet: Any) -> Any:
    """Return `packet` without those properties that have their default values."""
    fields = {name: getattr(packet, name) for name in type(packet).__dataclass_fields__}
    if "properties" in fields:
        fields["properties"] = plain(packet.properties)
    if fields.get("will") is not None:
        fields["will"] = comparable(packet.will)
    return type(packet).__name__, sorted(fields.items(), key=lambda item: item[0])


def read_by_hookmq(data: bytes, server: bool) -> Packet:
    found = frame(data, 0)
    assert found is not None
    assert found[1] == len(data)
    version = 0 if data[0] == 0x10 else 5
    return decode(data[0], data[found[0] :], version, server=server)


@settings(max_examples=75, deadline=None)
@given(
    st.one_of(
        st.tuples(st.just(True), connects(5) | from_client(5)),
        st.tuples(st.just(False), from_server(5)),
    )
)
def test_mqtt5_reads_and_writes_the_same(sent: tuple[bool, Packet]) -> None:
    server, packet = sent
    data = encode(packet, 5)
    theirs, used = mqtt5.read(memoryview(data))
    assert used == len(data)
    assert comparable(read_by_hookmq(theirs.write(), server)) == comparable(packet)
