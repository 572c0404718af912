"""A client that speaks bytes to a real broker, and is told exactly as many bytes as it expects."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import mqttbytes as m
from serving import WAIT

CONNACK, PRESENT = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"
"""CONNACK of MQTT 3.1.1: a new session, and one that was there."""


class ByteClient:
    """One connection to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT)

    def send(self, *packets: bytes) -> None:
        """Send packets."""
        self.socket.sendall(b"".join(packets))

    def get(self, expected: bytes) -> None:
        """Receive exactly that; AssertionError for anything else."""
        got = self.take(len(expected))
        assert got == expected, f"{got!r} instead of {expected!r}"

    def take(self, size: int) -> bytes:
        """Receive so many bytes."""
        got = b""
        while len(got) < size:
            more = self.socket.recv(size - len(got))
            assert more, f"closed after {got!r}"
            got += more
        return got

    def tell(self, data: bytes, expected: bytes) -> None:
        """Send, and receive exactly that."""
        self.send(data)
        self.get(expected)

    def rest(self) -> list[bytes]:
        """The packets that came until the broker closed the connection."""
        got = b""
        while more := self.socket.recv(65536):
            got += more
        return m.frames(got)

    def frame(self) -> bytes:
        """Receive one packet."""
        got = self.take(2)
        while got[-1] & 0x80:
            got += self.take(1)
        size = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(got[1:]))
        return got + self.take(size)

    def subscribe(self, filter: str, qos: int, level: int = 4) -> None:
        """Subscribe, and be granted it."""
        self.tell(m.subscribe(1000, (filter, qos), level=level), m.suback(1000, qos, level=level))


@contextmanager
def client(
    port: int, name: str, clean: bool = True, connack: bytes = CONNACK
) -> Iterator[ByteClient]:
    """A client of MQTT 3.1.1 that was accepted."""
    made = ByteClient(port)
    with closing(made.socket):
        made.tell(m.connect(name, level=4, clean=clean), connack)
        yield made


@contextmanager
def client5(port: int, name: str, expiry: int = 0, present: bool = False) -> Iterator[ByteClient]:
    """A client of MQTT 5.0 that was accepted; its session stays for `expiry` seconds."""
    made = ByteClient(port)
    with closing(made.socket):
        made.send(m.connect(name, clean=not present, properties=m.session_expiry(expiry)))
        answer = m.body(made.frame())
        assert answer[:2] == bytes((present, 0)), answer
        yield made
