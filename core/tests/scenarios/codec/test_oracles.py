"""Compare our tables and bytes with paho-mqtt's property and reason code tables, and with the `mqtt5` codec."""

from typing import Any

import mqtt5
from hookmq.mqtt.packets import SubscribeRequest
from hookmq.mqtt.properties import PROPERTIES, Properties, PropertyKind, PropertySpec

# Maps our names to the names in mqtt5, where they differ.
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
    """Assert that `theirs` has every field and property of `ours`, under the names that `theirs` uses."""
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
        elif name == "qos" and isinstance(ours, SubscribeRequest):
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
    """`mqtt5` reads the same fields from the vectors. The exceptions are codes found only in table 2-6, and alias 0,
    which `mqtt5` cannot read.
    """
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
