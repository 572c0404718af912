"""Receive clients' sockets from other nodes on this machine; see `hookmq_cluster.transfer`."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hookmq.plugin import ConfigError

from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_handshake import HandshakeError, Request
from hookmq_cluster.transfer import (
    MAX_QUESTION,
    decode_question,
    encode_answer,
    new_socket,
    receive_client,
)

DEADLINE: Final = 5.0
"""Seconds until a connection that sends nothing is closed."""
ARRIVING: Final = 1024
"""Maximum number of clients that are being transferred at a time."""
TURN: Final = 100
"""The maximum number of connections accepted in one turn."""
REST: Final = 1.0
"""Seconds for which no connection is accepted if no descriptor is free."""
Refusal = Callable[[Request], str]
"""Returns why this node does not take a client, or ''."""
Take = Callable[[socket.socket, Request, bytes], None]
"""Goes on with a client's socket; see `hookmq_cluster.relay_listener.RelayListener.take`."""


class _Arrival:
    """One client that is being transferred. Once the sender has asked, `request` is set, and `place` keeps a descriptor
    free for the client's socket."""

    __slots__ = ("place", "request", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.request: Request | None = None
        self.place: socket.socket | None = None

    def free(self) -> None:
        """Free the descriptor."""
        if self.place is not None:
            self.place.close()
            self.place = None


class TransferListener:
    """Receives clients of other nodes of `cluster` at `path`, and calls `take` with those that `refusal` lets pass."""

    def __init__(
        self, path: Path, cluster: str, refusal: Refusal, take: Take, counters: RelayCounters
    ) -> None:
        self._path = path
        self._cluster = cluster
        self._refusal = refusal
        self._take = take
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._arriving: dict[socket.socket, _Arrival] = {}
        self._sock: socket.socket | None = None

    def open(self) -> None:
        """Start listening. Raises ConfigError if the path cannot be used, or if another process listens there."""
        sock = new_socket()
        try:
            self._remove_stale()
            sock.bind(str(self._path))
            sock.listen(1024)
        except OSError as error:
            sock.close()
            raise ConfigError(f"transfers: cannot listen on {self._path}: {error}") from error
        self._sock = sock
        self._resume()

    def _remove_stale(self) -> None:
        """Remove the socket of a process that has ended. Raises OSError if it has not."""
        if not self._path.exists():
            return
        if not self._path.is_socket():
            raise OSError("the file exists and is not a socket")
        with new_socket() as probe:
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink()
            else:
                raise OSError("another process uses it")

    def close(self) -> None:
        """Stop listening. Clients whose socket has been sent and not read lose their connections."""
        if self._sock is None:
            return
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._sock = None
        self._path.unlink(missing_ok=True)
        for sock in list(self._arriving):
            self._drop(sock)

    def _resume(self) -> None:
        if self._sock is not None:
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        assert self._sock is not None
        for _ in range(TURN):
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except (
                OSError
            ) as error:  # no descriptor is free: the senders get no answer and keep their clients
                self._refused(str(error))
                self._loop.remove_reader(self._sock)
                self._loop.call_later(REST, self._resume)
                return
            if len(self._arriving) >= ARRIVING:
                sock.close()
                continue
            sock.setblocking(False)
            self._arriving[sock] = _Arrival(self._loop.call_later(DEADLINE, self._late, sock))
            self._loop.add_reader(sock, self._read, sock)

    def _read(self, sock: socket.socket) -> None:
        arrival = self._arriving[sock]
        try:
            if arrival.request is None:
                self._asked(sock, arrival)
            else:
                arrival.free()
                self._received(sock, arrival.request)
        except BlockingIOError:
            return
        except (OSError, HandshakeError) as error:
            self._drop(sock)
            self._refused(str(error))

    def _asked(self, sock: socket.socket, arrival: _Arrival) -> None:
        """Answer a question."""
        data = sock.recv(MAX_QUESTION)
        if not data:
            raise HandshakeError("it asked nothing")
        cluster, request = decode_question(data)
        refusal = f"this is cluster {self._cluster!r}"
        if cluster == self._cluster:
            refusal = self._refusal(request)
        if not refusal:
            arrival.place = sock.dup()
        sock.send(encode_answer(refusal))
        if refusal:
            self._drop(sock)
        else:
            arrival.request = request

    def _received(self, sock: socket.socket, request: Request) -> None:
        """Take a client. The sender closes without one if the client has left meanwhile."""
        data, client = receive_client(sock)
        self._drop(sock)
        if client is not None:
            self._counters.transferred_in += 1
            self._take(client, request, data)
        elif data:
            self._refused("a message without a socket")

    def _late(self, sock: socket.socket) -> None:
        self._drop(sock)
        self._refused(f"nothing was sent within {DEADLINE:g} s")

    def _drop(self, sock: socket.socket) -> None:
        arrival = self._arriving.pop(sock)
        arrival.timer.cancel()
        arrival.free()
        self._loop.remove_reader(sock)
        sock.close()

    def _refused(self, reason: str) -> None:
        self._counters.refused(self._loop.time(), "transfer", reason)
