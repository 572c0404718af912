"""MQTT over WebSocket: aiohttp speaks HTTP and frames, this is the core's Wire on top of it."""

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.http import HttpProcessingError

from hookmq.server.addresses import (
    bound_to_loopback,
    forwarded_for,
    host_of,
    is_loopback,
    parse_networks,
)
from hookmq.server.gate import Gate
from hookmq.server.settings import ListenerSettings
from hookmq.server.tcp import peer_of
from hookmq.types import Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from hookmq.server.ports import Connection

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
"""By preference; the second is what 3.1 clients ask for."""
HTTP_LIMITS: Final[dict[str, Any]] = {
    "access_log": None,
    "max_line_size": 4096,
    "max_field_size": 8190,
    "lingering_time": 0,
}


class WebSocketServer:
    """One ws or wss listener's HTTP side. `max_message` is in bytes, 0 none."""

    def __init__(self, gate: Gate, settings: ListenerSettings, max_message: int) -> None:
        self._gate = gate
        self._options = settings.websocket
        self._timeout = settings.connect_timeout
        self._close_timeout = settings.close_timeout
        self._max_message = settings.websocket.max_message or max_message
        self._trusted = parse_networks(settings.trusted_proxies)
        self._origins = frozenset(_origin(origin) for origin in settings.websocket.origins)
        self._local = bound_to_loopback(settings.bind)
        self._server = web.Server(self._handle)

    def make(self, source: Peer | None = None) -> asyncio.BaseProtocol:
        """The protocol of one connection; `source` is the peer as a PROXY header named it."""
        # The timeout of a kept-alive connection is also that of the first request.
        return Handler(
            self._gate,
            source,
            self._server,
            loop=self._gate.loop,
            keepalive_timeout=self._timeout,
            **HTTP_LIMITS,
        )

    async def close(self) -> None:
        """End every request; connections have been closed before."""
        await self._server.shutdown(self._close_timeout)

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
            # aiohttp neither reads a header that is not UTF-8 nor can it quote one in its 400.
            refusal = web.Response(status=400, text="not a WebSocket handshake\n")
            refusal.force_close()
            return refusal
        handler = cast("Handler", request.protocol)
        if handler.transport is None:  # gone while the answer went out
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
            return web.Response(status=400, text="the subprotocol mqtt is needed"), ""
        return None, protocol  # [MQTT-6.0.0-4] [MQTT311-6.0.0-4]

    def _may_come_from(self, origin: str | None) -> bool:
        """Whether a page of `origin` may connect; only browsers send one."""
        if origin is None or "*" in self._origins:
            return True
        origin = _origin(origin)
        if origin in self._origins:
            return True
        host = origin.partition("://")[2]
        return not self._origins and self._local and is_loopback(host_of(host))

    def _peer(self, request: web.BaseRequest, handler: "Handler") -> Peer:
        assert handler.transport is not None
        peer = peer_of(handler.transport, self._gate.transport, handler.source)
        host = forwarded_for(
            peer.host, request.headers.getall("X-Forwarded-For", ()), self._trusted
        )
        return peer if host == peer.host else peer._replace(host=host, port=0)


def _origin(text: str) -> str:
    return text.strip().lower().rstrip("/")


class Handler(web.RequestHandler):
    """aiohttp's protocol of one connection, counted by the listener's gate. `wire` is there once it is MQTT."""

    __slots__ = ("gate", "source", "too_big", "wire")

    def __init__(self, gate: Gate, source: Peer | None, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gate = gate
        self.source = source
        self.wire: WebSocketWire | None = None
        self.too_big = False
        """Whether a message was announced that a client may not send before it is accepted."""

    def set_parser(self, parser: Any, *args: Any, **options: Any) -> None:
        """From here on bytes are WebSocket frames."""
        super().set_parser(cast("Any", FirstFrames(parser, self)), *args, **options)

    @property
    def accepted(self) -> bool:
        """Whether the broker let the client in."""
        return self.wire is not None and self.wire.accepted

    def refuse_size(self) -> None:
        """End the connection because of `too_big`."""
        self.too_big = True
        if self.wire is not None:
            self.wire.end_too_big()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, or close it when the listener is full."""
        if not self.gate.enter(self, transport.get_extra_info("peername")):
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The transport is gone. The wire leaves the gate by itself, after the broker was told."""
        super().connection_lost(exc)
        if self.wire is None:
            self.gate.leave(self)
        else:
            self.wire.lost()

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log faults as errors; what a client wrote wrongly, or that it left before its answer, is none of ours, and
        anybody could fill the log with it."""
        ours = not isinstance(options.get("exc_info"), HttpProcessingError | ConnectionError)
        (self.logger.error if ours else self.logger.debug)(*args, **options)

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def retire(self) -> None:
        """Close unless it is MQTT."""
        if self.wire is None:
            self.abort()


class FirstFrames:
    """Stands before aiohttp's WebSocket parser until the client is accepted. aiohttp gathers whole messages; a message
    longer than ``connect_bytes`` is refused by the length in its header, before anything of it is kept."""

    __slots__ = ("_handler", "_head", "_left", "_parser", "_size")

    def __init__(self, parser: Any, handler: Handler) -> None:
        self._parser = parser
        self._handler = handler
        self._head = b""
        self._left = 0  # bytes of the frame's payload that are still to come
        self._size = 0  # of the message, by the headers of its fragments

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """As aiohttp's parser."""
        handler = self._handler
        if handler.too_big:
            return False, b""
        if not handler.accepted and not self._may_come(data):
            handler.refuse_size()
            return False, b""
        answer: tuple[bool, bytes] = self._parser.feed_data(data)
        return answer

    def feed_eof(self) -> None:
        """As aiohttp's parser."""
        self._parser.feed_eof()

    def _may_come(self, data: bytes) -> bool:
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
"""Bytes of the longest header of a frame."""
_CONTROL: Final = 8
"""The first kind of frame that is none of a message."""


def _header_size(head: bytes) -> int:
    """How long a frame's header is, by what of it is there."""
    if len(head) < 2:
        return 2
    length = head[1] & 0x7F
    return 2 + (2 if length == 126 else 8 if length == 127 else 0) + (4 if head[1] & 0x80 else 0)


def _payload_size(head: bytes) -> int:
    length = head[1] & 0x7F
    return length if length < 126 else int.from_bytes(head[2 : 4 if length == 126 else 10], "big")


def discard(data: bytes) -> None:
    """What a closed connection does with bytes that still come."""


class WebSocketWire:
    """The core's Wire on a WebSocket. `write` only collects; a task sends all that has come together as one frame."""

    __slots__ = (
        "_chunks", "_closing", "_code", "_connection", "_feed", "_full", "_gate", "_gone", "_handler", "_reading",
        "_size", "_socket", "_timer", "_wake",
    )  # fmt: skip

    def __init__(self, gate: Gate, socket: web.WebSocketResponse[Any], handler: Handler) -> None:
        self._gate = gate
        self._socket = socket
        self._handler = handler
        self._chunks: list[bytes] = []
        self._size = 0  # bytes in chunks and in the frame being sent
        self._full = False
        self._wake = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._closing = False
        self._gone = False
        """Whether the transport is gone; what came before may still wait to be read."""
        self._code = WSCloseCode.OK
        self._timer: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._feed: Callable[[bytes], None] = discard

    async def run(self, peer: Peer) -> None:
        """Serve the connection to its end. Returns when the broker has been told that it ended."""
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
            if not self._closing:  # the peer ended it: nobody reads what is still unsent
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
        """Feed what comes; the answer says why it ended, '' when in order."""
        while True:
            message = await self._socket.receive()
            kind = message.type
            if kind is WSMsgType.BINARY:
                if not self._reading.is_set():
                    await self._reading.wait()
                if len(message.data) > self._gate.scope.connect_bytes and not self.accepted:
                    self.end_too_big()  # it was compressed
                # Packets may begin and end anywhere in frames [MQTT-6.0.0-2] [MQTT311-6.0.0-2]
                self._feed(message.data)
            elif kind is WSMsgType.TEXT:  # [MQTT-6.0.0-1] [MQTT311-6.0.0-1]
                self._end()
                self._linger()
                await self._socket.close(code=WSCloseCode.UNSUPPORTED_DATA)
                return "a text frame came; MQTT needs binary frames"
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
                    if self._full and self._size <= self._gate.high_water // 4:
                        self._full = False
                        if self._connection is not None:
                            self._connection.resume_writing()
                if self._closing:
                    await self._socket.close(code=self._code)
                    return
        except (ConnectionError, RuntimeError):  # the peer is gone; the reader says so too
            self.lost()
            self._handler.abort()

    def lost(self) -> None:
        """The transport is gone: nothing can be written any more. What came before is still read, a slice a turn: there
        may be a DISCONNECT in it."""
        self._gone = True
        self._chunks.clear()
        self._size = 0
        if self._full:
            self._full = False
            if self._connection is not None:
                self._connection.resume_writing()

    @property
    def accepted(self) -> bool:
        """Whether the broker let the client in."""
        return self._connection is not None and self._connection.accepted

    def end_too_big(self) -> None:
        """Close because of a message that may not come before the client is accepted."""
        if not self._closing:
            self._code = WSCloseCode.MESSAGE_TOO_BIG
            self._end()
            self._linger()

    # the core's side: Wire

    def write(self, data: bytes) -> None:
        """Send `data` with whatever else is written in this turn; dropped when closing."""
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
        """Send what was written, then close; aborts when the peer does not let it within `close_timeout`."""
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
        """Close at once."""
        self._chunks.clear()
        self._end()
        self._handler.abort()

    def pause_reading(self) -> None:
        """Stop feeding; when aiohttp's queue is full as well, the socket is no longer read."""
        if not self._closing:
            self._reading.clear()

    def resume_reading(self) -> None:
        """Feed again."""
        self._reading.set()
