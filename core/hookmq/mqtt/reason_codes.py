"""MQTT 5.0 reason codes, the packets that may carry them, and their MQTT 3.x counterparts.

Every refusal in HookMQ has one of these codes. The tables follow MQTT 5.0 sections 2.4 and 3.x and MQTT 3.1.1 section
3.2.2.3. If table 2-6 and a packet's own table differ (0x8C in DISCONNECT), the packet's table applies.
"""

from enum import IntEnum
from typing import Final


class PacketType(IntEnum):
    """Control packet types. The values are the upper four bits of the first byte. 3.x has no AUTH."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class ReasonCode(IntEnum):
    """A reason code. 0x00 is SUCCESS in every packet, and also means that QoS 0 was granted."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def text(self) -> str:
        """The name in words, for logs and reason strings: ``not authorized``."""
        return self.name.lower().replace("_", " ")

    @property
    def failed(self) -> bool:
        """Whether the operation was refused: 0x80 and above (MQTT 5.0 section 2.4)."""
        return self.value >= 0x80


def _codes(*values: int) -> frozenset[ReasonCode]:
    return frozenset(ReasonCode(value) for value in values)


_PUBLISH_ACK = _codes(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
_RELEASE_ACK = _codes(0x00, 0x92)

LEGAL: Final[dict[PacketType, frozenset[ReasonCode]]] = {
    PacketType.CONNACK: _codes(
        0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C,
        0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
    ),
    PacketType.PUBACK: _PUBLISH_ACK,
    PacketType.PUBREC: _PUBLISH_ACK,
    PacketType.PUBREL: _RELEASE_ACK,
    PacketType.PUBCOMP: _RELEASE_ACK,
    PacketType.SUBACK: _codes(0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2),
    PacketType.UNSUBACK: _codes(0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91),
    PacketType.DISCONNECT: _codes(
        0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95,
        0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    ),
    PacketType.AUTH: _codes(0x00, 0x18, 0x19),
}  # fmt: skip
"""The codes that each packet may carry, in either direction [MQTT-3.2.2-8, 3.4.2-1, 3.5.2-1, 3.6.2-1, 3.7.2-1,
3.9.3-2, 3.11.3-2, 3.14.2-1, 3.15.2-1]."""

CLIENT_DISCONNECT: Final = LEGAL[PacketType.DISCONNECT] - _codes(
    0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2
)
"""Codes that a client may send in DISCONNECT."""

_NEAREST: Final[dict[PacketType, dict[ReasonCode, ReasonCode]]] = {
    PacketType.CONNACK: {
        ReasonCode.MESSAGE_RATE_TOO_HIGH: ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.SERVER_SHUTTING_DOWN: ReasonCode.SERVER_UNAVAILABLE,
        ReasonCode.ADMINISTRATIVE_ACTION: ReasonCode.NOT_AUTHORIZED,
    },
    PacketType.PUBACK: {
        ReasonCode.MESSAGE_RATE_TOO_HIGH: ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.PACKET_TOO_LARGE: ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.BANNED: ReasonCode.NOT_AUTHORIZED,
        ReasonCode.ADMINISTRATIVE_ACTION: ReasonCode.NOT_AUTHORIZED,
    },
    PacketType.SUBACK: {
        ReasonCode.MESSAGE_RATE_TOO_HIGH: ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.BANNED: ReasonCode.NOT_AUTHORIZED,
        ReasonCode.ADMINISTRATIVE_ACTION: ReasonCode.NOT_AUTHORIZED,
        ReasonCode.TOPIC_NAME_INVALID: ReasonCode.TOPIC_FILTER_INVALID,
    },
    PacketType.DISCONNECT: {
        ReasonCode.BANNED: ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD: ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BAD_AUTHENTICATION_METHOD: ReasonCode.NOT_AUTHORIZED,
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ReasonCode.NOT_AUTHORIZED,
        ReasonCode.SERVER_UNAVAILABLE: ReasonCode.SERVER_BUSY,
    },
}
_NEAREST[PacketType.PUBREC] = _NEAREST[PacketType.PUBACK]
_NEAREST[PacketType.UNSUBACK] = _NEAREST[PacketType.SUBACK]


def clamp(packet: PacketType, code: int) -> ReasonCode:
    """Return `code` if `packet` may carry it, else the nearest legal code, else 0x80 (0x92 for PUBREL and PUBCOMP).

    Accepts any integer from a plugin. A failure never becomes a success. A success that the packet cannot carry
    becomes 0x00.
    """
    legal = LEGAL[packet]
    try:
        known = ReasonCode(code)
    except ValueError:
        known = ReasonCode.UNSPECIFIED_ERROR if code >= 0x80 else ReasonCode.SUCCESS
    if known in legal:
        return known
    if not known.failed:
        return ReasonCode.SUCCESS
    nearest = _NEAREST.get(packet, {}).get(known)
    if nearest is not None:
        return nearest
    return (
        ReasonCode.UNSPECIFIED_ERROR
        if ReasonCode.UNSPECIFIED_ERROR in legal
        else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
    )


_V3_CONNACK: Final[dict[ReasonCode, int]] = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 5,
}


def v3_connack(code: ReasonCode) -> int:
    """Return the CONNACK return code (0 to 5) for MQTT 3.x clients. Return 3 (unavailable) if no other code fits
    [MQTT-3.2.2-6].
    """
    return _V3_CONNACK.get(code, 3)
