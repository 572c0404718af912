"""The transport of `AsyncioClient`: packets over one asyncio connection."""

import asyncio
from typing import Protocol

from hookmq.mqtt.packets import Packet

from hookmq_testing.decoder import Decoder
from hookmq_testing.packets import TopicAliases


class StreamOwner(Protocol):
    """The client to which a `PacketStream` reports."""

    @property
    def version(self) -> int:
        """The protocol level: 3, 4 or 5."""

    def _opened(self, stream: "PacketStream") -> None:
        """Store a new connection."""

    def _ended(self, stream: "PacketStream") -> None:
        """Discard the connection, because it has ended."""

    def _took(self, stream: "PacketStream", packet: Packet) -> None:
        """Handle a packet. An exception drops the connection."""

    def _failed(self, error: Exception) -> None:
        """Store the exception that drops the connection."""

    def _changed(self) -> None:
        """Wake up the waiting calls."""


class PacketStream(asyncio.Protocol):
    """One connection of a client. It decodes incoming packets, and writes all responses to one read at once."""

    def __init__(self, owner: StreamOwner) -> None:
        self.owner = owner
        self.transport: asyncio.Transport
        self.decoder = Decoder(owner.version, server=False)
        self.aliases = TopicAliases()
        self.writable = True
        self._unsent: list[bytes] = []
        self._collecting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement `asyncio.Protocol.connection_made`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.owner._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement `asyncio.Protocol.connection_lost`."""
        self.owner._ended(self)

    def pause_writing(self) -> None:
        """Implement `asyncio.Protocol.pause_writing`."""
        self.writable = False

    def resume_writing(self) -> None:
        """Implement `asyncio.Protocol.resume_writing`."""
        self.writable = True
        self.owner._changed()

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol.data_received`. After an exception, the connection is dropped, and the client's
        calls raise it.
        """
        self._collecting = True
        try:
            for packet in self.decoder.feed(data):
                self.owner._took(self, packet)
            if self.decoder.error is not None:
                raise AssertionError(f"the broker violated MQTT: {self.decoder.error}: {data!r}")
        except Exception as error:
            self.owner._failed(error)
            self.transport.abort()
        self._collecting = False
        self._flush()
        self.owner._changed()

    def write(self, data: bytes) -> None:
        """Send bytes at once or, while a read is being handled, after it."""
        self._unsent.append(data)
        if not self._collecting:
            self._flush()

    def _flush(self) -> None:
        if self._unsent and not self.transport.is_closing():
            self.transport.write(b"".join(self._unsent))
        self._unsent.clear()
