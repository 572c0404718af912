"""The client side of MQTT over WebSocket. It converts socket bytes to MQTT bytes and back, and does no I/O."""

from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from hookmq_bench.address import BenchError

_DATA: Final = (Opcode.BINARY, Opcode.CONT)


class WebSocketError(BenchError):
    """The server refused the WebSocket or violated the WebSocket protocol."""


class WebSocket:
    """The client side of a WebSocket. `opened` is true once MQTT may begin."""

    __slots__ = ("_protocol", "opened")

    def __init__(self, url: str) -> None:
        # [MQTT-6.0.0-3] [MQTT311-6.0.0-3]: the subprotocol is "mqtt".
        self._protocol = ClientProtocol(
            parse_uri(url), subprotocols=[Subprotocol("mqtt")], max_size=None
        )
        self.opened = False

    @property
    def closing(self) -> str:
        """Why the WebSocket can no longer send. It is '' while the WebSocket is open."""
        protocol = self._protocol
        if protocol.state in (State.CONNECTING, State.OPEN):
            return ""
        closed = protocol.close_rcvd
        return f"the WebSocket was closed ({closed})" if closed else "the WebSocket was closed"

    def hello(self) -> bytes:
        """Return the HTTP request that opens the WebSocket."""
        self._protocol.send_request(self._protocol.connect())
        return b"".join(self._protocol.data_to_send())

    def receive(self, data: bytes) -> bytes:
        """Return the MQTT bytes contained in `data`, which was read from the socket. Raises WebSocketError."""
        protocol = self._protocol
        protocol.receive_data(data)
        parts = []
        for event in protocol.events_received():
            if isinstance(event, Frame):
                if event.opcode in _DATA:
                    parts.append(bytes(event.data))
            elif isinstance(event, Response):
                failed: WebSocketException | Exception | None = protocol.handshake_exc
                if failed is not None:
                    raise WebSocketError(f"no WebSocket: {failed}")
                self.opened = True
        if protocol.parser_exc is not None:
            raise WebSocketError(f"invalid WebSocket frame: {protocol.parser_exc}")
        return b"".join(parts)

    def wrap(self, data: bytes) -> bytes:
        """Wrap `data` in a single WebSocket message."""
        self._protocol.send_binary(data)
        return b"".join(self._protocol.data_to_send())

    def answers(self) -> bytes:
        """Return the control frames that must be sent: pongs and the close frame."""
        return b"".join(self._protocol.data_to_send())
