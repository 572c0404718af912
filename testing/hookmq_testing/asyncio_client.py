"""A client with a network connection, for tests of a real broker. `client.MemoryClient` needs no network and no broker
process.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn, Self, TypeVar

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
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
    Unsuback,
    Unsubscribe,
    WillFields,
)
from hookmq.mqtt.properties import Properties

from hookmq_testing.outgoing_messages import OutgoingMessages
from hookmq_testing.packet_stream import PacketStream
from hookmq_testing.packets import (
    Filters,
    answer_to,
    make_properties,
    make_subscribe,
    show,
    show_code,
)

WAIT: Final = 60.0
"""Seconds that a call waits for the broker. Only failing tests wait this long."""
RETRY: Final = 0.05
"""Seconds between two attempts of `AsyncioClient.stay_connected`."""

P = TypeVar("P")


class AsyncioClient:
    """One client and its session state, over a series of connections. The arguments are those of CONNECT, as for
    `Harness.connect`.

        client = await AsyncioClient("one").connect(port)
        await client.subscribe("greetings/#", 1)
        await client.publish("greetings/all", b"hello", 1, expect=0)
        assert (await client.message()).payload == b"hello"
        client.disconnect()

    Calls that wait raise ConnectionError if the connection ends, TimeoutError after 60 seconds, and AssertionError if
    the broker violates MQTT. Use `LoopThread` to call the client from a blocking test.

    A QoS 1 or 2 message is in flight until its final acknowledgement arrives. If the broker still has the session when
    the client reconnects, the client resends messages in flight; otherwise, it discards them. The number of messages in
    flight is limited by `max_inflight` and the broker's Receive Maximum. Further messages, and messages published while
    the client is offline, wait in `queued`.

    Received messages are added to `messages`, or passed to `on_message`. With `auto_ack`, the client acknowledges each
    message; otherwise, the test calls `ack`. The client always answers PUBREL. It ignores repeated QoS 2 messages.
    `on_packet` is called with every packet before it is handled, `on_acknowledged` with each published message and its
    final acknowledgement, and `on_closed` when a connection has ended. `unread` holds all other packets until `expect`
    takes them.
    """

    def __init__(
        self,
        client_id: str = "",
        version: int = 5,
        clean_start: bool = True,
        keep_alive: int = 0,
        username: str | None = None,
        password: bytes | None = None,
        will: WillFields | None = None,
        properties: Properties | Mapping[str, Any] | None = None,
        *,
        auto_ack: bool = True,
        max_inflight: int = 65535,
        on_packet: Callable[[Packet], None] | None = None,
        on_message: Callable[[Publish], None] | None = None,
        on_acknowledged: Callable[[Publish, Packet], None] | None = None,
        on_closed: Callable[[], None] | None = None,
        **more: Any,
    ) -> None:
        self.connect_packet = Connect(
            client_id,
            version,
            clean_start,
            keep_alive,
            username,
            password,
            will,
            properties=make_properties(properties, more),
        )
        """The CONNECT packet that the client sends. `reconnect` changes it."""
        self.auto_ack = auto_ack
        self.max_inflight = max_inflight
        self.on_packet = on_packet
        self.on_message = on_message
        self.on_acknowledged = on_acknowledged
        self.on_closed = on_closed
        self.connack: Connack | None = None
        """The CONNACK of this connection, or of the last one; None before it arrives."""
        self.messages: deque[Publish] = deque()
        self.unread: deque[Packet] = deque()
        self.received = 0
        """How many messages have arrived, over all connections."""
        self.acknowledged = 0
        """How many messages have been fully acknowledged, over all connections."""
        self._outgoing = OutgoingMessages()
        self.inflight: dict[int, Publish] = self._outgoing.inflight
        """The messages in flight by packet id, in the order in which they were sent."""
        self.queued: dict[int, Publish] = self._outgoing.queued
        self._taken: set[int] = set()
        """Packet ids of QoS 2 messages that have arrived but have not been released."""
        self._awaited: dict[int, Packet | None] = {}
        self._packet_id = 0
        self._stream: PacketStream | None = None
        self._address: dict[str, Any] = {}
        self.error: Exception | None = None
        """The error that ended the last connection: an AssertionError if the broker violated MQTT, or a callback's
        exception."""
        self._news = asyncio.Event()

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The client id that the client sent, or the one that the broker assigned."""
        assigned = self.connack.properties.assigned_client_identifier if self.connack else None
        return assigned or self.connect_packet.client_id

    @property
    def version(self) -> int:
        """The protocol level: 3, 4 or 5."""
        return self.connect_packet.version

    @property
    def closed(self) -> bool:
        """Whether there is no connection."""
        return self._stream is None

    @property
    def connected(self) -> bool:
        """Whether the broker accepted the connection and it has not ended."""
        return self._stream is not None and self.connack is not None and not self.connack.code

    @property
    def session_present(self) -> bool:
        """The Session Present flag of the last CONNACK."""
        return self.connack is not None and self.connack.session_present

    @property
    def unsent(self) -> int:
        """The number of bytes that the operating system has not taken yet."""
        return self._stream.transport.get_write_buffer_size() if self._stream else 0

    # --- connecting --------------------------------------------------------------------------------------------------

    async def connect(
        self,
        port: int | None = None,
        host: str | None = "127.0.0.1",
        *,
        expect: int | None = 0,
        **options: Any,
    ) -> Self:
        """Connect, check that CONNACK has the code `expect` (0 to 5 in MQTT 3.x), and return this client.

        If `expect` is None, any code is accepted. `options` are those of `asyncio.loop.create_connection`, such as
        `ssl` or `local_addr`. If you pass a connected socket as `sock`, leave out the port. Raises OSError if the
        connection cannot be made or ends before CONNACK.
        """
        await self.open(port, host, **options)
        try:
            await self._require(lambda: self.connack is not None, "CONNACK")
        except BaseException:  # cancelled, for example
            self.drop()
            raise
        assert self.connack is not None
        if expect is not None:
            self._check(self.connack, expect)
        if self.connack.code:
            await self.wait_closed()
        return self

    async def open(
        self, port: int | None = None, host: str | None = "127.0.0.1", **options: Any
    ) -> None:
        """Connect and send CONNECT, without waiting for CONNACK. The arguments are those of `connect`."""
        assert self._stream is None, f"{self} is already connected"
        self._address = {"host": None if "sock" in options else host, "port": port, **options}
        self.connack = None
        self.error = None
        self.unread.clear()
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: PacketStream(self), **self._address)

    async def reconnect(self, expect: int | None = 0, **changes: Any) -> Self:
        """Connect to the same address again, dropping any open connection first. Return this client.

        Clean Start is False, so the session is resumed. `changes` are fields of CONNECT; all others remain unchanged.
        """
        self.drop()
        await self.wait_closed()
        changes.setdefault("clean_start", False)
        fields = {name: changes.pop(name) for name in Connect.__slots__ if name in changes}
        given = fields.pop("properties", self.connect_packet.properties)
        properties = make_properties(given, changes)
        self.connect_packet = replace(self.connect_packet, properties=properties, **fields)
        return await self.connect(expect=expect, **self._address)

    async def stay_connected(self, port: int, host: str = "127.0.0.1", **options: Any) -> None:
        """Reconnect whenever there is no connection, until this call is cancelled. Run it as a task."""
        while True:
            if self._stream is None:
                try:
                    await self.connect(port, host, expect=None, **options)
                except ConnectionError:
                    pass
                except Exception as error:
                    self._failed(error)
                    raise
                if not self.connected:
                    await asyncio.sleep(RETRY)
                    continue
            await self.until(lambda: self.closed, float("inf"))

    def disconnect(self, code: int = 0, **properties: Any) -> None:
        """Send DISCONNECT and close the connection, if there is one."""
        if self._stream is not None:
            self._stream.write(encode(Disconnect(code, Properties(**properties)), self.version))
            self._stream.transport.close()

    def drop(self) -> None:
        """Drop the connection, if there is one, without sending DISCONNECT."""
        if self._stream is not None:
            self._stream.transport.abort()

    def pause(self) -> None:
        """Stop reading. The broker's output accumulates on its side."""
        self._open_stream().transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        self._open_stream().transport.resume_reading()

    # --- sending -----------------------------------------------------------------------------------------------------

    def raw(self, data: bytes) -> None:
        """Send bytes. Raises ConnectionError if there is no connection."""
        self._open_stream().write(data)

    def send(self, *packets: Packet) -> None:
        """Send packets. Raises ConnectionError if there is no connection."""
        self.raw(b"".join(encode(packet, self.version) for packet in packets))

    async def drain(self, seconds: float = WAIT) -> None:
        """Wait until the operating system has taken most of the sent bytes."""
        stream = self._open_stream()
        await self._require(lambda: stream.writable, "room for more bytes", seconds)

    def next_packet_id(self) -> int:
        """Return an unused packet id."""
        for _ in range(65535):
            self._packet_id = number = self._packet_id % 65535 + 1
            if not any(number in one for one in (self.inflight, self.queued, self._awaited)):
                return number
        raise AssertionError(f"{self}: all packet ids are in use")

    def send_publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        **properties: Any,
    ) -> int:
        """Publish a message without waiting. Return its packet id, which is 0 for QoS 0.

        Without a connection, QoS 0 raises ConnectionError; other messages are sent after the next CONNACK.
        """
        if not qos:
            self.send(Publish(topic, payload, 0, retain, False, 0, Properties(**properties)))
            return 0
        number = self.next_packet_id()
        given = Properties(**properties)
        self.queued[number] = Publish(topic, payload, qos, retain, False, number, given)
        self._send_queued()
        return number

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        *,
        expect: int | None = None,
        **properties: Any,
    ) -> Puback | Pubrec | Pubcomp | None:
        """Publish a message and return its final acknowledgement: PUBACK, a failed PUBREC, or
        PUBCOMP. Return None for QoS 0.

        With `expect`, check that the acknowledgement has this reason code. If the connection ends
        first, the message remains in flight.
        """
        number = self.send_publish(topic, payload, qos, retain, **properties)
        if not qos:
            return None
        answer: Any = await self._answer(number, "a final acknowledgement")
        if expect is not None:
            self._check(answer, expect)
        return answer  # type: ignore[no-any-return]

    async def subscribe(self, filters: Filters, qos: int = 0, **options: Any) -> Suback:
        """Subscribe and return the SUBACK. Its reason codes are not checked. The arguments are those of
        `MemoryClient.send_subscribe`."""
        number = self.next_packet_id()
        self.send(make_subscribe(number, filters, qos, **options))
        answer: Any = await self._answer(number, "SUBACK")
        return answer  # type: ignore[no-any-return]

    async def unsubscribe(self, *filters: str, **properties: Any) -> Unsuback:
        """Unsubscribe and return the UNSUBACK, without checking its reason codes."""
        number = self.next_packet_id()
        self.send(Unsubscribe(number, filters, Properties(**properties)))
        answer: Any = await self._answer(number, "UNSUBACK")
        return answer  # type: ignore[no-any-return]

    async def ping(self) -> None:
        """Send PINGREQ and wait for PINGRESP."""
        self.send(Pingreq())
        await self.expect(Pingresp)

    def ack(self, message: Publish, code: int = 0, **properties: Any) -> None:
        """Acknowledge a message with PUBACK or PUBREC. Only needed without `auto_ack`."""
        given = Properties(**properties)
        if message.qos == 1:
            self.send(Puback(message.packet_id, code, given))
        elif message.qos == 2:
            self.send(Pubrec(message.packet_id, code, given))

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def until(self, done: Callable[[], bool], seconds: float = WAIT) -> bool:
        """Wait until `done` returns True, across several connections if necessary. Return False after `seconds`. Raises
        AssertionError if the broker violates MQTT, and any exception that a callback raised.
        """
        try:
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                while not done():
                    if self.error is not None:
                        raise self.error
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return done()
        return True

    async def wait_closed(self, seconds: float = WAIT) -> None:
        """Wait until the connection has ended."""
        if not await self.until(lambda: self.closed, seconds):
            raise TimeoutError(self._text("the end of the connection"))

    async def message(self, seconds: float = WAIT) -> Publish:
        """Wait for the next message, and take it from `messages`."""
        await self._require(lambda: bool(self.messages), "PUBLISH", seconds)
        return self.messages.popleft()

    async def expect(self, kind: type[P], seconds: float = WAIT) -> P:
        """Take the first unread packet of type `kind`. PUBLISH packets and acknowledgements of the client's own packets
        are never unread.
        """

        def arrived() -> bool:
            return any(isinstance(packet, kind) for packet in self.unread)

        await self._require(arrived, kind.__name__.upper(), seconds)
        found = next(packet for packet in self.unread if isinstance(packet, kind))
        self.unread.remove(found)
        return found

    async def expect_disconnect(self, code: int | None = None) -> Disconnect | None:
        """Wait until the broker has closed the connection. In MQTT 5, take its DISCONNECT, check its `code` and return
        the packet."""
        packet = None
        if self.version == 5:
            packet = await self.expect(Disconnect)
            if code is not None:
                self._check(packet, code)
        await self.wait_closed()
        return packet

    async def _require(self, done: Callable[[], bool], wanted: str, seconds: float = WAIT) -> None:
        """Wait until `done` returns True. Raises ConnectionError if the connection ends first, and TimeoutError after
        `seconds`.
        """
        stream = self._stream
        if not await self.until(
            lambda: done() or stream is None or self._stream is not stream, seconds
        ):
            raise TimeoutError(self._text(wanted))
        if self.error is not None:
            raise self.error
        if not done():
            raise ConnectionResetError(self._text(wanted))

    async def _answer(self, number: int, wanted: str) -> Packet:
        self._awaited[number] = None
        try:
            await self._require(lambda: self._awaited[number] is not None, wanted)
        finally:
            answer = self._awaited.pop(number)
        assert answer is not None
        return answer

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _opened(self, stream: PacketStream) -> None:
        self._stream = stream
        stream.write(encode(self.connect_packet, self.version))

    def _ended(self, stream: PacketStream) -> None:
        if self._stream is stream:
            self._stream = None
            self._changed()
            if self.on_closed is not None:
                self.on_closed()

    def _failed(self, error: Exception) -> None:
        self.error = error

    def _changed(self) -> None:
        self._news.set()

    def _took(self, stream: PacketStream, packet: Packet) -> None:
        if self.on_packet is not None:
            self.on_packet(packet)
        answer = answer_to(packet)
        if isinstance(packet, Publish):
            self._message(stream.aliases.resolve(packet))
            if not self.auto_ack:
                answer = None
        elif isinstance(packet, Puback | Pubrec | Pubcomp):
            self._acknowledgement(packet)
        elif isinstance(packet, Pubrel):
            self._taken.discard(packet.packet_id)
        elif isinstance(packet, Suback | Unsuback) and packet.packet_id in self._awaited:
            self._awaited[packet.packet_id] = packet
        elif isinstance(packet, Connack):
            self.connack = packet
            if not packet.code:
                # MQTT 3.1 has no Session Present flag.
                clean = self.connect_packet.clean_start
                self._resume(not clean if self.version == 3 else packet.session_present)
        else:
            self.unread.append(packet)
        if answer is not None:
            stream.write(encode(answer, self.version))

    def _message(self, packet: Publish) -> None:
        if packet.qos == 2:
            if packet.packet_id in self._taken:
                return
            self._taken.add(packet.packet_id)
        self.received += 1
        if self.on_message is not None:
            self.on_message(packet)
        else:
            self.messages.append(packet)

    def _acknowledgement(self, packet: Puback | Pubrec | Pubcomp) -> None:
        if not self._outgoing.expects(packet):
            self.unread.append(packet)
            return
        message = self._outgoing.acknowledge(packet)
        if message is None:
            return
        self.acknowledged += 1
        if packet.packet_id in self._awaited:
            self._awaited[packet.packet_id] = packet
        if self.on_acknowledged is not None:
            self.on_acknowledged(message, packet)
        self._send_queued()

    def _resume(self, present: bool) -> None:
        if not present:
            self._taken.clear()
        self.send(*self._outgoing.resume(present))
        self._send_queued()

    def _send_queued(self) -> None:
        if not self.connected:
            return
        assert self.connack is not None
        window = min(self.max_inflight, self.connack.properties.receive_maximum or 65535)
        for message in self._outgoing.take(window):
            self.send(message)

    # --- failures ----------------------------------------------------------------------------------------------------

    def _open_stream(self) -> PacketStream:
        if self._stream is None:
            raise ConnectionResetError(self._text("an open connection"))
        return self._stream

    def _check(self, packet: Any, code: int) -> None:
        if packet.code != code:
            self._fail(f"code {show_code(code)}, got {show_code(packet.code)} in {show(packet)}")

    def _fail(self, wanted: str) -> NoReturn:
        raise AssertionError(self._text(wanted))

    def _text(self, wanted: str) -> str:
        lines = [f"{self.connect_packet.client_id!r} (v{self.version}): expected {wanted}"]
        lines.append("connection: " + ("closed" if self._stream is None else "open"))
        lines += [f"unread: {show(packet)}" for packet in self.unread] or ["unread: nothing"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<AsyncioClient {self.client_id!r} v{self.version}>"
