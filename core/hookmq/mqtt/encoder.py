"""Encode packets, always in the shortest form.

Encoding raises ValueError if the MQTT version cannot express the packet, which is a bug in the caller. MQTT 5.0
properties are omitted from 3.x packets.
"""

from collections.abc import Callable
from typing import Any, Final

from hookmq.mqtt import packets
from hookmq.mqtt.connect_packet import encode_connect
from hookmq.mqtt.primitives import encode_string, encode_varint
from hookmq.mqtt.properties import In, Properties
from hookmq.mqtt.property_section import encode_properties, encode_section

__all__ = ["encode", "encode_properties", "encode_publish_parts", "encode_varint"]

_V3_FAILED: Final = 0x80


def encode_publish_parts(
    topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool, properties: bytes | None
) -> tuple[bytes, bytes]:
    """Encode a PUBLISH in two parts: the bytes before the packet id, and the bytes after it.

    For QoS 0, join the parts: the packet has no packet id [MQTT-2.2.1-2], [MQTT311-2.3.1-5], and `dup` is ignored
    [MQTT-3.3.1-2, 4.3.1-1], [MQTT311-3.3.1-2, 4.3.1-1]. `topic` is UTF-8 of at most 65,535 bytes. `properties` is an
    encoded section including its length, or None for 3.x. Raises ValueError if the packet is too large for MQTT.
    """
    size = len(topic)
    tail = payload if properties is None else properties + payload
    first = 0x30 | retain
    remaining = 2 + size + len(tail)
    if qos:
        remaining += 2
        first |= qos << 1 | dup << 3
    if size > 0xFFFF:  # to_bytes would raise OverflowError
        raise ValueError(f"topic of {size} bytes: at most 65,535 fit")
    if remaining < 128:
        return b"%c%c%b%b" % (first, remaining, size.to_bytes(2, "big"), topic), tail
    return b"%c%b%b%b" % (first, encode_varint(remaining), size.to_bytes(2, "big"), topic), tail


def publish_size(topic: int, payload: int, qos: int, section: int) -> int:
    """Return the size in bytes of an MQTT 5 PUBLISH, given the sizes of its topic, payload and property section. The size
    of the section includes its length field.
    """
    size = 2 + topic + (2 if qos else 0) + section + payload
    return size + (2 if size < 128 else 3 if size < 16384 else 4 if size < 2097152 else 5)


def encode(packet: packets.Packet, version: int) -> bytes:
    """Encode `packet` for protocol level `version` (3, 4 or 5). CONNECT uses its own version.

    Raises ValueError if the version cannot express the packet.
    """
    try:
        first, body = _ENCODERS[type(packet)](packet, version)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    return b"%c%b%b" % (first, encode_varint(len(body)), body)


def _connect(packet: packets.Connect, version: int) -> tuple[int, bytes]:
    return 0x10, encode_connect(packet)


def _connack(packet: packets.Connack, version: int) -> tuple[int, bytes]:
    # MQTT 3.1 reserves the flags. A refusal has no session [MQTT-3.2.2-6] [MQTT311-3.2.2-4].
    present = packet.session_present and version != 3 and not packet.code
    body = bytes((present, packet.code))
    return 0x20, body + encode_section(packet.properties, In.CONNACK) if version == 5 else body


def _publish(packet: packets.Publish, version: int) -> tuple[int, bytes]:
    qos = packet.qos
    first = 0x30 | qos << 1 | packet.retain
    parts = [encode_string(packet.topic)]
    if not 0 <= qos <= 2:
        raise ValueError(f"QoS {qos} is not 0, 1 or 2")
    if qos:
        first |= packet.dup << 3  # never with QoS 0 [MQTT-3.3.1-2]
        parts.append(_packet_id(packet.packet_id))
    if version == 5:
        parts.append(encode_section(packet.properties, In.PUBLISH))
    parts.append(packet.payload)
    return first, b"".join(parts)


def _packet_id(number: int) -> bytes:
    if not 0 < number <= 0xFFFF:
        raise ValueError(f"invalid packet id {number}")  # [MQTT-2.2.1-3, 2.2.1-4]
    return number.to_bytes(2, "big")


def _acknowledgement(first: int, where: In) -> Callable[[Any, int], tuple[int, bytes]]:
    def write(
        packet: packets.Puback | packets.Pubrec | packets.Pubrel | packets.Pubcomp, version: int
    ) -> tuple[int, bytes]:
        body = _packet_id(packet.packet_id)
        if version == 5 and (packet.code or packet.properties):
            body += bytes((packet.code,))
            if packet.properties:
                body += encode_section(packet.properties, where)
        return first, body

    return write


def _subscribe(packet: packets.Subscribe, version: int) -> tuple[int, bytes]:
    if not packet.requests:
        raise ValueError("SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-2]
    parts = [_packet_id(packet.packet_id)]
    if version == 5:
        parts.append(encode_section(packet.properties, In.SUBSCRIBE))
    for request in packet.requests:
        if not (0 <= request.qos <= 2 and 0 <= request.retain_handling <= 2):
            raise ValueError("QoS and retain handling must be 0, 1 or 2")
        options = request.qos
        if version == 5:
            options |= (
                request.no_local << 2
                | request.retain_as_published << 3
                | request.retain_handling << 4
            )
        parts += (encode_string(request.filter), bytes((options,)))
    return 0x82, b"".join(parts)


def _suback(packet: packets.Suback, version: int) -> tuple[int, bytes]:
    body = _packet_id(packet.packet_id)
    if version == 5:
        return 0x90, body + encode_section(packet.properties, In.SUBACK) + bytes(packet.codes)
    # MQTT 3 has one code for all failures [MQTT311-3.9.3-2].
    return 0x90, body + bytes(min(code, _V3_FAILED) for code in packet.codes)


def _unsubscribe(packet: packets.Unsubscribe, version: int) -> tuple[int, bytes]:
    if not packet.filters:
        raise ValueError("UNSUBSCRIBE without a topic filter")  # [MQTT-3.10.3-2]
    body = _packet_id(packet.packet_id)
    if version == 5:
        body += encode_section(packet.properties, In.UNSUBSCRIBE)
    return 0xA2, body + b"".join(map(encode_string, packet.filters))


def _unsuback(packet: packets.Unsuback, version: int) -> tuple[int, bytes]:
    body = _packet_id(packet.packet_id)
    if version == 5:
        body += encode_section(packet.properties, In.UNSUBACK) + bytes(packet.codes)
    return 0xB0, body


def _ping(first: int) -> Callable[[Any, int], tuple[int, bytes]]:
    return lambda packet, version: (first, b"")


def _code_and_properties(code: int, properties: Properties, where: In) -> bytes:
    """Encode the body of DISCONNECT or AUTH. Trailing fields that are 0 or empty are omitted."""
    if properties:
        return bytes((code,)) + encode_section(properties, where)
    return bytes((code,)) if code else b""


def _disconnect(packet: packets.Disconnect, version: int) -> tuple[int, bytes]:
    if version != 5:
        return 0xE0, b""
    return 0xE0, _code_and_properties(packet.code, packet.properties, In.DISCONNECT)


def _auth(packet: packets.Auth, version: int) -> tuple[int, bytes]:
    if version != 5:
        raise ValueError("MQTT 3.x has no AUTH")
    return 0xF0, _code_and_properties(packet.code, packet.properties, In.AUTH)


_ENCODERS: Final[dict[type, Callable[[Any, int], tuple[int, bytes]]]] = {
    packets.Connect: _connect,
    packets.Connack: _connack,
    packets.Publish: _publish,
    packets.Puback: _acknowledgement(0x40, In.PUBACK),
    packets.Pubrec: _acknowledgement(0x50, In.PUBREC),
    packets.Pubrel: _acknowledgement(0x62, In.PUBREL),
    packets.Pubcomp: _acknowledgement(0x70, In.PUBCOMP),
    packets.Subscribe: _subscribe,
    packets.Suback: _suback,
    packets.Unsubscribe: _unsubscribe,
    packets.Unsuback: _unsuback,
    packets.Pingreq: _ping(0xC0),
    packets.Pingresp: _ping(0xD0),
    packets.Disconnect: _disconnect,
    packets.Auth: _auth,
}
