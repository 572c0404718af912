"""Connections to a broker that was started again: over TCP, or in memory on a virtual clock. Both speak bytes."""

import select
import socket
from collections import deque
from typing import Protocol

import mqttbytes as m
from hookmq.testing import Harness, MemoryWire
from hookmq.types import Peer, Scope
from serving import WAIT


class Line(Protocol):
    """One connection."""

    def send(self, data: bytes) -> None:
        """Send packets."""

    def receive(self) -> bytes:
        """The next packet; AssertionError when none comes or the connection ends."""

    def close(self) -> None:
        """End it without a word."""


class Parts:
    """Bytes, cut into packets."""

    def __init__(self) -> None:
        self._data = b""

    def take(self, data: bytes) -> list[bytes]:
        """The packets that `data` completes."""
        data = self._data + data
        found = []
        while True:
            size = digits = 0
            for digits, byte in enumerate(data[1:5], 1):
                size |= (byte & 127) << 7 * (digits - 1)
                if byte < 128:
                    break
            else:
                break
            end = 1 + digits + size
            if len(data) < end:
                break
            found.append(data[:end])
            data = data[end:]
        self._data = data
        return found


class TCPLine:
    """Over a socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parts = Parts()
        self._frames: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        """As `Line.send`."""
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """As `Line.receive`."""
        while not self._frames:
            ready, _, _ = select.select([self.socket], [], [], WAIT)
            assert ready, f"nothing came within {WAIT} s"
            data = self.socket.recv(1 << 16)
            assert data, "the broker closed the connection"
            self._frames.extend(self._parts.take(data))
        return self._frames.popleft()

    def close(self) -> None:
        """As `Line.close`."""
        self.socket.close()


class MemoryLine:
    """To a broker in a harness."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._frames: deque[bytes] = deque()
        self._parts = Parts()
        self._wire = MemoryWire(harness.clock, self._took, lambda: None)
        peer = Peer("192.0.2.7", 1024, "memory")
        self._wire.connection = harness.broker.accept(self._wire, peer, Scope())

    def _took(self, data: bytes) -> None:
        self._frames.extend(self._parts.take(data))

    def send(self, data: bytes) -> None:
        """As `Line.send`."""
        self._wire.send(data)

    def receive(self) -> bytes:
        """As `Line.receive`."""
        if not self._frames:
            self._harness.settle()
        if not self._frames:
            self._harness.advance(1.0)
        assert self._frames, "nothing came" + (", the connection is closed" * self._wire.closed)
        return self._frames.popleft()

    def close(self) -> None:
        """As `Line.close`."""
        self._wire.lose()
        self._harness.settle()


def kind(frame: bytes) -> int:
    """The packet type."""
    return frame[0] >> 4


def packet_id(frame: bytes) -> int:
    """Of an acknowledgement, SUBACK or UNSUBACK."""
    return int.from_bytes(m.body(frame)[:2], "big")


def reason(frame: bytes) -> int:
    """Of PUBACK, PUBREC, PUBREL, PUBCOMP."""
    body = m.body(frame)
    return body[2] if len(body) > 2 else 0
