"""From bytes to packets: `frame` finds a packet, `decode` reads one, `Decoder` does both for a stream.

Nothing here knows what came before on the connection, except that CONNECT comes first and only once.
"""

from typing import Final

from hookmq.codec.bodies import READERS
from hookmq.codec.connect import ConnectError, decode_connect
from hookmq.codec.header import frame, legal_headers, refuse_header
from hookmq.codec.limits import DEFAULT_LIMITS, Limits
from hookmq.codec.packets import Packet, Publish, new_publish
from hookmq.codec.primitives import Reader, decode_utf8, malformed, protocol_error
from hookmq.codec.properties import (
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    check_response_topic,
    read_properties,
)
from hookmq.errors import ProtocolError
from hookmq.properties import EMPTY, In
from hookmq.reason import PacketType, ReasonCode

__all__ = ["ConnectError", "Decoder", "Limits", "decode", "decode_publish", "frame"]

_PUBLISH: Final = PacketType.PUBLISH.value
_CONNECT: Final = PacketType.CONNECT.value


def decode_publish(
    header: int, body: bytes, version: int, limits: Limits = DEFAULT_LIMITS, server: bool = True
) -> Publish:
    """The PUBLISH with this first byte and body. Raises ProtocolError.

    `server` tells that a server receives it; then a subscription identifier is refused.
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
    topic = decode_utf8(
        body[2:pos], "topic", limits.strict_text
    )  # [MQTT-3.3.2-1] [MQTT311-3.3.2-1]
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
    header: int, body: bytes, version: int, limits: Limits = DEFAULT_LIMITS, server: bool = True
) -> Packet:
    """The packet with this first byte and body. Raises ProtocolError; ConnectError in place of it for a CONNECT.

    `version` is the connection's protocol level, 0 before CONNECT, when nothing else is legal. `server` tells that a
    server receives the packet; a client passes False. The packet's size is the caller's to bound.
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


class Decoder:
    """Turns the stream of one connection into packets.

    `version` is the protocol level: a server's decoder takes it from the CONNECT (0 until then), a client's is told.
    `error` is None until the peer breaks the protocol; from then on nothing more is decoded. It keeps at most one
    partial packet, and none whose first byte or length is already wrong.
    """

    __slots__ = ("_body", "_legal", "_limits", "_need", "_partial", "_server", "_version", "error")

    def __init__(
        self, version: int = 0, limits: Limits = DEFAULT_LIMITS, server: bool = True
    ) -> None:
        self._limits = limits
        self._server = server
        self._partial = bytearray()
        self._need = 0  # the partial packet's size once its fixed header is whole, else 0
        self._body = 0  # and where its body starts
        self.error: ProtocolError | None = None
        self.version = version

    @property
    def version(self) -> int:
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._legal = legal_headers(version, self._server)
        self._version = version

    @property
    def buffered(self) -> int:
        """How many bytes of a partial packet are kept."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that `data` completes, in order; those before an error are returned and then `error` is set.

        Never raises ProtocolError. A server's decoder sets ConnectError as long as no CONNECT has been decoded.
        """
        packets: list[Packet] = []
        if self.error is None:
            try:
                self._read(data, packets)
            except ProtocolError as error:
                if not self._version and self._server and not isinstance(error, ConnectError):
                    error = ConnectError(error.code, error.detail)
                self.error = error
                self._partial = bytearray()
                self._need = 0
        return packets

    def _read(self, data: bytes, packets: list[Packet]) -> None:
        start = self._finish_partial(data, packets) if self._partial else 0
        end = len(data)
        largest = self._limits.max_packet_size
        while start < end:
            header = data[start]
            if not self._legal[header]:
                raise refuse_header(header, self._version, self._server)
            found = frame(data, start)
            if found is None:
                self._partial += data[start:]
                return
            body, stop = found
            if stop - start > largest:
                raise _too_large(stop - start, largest)
            if stop > end:
                self._body, self._need = body - start, stop - start
                self._partial += data[start:]
                return
            self._decode(header, data[body:stop], packets)
            start = stop

    def _finish_partial(self, data: bytes, packets: list[Packet]) -> int:
        """Add `data` to the partial packet, as far as it belongs to it; returns how far that is."""
        partial = self._partial
        have = len(partial)
        if not self._need:
            found = frame(bytes(partial) + data[:4], 0)
            if found is None:
                partial += data
                return len(data)
            if found[1] > self._limits.max_packet_size:
                raise _too_large(found[1], self._limits.max_packet_size)
            self._body, self._need = found
        taken = self._need - have
        partial += data[:taken]
        if len(partial) < self._need:
            return len(data)
        self._partial = bytearray()
        self._need = 0
        self._decode(partial[0], bytes(memoryview(partial)[self._body :]), packets)
        return taken

    def _decode(self, header: int, body: bytes, packets: list[Packet]) -> None:
        number = header >> 4
        packet: Packet
        if number == _PUBLISH:
            packet = decode_publish(header, body, self._version, self._limits, self._server)
        elif number == _CONNECT:
            packet = decode_connect(body, self._limits, header & 15)
            self.version = packet.version
        else:
            packet = READERS[number](body, self._version, self._limits, self._server)
        packets.append(packet)


def _too_large(size: int, largest: int) -> ProtocolError:
    # [MQTT-3.2.2-15]; a packet of exactly that size is accepted
    return ProtocolError(
        ReasonCode.PACKET_TOO_LARGE, f"packet of {size} bytes, at most {largest} are accepted"
    )
