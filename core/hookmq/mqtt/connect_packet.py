"""Decode and encode CONNECT for MQTT 5.0 (section 3.1), MQTT 3.1.1 (section 3.1) and MQTT 3.1."""

from typing import Final

from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packet_limits import PacketLimits
from hookmq.mqtt.packets import Connect, WillFields, new_connect
from hookmq.mqtt.primitives import Reader, encode_binary, encode_string, malformed, protocol_error
from hookmq.mqtt.properties import EMPTY, In, Properties
from hookmq.mqtt.property_section import (
    RESPONSE_TOPIC,
    USER_PROPERTY,
    check_authentication,
    check_response_topic,
    encode_section,
    read_properties,
)
from hookmq.mqtt.reason_codes import ReasonCode

_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS_SHIFT: Final = 3
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80
_BRIDGE: Final = 0x80  # of the protocol level
_USUAL: Final = {b"\0\4MQTT\4": 4, b"\0\4MQTT\5": 5}
"""The protocol name and level at the start of nearly every CONNECT, and the version for each."""


class ConnectError(ProtocolError):
    """A refused CONNECT or other first packet.

    `version` is the protocol level (3, 4 or 5) for the response. It is 0 if the bytes are not MQTT; the broker then
    sends no response.
    """

    def __init__(self, code: ReasonCode, detail: str, version: int = 0) -> None:
        super().__init__(code, detail)
        self.version = version


def decode_connect(body: bytes, limits: PacketLimits, header_flags: int = 0) -> Connect:
    """Decode a CONNECT from its body. `header_flags` are the flags in its first byte. Raises ConnectError."""
    version = _USUAL.get(body[:7], 0)
    try:
        if version:
            _check_header(header_flags, version)
            return _decode(Reader(body, 7, limits.strict_text), version, False, limits)
        reader = Reader(body, 0, limits.strict_text)
        name = reader.binary("protocol name")
        level = reader.uint8("protocol level")
        version, bridge = _version(name, level)
        _check_header(header_flags, version)
        return _decode(reader, version, bridge, limits)
    except ConnectError:
        raise
    except ProtocolError as error:
        raise ConnectError(error.code, error.detail, version) from None


def _check_header(flags: int, version: int) -> None:
    """Raise ConnectError for invalid flags in the fixed header. MQTT 3.1 ignores them, and some clients set the QoS
    bits."""
    if flags and version != 3:
        # [MQTT-2.1.3-1] [MQTT311-2.2.2-1, 2.2.2-2]
        raise ConnectError(ReasonCode.MALFORMED_PACKET, f"CONNECT with flags {flags:04b}")


def _version(name: bytes, level: int) -> tuple[int, bool]:
    """Return the version and the bridge bit for a protocol name and level.

    Raises ConnectError if HookMQ does not support them. The refusal uses the nearest version that the client understands:
    3.x for levels below 5 [MQTT-3.1.2-1, 3.1.2-2] [MQTT311-3.1.2-1, 3.1.2-2].
    """
    plain = level & ~_BRIDGE
    if name == b"MQTT":
        if level == 5:
            return 5, False
        if plain == 4:
            return 4, level != plain
        answer = 4 if plain < 5 else 5
    elif name == b"MQIsdp":
        if plain == 3:
            return 3, level != plain
        answer = 3
    else:
        raise ConnectError(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "unknown protocol name in CONNECT"
        )
    raise ConnectError(
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        f"protocol name {name.decode()} with level {level}",
        answer,
    )


def _decode(reader: Reader, version: int, bridge: bool, limits: PacketLimits) -> Connect:
    flags = reader.uint8("connect flags")
    _check_flags(flags, version)
    keep_alive = reader.uint16("keep alive")
    properties = EMPTY
    if version == 5:
        properties = read_properties(reader, In.CONNECT, limits.max_user_properties)
        check_authentication(properties)
    # The order of the payload is fixed [MQTT-3.1.3-1] [MQTT311-3.1.3-1].
    # [MQTT-3.1.3-3, 3.1.3-4] [MQTT311-3.1.3-3, 3.1.3-4]
    client_id = reader.string("client identifier")
    will = None
    if flags & _WILL:
        left = limits.max_user_properties - len(properties.values.get(USER_PROPERTY, ()))
        will = _will(reader, flags, version, left)
    username, password = None, None
    # In MQTT 3.1, a field may be missing at the end although its flag is set.
    lenient = version == 3
    if flags & _USERNAME and not (lenient and reader.pos == reader.end):
        # [MQTT-3.1.2-17, 3.1.3-12] [MQTT311-3.1.2-19, 3.1.3-11]
        username = reader.string("user name")
    if flags & _PASSWORD and not (lenient and reader.pos == reader.end):
        password = reader.binary("password")  # [MQTT-3.1.2-19] [MQTT311-3.1.2-21]
    reader.finish("CONNECT")  # [MQTT-3.1.2-16, 3.1.2-18] [MQTT311-3.1.2-18, 3.1.2-20]
    return new_connect(
        client_id,
        version,
        flags & _CLEAN_START != 0,
        keep_alive,
        username,
        password,
        will,
        bridge,
        properties,
    )


def _check_flags(flags: int, version: int) -> None:
    if flags & _RESERVED and version != 3:
        raise malformed("reserved connect flag is set")  # [MQTT-3.1.2-3] [MQTT311-3.1.2-3]
    qos = flags >> _WILL_QOS_SHIFT & 3
    if qos == 3:
        raise malformed("will QoS is 3")  # [MQTT-3.1.2-12] [MQTT311-3.1.2-14]
    if not flags & _WILL:
        if qos:
            # [MQTT-3.1.2-11] [MQTT311-3.1.2-11, 3.1.2-13]
            raise malformed("will QoS without a will")
        if flags & _WILL_RETAIN:
            raise malformed("will retain without a will")  # [MQTT-3.1.2-13] [MQTT311-3.1.2-15]
    if version == 4 and flags & _PASSWORD and not flags & _USERNAME:
        raise malformed("password without user name")  # [MQTT311-3.1.2-22]


def _will(reader: Reader, flags: int, version: int, max_user_properties: int) -> WillFields:
    properties = EMPTY
    if version == 5:
        properties = read_properties(reader, In.WILL, max_user_properties)
        check_response_topic(properties)
        if properties.values.get(RESPONSE_TOPIC) == "":
            raise protocol_error("response topic of the will is empty")  # [MQTT-4.7.3-1]
    topic = reader.string("will topic")  # [MQTT-3.1.2-9, 3.1.3-11] [MQTT311-3.1.2-9, 3.1.3-10]
    if not topic:
        raise protocol_error("will topic is empty")  # [MQTT-4.7.3-1]
    if "#" in topic or "+" in topic:
        # [MQTT-4.7.0-1]
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "will topic contains a wildcard")
    return WillFields(
        topic=topic,
        payload=reader.binary("will payload"),
        qos=flags >> _WILL_QOS_SHIFT & 3,
        retain=bool(flags & _WILL_RETAIN),
        properties=properties,
    )


_NAMES: Final = {3: b"\0\6MQIsdp\3", 4: b"\0\4MQTT\4", 5: b"\0\4MQTT\5"}


def encode_connect(packet: Connect) -> bytes:
    """Encode the body of `packet`. Raises ValueError if the packet's version cannot express it."""
    version = packet.version
    intro = _NAMES.get(version)
    if intro is None:
        raise ValueError(f"unknown MQTT protocol level {version}")
    if packet.bridge:
        if version == 5:
            raise ValueError("MQTT 5.0 has no bridge bit")
        intro = intro[:-1] + bytes((version | _BRIDGE,))
    flags = _CLEAN_START if packet.clean_start else 0
    parts = [b"", _section(packet.properties, In.CONNECT, version), encode_string(packet.client_id)]
    will = packet.will
    if will is not None:
        if not 0 <= will.qos <= 2:
            raise ValueError(f"will QoS {will.qos} is not 0, 1 or 2")
        flags |= _WILL | will.qos << _WILL_QOS_SHIFT | (_WILL_RETAIN if will.retain else 0)
        parts.append(_section(will.properties, In.WILL, version))
        parts += (encode_string(will.topic), encode_binary(will.payload))
    if packet.username is not None:
        flags |= _USERNAME
        parts.append(encode_string(packet.username))
    if packet.password is not None:
        if version == 4 and packet.username is None:
            raise ValueError("MQTT 3.1.1 has no password without user name")
        flags |= _PASSWORD
        parts.append(encode_binary(packet.password))
    parts[0] = intro + bytes((flags,)) + packet.keep_alive.to_bytes(2, "big")
    return b"".join(parts)


def _section(properties: Properties, where: In, version: int) -> bytes:
    return encode_section(properties, where) if version == 5 else b""
