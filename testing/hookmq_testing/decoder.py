"""Decode the byte stream of one connection. The broker reads its own connections with `broker.packet_reader`."""

from hookmq.mqtt.connect_packet import ConnectError
from hookmq.mqtt.decoder import decode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import frame, legal_headers, refuse_header
from hookmq.mqtt.packet_limits import DEFAULT_LIMITS, PacketLimits
from hookmq.mqtt.packets import Connect, Packet
from hookmq.mqtt.reason_codes import ReasonCode


class Decoder:
    """Decodes the bytes of one connection into packets.

    `version` is the protocol level. A server's decoder takes it from CONNECT; until then it is 0.
    `error` is None until the peer violates the protocol; nothing is decoded after an error. At most
    one partial packet is buffered, and never one whose first byte or length is already invalid.
    """

    def __init__(
        self, version: int = 0, limits: PacketLimits = DEFAULT_LIMITS, server: bool = True
    ) -> None:
        legal_headers(version, server)  # raises KeyError for an unknown version
        self.version = version
        self.error: ProtocolError | None = None
        self._limits = limits
        self._server = server
        self._partial = b""

    @property
    def buffered(self) -> int:
        """The number of buffered bytes of a partial packet."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[Packet]:
        """Decode `data` and return the completed packets, in order.

        If there is an error, the packets before it are returned and `error` is set; ProtocolError is never raised.
        Before CONNECT is decoded, a server's decoder sets `error` to a ConnectError.
        """
        packets: list[Packet] = []
        if self.error is None:
            try:
                self._read(self._partial + data, packets)
            except ProtocolError as error:
                if not self.version and self._server and not isinstance(error, ConnectError):
                    error = ConnectError(error.code, error.detail)
                self.error = error
                self._partial = b""
        return packets

    def _read(self, data: bytes, packets: list[Packet]) -> None:
        start = 0
        while start < len(data):
            header = data[start]
            if not legal_headers(self.version, self._server)[header]:
                raise refuse_header(header, self.version, self._server)
            found = frame(data, start)
            largest = self._limits.max_packet_size
            if found is not None and found[1] - start > largest:
                raise ProtocolError(
                    ReasonCode.PACKET_TOO_LARGE,
                    f"packet of {found[1] - start} bytes, at most {largest} are accepted",
                )
            if found is None or found[1] > len(data):
                break
            body, stop = found
            packet = decode(header, data[body:stop], self.version, self._limits, self._server)
            if self._server and isinstance(packet, Connect):
                self.version = packet.version
            packets.append(packet)
            start = stop
        self._partial = data[start:]
