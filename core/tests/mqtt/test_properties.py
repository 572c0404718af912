"""Compare the property table with paho-mqtt's table: types, packets and encoded bytes."""

from importlib import import_module
from typing import Any

import pytest
from hookmq.mqtt.primitives import Reader
from hookmq.mqtt.properties import PROPERTIES, In, Properties, PropertyKind, PropertySpec
from hookmq.mqtt.property_section import encode_properties, read_properties
from paho.mqtt.packettypes import PacketTypes

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
