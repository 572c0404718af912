"""Parse fixed headers: find the end of each packet and check its first byte (MQTT 5.0 section 2.1).

A table of legal first bytes lets the broker refuse an illegal packet before it stores the body. A first byte is legal if
the version has this packet type, the sender may send it, and its flags are correct.
"""

from typing import Final

from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.primitives import malformed
from hookmq.mqtt.reason_codes import PacketType, ReasonCode

_ONLY_SERVERS_SEND: Final = frozenset(
    (PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP)
)
_ONLY_CLIENTS_SEND: Final = frozenset(
    (PacketType.CONNECT, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PINGREQ)
)
_FLAGS_0010: Final = frozenset((PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE))
_DUP: Final = 0b1000
_QOS: Final = 0b0110


def frame(data: bytes, start: int) -> tuple[int, int] | None:
    """Return (body start, packet end) of the packet that starts at ``data[start]``, or None if its fixed header is
    incomplete.

    The end may be beyond `data`. Raises ProtocolError 0x81 if the Remaining Length has more than four bytes or is not
    encoded in its shortest form [MQTT-1.5.5-1].
    """
    pos = start + 1
    have = len(data)
    if pos >= have:
        return None
    byte = data[pos]
    pos += 1
    if byte < 128:
        return pos, pos + byte
    size = byte & 127
    for shift in (7, 14, 21):
        if pos >= have:
            return None
        byte = data[pos]
        pos += 1
        if byte < 128:
            if byte == 0:
                raise malformed("remaining length is over-long")
            return pos, pos + (size | byte << shift)
        size |= (byte & 127) << shift
    raise malformed("remaining length has more than four bytes")


def _verdict(header: int, version: int, server: bool) -> tuple[ReasonCode, str] | None:
    """Return why a server (or a client, if `server` is False) must not receive the first byte `header` in `version`.
    Return None if receiving it is legal.
    """
    number, flags = header >> 4, header & 15
    if version == 0 and (not server or number != PacketType.CONNECT):
        # [MQTT-3.1.0-1] [MQTT311-3.1.0-1]
        return ReasonCode.PROTOCOL_ERROR, "the first packet is not CONNECT"
    if number == 0 or (number == PacketType.AUTH and version < 5):
        return ReasonCode.MALFORMED_PACKET, f"packet type {number} is reserved"
    packet = PacketType(number)
    if version and server and packet is PacketType.CONNECT:
        return ReasonCode.PROTOCOL_ERROR, "second CONNECT"  # [MQTT-3.1.0-2] [MQTT311-3.1.0-2]
    if server and packet is PacketType.CONNECT and not flags & ~_QOS:
        return None  # MQTT 3.1 does not use these bits: the decoder checks them once it knows the version
    if server and packet in _ONLY_SERVERS_SEND:
        return ReasonCode.PROTOCOL_ERROR, f"{packet.name} from a client"
    if not server and (
        packet in _ONLY_CLIENTS_SEND or (packet is PacketType.DISCONNECT and version < 5)
    ):
        return ReasonCode.PROTOCOL_ERROR, f"{packet.name} from a server"
    if packet is PacketType.PUBLISH:
        if flags & _QOS == _QOS:
            # [MQTT-3.3.1-4] [MQTT311-3.3.1-4]
            return ReasonCode.MALFORMED_PACKET, "PUBLISH with QoS 3"
        if flags & _DUP and not flags & 0b0110 and version != 3:
            # [MQTT-3.3.1-2] [MQTT311-3.3.1-2]
            return ReasonCode.MALFORMED_PACKET, "PUBLISH with DUP and QoS 0"
        return None
    # [MQTT-2.1.3-1, 3.6.1-1, 3.8.1-1, 3.10.1-1, 3.14.1-1, 3.15.1-1]
    # [MQTT311-2.2.2-1, 2.2.2-2, 3.6.1-1, 3.8.1-1, 3.10.1-1, 3.14.1-1]
    right = 0b0010 if packet in _FLAGS_0010 else 0
    if version == 3 and right:
        flags &= ~_DUP  # MQTT 3.1 clients set DUP on packets that they send again
    if flags != right:
        return ReasonCode.MALFORMED_PACKET, f"{packet.name} with flags {header & 15:04b}"
    return None


_VERSIONS: Final = (0, 3, 4, 5)
_REFUSED: Final = {
    (version, server): tuple(_verdict(header, version, server) for header in range(256))
    for version in _VERSIONS
    for server in (True, False)
}
_LEGAL: Final = {key: bytes(v is None for v in row) for key, row in _REFUSED.items()}


def legal_headers(version: int, server: bool) -> bytes:
    """Return a 256-byte table indexed by first byte: 1 if a server (or a client) may receive it in `version`, else 0."""
    return _LEGAL[version, server]


def refuse_header(header: int, version: int, server: bool) -> ProtocolError:
    """Return the error for an illegal first byte."""
    verdict = _REFUSED[version, server][header]
    assert verdict is not None
    return ProtocolError(*verdict)
