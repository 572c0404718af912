"""What clients of queues over bare sockets have in common. The module of each protocol has a producer and a consumer.

Each class takes the bytes that its socket received and returns bytes to send. Messages are `SIZE` bytes long. The first
eight are the message's number: the producer's number in the upper part, and its message count in the lower. The classes
understand only what the servers send in an error-free run, and raise Void for anything else.
"""

from __future__ import annotations

import struct
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection
from socket import socket as Socket
from typing import Final, Protocol

from .durable_load import Void

SIZE: Final = 256
REST: Final = bytes(range(32, 127)) * 3
TAIL: Final = REST[: SIZE - 8]
QUEUE: Final = "bench"
TIMEOUT: Final = 60.0


class Producer(Protocol):
    """A connection that publishes."""

    @property
    def socket(self) -> Socket:
        """The connection."""

    @property
    def confirmed(self) -> int:
        """The number of messages that the server has acknowledged."""

    def messages(self, first: int, count: int) -> bytes:
        """Return the bytes that publish `count` messages, numbered from `first`."""

    def read(self, data: bytes) -> None:
        """Process acknowledgements."""


class Consumer(Protocol):
    """A connection that consumes."""

    @property
    def socket(self) -> Socket:
        """The connection."""

    def start(self) -> bytes:
        """Return the bytes that request the first messages."""

    def read(self, data: bytes) -> tuple[list[int], bytes]:
        """Return the message numbers in `data`, and the bytes that acknowledge the messages."""


def connect(port: int) -> Socket:
    """Open a TCP connection to 127.0.0.1."""
    connection = create_connection(("127.0.0.1", port), TIMEOUT)
    connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    return connection


def numbered(
    form: struct.Struct, head: bytes, first: int, count: int, end: bytes | int = b"\r\n"
) -> bytes:
    """Return `count` messages that `form` packs from the same `head`, a number from `first` on, `TAIL` and `end`."""
    pack = form.pack
    return b"".join([pack(head, first + i, TAIL, end) for i in range(count)])


def exactly(connection: Socket, count: int) -> bytes:
    """Read `count` bytes. Raises Void if the connection ends before."""
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise Void("the server closed a connection")
        data += more
    return data
