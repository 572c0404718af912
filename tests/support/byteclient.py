"""A client that exchanges bytes with a broker. It never responds on its own.

It has two transports: a socket (`over_tcp`) and an in-memory connection (`bytememory.in_memory`).
"""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self

import mqttbytes as m
from serving import WAIT

if TYPE_CHECKING:
    from hookmq.broker import PacketReader
    from hookmq_testing import MemoryWire

CONNACK, PRESENT = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"
"""CONNACK of MQTT 3.1.1, without and with Session Present."""


class Transport(Protocol):
    """The connection that carries a client's bytes."""

    @property
    def closed(self) -> bool:
        """Whether either side has closed the connection, judging by what the client has read so far."""

    @property
    def open(self) -> bool:
        """Whether the connection is open, which means that neither side has closed it or started to close it."""

    def send(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError if that fails."""

    def offer(self, data: bytes) -> None:
        """Send as much of `data` as the broker accepts without delay."""

    def poll(self) -> bytes:
        """Return the bytes that have arrived, without waiting."""

    def wait(self) -> bytes:
        """Wait for more bytes and return them. Return empty bytes if no more can arrive."""

    def close(self) -> None:
        """Close the connection without DISCONNECT."""

    def fileno(self) -> int:
        """Return the descriptor for `select`. Raises OSError if there is none."""


class SocketTransport:
    """A connection to a port on this machine. Every call waits at most `WAIT` seconds. If `buffer` is not 0, it sets the
    size of the receive buffer.
    """

    def __init__(self, port: int, buffer: int = 0) -> None:
        self.closed = False
        self._socket = socket.socket()
        self._socket.settimeout(WAIT)
        if buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.connect(("127.0.0.1", port))
        except BaseException:
            self._socket.close()
            raise

    @property
    def open(self) -> bool:
        """Implement `Transport.open`."""
        return not self.closed

    def send(self, data: bytes) -> None:
        """Implement `Transport.send`."""
        self._socket.sendall(data)

    def offer(self, data: bytes) -> None:
        """Implement `Transport.offer`."""
        self._socket.setblocking(False)
        try:
            while data:
                data = data[self._socket.send(data) :]
        except OSError:
            pass
        self._socket.settimeout(WAIT)

    def poll(self) -> bytes:
        """Implement `Transport.poll`."""
        found = b""
        while not self.closed:
            self._socket.settimeout(0)
            try:
                data = self._receive()
            except BlockingIOError:
                break
            finally:
                if not self.closed:
                    self._socket.settimeout(WAIT)
            found += data
        return found

    def wait(self) -> bytes:
        """Implement `Transport.wait`."""
        return b"" if self.closed else self._receive()

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            self.close()
        return data

    def close(self) -> None:
        """Implement `Transport.close`."""
        self.closed = True
        self._socket.close()

    def fileno(self) -> int:
        """Implement `Transport.fileno`."""
        return self._socket.fileno()


class ByteClient:
    """A client with one connection.

    `level` is the MQTT version of the packets that `connect`, `publish` and so on write. In memory, a call returns once
    everything that the broker sends has arrived. Over a socket, a call waits for the packets that it expects.
    """

    def __init__(self, transport: Transport, level: int = 5) -> None:
        self.transport = transport
        self.level = level
        self._arrived = b""
        self._packet_id = 0

    @property
    def closed(self) -> bool:
        """Whether either side has closed the connection, judging by what the client has read so far."""
        return self.transport.closed

    @property
    def arrived(self) -> bytes:
        """The bytes that have arrived but that no call has taken yet."""
        self._arrived += self.transport.poll()
        return self._arrived

    @property
    def wire(self) -> "MemoryWire":
        """The in-memory connection. Raises AttributeError if the client uses a socket."""
        made: Any = self.transport
        return made.wire  # type: ignore[no-any-return]

    @property
    def connection(self) -> "PacketReader":
        """The broker's end of an in-memory connection. Raises AttributeError if the client uses a socket."""
        made: Any = self.transport
        return made.connection  # type: ignore[no-any-return]

    def fileno(self) -> int:
        """Return the socket's descriptor, for `select`."""
        return self.transport.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # sending ----------------------------------------------------------------------------------------------------

    def send(self, *packets: bytes) -> Self:
        """Send bytes in a single segment."""
        self.transport.send(b"".join(packets))
        return self

    def offer(self, data: bytes) -> None:
        """Send as much of `data` as the broker accepts without delay."""
        self.transport.offer(data)

    def connect(self, client_id: m.Field = "c", **options: Any) -> Self:
        """Send CONNECT. `options` are those of `mqttbytes.connect`."""
        return self.send(m.connect(client_id, level=self.level, **options))

    def join(self, client_id: m.Field = "c", *, present: bool = False, **options: Any) -> Self:
        """Send CONNECT. Assert that the broker accepts it, with this Session Present flag."""
        self.connect(client_id, **options)
        self.accepted(present)
        return self

    def publish(self, topic: m.Field, payload: bytes = b"", *args: int, **options: Any) -> None:
        """Send PUBLISH, with arguments as for `mqttbytes.publish`."""
        self.send(m.publish(topic, payload, *args, level=self.level, **options))

    def subscribe(self, *filters: tuple[m.Field, int], properties: bytes = b"") -> None:
        """Subscribe to filters, each with its options byte. Assert that the requested QoS is granted for each."""
        self._packet_id += 1
        number = 1000 + self._packet_id
        self.send(m.subscribe(number, *filters, level=self.level, properties=properties))
        self.get(m.suback(number, *(options & 3 for _, options in filters), level=self.level))

    def unsubscribe(self, *filters: m.Field) -> None:
        """Unsubscribe from filters. Assert that a subscription to each filter existed."""
        self._packet_id += 1
        number = 1000 + self._packet_id
        self.send(m.unsubscribe(number, *filters, level=self.level))
        self.expect(m.unsuback(number, *([0] * len(filters)), level=self.level))

    def tell(self, data: bytes, *expected: bytes) -> None:
        """Send `data`. Assert that exactly the `expected` packets arrive next. More may follow."""
        self.send(data)
        self.get(*expected)

    def close(self) -> None:
        """Close the connection without DISCONNECT."""
        self.transport.close()

    def goodbye(self, *packets: bytes) -> None:
        """Send DISCONNECT (or `packets`). Assert that the broker then closes the connection without sending anything."""
        self.send(*(packets or (m.disconnect(),)))
        self.ends()

    # receiving ---------------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """Return all bytes that have arrived since the last call."""
        data, self._arrived = self.arrived, b""
        return data

    def take_frames(self) -> list[bytes]:
        """Return all packets that have arrived since the last call. Assert that each packet is complete."""
        return m.frames(self.take())

    def take_one(self) -> bytes:
        """Return the packet that has arrived. Assert that it is the only one."""
        self._fill(lambda: bool(self._arrived))
        found = self.take_frames()
        assert len(found) == 1, f"one packet, not {[one.hex(' ') for one in found]}"
        return found[0]

    def take_publish(self) -> tuple[int, bytes, int, list[bytes], bytes]:
        """Return the PUBLISH that arrived, split by `mqttbytes.split_publish`. Assert that it is the only packet."""
        return m.split_publish(self.take_one(), self.level)

    def read(self) -> list[bytes]:
        """Wait once for bytes, and return all packets that are now complete."""
        self._arrived += self.transport.wait()
        return self._take_complete()

    def frame(self) -> bytes:
        """Wait for a packet and return it. Assert that one arrives."""
        first = b""

        def complete() -> bool:
            nonlocal first
            first = m.first_frame(self._arrived)
            return bool(first)

        self._fill(complete)
        ended = "the broker closed the connection" if self.closed else "nothing more came"
        assert first, f"{ended} after {self._arrived!r}"
        self._arrived = self._arrived[len(first) :]
        return first

    def rest(self) -> list[bytes]:
        """Return the packets that arrive before the broker closes the connection. Assert that the broker closes it."""
        self._fill(lambda: self.closed)
        assert self.closed, "the connection is still open"
        return self._take_complete()

    def get(self, *packets: bytes) -> None:
        """Assert that exactly these packets arrive next. More may follow."""
        wanted = b"".join(packets)
        self._fill(lambda: len(self._arrived) >= len(wanted))
        data, self._arrived = self._arrived[: len(wanted)], self._arrived[len(wanted) :]
        _compare(data, wanted)

    def expect(self, *packets: bytes) -> None:
        """Assert that exactly these packets arrived, in this order, and that the connection is open."""
        wanted = b"".join(packets)
        self._fill(lambda: len(self._arrived) >= len(wanted))
        _compare(self.take(), wanted)
        assert self.transport.open, "the connection is closed"

    def ends(self, *packets: bytes) -> None:
        """Assert that exactly these packets have arrived and that the broker has then closed the connection."""
        self._fill(lambda: self.closed)
        _compare(self.take(), b"".join(packets))
        assert self.closed, "the connection is still open"

    def refused(self, *codes: int, after: bytes = b"") -> None:
        """Assert that the broker sent the packets in `after` and then closed the connection.

        In MQTT 5, the broker must first send DISCONNECT with one of the codes. In earlier versions, it must send
        nothing.
        """
        self._fill(lambda: self.closed)
        data = self.take()
        assert data.startswith(after), f"{data.hex(' ')}, expected first {after.hex(' ')}"
        assert self.closed, f"the connection is still open: {data.hex(' ')}"
        found = m.frames(data[len(after) :])
        if self.level < 5:
            assert found == []
            return
        assert len(found) == 1, [one.hex(" ") for one in found]
        assert found[0][0] == 0xE0, f"not DISCONNECT: {found[0].hex(' ')}"
        assert found[0][2] in codes, f"DISCONNECT 0x{found[0][2]:02X}"

    def not_accepted(self, *codes: int) -> bytes:
        """Assert that the broker sent CONNACK with one of the codes and then closed the connection. Return the CONNACK.

        Without codes, assert that the broker closed the connection without sending anything.
        """
        self._fill(lambda: self.closed)
        data = self.take()
        assert self.closed, f"the connection is still open: {data.hex(' ')}"
        if not codes:
            assert data == b"", data.hex(" ")
            return b""
        (found,) = m.frames(data)
        assert found[0] == 0x20
        flags, code = m.body(found)[:2]
        assert flags == 0
        assert code in codes, f"CONNACK 0x{code:02X}"
        return found

    def accepted(self, present: bool = False) -> list[bytes]:
        """Assert that CONNACK 0 is the next packet, and return its properties."""
        first = self.frame()
        assert first[0] == 0x20, f"not CONNACK: {first.hex(' ')}"
        rest = m.body(first)
        assert rest[:2] == bytes((present, 0)), f"CONNACK {rest[:2].hex(' ')}"
        assert not self.closed
        if self.level < 5:
            assert len(rest) == 2
            return []
        properties, rest = m.split_section(rest[2:])
        assert rest == b""
        return properties

    def _take_complete(self) -> list[bytes]:
        buffer = bytearray(self._arrived)
        found = m.take_frames(buffer)
        self._arrived = bytes(buffer)
        return found

    def _fill(self, done: Callable[[], bool]) -> None:
        """Receive until `done()` is true or nothing more can arrive."""
        self._arrived += self.transport.poll()
        while not done() and (data := self.transport.wait()):
            self._arrived += data


def _compare(data: bytes, wanted: bytes) -> None:
    assert data == wanted, f"{data.hex(' ')}, expected {wanted.hex(' ')}"


def over_tcp(port: int, level: int = 5) -> ByteClient:
    """Connect to a port on this machine without sending anything."""
    return ByteClient(SocketTransport(port), level)
