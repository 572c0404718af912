"""Accept the connections that other nodes relay to this one, and the sockets that they transfer.

A stranger costs one socket and a few KB until the handshake fails or its deadline passes. The number of handshakes at a
time is limited. An accepted connection counts towards the limits of the listener that its client chose.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from hookmq.cluster_api import RelayedConnection, RelayTarget
from hookmq.plugin import ConfigError

from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_handshake import (
    HandshakeError,
    ReceiverHandshake,
    Reply,
    Request,
    encode_reply,
)
from hookmq_cluster.relay_stream import RelayStream

DEADLINE: Final = 5.0
"""Seconds for TLS and for the handshake, each."""
ARRIVING: Final = 256
"""Maximum number of handshakes at a time. Further connections are closed at once."""
FindTarget = Callable[[str], RelayTarget | None]
"""Returns this node's listener with a name; see `hookmq.cluster_api.Node.relay_target`."""


class RelayListener:
    """Listens on `bind`, HOST:PORT or ``*:PORT``, for other nodes of `cluster`. `owns` returns whether this node has a
    lane.
    """

    def __init__(
        self,
        bind: str,
        cluster: str,
        secret: str,
        find: FindTarget,
        owns: Callable[[str], bool],
        counters: RelayCounters,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = bind
        """The actual address, once the listener is open."""
        self.cluster = cluster
        self.secret = secret
        self.find = find
        self.owns = owns
        self.counters = counters
        self.clients: set[RelayedClient] = set()
        self.arriving = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    async def open(self) -> None:
        """Start listening. Raises ConfigError if the address cannot be used."""
        host, _, port = self.address.rpartition(":")
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: RelayedClient(self).stream,
                None if host == "*" else host.strip("[]"),
                int(port),
                ssl=self._tls,
                backlog=1024,
                ssl_handshake_timeout=None if self._tls is None else DEADLINE,
            )
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"relay: cannot listen on {self.address}: {error}") from error
        host, actual = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{actual}" if ":" in host else f"{host}:{actual}"

    def shut(self) -> None:
        """Accept no more connections. Calling this again is harmless."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Accept no more connections, and close those that are open at once."""
        self.shut()
        for client in tuple(self.clients):
            client.stream.abort()
        if self.clients:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    def take(self, sock: socket.socket, request: Request, data: bytes) -> None:
        """Go on with a client's connection that another node on this machine has transferred. `data` are the bytes that
        the node has read from it."""
        client = TransferredClient(self, request, data)
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(lambda: client.stream, sock))
        self._tasks.add(task)
        task.add_done_callback(self._taken)

    def _taken(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.counters.refused(asyncio.get_running_loop().time(), "transfer", str(error))

    def refusal(self, request: Request) -> str:
        """Return why this node does not take the client, or an empty string."""
        found = self.target(request)
        return found if isinstance(found, str) else ""

    def target(self, request: Request) -> RelayTarget | str:
        """Return the listener for the client, or why there is none."""
        name = request.listener
        if not self.owns(request.lane):
            return f"lane {request.lane} is not here"
        target = self.find(name)
        if target is None:
            return f"listener {name!r} is not open here"
        for setting in ("mount_point", "identity"):
            here, there = getattr(target.scope, setting), getattr(request, setting)
            if here != there:
                return f"{setting} of listener {name!r} is {here!r} here, and {there!r} there"
        return target

    def left(self, client: "RelayedClient") -> None:
        """Forget a connection that has ended."""
        self.clients.discard(client)
        if not self.clients and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)


class RelayedClient:
    """One client that another node relays: the `Wire` of the broker's connection, and the user of the stream."""

    def __init__(self, listener: RelayListener) -> None:
        self._listener = listener
        self._handshake: ReceiverHandshake | None = None
        self._connection: RelayedConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.stream = RelayStream(self)
        self.write = self.stream.write
        self.close = self.stream.close
        self.abort = self.stream.abort
        self.pause_reading = self.stream.pause_reading
        self.resume_reading = self.stream.resume_reading

    # called by the stream

    def connected(self) -> None:
        """Wait for the handshake."""
        listener = self._listener
        if listener.arriving >= ARRIVING:
            self._refused("too many handshakes at a time")
            self.stream.abort()
            return
        listener.arriving += 1
        listener.clients.add(self)
        self._handshake = ReceiverHandshake(listener.cluster, listener.secret)
        self._timer = asyncio.get_running_loop().call_later(DEADLINE, self._late)

    def received(self, data: bytes) -> None:
        """Go on with the handshake, or pass bytes to the broker."""
        if self._connection is not None:
            self._connection.feed(data)
            return
        if self._handshake is None:
            return
        try:
            found = self._handshake.feed(data)
        except HandshakeError as error:
            self._refused(f"it {error}")
            self._arrived()
            self.stream.abort()
            return
        if isinstance(found, bytes):
            self.stream.write(found)
        elif found is not None:
            self._asked(*found)

    def full(self) -> None:
        """The other node reads too slowly."""
        if self._connection is not None:
            self._connection.pause_writing()

    def drained(self) -> None:
        """The other node has caught up."""
        if self._connection is not None:
            self._connection.resume_writing()

    def ended(self, error: str) -> None:
        """The client or the other node has closed the connection."""
        self._arrived()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._listener.counters.open_in -= 1
            connection.closed(error)
        self._listener.left(self)

    def _asked(self, request: Request, rest: bytes) -> None:
        self._arrived()
        found = self._listener.target(request)
        if isinstance(found, str):
            self._refused(found, request.node)
            self.stream.write(encode_reply(Reply(found)))
            self.stream.close()
            return
        self.stream.write(encode_reply(Reply("")))
        self._listener.counters.relayed_in += 1
        self._begin(found, request, rest)

    def _begin(self, target: RelayTarget, request: Request, rest: bytes) -> None:
        """Pass the client's bytes to the broker from now on."""
        self._listener.counters.open_in += 1
        self._connection = connection = target.accept(self, request.peer)
        if rest:
            connection.feed(rest)

    def _late(self) -> None:
        self._timer = None
        self._refused(f"no handshake within {DEADLINE:g} s")
        self._arrived()
        self.stream.abort()

    def _arrived(self) -> None:
        """The handshake is over, for better or worse."""
        if self._handshake is not None:
            self._handshake = None
            self._listener.arriving -= 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refused(self, reason: str, node: str = "") -> None:
        sender = node or self.stream.peer()
        self._listener.counters.refused(asyncio.get_running_loop().time(), sender, reason)


class TransferredClient(RelayedClient):
    """One client whose socket another node has transferred. `data` are the bytes that it had read from the socket."""

    def __init__(self, listener: RelayListener, request: Request, data: bytes) -> None:
        super().__init__(listener)
        self._request = request
        self._data = data

    def connected(self) -> None:
        """Pass the client to the broker at once, or close its connection."""
        self._listener.clients.add(self)
        found = self._listener.target(self._request)
        if isinstance(found, str):
            self._refused(found, self._request.node)
            self.stream.abort()
            return
        data, self._data = self._data, b""
        self._begin(found, self._request, data)
