"""Decode the bodies of all packets except CONNECT and PUBLISH. `READERS` has one function for each packet type.

Each check names the specification statement that it enforces.
"""

from collections.abc import Callable
from typing import Final

from hookmq.mqtt import packets
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packet_limits import PacketLimits
from hookmq.mqtt.primitives import Reader, malformed, protocol_error
from hookmq.mqtt.properties import EMPTY, In, Properties
from hookmq.mqtt.property_section import (
    AUTHENTICATION_METHOD,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    check_authentication,
    read_properties,
)
from hookmq.mqtt.reason_codes import CLIENT_DISCONNECT, LEGAL, PacketType, ReasonCode

BodyReader = Callable[[bytes, int, PacketLimits, bool], packets.Packet]
"""(body, version, limits, whether a server receives it) -> packet. Raises ProtocolError."""

_BAD_METHOD: Final = frozenset((ReasonCode.BAD_AUTHENTICATION_METHOD,))
"""Table 2-6 lists 0x8C for DISCONNECT but table 3-10 does not. HookMQ accepts it and never sends it."""

_DISCONNECT_CODES: Final[dict[bool, frozenset[ReasonCode]]] = {
    True: CLIENT_DISCONNECT | _BAD_METHOD,
    False: (LEGAL[PacketType.DISCONNECT] | _BAD_METHOD) - {ReasonCode.DISCONNECT_WITH_WILL},
}
_AUTH_CODES: Final[dict[bool, frozenset[ReasonCode]]] = {
    True: LEGAL[PacketType.AUTH] - {ReasonCode.SUCCESS},
    False: LEGAL[PacketType.AUTH] - {ReasonCode.RE_AUTHENTICATE},
}
"""Legal codes in AUTH, keyed by whether a server is the receiver [MQTT-3.14.2-1, 3.15.2-1]."""
_V3_SUBACK_CODES: Final = frozenset((0, 1, 2, 0x80))
_V3_CONNACK_MAX: Final = 5


def _packet_id(reader: Reader) -> int:
    number = reader.uint16("packet identifier")
    if not number:
        raise protocol_error("packet identifier is 0")  # [MQTT-2.2.1-3] [MQTT311-2.3.1-1]
    return number


def _begin(
    body: bytes, version: int, limits: PacketLimits, where: In
) -> tuple[Reader, int, Properties]:
    """Read the packet id and properties at the start of SUBSCRIBE, UNSUBSCRIBE and their acknowledgements."""
    reader = Reader(body, 0, limits.strict_text)
    packet_id = _packet_id(reader)
    if version != 5:
        return reader, packet_id, EMPTY
    return reader, packet_id, read_properties(reader, where, limits.max_user_properties)


def _acknowledgement(
    kind: type[packets.Puback]
    | type[packets.Pubrec]
    | type[packets.Pubrel]
    | type[packets.Pubcomp],
    packet: PacketType,
    where: In,
) -> BodyReader:
    """Return the reader for PUBACK, PUBREC, PUBREL or PUBCOMP, which differ only in their reason codes."""
    codes = LEGAL[packet]

    def read(body: bytes, version: int, limits: PacketLimits, server: bool) -> packets.Packet:
        if len(body) == 2 and (short := body[0] << 8 | body[1]):
            return kind(short)  # nearly every acknowledgement
        reader = Reader(body, 0, limits.strict_text)
        packet_id = _packet_id(reader)
        code, properties = 0, EMPTY
        if version == 5:
            code = reader.uint8("reason code")
            if code not in codes:  # [MQTT-3.4.2-1, 3.5.2-1, 3.6.2-1, 3.7.2-1]
                raise protocol_error(f"{packet.name} with reason code 0x{code:02X}")
            if reader.pos < reader.end:
                properties = read_properties(reader, where, limits.max_user_properties)
        reader.finish(packet.name)
        return kind(packet_id, code, properties)

    return read


def _subscribe(body: bytes, version: int, limits: PacketLimits, server: bool) -> packets.Packet:
    """Decode SUBSCRIBE. The broker validates each filter itself."""
    reader, packet_id, properties = _begin(body, version, limits, In.SUBSCRIBE)
    if len(properties.values.get(SUBSCRIPTION_IDENTIFIER, ())) > 1:
        raise protocol_error("property subscription_identifier repeated")
    requests: list[packets.SubscribeRequest] = []
    while reader.pos < reader.end:
        _bound(len(requests), limits)
        topic_filter = reader.string("topic filter")  # [MQTT-3.8.3-1] [MQTT311-3.8.3-1]
        options = reader.uint8("subscription options")
        qos = options & 3
        if version != 5:
            if options > 2:
                raise malformed(f"subscription options 0x{options:02X}")  # [MQTT311-3.8.3-4]
            requests.append(packets.SubscribeRequest(topic_filter, qos))
            continue
        if options & 0xC0:
            raise malformed("reserved subscription options are set")  # [MQTT-3.8.3-5]
        if qos == 3:
            raise protocol_error("subscription with QoS 3")
        handling = options >> 4
        if handling == 3:
            raise protocol_error("subscription with retain handling 3")
        no_local = options & 4 != 0
        if no_local and topic_filter.startswith("$share/"):
            raise protocol_error("no local on a shared subscription")  # [MQTT-3.8.3-4]
        requests.append(
            packets.SubscribeRequest(topic_filter, qos, no_local, options & 8 != 0, handling)
        )
    if not requests:
        raise protocol_error("SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-2] [MQTT311-3.8.3-3]
    return packets.Subscribe(packet_id, tuple(requests), properties)


def _unsubscribe(body: bytes, version: int, limits: PacketLimits, server: bool) -> packets.Packet:
    reader, packet_id, properties = _begin(body, version, limits, In.UNSUBSCRIBE)
    filters: list[str] = []
    while reader.pos < reader.end:
        _bound(len(filters), limits)
        filters.append(reader.string("topic filter"))  # [MQTT-3.10.3-1] [MQTT311-3.10.3-1]
    if not filters:
        # [MQTT-3.10.3-2] [MQTT311-3.10.3-2]
        raise protocol_error("UNSUBSCRIBE without a topic filter")
    return packets.Unsubscribe(packet_id, tuple(filters), properties)


def _bound(count: int, limits: PacketLimits) -> None:
    if count >= limits.max_filters:
        raise ProtocolError(
            ReasonCode.QUOTA_EXCEEDED, f"more than {limits.max_filters} topic filters"
        )


def _connack(body: bytes, version: int, limits: PacketLimits, server: bool) -> packets.Packet:
    reader = Reader(body, 0, limits.strict_text)
    flags = reader.uint8("connect acknowledge flags")
    code = reader.uint8("reason code")
    properties = EMPTY
    if version == 3:
        flags = 0  # MQTT 3.1 reserves this byte without saying that it is 0
    if flags > 1:
        raise malformed(f"connect acknowledge flags 0x{flags:02X}")  # [MQTT-3.2.2-1]
    if version == 5:
        properties = read_properties(reader, In.CONNACK, limits.max_user_properties)
        check_authentication(properties)
    legal = code in LEGAL[PacketType.CONNACK] if version == 5 else code <= _V3_CONNACK_MAX
    if not legal:
        # [MQTT-3.2.2-8] [MQTT311-3.2.2-6]
        raise protocol_error(f"CONNACK with reason code 0x{code:02X}")
    if code and flags:
        raise protocol_error("CONNACK refuses with session present")  # [MQTT-3.2.2-6]
    reader.finish("CONNACK")
    return packets.Connack(code, flags == 1, properties)


def _suback(body: bytes, version: int, limits: PacketLimits, server: bool) -> packets.Packet:
    reader, packet_id, properties = _begin(body, version, limits, In.SUBACK)
    legal = LEGAL[PacketType.SUBACK] if version == 5 else _V3_SUBACK_CODES
    return packets.Suback(packet_id, _codes(reader, legal, "SUBACK"), properties)


def _unsuback(body: bytes, version: int, limits: PacketLimits, server: bool) -> packets.Packet:
    reader, packet_id, properties = _begin(body, version, limits, In.UNSUBACK)
    if version != 5:
        reader.finish("UNSUBACK")
        return packets.Unsuback(packet_id)
    return packets.Unsuback(
        packet_id, _codes(reader, LEGAL[PacketType.UNSUBACK], "UNSUBACK"), properties
    )


def _codes(reader: Reader, legal: frozenset[int], name: str) -> tuple[int, ...]:
    codes = tuple(reader.data[reader.pos :])
    if not codes:
        raise protocol_error(f"{name} without a reason code")
    for code in codes:
        if code not in legal:  # [MQTT-3.9.3-2, 3.11.3-2] [MQTT311-3.9.3-2]
            raise protocol_error(f"{name} with reason code 0x{code:02X}")
    return codes


def _ping(packet: packets.Pingreq | packets.Pingresp, name: str) -> BodyReader:
    def read(body: bytes, version: int, limits: PacketLimits, server: bool) -> packets.Packet:
        Reader(body).finish(name)
        return packet

    return read


_LEAVES: Final = packets.Disconnect()


def _disconnect(body: bytes, version: int, limits: PacketLimits, server: bool) -> packets.Packet:
    if not body:
        return _LEAVES
    reader = Reader(body, 0, limits.strict_text)
    code, properties = 0, EMPTY
    if version == 5:
        code, properties = _code_and_properties(reader, In.DISCONNECT, limits)
    reader.finish("DISCONNECT")
    if code not in _DISCONNECT_CODES[server]:  # [MQTT-3.14.2-1]
        raise protocol_error(f"DISCONNECT with reason code 0x{code:02X}")
    if not server and SESSION_EXPIRY_INTERVAL in properties.values:
        raise protocol_error("session expiry interval from a server")  # [MQTT-3.14.2-2]
    return packets.Disconnect(code, properties)


def _auth(body: bytes, version: int, limits: PacketLimits, server: bool) -> packets.Packet:
    reader = Reader(body, 0, limits.strict_text)
    code, properties = _code_and_properties(reader, In.AUTH, limits)
    reader.finish("AUTH")
    if code not in _AUTH_CODES[server]:  # [MQTT-3.15.2-1]
        raise protocol_error(f"AUTH with reason code 0x{code:02X}")
    if AUTHENTICATION_METHOD not in properties.values:
        # Section 3.15.2.2.2. The short form, with Remaining Length 0, is therefore an error too.
        raise protocol_error("AUTH without authentication method")
    return packets.Auth(code, properties)


def _code_and_properties(reader: Reader, where: In, limits: PacketLimits) -> tuple[int, Properties]:
    """Read the last fields of DISCONNECT or AUTH. The properties, or both fields, may be missing."""
    if reader.pos == reader.end:
        return 0, EMPTY
    code = reader.uint8("reason code")
    if reader.pos == reader.end:
        return code, EMPTY
    return code, read_properties(reader, where, limits.max_user_properties)


READERS: Final[dict[int, BodyReader]] = {
    PacketType.CONNACK: _connack,
    PacketType.PUBACK: _acknowledgement(packets.Puback, PacketType.PUBACK, In.PUBACK),
    PacketType.PUBREC: _acknowledgement(packets.Pubrec, PacketType.PUBREC, In.PUBREC),
    PacketType.PUBREL: _acknowledgement(packets.Pubrel, PacketType.PUBREL, In.PUBREL),
    PacketType.PUBCOMP: _acknowledgement(packets.Pubcomp, PacketType.PUBCOMP, In.PUBCOMP),
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: _ping(packets.Pingreq(), "PINGREQ"),
    PacketType.PINGRESP: _ping(packets.Pingresp(), "PINGRESP"),
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
