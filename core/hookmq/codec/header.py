"""The fixed header: where a packet ends, and which first bytes are legal (MQTT 5.0 section 2.1).

Whether a first byte may be received is a table lookup, so that a bad packet is refused before a byte of its body is
kept. The table is built once from three rules: the type exists in the version, the peer may send it, its flags are right.
"""

from typing import Final

from hookmq.codec.primitives import malformed
from hookmq.errors import ProtocolError
from hookmq.reason import PacketType, ReasonCode

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
    """Where the packet whose first byte is ``data[start]`` has its body, and where it ends.

    Returns (body start, packet end), or None while the fixed header is not whole. The end may lie beyond the data.
    Raises ProtocolError 0x81 on a Remaining Length of more than four bytes or an over-long one [MQTT-1.5.5-1].
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
    """Why `header` may not be received by a server (else a client) that speaks `version`; None if it may."""
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
        return None  # MQTT 3.1 does not use these bits: the decoder, which learns the version, judges them
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
        flags &= ~_DUP  # MQTT 3.1 clients set DUP on what they send again
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
    """256 bytes: 1 where that first byte may be received by a server (else a client) speaking `version`."""
    return _LEGAL[version, server]


def refuse_header(header: int, version: int, server: bool) -> ProtocolError:
    """Why a first byte that is not legal is refused."""
    verdict = _REFUSED[version, server][header]
    assert verdict is not None
    return ProtocolError(*verdict)
