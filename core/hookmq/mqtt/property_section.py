"""Decode and encode the properties in MQTT 5.0 packets (section 2.2.2), using the property table."""

from typing import Any, Final

from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.primitives import (
    Reader,
    encode_binary,
    encode_string,
    encode_varint,
    malformed,
    protocol_error,
)
from hookmq.mqtt.properties import (
    BY_ID,
    BY_NAME,
    EMPTY,
    PROPERTIES,
    In,
    Properties,
    PropertyKind,
    PropertySpec,
)
from hookmq.mqtt.reason_codes import ReasonCode

SUBSCRIPTION_IDENTIFIER: Final = BY_NAME["subscription_identifier"].id
TOPIC_ALIAS: Final = BY_NAME["topic_alias"].id
RESPONSE_TOPIC: Final = BY_NAME["response_topic"].id
SESSION_EXPIRY_INTERVAL: Final = BY_NAME["session_expiry_interval"].id
AUTHENTICATION_METHOD: Final = BY_NAME["authentication_method"].id
AUTHENTICATION_DATA: Final = BY_NAME["authentication_data"].id
USER_PROPERTY: Final = BY_NAME["user_property"].id

# Enum members are slow to access, so they are looked up once.
_BYTE: Final = PropertyKind.BYTE
_UINT16: Final = PropertyKind.UINT16
_UINT32: Final = PropertyKind.UINT32
_STRING: Final = PropertyKind.STRING
_BINARY: Final = PropertyKind.BINARY
_PAIR: Final = PropertyKind.PAIR
_IDS: Final = range(PROPERTIES[-1].id + 1)
_ALLOWED: Final[dict[In, tuple[PropertySpec | None, ...]]] = {
    where: tuple(BY_ID[i] if i in BY_ID and BY_ID[i].packets & where else None for i in _IDS)
    for where in In
}
_ALLOWED_IDS: Final[dict[In, frozenset[int]]] = {
    where: frozenset(spec.id for spec in PROPERTIES if spec.packets & where) for where in In
}
_EMPTY_SECTION: Final = b"\0"


def read_properties(reader: Reader, where: In, max_user_properties: int) -> Properties:
    """Read the property section, including its length, of the packet (or will) `where`.

    Raises ProtocolError: 0x81 if it cannot be parsed or has properties that belong in other packets, 0x82 for a
    repeated property or a value out of range, 0x97 for more than `max_user_properties`. A topic alias of 0 is accepted
    here, since it has its own reason code (0x94); the connection checks aliases.
    """
    size = reader.varint("property length")
    if not size:
        return EMPTY
    outer_end = reader.end
    stop = reader.pos + size
    if stop > outer_end:
        raise malformed("property length runs past the packet")
    reader.end = stop  # no property may run past the section
    allowed = _ALLOWED[where]
    values: dict[int, Any] = {}
    pairs: list[tuple[str, str]] = []
    identifiers: list[int] = []
    while reader.pos < stop:
        number = reader.uint8("property identifier")
        spec = allowed[number] if number < len(allowed) else None
        if spec is None:
            name = BY_ID[number].name if number in BY_ID else f"0x{number:02X}"
            raise malformed(f"property {name} in {where.name}")
        if spec.kind is _PAIR:
            if len(pairs) >= max_user_properties:
                raise ProtocolError(
                    ReasonCode.QUOTA_EXCEEDED, f"more than {max_user_properties} user properties"
                )
            # [MQTT-1.5.7-1]; keep order and repeats [MQTT-3.3.2-18, 3.1.3-10]
            pairs.append((reader.string(spec.name), reader.string(spec.name)))
        elif spec.repeats:
            identifiers.append(_number(reader, spec))
        elif number in values:
            raise protocol_error(f"property {spec.name} repeated")
        elif spec.kind is _STRING:
            values[number] = reader.string(spec.name)  # [MQTT-3.3.2-13, 3.3.2-19]
        elif spec.kind is _BINARY:
            values[number] = reader.binary(spec.name)
        else:
            values[number] = _number(reader, spec)
    reader.end = outer_end
    if identifiers:
        values[SUBSCRIPTION_IDENTIFIER] = tuple(identifiers)
    if pairs:
        values[USER_PROPERTY] = tuple(pairs)
    return Properties.of(values)


def decode_section(data: bytes, where: In) -> Properties:
    """Decode a whole section that `encode_section` returned, including its length. Raises
    ProtocolError in the same cases as `read_properties`, and if bytes follow the section.
    """
    reader = Reader(data)
    found = read_properties(reader, where, len(data))
    if reader.pos != len(data):
        raise malformed("bytes after the properties")
    return found


def _number(reader: Reader, spec: PropertySpec) -> int:
    kind = spec.kind
    if kind is _BYTE:
        value = reader.uint8(spec.name)
    elif kind is _UINT16:
        value = reader.uint16(spec.name)
    elif kind is _UINT32:
        value = reader.uint32(spec.name)
    else:
        value = reader.varint(spec.name)
    if not spec.minimum <= value <= spec.maximum:
        raise protocol_error(f"property {spec.name} is {value}")
    return value


def check_authentication(properties: Properties) -> None:
    """Raise ProtocolError for Authentication Data without a method (section 3.1.2.11.10)."""
    values = properties.values
    if AUTHENTICATION_DATA in values and AUTHENTICATION_METHOD not in values:
        raise protocol_error("authentication data without authentication method")


def check_response_topic(properties: Properties) -> None:
    """Raise ProtocolError for a response topic with wildcards [MQTT-3.3.2-14]."""
    topic = properties.values.get(RESPONSE_TOPIC)
    if topic is not None and ("#" in topic or "+" in topic):
        raise protocol_error("response topic contains a wildcard")


def encode_properties(p: Properties) -> bytes:
    """Encode the property section for `p`, including its length; one zero byte if empty [MQTT-2.2.2-1].

    Raises ValueError for invalid values.
    """
    values = p.values
    if not values:
        return _EMPTY_SECTION
    parts = [b""]
    for number, value in values.items():
        spec = BY_ID[number]
        if spec.kind is _PAIR:
            for name, text in value:
                parts += (bytes((number,)), encode_string(name), encode_string(text))
        elif spec.repeats:
            for identifier in value:
                parts.append(_encode_number(spec, identifier))
        elif spec.kind is _STRING:
            parts += (bytes((number,)), encode_string(value))
        elif spec.kind is _BINARY:
            parts += (bytes((number,)), encode_binary(value))
        else:
            parts.append(_encode_number(spec, value))
    parts[0] = encode_varint(sum(map(len, parts)))
    return b"".join(parts)


def _encode_number(spec: PropertySpec, value: int) -> bytes:
    if not spec.minimum <= value <= spec.maximum:
        raise ValueError(f"invalid property {spec.name}: {value}")
    kind = spec.kind
    if kind is _BYTE:
        return bytes((spec.id, value))
    if kind is _UINT16:
        return bytes((spec.id, value >> 8, value & 0xFF))
    if kind is _UINT32:
        return bytes((spec.id,)) + value.to_bytes(4, "big")
    return bytes((spec.id,)) + encode_varint(value)


def encode_section(p: Properties, where: In) -> bytes:
    """Encode properties as `encode_properties` does, or raise ValueError if the packet `where` cannot have one of
    them.
    """
    values = p.values
    if not values:
        return _EMPTY_SECTION
    if not values.keys() <= _ALLOWED_IDS[where]:
        wrong = ", ".join(BY_ID[i].name for i in values.keys() - _ALLOWED_IDS[where])
        raise ValueError(f"{where.name} cannot have {wrong}")
    return encode_properties(p)
