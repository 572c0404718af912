"""MQTT over WebSocket: a `Wire` built on aiohttp, which implements HTTP and WebSocket frames."""

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.http import HttpProcessingError

from hookmq.model.client import Peer
from hookmq.server.addresses import (
    bound_to_loopback,
    forwarded_for,
    host_of,
    is_loopback,
    parse_networks,
)
from hookmq.server.connection_limit import ListenerConnections
from hookmq.server.settings import ListenerSettings
from hookmq.server.tcp import peer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hookmq.server.protocols import ConnectionHandler

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
"""The subprotocols in order of preference. MQTT 3.1 clients ask for the second."""
HTTP_LIMITS: Final[dict[str, Any]] = {
    "access_log": None,
    "max_field_size": 8190,
    "lingering_time": 0,
}


class WebServer:
    """The HTTP part of a listener. It makes an `HttpConnection` for each connection."""

    max_line = 4096
    """Maximum length of the first line of a request, in bytes."""

    def __init__(
        self, gate: ListenerConnections, settings: ListenerSettings, server: web.Server
    ) -> None:
        self._gate = gate
        self._server = server
        self.apply(settings)

    def apply(self, settings: ListenerSettings) -> None:
        """Apply the settings that can change while the listener is open."""
        self._timeout = settings.connect_timeout
        self._close_timeout = settings.close_timeout
        self._local = bound_to_loopback(settings.bind)

    def make(self, source: Peer | None = None) -> asyncio.BaseProtocol:
        """Return the protocol for one connection. `source` is the peer from the PROXY header, or None."""
        # aiohttp's keep-alive timeout also limits the time for a request's headers.
        loop, timeout = self._gate.loop, self._timeout
        return HttpConnection(
            self._gate, source, self._server, loop=loop, keepalive_timeout=timeout,
            max_line_size=self.max_line, **HTTP_LIMITS,
        )  # fmt: skip

    async def close(self) -> None:
        """End all requests. All connections have already been closed."""
        await self._server.shutdown(self._close_timeout)


class WebSocketServer(WebServer):
    """The HTTP part of a ws or wss listener. `max_message` is in bytes; 0 means no limit."""

    def __init__(
        self, gate: ListenerConnections, settings: ListenerSettings, max_message: int
    ) -> None:
        super().__init__(gate, settings, web.Server(self._handle))
        self._options = settings.websocket
        self._max_message = settings.websocket.max_message or max_message
        self._trusted = parse_networks(settings.trusted_proxies)
        self._origins = frozenset(_origin(origin) for origin in settings.websocket.origins)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal, protocol = self._examine(request)
        if refusal is not None:
            refusal.force_close()
            return refusal
        socket = web.WebSocketResponse(
            protocols=(protocol,),
            timeout=self._close_timeout,
            compress=self._options.compression,
            max_msg_size=self._max_message,
            decode_text=False,
        )
        try:
            await socket.prepare(request)
        except ValueError:
            # aiohttp can neither read a header that is not UTF-8 nor quote it in its 400 response.
            refusal = web.Response(status=400, text="not a WebSocket handshake\n")
            refusal.force_close()
            return refusal
        handler = cast("HttpConnection", request.protocol)
        if handler.transport is None:  # closed during the handshake
            return socket
        await WebSocketWire(self._gate, socket, handler).run(self._peer(request, handler))
        return socket

    def _examine(self, request: web.BaseRequest) -> tuple[web.Response | None, str]:
        headers = request.headers
        if request.path != self._options.path:
            return web.Response(status=404), ""
        if headers.get("Upgrade", "").strip().lower() != "websocket":
            return web.Response(status=426, headers={"Upgrade": "websocket"}), ""
        if not self._may_come_from(headers.get("Origin")):
            return web.Response(status=403, text="origin not allowed"), ""
        offered = {
            name.strip()
            for header in headers.getall("Sec-WebSocket-Protocol", ())
            for name in header.split(",")
        }
        protocol = next((name for name in SUBPROTOCOLS if name in offered), "")
        if not protocol:  # [MQTT-6.0.0-3]
            return web.Response(status=400, text="the subprotocol mqtt is required"), ""
        return None, protocol  # [MQTT-6.0.0-4] [MQTT311-6.0.0-4]

    def _may_come_from(self, origin: str | None) -> bool:
        """Return whether a web page from `origin` may connect. Only browsers send an origin."""
        if origin is None or "*" in self._origins:
            return True
        origin = _origin(origin)
        if origin in self._origins:
            return True
        host = origin.partition("://")[2]
        return not self._origins and self._local and is_loopback(host_of(host))

    def _peer(self, request: web.BaseRequest, handler: "HttpConnection") -> Peer:
        assert handler.transport is not None
        peer = peer_of(handler.transport, self._gate.transport, handler.source)
        host = forwarded_for(
            peer.host, request.headers.getall("X-Forwarded-For", ()), self._trusted
        )
        return peer if host == peer.host else peer._replace(host=host, port=0)


def _origin(text: str) -> str:
    return text.strip().lower().rstrip("/")


class HttpConnection(web.RequestHandler):
    """The aiohttp protocol for one connection, counted in `gate`. It has a `wire` after the upgrade to MQTT."""

    __slots__ = ("gate", "source", "stream", "too_big", "wire")

    def __init__(
        self, gate: ListenerConnections, source: Peer | None, *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.gate = gate
        self.source = source
        self.wire: WebSocketWire | None = None
        self.stream: asyncio.Task[Any] | None = None
        """The task that streams a response, to cancel when the connection ends."""
        self.too_big = False
        """True if the client announced a message that is too big before the broker accepted it."""

    def set_parser(self, parser: Any, *args: Any, **options: Any) -> None:
        """Switch to WebSocket frames."""
        super().set_parser(cast("Any", FirstFrameCheck(parser, self)), *args, **options)

    @property
    def accepted(self) -> bool:
        """True once the client is accepted."""
        return self.wire is not None and self.wire.accepted

    def refuse_size(self) -> None:
        """Close the connection because the client sent a message that is too big."""
        self.too_big = True
        if self.wire is not None:
            self.wire.end_too_big()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or close it if the listener is full."""
        if not self.gate.enter(self, transport.get_extra_info("peername")):
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Clean up after the transport has closed. A wire leaves the gate itself once it has notified the broker."""
        super().connection_lost(exc)
        if self.stream is not None:
            self.stream.cancel()
        if self.wire is None:
            self.gate.leave(self)
        else:
            self.wire.lost()

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log our own failures as errors. Log client mistakes only at debug level; otherwise, any client could fill the
        log."""
        ours = not isinstance(options.get("exc_info"), HttpProcessingError | ConnectionError)
        (self.logger.error if ours else self.logger.debug)(*args, **options)

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def retire(self) -> None:
        """Close the connection unless it was upgraded to MQTT."""
        if self.wire is None:
            self.abort()


class FirstFrameCheck:
    """Checks frames before they reach aiohttp's parser, until the client is accepted.

    aiohttp buffers whole messages. This check refuses a message longer than ``connect_bytes`` as soon as its header
    announces the length, before aiohttp buffers any of it.
    """

    __slots__ = ("_handler", "_head", "_left", "_parser", "_size")

    def __init__(self, parser: Any, handler: HttpConnection) -> None:
        self._parser = parser
        self._handler = handler
        self._head = b""
        self._left = 0  # bytes of the frame's payload that have not arrived yet
        self._size = 0  # the message's size so far, from the headers of its fragments

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Check `data`, and pass it to aiohttp's parser."""
        handler = self._handler
        if handler.too_big:
            return False, b""
        if not handler.accepted and not self._fits(data):
            handler.refuse_size()
            return False, b""
        answer: tuple[bool, bytes] = self._parser.feed_data(data)
        return answer

    def feed_eof(self) -> None:
        """Pass the end of the stream to aiohttp's parser."""
        self._parser.feed_eof()

    def _fits(self, data: bytes) -> bool:
        most = self._handler.gate.scope.connect_bytes
        pos = 0
        while pos < len(data):
            if self._left:
                step = min(self._left, len(data) - pos)
                self._left -= step
                pos += step
                continue
            had = len(self._head)
            head = self._head + data[pos : pos + _HEADER - had]
            end = _header_size(head)
            if len(head) < end:
                self._head = head
                return True
            pos += end - had
            self._head = b""
            self._left = _payload_size(head)
            kind = head[0] & 0x0F
            if kind < _CONTROL:
                self._size = self._left + (0 if kind else self._size)
                if self._size > most:
                    return False
        return True


_HEADER: Final = 14
"""The length of the longest frame header, in bytes."""
_CONTROL: Final = 8
"""The lowest opcode of control frames."""


def _header_size(head: bytes) -> int:
    """Return the length of a frame header, or 2 if `head` is too short to determine it."""
    if len(head) < 2:
        return 2
    length = head[1] & 0x7F
    return 2 + (2 if length == 126 else 8 if length == 127 else 0) + (4 if head[1] & 0x80 else 0)


def _payload_size(head: bytes) -> int:
    length = head[1] & 0x7F
    return length if length < 126 else int.from_bytes(head[2 : 4 if length == 126 else 10], "big")


def discard(data: bytes) -> None:
    """Ignore bytes that arrive after the connection was closed."""


class WebSocketWire:
    """A `Wire` on a WebSocket. `write` only collects bytes; a task sends the collected bytes as one frame."""

    __slots__ = (
        "_chunks", "_closing", "_code", "_connection", "_feed", "_full", "_gate", "_gone", "_handler", "_reading",
        "_size", "_socket", "_timer", "_wake",
    )  # fmt: skip

    def __init__(
        self, gate: ListenerConnections, socket: web.WebSocketResponse[Any], handler: HttpConnection
    ) -> None:
        self._gate = gate
        self._socket = socket
        self._handler = handler
        self._chunks: list[bytes] = []
        self._size = 0  # bytes in the chunks and in the frame being sent
        self._full = False
        self._wake = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._closing = False
        self._gone = False
        """True if the transport has closed. Bytes received earlier may still be unread."""
        self._code = WSCloseCode.OK
        self._timer: asyncio.TimerHandle | None = None
        self._connection: ConnectionHandler | None = None
        self._feed: Callable[[bytes], None] = discard

    async def run(self, peer: Peer) -> None:
        """Serve the connection until it has ended and the broker has been notified."""
        connection = self._connection = self._gate.accept(self, peer, self._gate.scope)
        self._handler.wire = self
        if self._handler.too_big:
            self.end_too_big()
        if not self._closing:
            self._feed = connection.feed
        writer = self._gate.loop.create_task(self._write())
        error = "cancelled"
        try:
            error = await self._read()
        finally:
            self._feed = discard
            if not self._closing:  # the peer closed: nobody will read the unsent bytes
                self._closing = True
                writer.cancel()
            try:
                await asyncio.wait((writer,))
            finally:
                if self._timer is not None:
                    self._timer.cancel()
                self._connection = None
                self._gate.leave(self._handler)
                connection.closed(error)

    async def _read(self) -> str:
        """Pass messages to the broker until the connection ends. Return the error, or '' for a
        normal end.
        """
        while True:
            message = await self._socket.receive()
            kind = message.type
            if kind is WSMsgType.BINARY:
                if not self._reading.is_set():
                    await self._reading.wait()
                if len(message.data) > self._gate.scope.connect_bytes and not self.accepted:
                    self.end_too_big()  # the compressed message passed the earlier check
                # packets may start and end anywhere in frames [MQTT-6.0.0-2] [MQTT311-6.0.0-2]
                self._feed(message.data)
            elif kind is WSMsgType.TEXT:  # [MQTT-6.0.0-1] [MQTT311-6.0.0-1]
                self._end()
                self._linger()
                await self._socket.close(code=WSCloseCode.UNSUPPORTED_DATA)
                return "received a text frame: MQTT requires binary frames"
            elif kind is WSMsgType.ERROR:
                return str(message.data) or type(message.data).__name__
            else:
                return ""

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._chunks:
                    data = b"".join(self._chunks)
                    self._chunks.clear()
                    await self._socket.send_bytes(data)
                    self._size -= len(data)
                    if self._size <= self._gate.high_water // 4:
                        self._not_full()
                if self._closing:
                    await self._socket.close(code=self._code)
                    return
        except (ConnectionError, RuntimeError):  # the peer left; the reader notices this too
            self.lost()
            self._handler.abort()

    def lost(self) -> None:
        """Clean up after the transport has closed. Nothing more can be written. Bytes that were received earlier are
        still processed, in slices, because they may contain a DISCONNECT."""
        self._gone = True
        self._chunks.clear()
        self._size = 0
        self._not_full()

    def _not_full(self) -> None:
        if self._full:
            self._full = False
            if self._connection is not None:
                self._connection.resume_writing()

    @property
    def accepted(self) -> bool:
        """True once the client is accepted."""
        return self._connection is not None and self._connection.accepted

    def end_too_big(self) -> None:
        """Close because the client sent a message that is too big before the broker accepted it."""
        if not self._closing:
            self._code = WSCloseCode.MESSAGE_TOO_BIG
            self._end()
            self._linger()

    # called by the core: Wire

    def write(self, data: bytes) -> None:
        """Send `data` together with this turn's other writes. The data is ignored while the connection is closing."""
        if self._closing or self._gone:
            return
        self._chunks.append(data)
        self._size += len(data)
        self._wake.set()
        if not self._full and self._size > self._gate.high_water:
            self._full = True
            if self._connection is not None:
                self._connection.pause_writing()

    def close(self) -> None:
        """Send all written bytes, then close. Abort if that takes longer than `close_timeout`."""
        if not self._closing:
            self._end()
            self._linger()

    def _linger(self) -> None:
        if self._timer is None:
            self._timer = self._gate.loop.call_later(self._gate.close_timeout, self.abort)

    def _end(self) -> None:
        self._closing = True
        self._feed = discard
        self._reading.set()
        self._wake.set()

    def abort(self) -> None:
        """Close the connection at once."""
        self._chunks.clear()
        self._end()
        self._handler.abort()

    def pause_reading(self) -> None:
        """Stop passing messages to the broker. Once aiohttp's queue is full, it stops reading from the socket too."""
        if not self._closing:
            self._reading.clear()

    def resume_reading(self) -> None:
        """Resume passing messages to the broker."""
        self._reading.set()
