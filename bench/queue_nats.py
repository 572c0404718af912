"""Queue producers and consumers for NATS JetStream."""

from __future__ import annotations

import json
import struct

from .durable_load import Void
from .queue_client import QUEUE, SIZE, TAIL, connect, exactly, numbered


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
        return numbered(self._form, self._head, first, count)

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
