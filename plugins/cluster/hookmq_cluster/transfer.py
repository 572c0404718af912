"""Transfer clients' sockets between nodes on one machine, instead of relaying their bytes.

Each node listens on a Unix socket ``NODE.sock`` in a folder that only its user can enter. For each client, the sender
connects to it and asks whether the node takes the client:

    sender   -> question   version, cluster, and the fields of a `Request`
    receiver -> answer     yes, or why not
    sender   -> client     the client's socket, and the bytes read from it

Without an answer in time, the client stays with the sender. Once its socket is sent, the client belongs to the receiver.
"""

import array
import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hookmq.cluster_api import Here, Redirect, Relaying, SendSocket, Transfer
from hookmq.plugin import ConfigError, Peer, Scope

from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_handshake import (
    MAX_REQUEST,
    HandshakeError,
    Request,
    decode_request,
    encode_request,
)

VERSION: Final = 2
ANSWER: Final = 1.0
"""Seconds until a client stays with the sender, because the receiver has not answered."""
MAX_DATA: Final = 192 * 1024
"""The most bytes of a client that are transferred."""
_YES: Final = b"\0"
_HEADER: Final = 2
"""The bytes of a question before the name of its cluster: the version, and the length of the name."""
MAX_QUESTION: Final = _HEADER + 255 + MAX_REQUEST
"""The maximum size of a question in bytes."""
_KIND: Final[int | None] = getattr(socket, "SOCK_SEQPACKET", None)
AVAILABLE: Final = _KIND is not None
"""Whether the system has sequenced Unix sockets, as Linux does."""
MAX_PATH: Final = 107
"""The longest path of a Unix socket on Linux, in bytes."""


def socket_path(folder: Path, node: str) -> Path:
    """Return the path of a node's socket."""
    return folder / f"{node}.sock"


def new_socket() -> socket.socket:
    """Return a non-blocking socket for transfers."""
    assert _KIND is not None
    sock = socket.socket(socket.AF_UNIX, _KIND)
    sock.setblocking(False)
    return sock


def prepare(folder: Path) -> None:
    """Create the folder. Raises ConfigError if other users could enter it."""
    if not AVAILABLE:
        raise ConfigError("transfers: this system has no sequenced Unix sockets")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise ConfigError(f"transfers: {error}") from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"transfers: {folder} must belong to the broker's user and have mode 0700, because all users that can enter "
            "it can pass on clients"
        )


class Transfers:
    """Sends clients of `node` to other nodes of `cluster` whose sockets are in `folder`."""

    def __init__(self, folder: Path, cluster: str, node: str, counters: RelayCounters) -> None:
        self._folder = folder
        self._cluster = cluster
        self._node = node
        self.counters = counters

    def reaches(self, node: str) -> bool:
        """Return whether the other node is on this machine. It may have crashed."""
        return socket_path(self._folder, node).exists()

    def transfer(self, node: str, lane: str, otherwise: Here | Relaying | Redirect) -> Transfer:
        """Return how a client reaches `node`, which has `lane`."""
        path = str(socket_path(self._folder, node))

        def ask(peer: Peer, scope: Scope, answered: Callable[[SendSocket | None], None]) -> None:
            request = Request(self._node, lane, scope.name, scope.mount_point, scope.identity, peer)
            _Question(self, answered).ask(path, request, self._cluster)

        return Transfer(ask, otherwise)


class _Question:
    """The sender's side of one client's transfer."""

    def __init__(self, transfers: Transfers, answered: Callable[[SendSocket | None], None]) -> None:
        self._counters = transfers.counters
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, path: str, request: Request, cluster: str) -> None:
        """Send the question."""
        try:
            question = encode_question(cluster, request)
            self._sock = new_socket()
            self._sock.connect(path)
            self._sock.send(question)
        except (OSError, HandshakeError):  # also if no descriptor is free
            self._end(False)
            return
        self._timer = self._loop.call_later(ANSWER, self._end, False)
        self._loop.add_reader(self._sock, self._read)

    def _read(self) -> None:
        assert self._sock is not None
        try:
            answer = self._sock.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        self._end(answer == _YES)

    def _end(self, yes: bool) -> None:
        if self._timer is not None and self._sock is not None:
            self._timer.cancel()
            self._loop.remove_reader(self._sock)
        try:
            if not yes:
                self._counters.transfers_declined += 1
            self._answered(self._send if yes else None)
        finally:
            if self._sock is not None:
                self._sock.close()

    def _send(self, descriptor: int, data: bytes) -> bool:
        assert self._sock is not None
        try:
            if len(data) > MAX_DATA:
                raise OSError("more bytes than one message may have")
            socket.send_fds(self._sock, (data,), (descriptor,))
        except OSError:
            self._counters.transfers_declined += 1
            return False
        self._counters.transferred_out += 1
        return True


def encode_question(cluster: str, request: Request) -> bytes:
    """Return the bytes of a question. Raises HandshakeError if the request is too large."""
    name = cluster.encode()
    return bytes((VERSION, len(name))) + name + encode_request(request)


def decode_question(data: bytes) -> tuple[str, Request]:
    """Return the cluster and the request of a question. Raises HandshakeError."""
    if len(data) < _HEADER or data[0] != VERSION:
        raise HandshakeError("a question of another version")
    end = _HEADER + data[1]
    return data[_HEADER:end].decode(errors="replace"), decode_request(data[end:])


def encode_answer(refusal: str) -> bytes:
    """Return the bytes of an answer: yes, or why not."""
    return refusal.encode()[:1024] or _YES


def receive_client(sock: socket.socket) -> tuple[bytes, socket.socket | None]:
    """Return a client's bytes and its socket, or None if there is not exactly one. All other descriptors are closed.
    Raises OSError."""
    size = array.array("i").itemsize
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    data, ancillary, flags, _ = sock.recvmsg(MAX_DATA, socket.CMSG_SPACE(size), flags)
    found = array.array("i")
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(value[: len(value) - len(value) % size])
    if len(found) == 1 and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        try:
            client = socket.socket(fileno=found[0])
        except OSError:  # it is not a socket
            pass
        else:
            client.setblocking(False)
            return data, client
    for descriptor in found:
        os.close(descriptor)
    return data, None
