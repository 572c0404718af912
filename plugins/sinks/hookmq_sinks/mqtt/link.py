"""A connection to a remote broker: packets, the handshake and keep alive.

This module uses the broker's own codec. It uses neither paho-mqtt nor aiomqtt, because they send PUBREC before the
application has stored a message. A bridge based on them could lose messages at QoS 2.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from hookmq.mqtt_api import (
    Connack,
    Connect,
    Disconnect,
    PacketLimits,
    Pingreq,
    ProtocolError,
    decode,
    encode,
    frame,
)

from hookmq_sinks.mqtt.acks import ACK
from hookmq_sinks.mqtt.reasons import LinkError, disconnected, network_error, refused_connack
from hookmq_sinks.mqtt.settings import RemoteAddress

_HIGH: Final = 1 << 18
"""Bytes in the write buffer above which `drained` waits."""
_CONNACK: Final = 0x20
_NO_CONNACK: Final = "the remote broker did not answer with CONNACK; does it speak MQTT?"
_DEFAULT_RECEIVE_MAXIMUM: Final = 65_535


class MqttLink(asyncio.Protocol):
    """One connection. `on_packet` is called with each packet after CONNACK, except DISCONNECT and PINGRESP.

    `lost` is a future that receives the LinkError that ended the connection.
    """

    def __init__(
        self, version: int, max_packet_size: int, on_packet: Callable[[Any], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.version = version
        self.connack = Connack(0)
        self.lost: asyncio.Future[LinkError] = loop.create_future()
        self._loop = loop
        self._limits = PacketLimits(max_packet_size, max_user_properties=1024)
        self._on_packet = on_packet
        self._greeting: asyncio.Future[Connack] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._expected, self._matched = b"", 0
        self._on_matched: Callable[[], None] = _nothing
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = asyncio.Event()
        self._heard = self._said = loop.time()
        self._keep_alive = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self.pinged = False

    # open and close --------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        address: RemoteAddress,
        context: ssl.SSLContext | None,
        connect: Connect,
        seconds: float,
        max_packet_size: int,
        on_packet: Callable[[Any], None],
    ) -> "MqttLink":
        """Connect to a broker within `seconds`. Raises LinkError."""
        link = cls(connect.version, max_packet_size, on_packet)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().create_connection(
                    lambda: link, address.host, address.port, ssl=context,
                    server_hostname=address.host if context is not None else None,
                )  # fmt: skip
                link.send(connect)
                connack = await link._greeting
        except (LinkError, OSError, TimeoutError) as error:
            await link.abort()
            raise network_error(error) from error
        except BaseException:
            await link.abort()
            raise
        if connack.code:
            await link.abort()
            raise refused_connack(connack, connect.version)
        link.connack = connack
        given = connack.properties.server_keep_alive
        link._keep_alive = float(connect.keep_alive if given is None else given)
        link._watch()
        return link

    @property
    def receive_maximum(self) -> int:
        """The maximum number of unacknowledged QoS 1 and 2 messages that the remote broker accepts."""
        return self.connack.properties.receive_maximum or _DEFAULT_RECEIVE_MAXIMUM

    @property
    def open_now(self) -> bool:
        """Whether the connection is open."""
        return not self.lost.done()

    async def close(self) -> None:
        """Send DISCONNECT and close, so the remote broker discards the will. Takes at most a second."""
        if self._transport is not None and self.open_now:
            self.send(Disconnect())
            self._fail(LinkError("the bridge closed the connection"))
            self._transport.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._ended.wait()
        await self.abort()

    async def abort(self) -> None:
        """Close without sending DISCONNECT."""
        self._fail(LinkError("the bridge closed the connection"))
        if self._transport is not None:
            self._transport.abort()
            await self._ended.wait()

    # send ------------------------------------------------------------------------------------------------------------

    def send(self, packet: Any) -> None:
        """Send a packet."""
        self.send_bytes(encode(packet, self.version))

    def send_bytes(self, data: bytes) -> None:
        """Send encoded packets. Do nothing if the connection is lost."""
        if self._transport is not None and self.open_now:
            self._said = self._loop.time()
            self._transport.write(data)

    def expect(self, data: bytes, matched: Callable[[], None]) -> None:
        """Expect the packets `data`, each of `ACK` bytes. If they arrive in this order, they are counted instead of being
        decoded, and `matched` is called.
        """
        self._expected, self._matched, self._on_matched = data, 0, matched

    @property
    def missing(self) -> bytes:
        """The expected packets that have not arrived."""
        return self._expected[self._matched :]

    @property
    def missing_count(self) -> int:
        """The number of expected packets that have not arrived."""
        return (len(self._expected) - self._matched) // ACK

    def _match(self, data: bytes) -> int:
        """Compare the beginning of `data` with the expected packets. Return how many bytes are equal whole packets."""
        start = self._matched
        size = min(len(data) // ACK * ACK, len(self._expected) - start)
        if not size or not data.startswith(self._expected[start : start + size]):
            return 0
        self._matched = start + size
        self._on_matched()
        return size

    async def drained(self) -> None:
        """Wait until the write buffer has room. Raises LinkError if the connection is lost."""
        if not self._writable.is_set():
            await self._writable.wait()
        if self.lost.done():
            raise self.lost.result()

    def pause_reading(self, paused: bool) -> None:
        """Stop or resume reading. When reading stops, the remote broker has to slow down."""
        if self._transport is not None and self.open_now and self._reading == paused:
            self._reading = not paused
            if paused:
                self._transport.pause_reading()
            else:
                self._heard = self._loop.time()
                self._transport.resume_reading()

    # asyncio.Protocol ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH)

    def pause_writing(self) -> None:
        """Record that the write buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Record that the write buffer has room."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Record why the connection ended."""
        self._ended.set()
        if error is None:
            self._fail(LinkError("the remote broker closed the connection"))
        else:
            self._fail(network_error(error))

    def data_received(self, data: bytes) -> None:
        """Decode the data and handle each packet."""
        self._heard = self._loop.time()
        self.pinged = False
        data = self._buffer + data if self._buffer else data
        at = self._match(data) if self._expected else 0
        try:
            if not self._greeting.done() and data[0] != _CONNACK:
                raise LinkError(_NO_CONNACK)
            while self.open_now and (found := frame(data, at)) is not None:
                start, end = found
                if end - at > self._limits.max_packet_size:
                    raise LinkError(
                        f"the remote broker sent a packet of {end - at} bytes, more than max_packet_size",
                        True,
                    )
                if end > len(data):
                    break
                self._take(data[at], data[start:end])
                at = end
        except ProtocolError as error:
            self._drop(LinkError(f"the remote broker violated the protocol: {error}"))
        except LinkError as error:
            self._drop(error)
        self._buffer = data[at:] if at else data

    def _take(self, header: int, body: bytes) -> None:
        packet = decode(header, body, self.version, self._limits, server=False)
        if not self._greeting.done():
            if not isinstance(packet, Connack):
                raise LinkError(
                    "the remote broker did not answer with CONNACK; does it speak MQTT?"
                )
            self._greeting.set_result(packet)
        elif isinstance(packet, Disconnect):
            raise disconnected(packet.code, packet.properties.reason_string)
        elif header != 0xD0:
            self._on_packet(packet)

    # the end ---------------------------------------------------------------------------------------------------------

    def _drop(self, error: LinkError) -> None:
        self._fail(error)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: LinkError) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._greeting.done():
            self._greeting.set_exception(error)
            self._greeting.exception()  # marks it as retrieved
        with suppress(asyncio.InvalidStateError):
            self.lost.set_result(error)
        self._writable.set()

    def _watch(self) -> None:
        """Send PINGREQ when it is due. Close the connection if nothing arrives on it."""
        if not self._keep_alive or not self.open_now:
            return
        now = self._loop.time()
        if self._reading and self.pinged and now - self._heard >= self._keep_alive * 1.5:
            self._drop(LinkError("the remote broker does not answer"))
            return
        if now - self._said >= self._keep_alive * 0.75 or now - self._heard >= self._keep_alive:
            self.send(Pingreq())
            self.pinged = True
        self._timer = self._loop.call_later(max(0.05, self._keep_alive / 8), self._watch)


def _nothing() -> None:
    """Do nothing, because no packets are expected."""
