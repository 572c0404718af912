"""A client that sends and receives bytes over a socket. `rawclient.RawClient` does the same in memory."""

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager

import mqttbytes as m
from serving import WAIT

CONNACK, PRESENT = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"
"""CONNACK of MQTT 3.1.1, without and with Session Present."""


class ByteClient:
    """One connection to a port on this machine. Every call waits at most `WAIT` seconds."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        """Whether either side has closed the connection."""
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()

    def send(self, *packets: bytes) -> None:
        """Send packets."""
        self.socket.sendall(b"".join(packets))

    def read(self) -> list[bytes]:
        """Receive once, and return the packets that are complete. The end of the connection sets `closed`."""
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            self.close()
        self._buffer += data
        return m.take_frames(self._buffer)

    def frame(self) -> bytes:
        """Return the next packet."""
        while not self._frames:
            assert not self.closed, (
                f"the broker closed the connection after {bytes(self._buffer)!r}"
            )
            self._frames.extend(self.read())
        return self._frames.popleft()

    def get(self, expected: bytes) -> None:
        """Receive exactly these packets. Raises AssertionError for anything else."""
        got = b""
        while len(got) < len(expected):
            got += self.frame()
        assert got == expected, f"{got!r} instead of {expected!r}"

    def rest(self) -> list[bytes]:
        """Return the packets that arrive before the broker closes the connection."""
        while not self.closed:
            self._frames.extend(self.read())
        found = list(self._frames)
        self._frames.clear()
        return found

    def close(self) -> None:
        """Close the connection without DISCONNECT."""
        self.closed = True
        self.socket.close()

    def tell(self, data: bytes, expected: bytes) -> None:
        """Send `data` and assert that the answer is exactly `expected`."""
        self.send(data)
        self.get(expected)

    def subscribe(self, filter: str, qos: int, level: int = 4) -> None:
        """Subscribe and assert that the broker grants `qos`."""
        self.tell(m.subscribe(1000, (filter, qos), level=level), m.suback(1000, qos, level=level))


@contextmanager
def client(
    port: int, name: str, clean: bool = True, connack: bytes = CONNACK
) -> Iterator[ByteClient]:
    """Connect an MQTT 3.1.1 client and assert that it is accepted."""
    made = ByteClient(port)
    with closing(made.socket):
        made.tell(m.connect(name, level=4, clean=clean), connack)
        yield made


@contextmanager
def client5(port: int, name: str, expiry: int = 0, present: bool = False) -> Iterator[ByteClient]:
    """Connect an MQTT 5.0 client and assert that it is accepted. Its session expires after `expiry` seconds."""
    made = ByteClient(port)
    with closing(made.socket):
        made.send(m.connect(name, clean=not present, properties=m.session_expiry(expiry)))
        answer = m.body(made.frame())
        assert answer[:2] == bytes((present, 0)), answer
        yield made
