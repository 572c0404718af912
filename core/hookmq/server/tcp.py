"""MQTT over TCP, TLS and Unix sockets: one tiny object per connection that is asyncio's protocol and the core's Wire.

These are the ordered, lossless streams of bytes that MQTT asks for [MQTT-4.2.0-1] [MQTT311-7.1.1-1].
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from hookmq.server.gate import Gate
from hookmq.server.tls import certificate_of
from hookmq.types import Certificate, Peer

if TYPE_CHECKING:
    from hookmq.server.ports import Connection


TURN: Final = 256_000
"""Bytes that uvloop reads at once: with as many there is more, and it would read up to 32 times before anyone else."""


_OPEN: Final = frozenset(("tcp", "unix", "ws"))
"""The types of listeners without TLS."""


class _Stream:
    """What both flavours share. `source` is the peer as a PROXY header named it.

    Closing keeps reading and throwing away until the peer closed as well or `close_timeout` passed: a socket closed
    with unread bytes resets the connection, and the reset makes the peer lose the CONNACK or DISCONNECT that said why.
    """

    __slots__ = (
        "_ahead", "_closing", "_connection", "_gate", "_held", "_paused", "_source", "_timer", "_transport",
    )  # fmt: skip

    def __init__(self, gate: Gate, source: Peer | None = None) -> None:
        self._gate = gate
        self._source = source
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._closing = False
        self._paused = False
        self._ahead = 0
        """Bytes that are still read although reading is to pause; 0 if it has paused, or is not to."""
        self._held = False
        self._timer: asyncio.TimerHandle | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the transport to the broker, or close it when the listener is full."""
        transport = cast("asyncio.Transport", transport)
        gate = self._gate
        if not gate.enter(self, transport.get_extra_info("peername")):
            self._closing = True
            transport.abort()
            return
        self._transport = transport
        transport.set_write_buffer_limits(high=gate.high_water)
        peer = peer_of(transport, gate.transport, self._source)
        self._source = None
        self._connection = gate.accept(self, peer, gate.scope)

    def eof_received(self) -> None:
        """The peer sent its last byte. MQTT knows no half-open connection, so ours ends too."""
        self._end()
        self._bound()

    def connection_lost(self, error: Exception | None) -> None:
        """The transport is gone; tell the connection, once."""
        self._gate.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closing = True
        connection, self._connection, self._transport = self._connection, None, None
        if connection is not None:
            connection.closed("" if error is None else str(error) or type(error).__name__)

    def pause_writing(self) -> None:
        """More than the high-water mark is unsent."""
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The unsent bytes went out."""
        if self._connection is not None:
            self._connection.resume_writing()

    # the core's side: Wire

    def write(self, data: bytes) -> None:
        """Send `data`; dropped when closing."""
        if not self._closing and self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written, then close; aborts when the peer does not let it within `close_timeout`."""
        transport = self._transport
        if self._closing or transport is None:
            self._closing = True
            return
        self._end()
        if not transport.can_write_eof():
            self._linger()
            transport.close()  # TLS: sends close_notify and awaits the peer's
            return
        if self._connection is not None and self._connection.goodbye:
            self._bound()
            transport.close()
            return
        self._linger()
        try:
            transport.write_eof()
            transport.resume_reading()
        except (OSError, RuntimeError):  # reset by the peer meanwhile
            transport.abort()

    def _end(self) -> None:
        """No more bytes in or out by our doing."""
        self._closing = True
        self._paused = False

    def _bound(self) -> None:
        """What is unsent may not wait for ever until the peer takes it; mostly there is nothing."""
        transport = self._transport
        if transport is not None and (
            transport.get_write_buffer_size() or not transport.can_write_eof()
        ):
            self._linger()

    def _linger(self) -> None:
        """The peer has so long to close as well."""
        if self._timer is None:
            self._timer = self._gate.loop.call_later(self._gate.close_timeout, self.abort)

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        """Nothing: the broker knows of it and ends it."""

    def pause_reading(self) -> None:
        """Stop reading from the socket. TLS throws away what came before the end of a connection whose reading is
        paused. So from an accepted client `TURN` bytes more are read, which the core keeps: mostly reading pauses for a
        turn or two."""
        connection = self._connection
        if self._closing or self._transport is None or self._ahead:
            return
        self._paused = True
        if self._gate.transport in _OPEN or connection is None or not connection.accepted:
            self._transport.pause_reading()
        else:
            self._ahead = TURN

    def _fed(self, size: int) -> None:
        """So many bytes came although reading is to pause."""
        self._ahead -= size
        if self._ahead <= 0:
            self._ahead = 0
            if self._paused and not self._closing and self._transport is not None:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if not self._closing and self._transport is not None:
            self._paused = False
            self._ahead = 0
            if not self._held:
                self._transport.resume_reading()


class Stream(_Stream, asyncio.Protocol):
    """For uvloop, which reads into a buffer of its own."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """Bytes from the peer. One that sends more than can be read at once waits until the others had their turn."""
        connection = self._connection
        if connection is not None and not self._closing:
            connection.feed(data)
            if self._ahead:
                self._fed(len(data))
        if len(data) >= TURN:
            transport = self._transport
            if transport is not None and not self._held and not transport.is_closing():
                self._held = True
                transport.pause_reading()
                self._gate.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._held = False
        transport = self._transport
        if transport is not None and not self._paused and not transport.is_closing():
            transport.resume_reading()


class BufferedStream(_Stream, asyncio.BufferedProtocol):
    """For asyncio, whose plain protocols allocate 256 KiB for every read, which the C library maps and unmaps again."""

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The listener's buffer."""
        return self._gate.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` from the peer are in the buffer."""
        connection = self._connection
        if connection is not None and not self._closing:
            connection.feed(bytes(self._gate.buffer[:nbytes]))
            if self._ahead:
                self._fed(nbytes)


def peer_of(transport: asyncio.BaseTransport, kind: str, source: Peer | None = None) -> Peer:
    """The peer of `transport` on a listener of type `kind`; `source` (host, port and perhaps a certificate) as a PROXY
    header told it takes precedence over the socket's address, a verified certificate over the header's."""
    secure = None if kind in _OPEN else transport.get_extra_info("ssl_object")
    certificate = None if secure is None else certificate_of(secure)
    if source is not None:
        return Peer(source.host, source.port, kind, certificate or source.certificate)
    return address_peer(transport.get_extra_info("peername"), kind, certificate)


def address_peer(address: object, kind: str, certificate: Certificate | None = None) -> Peer:
    """A socket's address as a peer: IPv4 in IPv6 as IPv4, a nameless Unix socket as ``unix``."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0])
        host = host[7:] if host.startswith("::ffff:") else host
        return Peer(host, int(address[1]), kind, certificate)
    return Peer("unix" if kind == "unix" else "unknown", 0, kind, certificate)


def stream_factory(gate: Gate) -> Callable[[Peer | None], asyncio.BaseProtocol]:
    """What makes the protocol of one connection, of the flavour that suits the loop."""
    flavour = Stream if type(gate.loop).__module__.startswith("uvloop") else BufferedStream

    def make(source: Peer | None = None) -> asyncio.BaseProtocol:
        return flavour(gate, source)

    return make
