"""From packets to bytes, always in the shortest form.

Encoding raises ValueError for a packet that its MQTT version cannot express; that is a fault of the caller, never of a
peer. Properties of MQTT 5.0 are left out of 3.x packets.
"""

from collections.abc import Callable
from typing import Any, Final

from hookmq.codec.connect import encode_connect
from hookmq.codec.packets import (
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
    Unsuback,
    Unsubscribe,
)
from hookmq.codec.primitives import encode_string, encode_varint
from hookmq.codec.properties import encode_properties, encode_section
from hookmq.properties import In, Properties

__all__ = ["encode", "encode_properties", "encode_publish_parts", "encode_varint"]

_V3_FAILED: Final = 0x80


def encode_publish_parts(
    topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool, properties: bytes | None
) -> tuple[bytes, bytes]:
    """A PUBLISH without its packet identifier: (what comes before it, what comes after it).

    For QoS 0, which has none [MQTT-2.2.1-2] [MQTT311-2.3.1-5], the two joined are the packet, and `dup` is left out
    [MQTT-3.3.1-2, 4.3.1-1] [MQTT311-3.3.1-2, 4.3.1-1]. `topic` is UTF-8 of at most 65,535 bytes; `properties` is an
    encoded property section, length included, for MQTT 5.0 and None for 3.x. Raises ValueError if the packet is larger
    than MQTT allows.
    """
    size = len(topic)
    tail = payload if properties is None else properties + payload
    first = 0x30 | retain
    remaining = 2 + size + len(tail)
    if qos:
        remaining += 2
        first |= qos << 1 | dup << 3
    # to_bytes raises OverflowError: bring it under the one name that callers know.
    if size > 0xFFFF:
        raise ValueError(f"a topic of {size} bytes, at most 65,535 fit")
    return b"%c%b%b%b" % (first, encode_varint(remaining), size.to_bytes(2, "big"), topic), tail


def encode(packet: Packet, version: int) -> bytes:
    """`packet` as the protocol level `version` (3, 4 or 5) writes it; CONNECT goes by its own version.

    Raises ValueError for what that version cannot express.
    """
    try:
        first, body = _ENCODERS[type(packet)](packet, version)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    return b"%c%b%b" % (first, encode_varint(len(body)), body)


def _connect(packet: Connect, version: int) -> tuple[int, bytes]:
    return 0x10, encode_connect(packet)


def _connack(packet: Connack, version: int) -> tuple[int, bytes]:
    # MQTT 3.1 reserves the flags; a refusal never has a session [MQTT-3.2.2-6] [MQTT311-3.2.2-4].
    present = packet.session_present and version != 3 and not packet.code
    body = bytes((present, packet.code))
    return 0x20, body + encode_section(packet.properties, In.CONNACK) if version == 5 else body


def _publish(packet: Publish, version: int) -> tuple[int, bytes]:
    qos = packet.qos
    first = 0x30 | qos << 1 | packet.retain
    parts = [encode_string(packet.topic)]
    if not 0 <= qos <= 2:
        raise ValueError(f"QoS cannot be {qos}")
    if qos:
        first |= packet.dup << 3  # never with QoS 0 [MQTT-3.3.1-2]
        parts.append(_packet_id(packet.packet_id))
    if version == 5:
        parts.append(encode_section(packet.properties, In.PUBLISH))
    parts.append(packet.payload)
    return first, b"".join(parts)


def _packet_id(number: int) -> bytes:
    if not 0 < number <= 0xFFFF:
        raise ValueError(f"packet identifier {number}")  # [MQTT-2.2.1-3, 2.2.1-4]
    return number.to_bytes(2, "big")


def _acknowledgement(first: int, where: In) -> Callable[[Any, int], tuple[int, bytes]]:
    def write(packet: Puback | Pubrec | Pubrel | Pubcomp, version: int) -> tuple[int, bytes]:
        body = _packet_id(packet.packet_id)
        if version == 5 and (packet.code or packet.properties):
            body += bytes((packet.code,))
            if packet.properties:
                body += encode_section(packet.properties, where)
        return first, body

    return write


def _subscribe(packet: Subscribe, version: int) -> tuple[int, bytes]:
    if not packet.requests:
        raise ValueError("SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-2]
    parts = [_packet_id(packet.packet_id)]
    if version == 5:
        parts.append(encode_section(packet.properties, In.SUBSCRIBE))
    for request in packet.requests:
        if not (0 <= request.qos <= 2 and 0 <= request.retain_handling <= 2):
            raise ValueError("QoS and retain handling are 0 to 2")
        options = request.qos
        if version == 5:
            options |= (
                request.no_local << 2
                | request.retain_as_published << 3
                | request.retain_handling << 4
            )
        parts += (encode_string(request.filter), bytes((options,)))
    return 0x82, b"".join(parts)


def _suback(packet: Suback, version: int) -> tuple[int, bytes]:
    body = _packet_id(packet.packet_id)
    if version == 5:
        return 0x90, body + encode_section(packet.properties, In.SUBACK) + bytes(packet.codes)
    # Any failure is the one that 3.x knows [MQTT311-3.9.3-2].
    return 0x90, body + bytes(min(code, _V3_FAILED) for code in packet.codes)


def _unsubscribe(packet: Unsubscribe, version: int) -> tuple[int, bytes]:
    if not packet.filters:
        raise ValueError("UNSUBSCRIBE without a topic filter")  # [MQTT-3.10.3-2]
    body = _packet_id(packet.packet_id)
    if version == 5:
        body += encode_section(packet.properties, In.UNSUBSCRIBE)
    return 0xA2, body + b"".join(map(encode_string, packet.filters))


def _unsuback(packet: Unsuback, version: int) -> tuple[int, bytes]:
    body = _packet_id(packet.packet_id)
    if version == 5:
        body += encode_section(packet.properties, In.UNSUBACK) + bytes(packet.codes)
    return 0xB0, body


def _pingreq(packet: Pingreq, version: int) -> tuple[int, bytes]:
    return 0xC0, b""


def _pingresp(packet: Pingresp, version: int) -> tuple[int, bytes]:
    return 0xD0, b""


def _code_and_properties(code: int, properties: Properties, where: In) -> bytes:
    """DISCONNECT and AUTH: what is 0 or empty at the end is left off."""
    if properties:
        return bytes((code,)) + encode_section(properties, where)
    return bytes((code,)) if code else b""


def _disconnect(packet: Disconnect, version: int) -> tuple[int, bytes]:
    if version != 5:
        return 0xE0, b""
    return 0xE0, _code_and_properties(packet.code, packet.properties, In.DISCONNECT)


def _auth(packet: Auth, version: int) -> tuple[int, bytes]:
    if version != 5:
        raise ValueError("MQTT 3.x has no AUTH")
    return 0xF0, _code_and_properties(packet.code, packet.properties, In.AUTH)


_ENCODERS: Final[dict[type, Callable[[Any, int], tuple[int, bytes]]]] = {
    Connect: _connect,
    Connack: _connack,
    Publish: _publish,
    Puback: _acknowledgement(0x40, In.PUBACK),
    Pubrec: _acknowledgement(0x50, In.PUBREC),
    Pubrel: _acknowledgement(0x62, In.PUBREL),
    Pubcomp: _acknowledgement(0x70, In.PUBCOMP),
    Subscribe: _subscribe,
    Suback: _suback,
    Unsubscribe: _unsubscribe,
    Unsuback: _unsuback,
    Pingreq: _pingreq,
    Pingresp: _pingresp,
    Disconnect: _disconnect,
    Auth: _auth,
}
