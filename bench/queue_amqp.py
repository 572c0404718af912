"""Queue producers and consumers for AMQP 0-9-1."""

from __future__ import annotations

import struct
from typing import Final

from .durable_load import Void
from .queue_client import QUEUE, SIZE, TAIL, connect, exactly, numbered


def _short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


class _Amqp:
    def __init__(self, port: int, kind: str) -> None:
        self.socket = connect(port)
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.expect(10, 10)
        answer = b"\0\0\0\0" + _short("PLAIN") + struct.pack(">I", 12) + b"\0guest\0guest"
        self.send(0, 10, 11, answer + _short("en_US"))
        channels, largest, _ = struct.unpack(">HIH", self.expect(10, 30)[:8])
        self.send(0, 10, 31, struct.pack(">HIH", channels, largest, 0))  # without heartbeats
        self.send(0, 10, 40, _short("/") + b"\0\0")
        self.expect(10, 41)
        self.send(1, 20, 10, b"\0")
        self.expect(20, 11)
        table = _short("x-queue-type") + b"S" + struct.pack(">I", len(kind)) + kind.encode()
        body = b"\0\0" + _short(QUEUE) + b"\2" + struct.pack(">I", len(table)) + table
        self.send(1, 50, 10, body)
        self.expect(50, 11)

    def send(self, channel: int, kind: int, method: int, body: bytes) -> None:
        self.socket.sendall(amqp_frame(1, channel, struct.pack(">HH", kind, method) + body))

    def expect(self, kind: int, method: int) -> bytes:
        _, _, size = struct.unpack(">BHI", exactly(self.socket, 7))
        body = exactly(self.socket, size + 1)
        if struct.unpack(">HH", body[:4]) != (kind, method):
            raise Void(f"the server sent {body[:80]!r} instead of method {kind}.{method}")
        return body[4:-1]


def amqp_frame(kind: int, channel: int, body: bytes) -> bytes:
    """Encode a frame."""
    return struct.pack(">BHI", kind, channel, len(body)) + body + b"\xce"


def delivery_form() -> struct.Struct:
    """Return the pattern of a delivery: its head, delivery tag, the rest of the frames before the payload, the payload
    and the end."""
    before = 7 + 4 + len(_short("c"))
    after = 1 + len(_short("")) + len(_short(QUEUE)) + 1
    header = 7 + 15 + 1
    return struct.Struct(f">{before}s8s{after + header + 7}sQ{len(TAIL)}sB")


class AmqpProducer(_Amqp):
    """Publishes persistent messages with confirms."""

    ACK: Final = struct.Struct(">7sHHQBB")

    def __init__(self, port: int, number: int, kind: str) -> None:
        super().__init__(port, kind)
        self.send(1, 85, 10, b"\0")
        self.expect(85, 11)
        method = struct.pack(">HHH", 60, 40, 0) + _short("") + _short(QUEUE) + b"\0"
        header = struct.pack(">HHQHB", 60, 0, SIZE, 0x1000, 2)
        self._head = amqp_frame(1, 1, method) + amqp_frame(2, 1, header)
        self._head += struct.pack(">BHI", 3, 1, SIZE)
        self._form = struct.Struct(f">{len(self._head)}sQ{len(TAIL)}sB")
        self._left = b""
        self._low = 0
        self._above: set[int] = set()

    @property
    def confirmed(self) -> int:
        """The number of confirmed messages."""
        return self._low + len(self._above)

    def messages(self, first: int, count: int) -> bytes:
        """Return three frames for each message."""
        return numbered(self._form, self._head, first, count, 0xCE)

    def read(self, data: bytes) -> None:
        """Process confirms. Each one confirms a single message, or all messages up to and including one."""
        data = self._left + data
        whole = len(data) - len(data) % self.ACK.size
        for _, kind, method, tag, multiple, end in self.ACK.iter_unpack(data[:whole]):
            if (kind, method, end) != (60, 80, 0xCE):
                raise Void(f"method {kind}.{method} instead of a confirm")
            if multiple:
                self._low = tag
                self._above = {one for one in self._above if one > tag}
            else:
                self._above.add(tag)
                while self._low + 1 in self._above:
                    self._low += 1
                    self._above.remove(self._low)
        self._left = data[whole:]


class AmqpConsumer(_Amqp):
    """Consumes and acknowledges each message."""

    def __init__(self, port: int, number: int, kind: str, prefetch: int) -> None:
        super().__init__(port, kind)
        self.send(1, 60, 10, struct.pack(">IHB", 0, prefetch, 0))
        self.expect(60, 11)
        self._form = delivery_form()
        self._left = b""

    def start(self) -> bytes:
        """Start consuming. The answer must arrive before the messages."""
        self.send(1, 60, 20, b"\0\0" + _short(QUEUE) + _short("c") + b"\0" + b"\0\0\0\0")
        self.expect(60, 21)
        return b""

    def read(self, data: bytes) -> tuple[list[int], bytes]:
        """Return the message numbers and a basic.ack for each message."""
        data = self._left + data
        whole = len(data) - len(data) % self._form.size
        numbers: list[int] = []
        answers: list[bytes] = []
        for head, tag, _, number, _, end in self._form.iter_unpack(data[:whole]):
            if head[7:11] != b"\0\x3c\0\x3c" or end != 0xCE:
                raise Void(f"not a delivery: {head!r}")
            numbers.append(number)
            answers.append(b"\1\0\1\0\0\0\x0d\0\x3c\0\x50" + tag + b"\0\xce")
        self._left = data[whole:]
        return numbers, b"".join(answers)
