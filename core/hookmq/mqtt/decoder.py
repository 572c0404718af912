"""Decode packets. Each packet is decoded independently of earlier packets."""

from typing import Final

from hookmq.mqtt.connect_packet import ConnectError, decode_connect
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import legal_headers, refuse_header
from hookmq.mqtt.packet_bodies import READERS
from hookmq.mqtt.packet_limits import DEFAULT_LIMITS, PacketLimits
from hookmq.mqtt.packets import Packet, Publish, new_publish
from hookmq.mqtt.primitives import Reader, decode_utf8, malformed, protocol_error
from hookmq.mqtt.properties import EMPTY, In
from hookmq.mqtt.property_section import (
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    check_response_topic,
    read_properties,
)
from hookmq.mqtt.reason_codes import PacketType, ReasonCode

_PUBLISH: Final = PacketType.PUBLISH.value
_CONNECT: Final = PacketType.CONNECT.value


def decode_publish(
    header: int,
    body: bytes,
    version: int,
    limits: PacketLimits = DEFAULT_LIMITS,
    server: bool = True,
) -> Publish:
    """Decode a PUBLISH from its first byte and body. Raises ProtocolError.

    `server` is True if a server receives the packet, which must then not contain subscription identifiers.
    """
    qos = header >> 1 & 3
    if qos == 3 or (header & 0b1110 == 0b1000 and version != 3):
        raise refuse_header(header, version, server)  # [MQTT-3.3.1-2, 3.3.1-4]
    size = len(body)
    if size < 2:
        raise malformed("topic is truncated")
    pos = 2 + (body[0] << 8 | body[1])
    if pos > size:
        raise malformed("topic is truncated")
    raw = body[2:pos]
    # [MQTT-3.3.2-1] [MQTT311-3.3.2-1]; printable ASCII needs no further check
    topic = raw.decode("ascii") if raw.isascii() else ""
    if not topic.isprintable() or len(topic) != len(raw):
        topic = decode_utf8(raw, "topic", limits.strict_text)
    if "#" in topic or "+" in topic:
        # [MQTT-3.3.2-2, 4.7.0-1] [MQTT311-3.3.2-2]
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "topic contains a wildcard")
    packet_id = 0
    if qos:
        if pos + 2 > size:
            raise malformed("packet identifier is truncated")
        packet_id = body[pos] << 8 | body[pos + 1]
        if not packet_id:
            raise protocol_error("packet identifier is 0")  # [MQTT-2.2.1-3] [MQTT311-2.3.1-1]
        pos += 2
    properties = EMPTY
    if version == 5:
        if pos < size and body[pos] == 0:
            pos += 1
        else:
            reader = Reader(body, pos, limits.strict_text)
            properties = read_properties(reader, In.PUBLISH, limits.max_user_properties)
            pos = reader.pos
            if server and SUBSCRIPTION_IDENTIFIER in properties.values:
                raise protocol_error("subscription identifier from a client")  # [MQTT-3.3.4-6]
            check_response_topic(properties)
    if not topic and TOPIC_ALIAS not in properties.values:
        raise protocol_error("topic is empty")  # [MQTT-4.7.3-1] [MQTT311-4.7.3-1]
    return new_publish(
        topic, body[pos:], qos, header & 1 != 0, header & 8 != 0, packet_id, properties
    )


def decode(
    header: int,
    body: bytes,
    version: int,
    limits: PacketLimits = DEFAULT_LIMITS,
    server: bool = True,
) -> Packet:
    """Decode a packet from its first byte and body. Raises ProtocolError, or ConnectError for a CONNECT.

    `version` is the connection's protocol level. It is 0 before CONNECT, when only CONNECT is legal. `server` is
    False if a client receives the packet. The caller must check the packet's size.
    """
    if not legal_headers(version, server)[header]:
        error = refuse_header(header, version, server)
        raise error if version or not server else ConnectError(error.code, error.detail)
    number = header >> 4
    if number == _PUBLISH:
        return decode_publish(header, body, version, limits, server)
    if number == _CONNECT:
        return decode_connect(body, limits, header & 15)
    return READERS[number](body, version, limits, server)
