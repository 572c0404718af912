"""Clients of bench.cluster that only connect and subscribe: the takeover of a dead node's sessions, and the cost of many
subscriptions."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connect, Disconnect, Subscribe, SubscribeRequest
from hookmq.mqtt.properties import Properties

from . import launch
from .cluster_nodes import NODES, Brokers
from .durable_load import Void
from .queue_client import exactly
from .queue_load import resident

EXPIRY = 3600
"""Seconds for which a session stays after its connection."""
FILTERS = 500
"""Topic filters in one SUBSCRIBE."""
SESSION_FILTERS = 10_000
"""Topic filters of one session, which is the broker's standard limit."""
CONNECTIONS = 100
"""Clients that connect at a time."""
PATIENCE = 120.0
"""Seconds to wait for an answer, or for an adopted session."""
SERVER_UNAVAILABLE = 0x88


def connect(port: int, client_id: str, clean: bool, expiry: int = EXPIRY) -> socket.socket:
    """Open a connection and send CONNECT. The caller reads CONNACK."""
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    packet = Connect(client_id, 5, clean, 0, properties=Properties(session_expiry_interval=expiry))
    connection.sendall(encode(packet, 5))
    return connection


def read(connection: socket.socket) -> bytes:
    """Read one packet. Return its first byte, and its body. Raises Void if the connection ends before."""
    first = exactly(connection, 1)
    size = shift = 0
    while True:
        (byte,) = exactly(connection, 1)
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return first + exactly(connection, size)


def connack(connection: socket.socket) -> tuple[bool, int]:
    """Read CONNACK. Return whether the session was present, and the reason code."""
    data = read(connection)
    if data[0] != 0x20:
        raise Void(f"a packet that begins {data[:1].hex()} instead of CONNACK")
    return bool(data[1]), data[2]


def _subscribe(connection: socket.socket, filters: list[str], qos: int) -> None:
    packet = Subscribe(1, tuple(SubscribeRequest(one, qos) for one in filters))
    connection.sendall(encode(packet, 5))


def _subscribed(connection: socket.socket, qos: int) -> None:
    data = read(connection)
    if data[0] != 0x90 or set(data[4:]) != {qos}:
        raise Void(f"not subscribed: {data[:8].hex(' ')}")


@dataclasses.dataclass(frozen=True, slots=True)
class Takeover:
    """How long the sessions of a killed node could not be resumed.

    `noticed`, `first` and `last` are seconds from the kill until another node began to adopt them, and until the first
    and the last one were resumed. `cpu` is the CPU seconds of all other processes from the kill to the first session.
    """

    sessions: int
    noticed: float
    first: float
    last: float
    cpu: float


def takeover(brokers: Brokers, sessions: int) -> Takeover:
    """Create durable sessions on one node, kill it, and resume them on another one. Raises Void if one is lost."""
    names = [f"session{number}" for number in range(sessions)]
    home, other = brokers.ports["a"], brokers.ports["b"]
    for at in range(0, sessions, CONNECTIONS):
        with contextlib.ExitStack() as stack:
            made = [
                stack.enter_context(connect(home, one, True))
                for one in names[at : at + CONNECTIONS]
            ]
            for number, one in enumerate(made, at):
                connack(one)
                _subscribe(one, [f"fleet/{number}/command"], 1)
            for one in made:
                _subscribed(one, 1)
                one.sendall(encode(Disconnect(), 5))
    before = sum(value for name, value in brokers.cpu().items() if name != "a")
    brokers.kill("a")
    killed = time.monotonic()
    noticed = 0.0
    while True:
        with connect(other, names[-1], False) as one:
            present, code = connack(one)
        now = time.monotonic() - killed
        if not noticed and any(b"lane_adopted" in brokers.log(name).read_bytes() for name in "bc"):
            noticed = now
        if code == 0:
            break
        if code != SERVER_UNAVAILABLE or now > PATIENCE:
            raise Void(f"a session is refused with {code:#x} after {now:.0f} s")
        time.sleep(0.02)  # between two attempts to resume
    cpu = sum(brokers.cpu().values()) - before
    lost = int(not present)
    for at in range(0, sessions, CONNECTIONS):
        with contextlib.ExitStack() as stack:
            made = [
                stack.enter_context(connect(other, one, False))
                for one in names[at : at + CONNECTIONS]
            ]
            lost += sum(connack(one) != (True, 0) for one in made)
    if lost:
        raise Void(f"{lost} of {sessions} sessions are lost")
    return Takeover(sessions, noticed or now, now, time.monotonic() - killed, cpu)


@dataclasses.dataclass(frozen=True, slots=True)
class Subscriptions:
    """The cost of subscriptions in a cluster.

    `memory` is the bytes that each node needs for them, and `traffic` the bytes that the nodes sent to each other. `cpu`
    is the CPU seconds of all processes, and `seconds` the time until all nodes knew all subscriptions.
    """

    subscriptions: int
    memory: dict[str, int]
    traffic: int
    cpu: float
    seconds: float


class _Traffic:
    """Counts the bytes that the nodes send to each other, with a client of a NATS server."""

    def __init__(self, port: int) -> None:
        self.bytes = 0
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._socket.sendall(b'CONNECT {"verbose":false}\r\nSUB hmqc.> 1\r\nPING\r\n')
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        buffer = b""
        while data := self._socket.recv(1 << 18):
            buffer += data
            while (end := buffer.find(b"\r\n")) >= 0:
                line = buffer[:end]
                if line.startswith(b"MSG "):
                    size = int(line.rsplit(b" ", 1)[1])
                    if len(buffer) < end + size + 4:
                        break
                    self.bytes += size
                    end += size + 2
                elif line == b"PING":
                    self._socket.sendall(b"PONG\r\n")
                buffer = buffer[end + 2 :]

    def close(self) -> None:
        """Disconnect."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


def subscriptions(brokers: Brokers, total: int) -> Subscriptions:
    """Subscribe volatile sessions of all nodes to `total` different topic filters. SUBACK means that all nodes know them.
    Raises Void if a node does not accept one."""
    with contextlib.ExitStack() as stack:
        traffic = stack.enter_context(contextlib.closing(_Traffic(brokers.nats_port)))
        trees = {name: launch.process_tree(brokers.pids[name]) for name in NODES}
        before = {name: resident(pids) for name, pids in trees.items()}
        used = sum(brokers.cpu().values())
        began = time.monotonic()
        share = total // len(NODES)
        made: list[tuple[socket.socket, str, int, int]] = []
        for name in NODES:
            for at in range(0, share, SESSION_FILTERS):
                one = stack.enter_context(connect(brokers.ports[name], f"{name}{at}", True, 0))
                connack(one)
                made.append((one, name, at, min(at + SESSION_FILTERS, share)))
        for step in range(0, SESSION_FILTERS, FILTERS):
            asked = []
            for one, name, at, end in made:
                numbers = range(at + step, min(at + step + FILTERS, end))
                if numbers:
                    _subscribe(one, [f"fleet/{name}{number}/state" for number in numbers], 0)
                    asked.append(one)
            for one in asked:
                _subscribed(one, 0)
        seconds = time.monotonic() - began
        cpu = sum(brokers.cpu().values()) - used
        memory = {name: resident(pids) - before[name] for name, pids in trees.items()}
        return Subscriptions(share * len(NODES), memory, traffic.bytes, cpu, seconds)
