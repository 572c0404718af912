"""Queue producers and consumers over bare sockets, with one pair of classes per protocol.

Each takes the bytes that its socket received and returns bytes to send. Messages are `SIZE` bytes long. The first eight
are the message's number: the producer's number in the upper part, and its message count in the lower. The classes
understand only what the servers send in an error-free run, and raise Void for anything else.
"""

from __future__ import annotations

import json
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


def exactly(connection: Socket, count: int) -> bytes:
    """Read `count` bytes. Raises Void if the connection ends before."""
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise Void("the server closed a connection")
        data += more
    return data


# MQTT ----------------------------------------------------------------------------------------------------------------


class _Mqtt:
    def __init__(self, port: int, name: str, level: int) -> None:
        self.level = level
        self.socket = connect(port)
        # MQTT 5: a Receive Maximum is not needed, because the queue's prefetch is lower.
        properties = b"\0" if level == 5 else b""
        head = b"\0\4MQTT" + bytes((level, 2, 0, 0)) + properties
        self.send(0x10, head + _mqtt_text(name))
        self.expect(0x20, at=1)

    def send(self, first: int, body: bytes) -> None:
        self.socket.sendall(bytes((first, len(body))) + body)

    def expect(self, first: int, at: int) -> None:
        head = exactly(self.socket, 2)
        body = exactly(self.socket, head[1])
        if head[0] != first or body[at] >= 0x80:
            raise Void(f"the server answered {(head + body).hex(' ')}")


def _mqtt_text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


class MqttProducer(_Mqtt):
    """Publishes at QoS 1."""

    def __init__(self, port: int, number: int, level: int = 5) -> None:
        super().__init__(port, f"producer-{number}", level)
        self.confirmed = 0
        self._left = b""
        self._topic = _mqtt_text(f"$queue/{QUEUE}")
        gap = b"\0" if level == 5 else b""
        size = len(self._topic) + 2 + len(gap) + SIZE
        self._head = bytes((0x32, size & 127 | 128, size >> 7)) + self._topic
        self._form = struct.Struct(f">{len(self._head)}sH{len(gap)}sQ{len(TAIL)}s")
        self._gap = gap

    def messages(self, first: int, count: int) -> bytes:
        """Return PUBLISH packets."""
        pack, head, gap = self._form.pack, self._head, self._gap
        return b"".join(
            [pack(head, (first + i) % 65535 + 1, gap, first + i, TAIL) for i in range(count)]
        )

    def read(self, data: bytes) -> None:
        """Count PUBACK packets without a reason code."""
        data = self._left + data
        count = len(data) >> 2
        whole = count << 2
        if data[0:whole:4] != b"\x40" * count or data[1:whole:4] != b"\x02" * count:
            raise Void(f"not only successful PUBACK packets: {data[:32].hex(' ')}")
        self._left = data[whole:]
        self.confirmed += count


class MqttConsumer(_Mqtt):
    """Subscribes to the queue at QoS 1."""

    def __init__(self, port: int, number: int, level: int = 5) -> None:
        super().__init__(port, f"consumer-{number}", level)
        self._left = b""

    def start(self) -> bytes:
        """Return a SUBSCRIBE packet. Its SUBACK is read with the messages."""
        body = b"\0\1" + (b"\0" if self.level == 5 else b"") + _mqtt_text(f"$queue/{QUEUE}") + b"\1"
        return bytes((0x82, len(body))) + body

    def read(self, data: bytes) -> tuple[list[int], bytes]:
        """Return the message numbers and a PUBACK for each message."""
        data = self._left + data
        numbers: list[int] = []
        answers: list[bytes] = []
        at, end = 0, len(data)
        while at + 3 <= end:
            size, body = data[at + 1], at + 2
            if size > 127:
                size, body = (size & 127) + (data[at + 2] << 7), at + 3
            after = body + size
            if after > end:
                break
            first = data[at]
            if first & 0xF6 == 0x32:
                stop = body + 2 + (data[body] << 8) + data[body + 1]
                answers.append(data[stop : stop + 2])
                numbers.append(int.from_bytes(data[after - SIZE : after - SIZE + 8], "big"))
            elif first != 0x90 or data[after - 1] >= 0x80:
                raise Void(f"a packet that begins {data[at : at + 16].hex(' ')}")
            at = after
        self._left = data[at:]
        return numbers, b"\x40\x02" + b"\x40\x02".join(answers) if answers else b""


# AMQP 0-9-1 ----------------------------------------------------------------------------------------------------------


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
        pack, head = self._form.pack, self._head
        return b"".join([pack(head, first + i, TAIL, 0xCE) for i in range(count)])

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


# NATS JetStream ------------------------------------------------------------------------------------------------------


class _Nats:
    def __init__(self, port: int, name: str) -> None:
        self.socket = connect(port)
        self.inbox = f"I.{name}"
        self._line()
        wish = json.dumps({"verbose": False, "headers": True, "no_responders": True})
        self.socket.sendall(f"CONNECT {wish}\r\nSUB {self.inbox} 1\r\nPING\r\n".encode())
        if self._line() != b"PONG":
            raise Void("no PONG")

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\r\n"):
            line += exactly(self.socket, 1)
        return line[:-2]

    def ask(self, subject: str, document: dict[str, object]) -> None:
        """Send a request to JetStream's API. Raises Void if it is refused."""
        body = json.dumps(document).encode()
        self.socket.sendall(
            f"PUB $JS.API.{subject} {self.inbox} {len(body)}\r\n".encode() + body + b"\r\n"
        )
        head = self._line().split()
        if head[0] != b"MSG":
            raise Void(f"the server sent {head!r}")
        answer = exactly(self.socket, int(head[-1]) + 2)
        if b'"error"' in answer:
            raise Void(answer.decode())


def nats_queue(port: int, unacknowledged: int) -> None:
    """Create the stream with work queue retention, and the durable consumer that all clients share."""
    client = _Nats(port, "setup")
    with client.socket:
        client.ask(
            f"STREAM.CREATE.{QUEUE}",
            {"name": QUEUE, "subjects": [QUEUE], "retention": "workqueue", "storage": "file"},
        )
        client.ask(
            f"CONSUMER.DURABLE.CREATE.{QUEUE}.all",
            {
                "stream_name": QUEUE,
                "config": {
                    "durable_name": "all",
                    "ack_policy": "explicit",
                    "max_ack_pending": unacknowledged,
                },
            },
        )


class NatsProducer(_Nats):
    """Publishes messages. The stream acknowledges each one."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port, f"p{number}")
        self.confirmed = 0
        self._left = b""
        self._head = f"PUB {QUEUE} {self.inbox} {SIZE}\r\n".encode()
        self._form = struct.Struct(f">{len(self._head)}sQ{len(TAIL)}s2s")

    def messages(self, first: int, count: int) -> bytes:
        """Return PUB lines."""
        pack, head = self._form.pack, self._head
        return b"".join([pack(head, first + i, TAIL, b"\r\n") for i in range(count)])

    def read(self, data: bytes) -> None:
        """Count the stream's answers."""
        data = self._left + data
        whole = data.rfind(b"}\r\n") + 3
        if whole < 3:
            self._left = data
            return
        self._left = data[whole:]
        data = data[:whole]
        if b"PING\r\n" in data:
            self.socket.sendall(b"PONG\r\n")
        if b'"error"' in data:
            raise Void(data[:300].decode(errors="replace"))
        self.confirmed += data.count(b'"seq":')


class NatsConsumer(_Nats):
    """Pulls messages and acknowledges each one. It requests more when half of `prefetch` has arrived."""

    def __init__(self, port: int, number: int, prefetch: int) -> None:
        super().__init__(port, f"c{number}")
        self._prefetch = prefetch
        self._asked = 0
        self._left = b""

    def start(self) -> bytes:
        """Return the first request."""
        self._asked = self._prefetch
        return self._pull(self._prefetch)

    def _pull(self, count: int) -> bytes:
        body = json.dumps({"batch": count, "expires": 600_000_000_000}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{QUEUE}.all"
        return f"PUB {subject} {self.inbox} {len(body)}\r\n".encode() + body + b"\r\n"

    def read(self, data: bytes) -> tuple[list[int], bytes]:
        """Return the message numbers, an acknowledgement for each, and the next request if it is due."""
        data = self._left + data
        numbers: list[int] = []
        answers: list[bytes] = []
        at, end = 0, len(data)
        while True:
            stop = data.find(b"\r\n", at)
            if stop < 0:
                break
            words = data[at:stop].split()
            if words[0] == b"PING":
                answers.append(b"PONG\r\n")
                at = stop + 2
                continue
            if words[0] != b"MSG" or len(words) != 5:
                raise Void(f"the server sent {data[at : at + 200]!r}")
            after = stop + 4 + SIZE
            if after > end:
                break
            numbers.append(int.from_bytes(data[stop + 2 : stop + 10], "big"))
            answers.append(b"PUB " + words[3] + b" 0\r\n\r\n")
            at = after
        self._left = data[at:]
        self._asked -= len(numbers)
        if self._asked <= self._prefetch // 2:
            answers.append(self._pull(self._prefetch - self._asked))
            self._asked = self._prefetch
        return numbers, b"".join(answers)


# Redis ---------------------------------------------------------------------------------------------------------------


def _redis(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(
        [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    )


def redis_queue(port: int) -> None:
    """Create the stream and the group of consumers."""
    with connect(port) as connection:
        connection.sendall(_redis(b"XGROUP", b"CREATE", b"bench", b"all", b"0", b"MKSTREAM"))
        if exactly(connection, 5) != b"+OK\r\n":
            raise Void("the group could not be created")


class RedisProducer:
    """Adds messages with XADD."""

    def __init__(self, port: int, number: int) -> None:
        self.socket = connect(port)
        self.confirmed = 0
        self._left = b""
        whole = _redis(b"XADD", b"bench", b"*", b"d", bytes(8) + TAIL)
        self._head = whole[: -SIZE - 2]
        self._form = struct.Struct(f">{len(self._head)}sQ{len(TAIL)}s2s")

    def messages(self, first: int, count: int) -> bytes:
        """Return XADD commands."""
        pack, head = self._form.pack, self._head
        return b"".join([pack(head, first + i, TAIL, b"\r\n") for i in range(count)])

    def read(self, data: bytes) -> None:
        """Count the entry ids in the replies. Each id takes two lines."""
        data = self._left + data
        whole = data.rfind(b"\r\n") + 2
        self._left = data[whole:] if whole > 1 else data
        data = data[:whole] if whole > 1 else b""
        if data.startswith(b"-") or b"\n-" in data:
            raise Void(data[:200].decode(errors="replace"))
        lines = data.count(b"\r\n")
        if lines % 2:  # the id is not there yet
            cut = data.rfind(b"\r\n", 0, -2) + 2
            cut = 0 if cut == 1 else cut
            self._left = data[cut:] + self._left
            lines -= 1
        self.confirmed += lines // 2


class RedisConsumer:
    """Reads up to `prefetch` entries with XREADGROUP, and acknowledges them with one XACK."""

    def __init__(self, port: int, number: int, prefetch: int) -> None:
        self.socket = connect(port)
        self._ask = _redis(
            b"XREADGROUP", b"GROUP", b"all", b"c%d" % number, b"COUNT", b"%d" % prefetch,
            b"BLOCK", b"600000", b"STREAMS", b"bench", b">",
        )  # fmt: skip
        self._left = b""

    def start(self) -> bytes:
        """Return the first XREADGROUP command."""
        return self._ask

    def read(self, data: bytes) -> tuple[list[int], bytes]:
        """Return the message numbers in a complete reply, with the XACK and the next XREADGROUP command."""
        data = self._left + data
        self._left = b""
        numbers: list[int] = []
        ids: list[bytes] = []
        start = data.find(b"*1\r\n*2\r\n$5\r\nbench\r\n*")
        if start < 0:
            if data.startswith(b"-"):
                raise Void(data[:200].decode(errors="replace"))
            if not data.startswith(b":") or not data.endswith(b"\r\n"):
                self._left = data
            return [], b""
        at = start + 20
        stop = data.find(b"\r\n", at)
        if stop < 0:
            self._left = data
            return [], b""
        count, at = int(data[at:stop]), stop + 2
        for _ in range(count):
            # *2 $n id *2 $1 d $256 payload
            at += 4
            stop = data.find(b"\r\n", at)
            size = int(data[at + 1 : stop]) if stop > 0 else 0
            begin = stop + 2 + size + 2 + 4 + 7 + 6
            if stop < 0 or begin + SIZE + 2 > len(data):
                self._left = data
                return [], b""
            ids.append(data[stop + 2 : stop + 2 + size])
            numbers.append(int.from_bytes(data[begin : begin + 8], "big"))
            at = begin + SIZE + 2
        self._left = data[at:]
        return numbers, _redis(b"XACK", b"bench", b"all", *ids) + self._ask
