"""Transfer clients' sockets between nodes on one machine, instead of relaying their bytes.

Each node listens on a Unix socket ``NODE.sock`` in a folder that only its user can enter. For each client, the sender
connects and sends one message: a version, the length of the `Request`, its fields and the client's bytes, together with
the client's socket. The sender learns only that the message was sent. If the receiver cannot use it, it closes the
client's connection.
"""

import array
import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hookmq.cluster_api import Here, Redirect, Relaying, Transfer
from hookmq.plugin import ConfigError, Peer, Scope

from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_handshake import (
    HandshakeError,
    Request,
    decode_request,
    encode_request,
)

VERSION: Final = 1
MAX_MESSAGE: Final = 192 * 1024
"""The maximum size of a message in bytes. Above that, the client's bytes are relayed."""
DEADLINE: Final = 5.0
"""Seconds until a connection without a message is closed."""
ARRIVING: Final = 1024
"""Maximum number of connections whose message has not arrived."""
TURN: Final = 100
"""The maximum number of connections accepted in one turn."""
_HEADER: Final = 3
_KIND: Final[int | None] = getattr(socket, "SOCK_SEQPACKET", None)
AVAILABLE: Final = _KIND is not None
"""Whether the system has sequenced Unix sockets, as Linux does."""
Take = Callable[[socket.socket, Request, bytes], None]
"""Goes on with a client's socket; see `hookmq_cluster.relay_listener.RelayListener.take`."""


def socket_path(folder: Path, node: str) -> Path:
    """Return the path of a node's socket."""
    return folder / f"{node}.sock"


def prepare(folder: Path) -> None:
    """Create the folder. Raises ConfigError if other users could enter it."""
    if _KIND is None:
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
    """Sends clients of `node` to other nodes whose sockets are in `folder`."""

    def __init__(self, folder: Path, node: str, counters: RelayCounters) -> None:
        self._folder = folder
        self._node = node
        self._counters = counters

    def reaches(self, node: str) -> bool:
        """Return whether the other node is on this machine. It may have crashed."""
        return socket_path(self._folder, node).exists()

    def transfer(self, node: str, lane: str, otherwise: Here | Relaying | Redirect) -> Transfer:
        """Return how a client reaches `node`, which has `lane`."""
        path = str(socket_path(self._folder, node))

        def send(descriptor: int, peer: Peer, scope: Scope, data: bytes) -> bool:
            request = Request(self._node, lane, scope.name, scope.mount_point, scope.identity, peer)
            try:
                _send(path, descriptor, encode_request(request), data)
            except (OSError, HandshakeError):
                self._counters.transfers_failed += 1
                return False
            self._counters.transferred_out += 1
            return True

        return Transfer(send, otherwise)


def _send(path: str, descriptor: int, fields: bytes, data: bytes) -> None:
    """Send one message. Raises OSError if the receiver is not there, or cannot take it now."""
    assert _KIND is not None
    if _HEADER + len(fields) + len(data) > MAX_MESSAGE:
        raise OSError("the message is too large")
    header = bytes((VERSION,)) + len(fields).to_bytes(_HEADER - 1, "big")
    with socket.socket(socket.AF_UNIX, _KIND) as sock:
        sock.setblocking(False)
        sock.connect(path)
        socket.send_fds(sock, (header, fields, data), (descriptor,))


class TransferListener:
    """Receives clients' sockets at `path`, and calls `take` with each."""

    def __init__(self, path: Path, take: Take, counters: RelayCounters) -> None:
        self._path = path
        self._take = take
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._arriving: dict[socket.socket, asyncio.TimerHandle] = {}
        self._sock: socket.socket | None = None

    def open(self) -> None:
        """Start listening. Raises ConfigError if the path cannot be used, or if another process listens there."""
        assert _KIND is not None
        sock = socket.socket(socket.AF_UNIX, _KIND)
        sock.setblocking(False)
        try:
            self._remove_stale()
            sock.bind(str(self._path))
            sock.listen(1024)
        except OSError as error:
            sock.close()
            raise ConfigError(f"transfers: cannot listen on {self._path}: {error}") from error
        self._sock = sock
        self._loop.add_reader(sock, self._accept)

    def _remove_stale(self) -> None:
        """Remove the socket of a process that has ended. Raises OSError if it has not."""
        assert _KIND is not None
        if not self._path.exists():
            return
        if not self._path.is_socket():
            raise OSError("the file exists and is not a socket")
        with socket.socket(socket.AF_UNIX, _KIND) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink()
            else:
                raise OSError("another process uses it")

    def close(self) -> None:
        """Stop listening. Clients whose message has not been read lose their connections."""
        if self._sock is None:
            return
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._sock = None
        self._path.unlink(missing_ok=True)
        for sock in list(self._arriving):
            self._drop(sock)

    def _accept(self) -> None:
        assert self._sock is not None
        for _ in range(TURN):
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except (
                OSError
            ) as error:  # no descriptor is free: the senders' clients are served by their own nodes
                self._refused(str(error))
                return
            if len(self._arriving) >= ARRIVING:
                sock.close()
                continue
            sock.setblocking(False)
            self._arriving[sock] = self._loop.call_later(DEADLINE, self._late, sock)
            self._loop.add_reader(sock, self._read, sock)

    def _read(self, sock: socket.socket) -> None:
        """Read the only message of a sender."""
        try:
            data, client = _receive(sock)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(sock)
            self._refused(str(error))
            return
        self._drop(sock)
        if client is None:
            self._refused("a message without a socket")
            return
        try:
            request, rest = _parse(data)
        except HandshakeError as error:
            client.close()
            self._refused(f"it sent {error}")
            return
        self._counters.transferred_in += 1
        self._take(client, request, rest)

    def _late(self, sock: socket.socket) -> None:
        self._drop(sock)
        self._refused(f"no message within {DEADLINE:g} s")

    def _drop(self, sock: socket.socket) -> None:
        self._arriving.pop(sock).cancel()
        self._loop.remove_reader(sock)
        sock.close()

    def _refused(self, reason: str) -> None:
        self._counters.refused(self._loop.time(), "transfer", reason)


def _receive(sock: socket.socket) -> tuple[bytes, socket.socket | None]:
    """Return a message and its socket. All other descriptors are closed."""
    size = array.array("i").itemsize
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(size), flags)
    found = array.array("i")
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(value[: len(value) - len(value) % size])
    if len(found) != 1 or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for descriptor in found:
            os.close(descriptor)
        return data, None
    try:
        client = socket.socket(fileno=found[0])
    except OSError:  # it is not a socket
        os.close(found[0])
        return data, None
    client.setblocking(False)
    return data, client


def _parse(data: bytes) -> tuple[Request, bytes]:
    """Return the request and the client's bytes. Raises HandshakeError."""
    if len(data) < _HEADER or data[0] != VERSION:
        raise HandshakeError("a message of another version")
    end = _HEADER + int.from_bytes(data[1:_HEADER], "big")
    if end > len(data):
        raise HandshakeError("an incomplete message")
    return decode_request(data[_HEADER:end]), data[end:]
