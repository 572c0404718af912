"""One MQTT connection of the generator: asyncio's protocol, with one write for each turn of the loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from hookmq.codec import (
    Connack,
    Connect,
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
from hookmq.errors import ProtocolError
from hookmq.properties import Properties
from hookmq.reason import ReasonCode

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
    """What is to be done once in this turn of the loop, after everything was read: `before`, then each marked
    connection's `turn`."""

    __slots__ = ("_loop", "_marked", "_scheduled", "before", "buffer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._marked: list[Connection] = []
        self._scheduled = False
        self.before: Callable[[], None] = _nothing
        # A read is looked at before the next one begins, so that all connections can share it.
        self.buffer = memoryview(bytearray(READ))

    def mark(self, connection: "Connection") -> None:
        """Call the connection's `turn`, once however often it is marked."""
        if not connection.marked:
            connection.marked = True
            self._marked.append(connection)
            self.schedule()

    def schedule(self) -> None:
        """Call at least `before`."""
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
    """`out` is what the next turn writes. `lost` is called once with a reason when the connection ends without our having
    closed it. CONNACK and SUBACK are waited for for `patience` seconds."""

    patience = 30.0

    def __init__(self, turn: Turn, version: int) -> None:
        self.turns = turn
        self.version = version
        self.out: list[bytes] = []
        self.marked = False
        self.closed = False
        self.paused = False
        self.resumed = False
        """Whether the broker had a session of the client."""
        self.lost: Callable[[str], None] = _ignore
        self.transport: asyncio.Transport | None = None
        self.quiet = True
        """Whether nothing was written since `keep_alive` was last called."""
        self._websocket: WebSocket | None = None
        self._connect = b""
        self._partial = bytearray()
        self._need = 0
        self._answer: asyncio.Future[Packet] | None = None
        self._pings: deque[int] = deque()
        self._reason = ""

    # opening and closing

    async def open(self, address: Address, connect: Connect) -> Connack:
        """Connect; the CONNACK. Raises Refused when the broker says no, BenchError otherwise."""
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
            raise BenchError(f"{type(packet).__name__.upper()} where CONNACK was due")
        self.resumed = packet.session_present
        if packet.code:
            self.abort()
            raise Refused(reason_of(packet.code, packet.properties, self.version))
        return packet

    async def subscribe(self, topic_filter: str, qos: int, properties: Properties) -> int:
        """Subscribe; the granted QoS. Raises BenchError, Refused when the broker says no."""
        answer = self._answer = asyncio.get_running_loop().create_future()
        request = SubscribeRequest(topic_filter, qos)
        self.put(encode(Subscribe(1, (request,), properties), self.version))
        packet = await self._within(_result(answer), "no SUBACK")
        if not isinstance(packet, Suback):
            raise BenchError(f"{type(packet).__name__.upper()} where SUBACK was due")
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
        """Send DISCONNECT and close."""
        if self.closed or self.transport is None:
            return
        self.out.append(encode(Disconnect(), self.version))
        self.flush()
        self.closed = True
        self.transport.close()

    def abort(self) -> None:
        """Close without DISCONNECT."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with CONNECT, or with the WebSocket's request."""
        self.transport = cast("asyncio.Transport", transport)
        if self.closed:
            self.transport.abort()
        elif self._websocket is not None:
            self.transport.write(self._websocket.hello())
        else:
            self.transport.write(self._connect)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The worker's one buffer."""
        return self.turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
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
        """The broker takes no more for now."""
        self.paused = True

    def resume_writing(self) -> None:
        """It takes more."""
        self.paused = False
        self.turns.mark(self)

    def eof_received(self) -> None:
        """The broker closed; so do we."""

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits."""
        why = self._reason or (str(error) if error else "closed by the broker")
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(BenchError(f"connection lost: {why}"))
        if not self.closed:
            self.closed = True
            self.lost(why)

    # packets

    def feed(self, data: bytes) -> None:
        """Take bytes of MQTT, cut anywhere."""
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
            self._fail(f"the broker sent what is no MQTT: {error}")

    def _fail(self, why: str) -> None:
        self._reason = why
        if self.transport is not None:
            self.transport.abort()

    def scan(self, data: bytes) -> int:
        """Take the whole packets at the beginning of `data`; where the first is that is not whole."""
        pos, end = 0, len(data)
        while pos < end:
            found = frame(data, pos)
            if found is None or found[1] > end:
                break
            self.packet(data[pos], data[found[0] : found[1]])
            pos = found[1]
        return pos

    def packet(self, header: int, body: bytes) -> None:
        """Take one packet. Raises ProtocolError."""
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
        """Take a packet that is none of the connection itself."""

    def pong(self, mark: int) -> None:
        """The broker has read all that was written before `ping(mark)`."""

    def ping(self, mark: int = 0) -> None:
        """Put a PINGREQ."""
        self._pings.append(mark)
        self.out.append(_PINGREQ)

    def keep_alive(self) -> None:
        """Ping if nothing was written since this was last called."""
        if self.quiet and not self.closed and not self._pings:
            self.ping()
            self.turns.mark(self)
        self.quiet = True

    def put(self, data: bytes) -> None:
        """Write `data` in this turn."""
        self.out.append(data)
        self.turns.mark(self)

    def turn(self) -> None:
        """The turn of the loop."""
        self.flush()

    def flush(self) -> None:
        """Write what is in `out`."""
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
    """A refusal in words."""
    if version < 5:
        return f"{_V3_REFUSALS.get(code, 'refused')} (return code {code})"
    try:
        text = ReasonCode(code).text
    except ValueError:
        text = "refused"
    more = f": {properties.reason_string}" if properties.reason_string else ""
    return f"{text} (0x{code:02X}){more}"
