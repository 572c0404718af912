"""Tables and bytes against those of others: paho-mqtt's property and reason tables, and the `mqtt5` codec."""

from importlib import import_module
from typing import Any

import mqtt5
import pytest
from hookmq import codec
from hookmq.codec.primitives import Reader
from hookmq.codec.properties import encode_properties, read_properties
from hookmq.properties import PROPERTIES, In, Properties, PropertyKind, PropertySpec
from hookmq.reason import LEGAL, PacketType, ReasonCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode

PAHO: Any = import_module("paho.mqtt.properties")  # it is not annotated
PAHO_KIND = {
    "Byte": PropertyKind.BYTE,
    "Two Byte Integer": PropertyKind.UINT16,
    "Four Byte Integer": PropertyKind.UINT32,
    "Variable Byte Integer": PropertyKind.VARINT,
    "UTF-8 Encoded String": PropertyKind.STRING,
    "Binary Data": PropertyKind.BINARY,
    "UTF-8 String Pair": PropertyKind.PAIR,
}
SAMPLES: dict[PropertyKind, list[Any]] = {
    PropertyKind.BYTE: [0, 1],
    PropertyKind.UINT16: [1, 255, 65535],
    PropertyKind.UINT32: [1, 65536, 268435455],
    PropertyKind.VARINT: [(1,), (128,), (16384,), (268435455,)],
    PropertyKind.STRING: ["", "text/plain", "größe \U0001f41d"],
    PropertyKind.BINARY: [b"", b"\0\xff"],
    PropertyKind.PAIR: [(("k", "v"),), (("b", ""), ("a", "ö"), ("b", ""))],
}
SPECS = pytest.mark.parametrize("spec", PROPERTIES, ids=[spec.name for spec in PROPERTIES])


def paho_places(spec: PropertySpec) -> list[int]:
    return list(PAHO.Properties(PacketTypes.CONNECT).properties[spec.id][1])


def where_of(place: int) -> In:
    return In.WILL if place == PacketTypes.WILLMESSAGE else In(1 << place)


def test_paho_knows_the_same_properties() -> None:
    assert sorted(PAHO.Properties(PacketTypes.CONNECT).properties) == [s.id for s in PROPERTIES]


@SPECS
def test_paho_property_table(spec: PropertySpec) -> None:
    table = PAHO.Properties(PacketTypes.CONNECT)
    kind, places = table.properties[spec.id]
    assert PAHO_KIND[table.types[kind]] is spec.kind
    assert {where_of(place) for place in places} == set(spec.packets)
    assert spec.repeats is (spec.id in (11, 38))


@SPECS
def test_paho_packs_the_same_bytes(spec: PropertySpec) -> None:
    compressed = next(
        name.replace(" ", "")
        for name, number in PAHO.Properties(PacketTypes.CONNECT).names.items()
        if number == spec.id
    )
    for place in paho_places(spec):
        for value in SAMPLES[spec.kind]:
            paho = PAHO.Properties(place)
            setattr(paho, compressed, list(value) if spec.repeats else value)
            ours = Properties(**{spec.name: value})
            assert encode_properties(ours) == paho.pack()
            reader = Reader(paho.pack())
            assert read_properties(reader, where_of(place), 64) == ours
            reader.finish("section")


def test_paho_reason_codes() -> None:
    ours = {(int(code), int(packet)) for packet, codes in LEGAL.items() for code in codes}
    theirs = {
        (code, packet)
        for code, names in PahoReasonCode.names.items()
        for packets in names.values()
        for packet in packets
    }
    # Two known differences: table 3-1 of the specification has 0x99, and only table 2-6 has 0x8C for DISCONNECT.
    assert ours - theirs == {(0x99, PacketType.CONNACK)}
    assert theirs - ours == {(0x8C, PacketType.DISCONNECT)}


@pytest.mark.parametrize(
    ("packet", "theirs"),
    [
        (PacketType.CONNACK, mqtt5.ConnAckReasonCode),
        (PacketType.PUBACK, mqtt5.PubAckReasonCode),
        (PacketType.PUBREC, mqtt5.PubRecReasonCode),
        (PacketType.PUBREL, mqtt5.PubRelReasonCode),
        (PacketType.PUBCOMP, mqtt5.PubCompReasonCode),
        (PacketType.SUBACK, mqtt5.SubAckReasonCode),
        (PacketType.UNSUBACK, mqtt5.UnsubAckReasonCode),
        (PacketType.DISCONNECT, mqtt5.DisconnectReasonCode),
        (PacketType.AUTH, mqtt5.AuthReasonCode),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_mqtt5_reason_codes(packet: PacketType, theirs: Any) -> None:
    members = {int(m) for name in dir(theirs) if isinstance(m := getattr(theirs, name), theirs)}
    assert members == {int(code) for code in LEGAL[packet]}


# Our name to theirs, where they differ.
NAMES = {
    "dup": "duplicate",
    "filter": "pattern",
    "requests": "topic_filters",
    "filters": "patterns",
    "codes": "reason_codes",
    "code": "reason_code",
    "user_property": "user_properties",
    "reason_string": "reason_str",
    "response_information": "response_info",
    "assigned_client_identifier": "assigned_client_id",
    "receive_maximum": "receive_max",
    "topic_alias_maximum": "topic_alias_max",
    "maximum_qos": "max_qos",
    "maximum_packet_size": "max_packet_size",
    "subscription_identifier_available": "subscription_id_available",
    "request_problem_information": "request_problem_info",
    "request_response_information": "request_response_info",
}


def assert_same(ours: Any, theirs: Any) -> None:
    """Every field and property of `ours` is in `theirs`, under their name."""
    for name in type(ours).__dataclass_fields__:
        value = getattr(ours, name)
        if name in ("version", "bridge") or (name == "packet_id" and not value):
            continue
        if name == "properties":
            for spec in PROPERTIES:
                if spec.id in value.values:
                    assert_same_property(spec, value.values[spec.id], theirs)
        elif name == "will" and value is not None:
            assert_same(value, theirs.will)
        elif name == "requests":
            for mine, other in zip(value, theirs.topic_filters, strict=True):
                assert_same(mine, other)
        elif name == "qos" and isinstance(ours, codec.SubscribeRequest):
            assert value == int(theirs.max_qos)
        elif name == "payload":
            assert value == (theirs.payload or b"")
        elif name in ("codes", "filters"):
            assert list(value) == [int(c) if name == "codes" else c for c in their(theirs, name)]
        else:
            other = their(theirs, name)
            assert value == (other if isinstance(value, str | bytes | None) else int(other)), name


def assert_same_property(spec: PropertySpec, value: Any, theirs: Any) -> None:
    if spec.name == "subscription_identifier":
        got = getattr(theirs, "subscription_ids", None)
        assert list(value) == (got if got is not None else [theirs.subscription_id])
    elif spec.kind is PropertyKind.PAIR:
        assert list(value) == theirs.user_properties
    else:
        other = their(theirs, spec.name)
        assert value == (other if isinstance(value, str | bytes) else int(other)), spec.name


def their(packet: Any, name: str) -> Any:
    return getattr(packet, NAMES.get(name, name))


def five(vectors: list[Any]) -> list[Any]:
    return [v for v in vectors if v.version == 5 or getattr(v.packet, "version", 0) == 5]


def test_mqtt5_reads_the_vectors(vectors: list[Any]) -> None:
    """Field by field, but for what `mqtt5` will not read: codes that table 2-6 alone has, and alias 0."""
    read = 0
    for vector in five(vectors):
        if vector.packet is None or getattr(vector.packet, "code", 0) == 0x8C == vector.data[-1]:
            continue
        if getattr(vector.packet, "properties", Properties()).topic_alias == 0:
            continue
        theirs, used = mqtt5.read(memoryview(vector.data))
        assert used == len(vector.data)
        assert type(theirs).__name__.lower() == type(vector.packet).__name__.lower() + "packet"
        assert_same(vector.packet, theirs)
        read += 1
    assert read > 150


def test_paho_refuses_what_we_refuse_of_strings() -> None:
    for raw in (b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"a\0b"):
        field = len(raw).to_bytes(2, "big") + raw
        with pytest.raises((PAHO.MalformedPacket, UnicodeDecodeError)):
            PAHO.readUTF(field, len(field))
        with pytest.raises(codec.ConnectError) as caught:
            codec.decode(0x10, b"\0\4MQTT\5\2\0\0\0" + field, 0)
        assert caught.value.code is ReasonCode.MALFORMED_PACKET
