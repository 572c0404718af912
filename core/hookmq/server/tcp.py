"""MQTT over TCP, TLS and Unix sockets. One small object per connection is both asyncio's protocol and the core's `Wire`.

These transports are ordered, lossless byte streams, as MQTT requires [MQTT-4.2.0-1] [MQTT311-7.1.1-1].
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from hookmq.model.client import Certificate, Peer
from hookmq.server.connection_limit import ListenerConnections
from hookmq.server.tls import certificate_of

if TYPE_CHECKING:
    from hookmq.server.protocols import ConnectionHandler


TURN: Final = 256_000
"""The size of uvloop's largest read, in bytes. After a full read, uvloop would read up to 31 more times before it serves
other connections."""
_OPEN: Final = frozenset(("tcp", "unix", "ws"))
"""The listener types without TLS."""


class _Stream:
    """The common base of the protocols for both event loops. `source` is the peer from the PROXY header, or None.

    After `close`, the protocol keeps reading and discards the bytes, until the peer closes or `close_timeout` passes.
    Closing a socket with unread bytes resets the connection, and the peer may lose the CONNACK or DISCONNECT with the
    reason.
    """

    __slots__ = (
        "_ahead", "_closing", "_connection", "_gate", "_held", "_paused", "_source", "_timer", "_transport",
    )  # fmt: skip

    def __init__(self, gate: ListenerConnections, source: Peer | None = None) -> None:
        self._gate = gate
        self._source = source
        self._transport: asyncio.Transport | None = None
        self._connection: ConnectionHandler | None = None
        self._closing = False
        self._paused = False
        self._ahead = 0
        """How many more bytes to read before reading pauses; 0 if no pause is pending."""
        self._held = False
        self._timer: asyncio.TimerHandle | None = None

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the transport to the broker, or close it if the listener is full."""
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
        """Close: the peer has sent its last byte, and MQTT has no half-open connections."""
        self._end()
        self._bound()

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the transport has closed, and notify the broker once."""
        self._gate.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closing = True
        connection, self._connection, self._transport = self._connection, None, None
        if connection is not None:
            connection.closed("" if error is None else str(error) or type(error).__name__)

    def pause_writing(self) -> None:
        """Notify the broker that the unsent bytes exceed the high-water mark."""
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Notify the broker that the unsent bytes have been sent."""
        if self._connection is not None:
            self._connection.resume_writing()

    # called by the core: Wire

    @property
    def descriptor(self) -> int | None:
        """The descriptor of the socket. None if TLS or unsent bytes prevent other processes from using the socket."""
        transport, plain = self._transport, self._gate.transport in _OPEN
        if transport is None or not plain or transport.get_write_buffer_size():
            return None
        return cast("int", transport.get_extra_info("socket").fileno())

    def write(self, data: bytes) -> None:
        """Send `data`. The data is ignored while the connection is closing."""
        if not self._closing and self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Send all written bytes, then close. Abort if that takes longer than `close_timeout`."""
        transport = self._transport
        if self._closing or transport is None:
            self._closing = True
            return
        self._end()
        if not transport.can_write_eof():
            self._linger()
            transport.close()  # TLS: sends close_notify and waits for the peer's close_notify
            return
        if self._connection is not None and self._connection.goodbye:
            self._bound()
            transport.close()
            return
        self._linger()
        try:
            transport.write_eof()
            transport.resume_reading()
        except (OSError, RuntimeError):  # the peer reset the connection
            transport.abort()

    def _end(self) -> None:
        """Stop processing bytes in both directions."""
        self._closing = True
        self._paused = False

    def _bound(self) -> None:
        """Limit the time for sending any unsent bytes."""
        transport = self._transport
        if transport is not None and (
            transport.get_write_buffer_size() or not transport.can_write_eof()
        ):
            self._linger()

    def _linger(self) -> None:
        """Abort if the peer does not close within `close_timeout`."""
        if self._timer is None:
            self._timer = self._gate.loop.call_later(self._gate.close_timeout, self.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        """Do nothing: the broker knows this connection and will close it."""

    def pause_reading(self) -> None:
        """Stop reading from the socket.

        If a TLS connection ends while reading is paused, its last bytes are lost. For an accepted client, reading
        therefore pauses only after `TURN` more bytes, which the core buffers. Most pauses last only one or two turns.
        """
        connection = self._connection
        if self._closing or self._transport is None or self._ahead:
            return
        self._paused = True
        if self._gate.transport in _OPEN or connection is None or not connection.accepted:
            self._transport.pause_reading()
        else:
            self._ahead = TURN

    def _fed(self, size: int) -> None:
        """Count bytes read while a pause is pending. Pause after `TURN` bytes."""
        self._ahead -= size
        if self._ahead <= 0:
            self._ahead = 0
            if self._paused and not self._closing and self._transport is not None:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        if not self._closing and self._transport is not None:
            self._paused = False
            self._ahead = 0
            if not self._held:
                self._transport.resume_reading()


class Stream(_Stream, asyncio.Protocol):
    """The protocol for uvloop, which reads into a buffer of its own."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """Pass `data` to the broker. After a full read, let other connections read first."""
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
    """The protocol for asyncio's own loop. With a plain protocol, that loop would allocate 256 KiB per read, which
    costs an mmap and a munmap each time."""

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the listener's shared buffer."""
        return self._gate.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass `nbytes` from the buffer to the broker."""
        connection = self._connection
        if connection is not None and not self._closing:
            connection.feed(bytes(self._gate.buffer[:nbytes]))
            if self._ahead:
                self._fed(nbytes)


def peer_of(transport: asyncio.BaseTransport, kind: str, source: Peer | None = None) -> Peer:
    """Return the peer of `transport` on a listener of type `kind`.

    `source` is the peer from the PROXY header, or None. Its address takes precedence over the socket's address. A
    certificate verified on the connection takes precedence over the certificate in the header.
    """
    secure = None if kind in _OPEN else transport.get_extra_info("ssl_object")
    certificate = None if secure is None else certificate_of(secure)
    if source is not None:
        return Peer(source.host, source.port, kind, certificate or source.certificate)
    return address_peer(transport.get_extra_info("peername"), kind, certificate)


def address_peer(address: object, kind: str, certificate: Certificate | None = None) -> Peer:
    """Convert a socket address to a peer. IPv4-mapped IPv6 becomes IPv4; an unnamed Unix socket becomes ``unix``."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0])
        host = host[7:] if host.startswith("::ffff:") else host
        return Peer(host, int(address[1]), kind, certificate)
    return Peer("unix" if kind == "unix" else "unknown", 0, kind, certificate)


def stream_factory(gate: ListenerConnections) -> Callable[..., asyncio.BaseProtocol]:
    """Return a function that makes a connection's protocol, suited to the event loop in use."""
    return partial(
        Stream if type(gate.loop).__module__.startswith("uvloop") else BufferedStream, gate
    )
