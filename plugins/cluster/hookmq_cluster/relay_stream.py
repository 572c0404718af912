"""The TCP or TLS connection between two nodes over which one client's bytes pass.

Neither side holds more bytes than its buffers: a side that cannot write stops reading from the other. After `close`, the
stream discards all bytes until the other side closes, because a socket that is closed with unread bytes would
reset the connection, and the other side could lose the last bytes.
"""

import asyncio
from typing import Final, Protocol, cast

HIGH: Final = 65_536
"""The number of unsent bytes above which the user is asked to pause."""
AHEAD: Final = 262_144
"""How many more bytes a TLS stream reads after `pause_reading`. A TLS connection that ends while reading is paused loses
its last bytes, and most pauses are short.
"""
TURN: Final = 256_000
"""The size of uvloop's largest read, in bytes. After a full read, uvloop would read up to 31 more times before it serves
other connections."""
LINGER: Final = 5.0
"""Seconds that the other side has to read the last bytes and close."""


class StreamUser(Protocol):
    """What uses a stream. All calls are on the event loop's thread."""

    def connected(self) -> None:
        """The connection is open. The stream may be used from now on."""

    def received(self, data: bytes) -> None:
        """Bytes have arrived. There are none after `ended`, nor after the user has closed the stream."""

    def full(self) -> None:
        """Write less: more than `HIGH` bytes are unsent."""

    def drained(self) -> None:
        """Write again."""

    def ended(self, error: str) -> None:
        """No more bytes will arrive. Called once, also after the user has closed the stream. `error` is empty if the
        other side closed as agreed.
        """


class RelayStream(asyncio.Protocol):
    """One side of the connection. It has the methods of the core's `Wire`."""

    def __init__(self, user: StreamUser) -> None:
        self._user = user
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._ended = False
        self._paused = False
        self._yielding = False
        """Whether reading pauses until the next turn."""
        self._ahead = 0
        """How many more bytes to read before reading pauses; 0 if no pause is pending."""
        self._timer: asyncio.TimerHandle | None = None

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start, unless the user has closed the stream in the meantime."""
        self._transport = cast("asyncio.Transport", transport)
        if self._closing:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=HIGH)
        self._user.connected()

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the user. After a full read, let other connections read first."""
        if self._closing or self._ended:
            return
        if len(data) >= TURN and not self._yielding:
            self._yielding = True
            self._stop_reading()
            asyncio.get_running_loop().call_soon(self._go_on)
        self._user.received(data)
        if self._ahead:
            self._ahead -= len(data)
            if self._ahead <= 0:
                self._ahead = 0
                if self._paused and not self._closing:
                    self._stop_reading()

    def _go_on(self) -> None:
        self._yielding = False
        transport = self._transport
        if (
            transport is not None
            and not transport.is_closing()
            and (self._closing or not self._paused or self._ahead)
        ):
            transport.resume_reading()

    def eof_received(self) -> None:
        """Close: MQTT has no half-open connections."""
        self._closing = True
        self._linger()
        self._end("")

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closing = True
        self._transport = None
        self._end("" if error is None else str(error) or type(error).__name__)

    def pause_writing(self) -> None:
        """Ask the user to write less."""
        if not self._ended:
            self._user.full()

    def resume_writing(self) -> None:
        """Let the user write again."""
        if not self._ended:
            self._user.drained()

    def _end(self, error: str) -> None:
        if not self._ended:
            self._ended = True
            self._user.ended(error)

    # called by the user

    def write(self, data: bytes) -> None:
        """Send `data`. It is ignored while the stream is closing."""
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def close(self) -> None:
        """Send all written bytes, then close. Abort if that takes longer than `LINGER`."""
        transport = self._transport
        if self._closing or transport is None:
            self._closing = True
            return
        self._closing = True
        self._linger()
        if not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
            transport.resume_reading()
        except (OSError, RuntimeError):  # the other side has reset the connection
            transport.abort()

    def abort(self) -> None:
        """Close at once. Unsent bytes are lost."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Stop passing bytes to the user: at once, or after `AHEAD` bytes if the stream uses TLS."""
        if self._closing or self._transport is None or self._paused:
            return
        self._paused = True
        if self._transport.get_extra_info("sslcontext") is None:
            self._stop_reading()
        else:
            self._ahead = AHEAD

    def resume_reading(self) -> None:
        """Pass bytes to the user again."""
        if not self._closing and self._transport is not None and self._paused:
            self._paused = False
            self._ahead = 0
            if not self._transport.is_closing() and not self._yielding:
                self._transport.resume_reading()

    def peer(self) -> str:
        """Return the address of the other side, or '' if the connection has ended."""
        found = None if self._transport is None else self._transport.get_extra_info("peername")
        return "" if not found else f"{found[0]}:{found[1]}"

    def _stop_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _linger(self) -> None:
        if self._timer is None and self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(LINGER, self.abort)
