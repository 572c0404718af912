"""Connections to a restarted broker: a `ByteClient`, or a client in memory on a virtual clock."""

from collections import deque
from typing import Protocol

import mqttbytes as m
from hookmq_testing import Harness
from rawclient import RawClient


class Line(Protocol):
    """The interface of one connection."""

    def send(self, *packets: bytes) -> object:
        """Send packets."""

    def frame(self) -> bytes:
        """Return the next packet. Raises AssertionError if none comes or the connection ends."""

    def close(self) -> None:
        """Close the connection without DISCONNECT."""


class MemoryLine(RawClient):
    """A connection to a broker in a harness."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(harness)
        self._frames: deque[bytes] = deque()

    def frame(self) -> bytes:
        """Return the next packet, as `Line.frame` does."""
        if not self._frames:
            self._frames.extend(self.take_frames())
        if not self._frames:
            self.harness.advance(1.0)
            self._frames.extend(self.take_frames())
        assert self._frames, "nothing came" + (", the connection is closed" * self.wire.closed)
        return self._frames.popleft()

    def close(self) -> None:
        """Close the connection without DISCONNECT."""
        self.leave()


def kind(frame: bytes) -> int:
    """Return the packet type."""
    return frame[0] >> 4


def packet_id(frame: bytes) -> int:
    """Return the packet id of an acknowledgement, SUBACK or UNSUBACK."""
    return int.from_bytes(m.body(frame)[:2], "big")


def reason(frame: bytes) -> int:
    """Return the reason code of a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    body = m.body(frame)
    return body[2] if len(body) > 2 else 0
