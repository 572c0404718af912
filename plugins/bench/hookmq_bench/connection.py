"""An MQTT connection for the asyncio engine. It writes at most once in each turn of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from hookmq.mqtt_api import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    SubscribeRequest,
    decode,
    encode,
    frame,
)
from hookmq.plugin import Connect, Properties, ProtocolError, ReasonCode

from hookmq_bench.address import Address, BenchError, Refused

if TYPE_CHECKING:
    from hookmq_bench.websocket import WebSocket

READ: Final = 262_144
_V3_REFUSALS: Final = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
_PINGREQ: Final = encode(Pingreq(), 4)


class Turn:
    """Runs work once per turn of the event loop, after all reads. First `before` is called, and then the `turn` of each
    marked connection.
    """

    __slots__ = ("_loop", "_marked", "_scheduled", "before", "buffer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._marked: list[Connection] = []
        self._scheduled = False
        self.before: Callable[[], None] = _nothing
        # Each read is processed before the next one starts, so all connections can share one buffer.
        self.buffer = memoryview(bytearray(READ))

    def mark(self, connection: "Connection") -> None:
        """Call `connection.turn` once in this turn, no matter how often the connection is marked."""
        if not connection.marked:
            connection.marked = True
            self._marked.append(connection)
            self.schedule()

    def schedule(self) -> None:
        """Run this turn's work even if no connection is marked."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self.before()
        marked, self._marked = self._marked, []
        for connection in marked:
            connection.marked = False
            connection.turn()


def _nothing() -> None:
    pass


class Connection(asyncio.BufferedProtocol):
    """An MQTT connection. Bytes put into `out` are written in the next turn.

    If the connection ends without our closing it, `lost` is called once, with a reason. `patience` is how many seconds
    to wait for CONNACK and SUBACK.
    """

    patience = 30.0

    def __init__(self, turn: Turn, version: int) -> None:
        self.turns = turn
        self.version = version
        self.out: list[bytes] = []
        self.marked = False
        self.closed = False
        self.paused = False
        self.resumed = False
        """Whether the broker still had a session for this client."""
        self.lost: Callable[[str], None] = _ignore
        self.transport: asyncio.Transport | None = None
        self.quiet = True
        """Whether nothing has been written since the last call to `keep_alive`."""
        self._websocket: WebSocket | None = None
        self._connect = b""
        self._partial = bytearray()
        self._need = 0
        self._answer: asyncio.Future[Packet] | None = None
        self._pings: deque[int] = deque()
        self._reason = ""

    # opening and closing

    async def open(self, address: Address, connect: Connect) -> Connack:
        """Connect and return the CONNACK. Raises Refused if the broker refuses, or BenchError for any other failure."""
        loop = asyncio.get_running_loop()
        self._connect = encode(connect, self.version)
        if address.websocket is not None:
            from hookmq_bench.websocket import WebSocket

            self._websocket = WebSocket(address.websocket)
        answer = self._answer = loop.create_future()

        async def both() -> Packet:
            await loop.create_connection(
                lambda: self, address.host, address.port, ssl=address.tls, server_hostname=address.name
            )  # fmt: skip
            return await _result(answer)

        packet = await self._within(both(), "no CONNACK")
        if not isinstance(packet, Connack):
            self.abort()
            raise BenchError(f"expected CONNACK, got {type(packet).__name__.upper()}")
        self.resumed = packet.session_present
        if packet.code:
            self.abort()
            raise Refused(reason_of(packet.code, packet.properties, self.version))
        return packet

    async def subscribe(self, topic_filter: str, qos: int, properties: Properties) -> int:
        """Subscribe and return the granted QoS. Raises Refused if the broker refuses, or BenchError for any other
        failure."""
        answer = self._answer = asyncio.get_running_loop().create_future()
        request = SubscribeRequest(topic_filter, qos)
        self.put(encode(Subscribe(1, (request,), properties), self.version))
        packet = await self._within(_result(answer), "no SUBACK")
        if not isinstance(packet, Suback):
            raise BenchError(f"expected SUBACK, got {type(packet).__name__.upper()}")
        code = packet.codes[0]
        if code > 2:
            raise Refused(reason_of(code, packet.properties, 5))
        return code

    async def _within(self, waiting: Coroutine[Any, Any, Packet], late: str) -> Packet:
        try:
            async with asyncio.timeout(self.patience):
                return await waiting
        except TimeoutError:
            self.abort()
            raise BenchError(f"{late} within {self.patience:g} s") from None
        except OSError as error:
            self.abort()
            raise BenchError(str(error.strerror or error)) from None

    def close(self) -> None:
        """Send DISCONNECT and close the connection."""
        if self.closed or self.transport is None:
            return
        self.out.append(encode(Disconnect(), self.version))
        self.flush()
        self.closed = True
        self.transport.close()

    def abort(self) -> None:
        """Close the connection without sending DISCONNECT."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT. Over WebSocket, send the HTTP request that opens the WebSocket instead."""
        self.transport = cast("asyncio.Transport", transport)
        if self.closed:
            self.transport.abort()
        elif self._websocket is not None:
            self.transport.write(self._websocket.hello())
        else:
            self.transport.write(self._connect)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer that all connections of the process share."""
        return self.turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the `nbytes` bytes that were read into the buffer."""
        data = bytes(self.turns.buffer[:nbytes])
        if self._websocket is not None:
            data = self._unwrap(data, self._websocket)
        if data:
            self.feed(data)

    def _unwrap(self, data: bytes, websocket: "WebSocket") -> bytes:
        opened = websocket.opened
        try:
            data = websocket.receive(data)
        except BenchError as error:
            self._fail(str(error))
            return b""
        if self.transport is not None:
            if websocket.opened and not opened:
                self.transport.write(websocket.wrap(self._connect))
            if answers := websocket.answers():
                self.transport.write(answers)
            if closing := websocket.closing:
                self._reason = self._reason or closing
                self.transport.close()
        return data

    def pause_writing(self) -> None:
        """Stop writing until `resume_writing`, because the transport's buffer is full."""
        self.paused = True

    def resume_writing(self) -> None:
        """Resume writing."""
        self.paused = False
        self.turns.mark(self)

    def eof_received(self) -> None:
        """Close the connection, because the broker has closed its end."""

    def connection_lost(self, error: Exception | None) -> None:
        """Pass the reason to the waiting call. Also pass it to `lost`, unless we closed the connection ourselves."""
        why = self._reason or (str(error) if error else "closed by the broker")
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(BenchError(f"connection lost: {why}"))
        if not self.closed:
            self.closed = True
            self.lost(why)

    # packets

    def feed(self, data: bytes) -> None:
        """Process MQTT bytes. Packets may be split anywhere between calls."""
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._need:
                return
            data = bytes(partial)
            self._partial = bytearray()
        try:
            used = self.scan(data)
            if used < len(data):
                found = frame(data, used)
                self._need = len(data) - used + 1 if found is None else found[1] - used
                self._partial += memoryview(data)[used:]
        except (ProtocolError, IndexError) as error:
            self._fail(f"the broker sent invalid MQTT: {error}")

    def _fail(self, why: str) -> None:
        self._reason = why
        if self.transport is not None:
            self.transport.abort()

    def scan(self, data: bytes) -> int:
        """Process the complete packets at the start of `data`. Return the position after the last one."""
        pos, end = 0, len(data)
        while pos < end:
            found = frame(data, pos)
            if found is None or found[1] > end:
                break
            self.packet(data[pos], data[found[0] : found[1]])
            pos = found[1]
        return pos

    def packet(self, header: int, body: bytes) -> None:
        """Process one packet. Raises ProtocolError."""
        packet = decode(header, body, self.version, server=False)
        if isinstance(packet, Pingresp):
            if self._pings:
                self.pong(self._pings.popleft())
        elif isinstance(packet, Disconnect):
            self._reason = f"DISCONNECT {reason_of(packet.code, packet.properties, 5)}"
        elif self._answer is not None and isinstance(packet, Connack | Suback):
            answer, self._answer = self._answer, None
            if not answer.done():
                answer.set_result(packet)
        else:
            self.other(packet)

    def other(self, packet: Packet) -> None:
        """Process a packet that the connection does not handle itself."""

    def pong(self, mark: int) -> None:
        """Record that the broker has read everything written before `ping(mark)`."""

    def ping(self, mark: int = 0) -> None:
        """Queue a PINGREQ in `out`."""
        self._pings.append(mark)
        self.out.append(_PINGREQ)

    def keep_alive(self) -> None:
        """Send a PINGREQ if nothing has been written since the last call."""
        if self.quiet and not self.closed and not self._pings:
            self.ping()
            self.turns.mark(self)
        self.quiet = True

    def put(self, data: bytes) -> None:
        """Queue `data` to be written in this turn."""
        self.out.append(data)
        self.turns.mark(self)

    def turn(self) -> None:
        """Do this connection's work for the current turn."""
        self.flush()

    def flush(self) -> None:
        """Write everything in `out`."""
        out = self.out
        if not out:
            return
        transport = self.transport
        if transport is not None and not self.closed:
            data = b"".join(out) if len(out) > 1 else out[0]
            if self._websocket is not None:
                data = b"" if self._websocket.closing else self._websocket.wrap(data)
            self.quiet = False
            transport.write(data)
        out.clear()


async def _result(answer: "asyncio.Future[Packet]") -> Packet:
    return await answer


def _ignore(reason: str) -> None:
    pass


def reason_of(code: int, properties: Properties, version: int) -> str:
    """Return a readable reason for a refusal."""
    if version < 5:
        return f"{_V3_REFUSALS.get(code, 'refused')} (return code {code})"
    try:
        text = ReasonCode(code).text
    except ValueError:
        text = "refused"
    more = f": {properties.reason_string}" if properties.reason_string else ""
    return f"{text} (0x{code:02X}){more}"
