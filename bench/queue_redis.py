"""Queue producers and consumers for the streams of Redis."""

from __future__ import annotations

import struct

from .durable_load import Void
from .queue_client import SIZE, TAIL, connect, exactly, numbered


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
        return numbered(self._form, self._head, first, count)

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
