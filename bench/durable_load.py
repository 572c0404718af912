"""The load that bench.durable uses: publishers that keep messages unacknowledged, and an offline session."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections import deque

PAYLOAD = 64
TOPIC = b"\x00\x07bench/t"
PUBLISH = struct.Struct(f">2s9sHQ{PAYLOAD - 8}s")
FIRST = bytes((0x32, PUBLISH.size - 2))
REST = bytes(PAYLOAD - 8)
FLOOD = (b"\x30\x46\x00\x04none" + bytes(64)) * 800
GAP = 5.0
"""Seconds of silence after which missing messages count as lost."""


class Void(Exception):
    """Raised if a run does not count. The message gives the reason."""


def packet(first: int, body: bytes) -> bytes:
    """Encode a control packet shorter than 128 bytes."""
    return bytes((first, len(body))) + body


def connect(port: int, client_id: bytes, clean: bool) -> socket.socket:
    """Open an MQTT 3.1.1 connection. Raises Void if the broker refuses it."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(60)
    flags = bytes((2 if clean else 0, 0, 0))
    head = b"\x00\x04MQTT\x04" + flags + len(client_id).to_bytes(2, "big")
    connection.sendall(packet(0x10, head + client_id))
    answer = b""
    while len(answer) < 4:
        answer += connection.recv(4 - len(answer)) or b"closed"
    if answer[:2] != b"\x20\x02" or answer[3]:
        raise Void(f"CONNACK {answer.hex(' ')}")
    return connection


def subscribe(port: int) -> None:
    """Create the offline session with its subscription."""
    with connect(port, b"offline", False) as connection:
        connection.sendall(packet(0x82, b"\0\1\0\7bench/#\1"))
        if connection.recv(100)[:1] != b"\x90":
            raise Void("no SUBACK")
        connection.sendall(b"\xe0\0")
        while connection.recv(100):
            pass


class Publisher:
    """A connection that publishes and keeps up to `window` messages unacknowledged."""

    def __init__(self, port: int, number: int, window: int) -> None:
        self.connection = connect(port, b"pub-%d" % number, True)
        self.base = number << 32
        self.window = window
        self.sent = self.acked = 0
        self._waiting: deque[tuple[int, float]] = deque()
        self._buffer = b""

    def write(self) -> None:
        """Fill the window if at least a quarter of it is free."""
        sent, room = self.sent, self.window - (self.sent - self.acked)
        if room >= max(1, self.window // 4):
            batch = [
                PUBLISH.pack(FIRST, TOPIC, number % 65535 + 1, self.base + number, REST)
                for number in range(sent, sent + room)
            ]
            self._waiting.append((sent, time.perf_counter()))
            self.sent += room
            self.connection.sendall(b"".join(batch))

    def read(self, latencies: list[float]) -> None:
        """Read acknowledgements, which must arrive in order, and append the latencies."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise Void("a publisher was disconnected")
        buffer = self._buffer + data
        whole = len(buffer) & ~3
        acked = self.acked
        for at in range(0, whole, 4):
            if buffer[at : at + 4] != b"\x40\x02" + (acked % 65535 + 1).to_bytes(2, "big"):
                raise Void(f"not the PUBACK of message {acked}")
            acked += 1
        self.acked = acked
        self._buffer = buffer[whole:]
        now = time.perf_counter()
        waiting = self._waiting
        while waiting and waiting[0][0] < acked:
            latencies.append(now - waiting.popleft()[1])


def publish(
    port: int, window: int, publishers: int, seconds: float
) -> tuple[list[int], float, list[float]]:
    """Publish for `seconds`.

    Return how many of each publisher's messages were acknowledged, the seconds taken, and the sorted latencies. Only
    the first message in each write has a latency.
    """
    latencies: list[float] = []
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        made = [Publisher(port, number, window // publishers) for number in range(publishers)]
        for one in made:
            stack.enter_context(one.connection)
            selector.register(one.connection, selectors.EVENT_READ, one)
        began = now = time.perf_counter()
        for one in made:
            one.write()
        while now < began + seconds:
            for key, _ in selector.select(0.1):
                key.data.read(latencies)
                key.data.write()
            now = time.perf_counter()
        took = now - began
        # The broker may or may not have queued a message that it did not acknowledge.
        return [one.acked for one in made], took, sorted(latencies)


def fetch(port: int, acked: list[int]) -> None:
    """Resume the offline session and receive its queue. Raises Void if an acknowledged message is missing."""
    there = [bytearray(count) for count in acked]
    left = sum(acked)
    with connect(port, b"offline", False) as connection:
        connection.settimeout(GAP)
        buffer = b""
        while left:
            try:
                data = connection.recv(1 << 18)
            except TimeoutError:
                data = b""
            if not data:
                raise Void(f"{left} acknowledged messages are lost")
            buffer += data
            whole = len(buffer) - len(buffer) % PUBLISH.size
            answers = []
            for first, _, packet_id, number, _ in PUBLISH.iter_unpack(buffer[:whole]):
                if first[0] & 0xF6 != 0x32:
                    raise Void(f"a packet that begins {first.hex(' ')}")
                answers.append(b"\x40\x02" + packet_id.to_bytes(2, "big"))
                seen, index = there[number >> 32], number & 0xFFFFFFFF
                if index < len(seen):
                    left -= not seen[index]
                    seen[index] = 1
            buffer = buffer[whole:]
            connection.sendall(b"".join(answers))


def flood(port: int) -> None:
    """Send QoS 0 messages until the process is stopped."""
    connection = connect(port, b"flood", True)
    print("connected", flush=True)
    while True:
        connection.sendall(FLOOD)
