"""Relay a client's connection to the node that has its session.

    connecting -> greeting (hello sent) -> asking (request and the client's first bytes sent) -> passing -> over

Until the other node has accepted the connection, the core's connect timeout applies to the client. Connecting and the
handshake have deadlines of their own.
"""

import asyncio
import ssl
from enum import Enum
from typing import Final

from hookmq.cluster_api import Relaying
from hookmq.plugin import Peer, Scope
from hookmq.server_api import Wire

from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_handshake import HandshakeError, Request, SenderHandshake
from hookmq_cluster.relay_stream import RelayStream

CONNECT: Final = 5.0
"""Seconds for connecting, with TLS."""
HANDSHAKE: Final = 5.0
"""Seconds for the handshake."""
WAITING: Final = 65_536
"""How many bytes of a client may wait for the handshake. Above that, no more are read from it."""


class _Step(Enum):
    CONNECTING = 1
    GREETING = 2
    ASKING = 3
    PASSING = 4
    OVER = 5


class Relays:
    """Relays connections of this node's clients. `tls` is used for all connections to other nodes, unless it is None."""

    def __init__(
        self,
        cluster: str,
        node: str,
        secret: str,
        counters: RelayCounters,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.cluster = cluster
        self.node = node
        self.secret = secret
        self.counters = counters
        self.tls = tls
        self.tasks: set[asyncio.Task[None]] = set()
        """The attempts to connect that are in progress."""
        self.open: set[NodeRelay] = set()

    def close(self) -> None:
        """Give up the attempts to connect. Relays end with their clients."""
        for task in self.tasks:
            task.cancel()

    def end(self, count: int) -> int:
        """Close up to `count` connections of clients that are relayed. Return how many are left."""
        for relay in list(self.open)[:count]:
            relay.end()
        return len(self.open)

    def end_to(self, node: str) -> None:
        """Close the connections of clients that are relayed to `node`."""
        for relay in [one for one in self.open if one.node == node]:
            relay.end()

    def relaying(self, node: str, address: str, lane: str) -> Relaying:
        """Return what relays a connection to `node`, which owns `lane`. `address` is the HOST:PORT of its relay
        listener; IPv6 addresses are in brackets.
        """

        def start(wire: Wire, peer: Peer, scope: Scope) -> NodeRelay:
            request = Request(self.node, lane, scope.name, scope.mount_point, scope.identity, peer)
            relay = NodeRelay(self, wire, node, address, request)
            relay.start()
            return relay

        return start


class NodeRelay:
    """One client's relay: the core's `Relay`, and the user of the stream to the other node."""

    def __init__(
        self, relays: Relays, wire: Wire, node: str, address: str, request: Request
    ) -> None:
        self.node = node
        self._relays = relays
        self._wire = wire
        self._address = address
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._handshake = SenderHandshake(relays.cluster, relays.secret)
        self._stream = RelayStream(self)
        self._step = _Step.CONNECTING
        self._waiting: list[bytes] = []
        self._size = 0
        self._left = False
        """Whether the client's connection has ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._relays.open.add(self)
        self._task = self._loop.create_task(self._connect())
        self._relays.tasks.add(self._task)
        self._task.add_done_callback(self._relays.tasks.discard)

    async def _connect(self) -> None:
        host, _, port = self._address.rpartition(":")
        tls = self._relays.tls
        try:
            async with asyncio.timeout(CONNECT):
                await self._loop.create_connection(
                    lambda: self._stream, host.strip("[]"), int(port), ssl=tls
                )
        except TimeoutError:
            self._fail(f"no connection within {CONNECT:g} s")
        except (OSError, ValueError, OverflowError) as error:
            self._fail(str(error) or type(error).__name__)

    def end(self) -> None:
        """Close the client's connection."""
        self._relays.open.discard(self)
        self._wire.close()

    # called by the core: Relay

    def feed(self, data: bytes) -> None:
        """Pass on bytes of the client, or keep them until the handshake allows it."""
        if self._step in (_Step.ASKING, _Step.PASSING):
            self._stream.write(data)
            return
        self._waiting.append(data)
        self._size += len(data)
        if self._size > WAITING:
            self._wire.pause_reading()

    def closed(self) -> None:
        """The client has left. Pass on its last bytes, then close."""
        self._left = True
        if self._step in (_Step.ASKING, _Step.PASSING):
            self._finish()

    def pause_writing(self) -> None:
        """Read no more from the other node for now."""
        self._stream.pause_reading()

    def resume_writing(self) -> None:
        """Read from the other node again."""
        self._stream.resume_reading()

    # called by the stream

    def connected(self) -> None:
        """Begin the handshake."""
        self._step = _Step.GREETING
        self._timer = self._loop.call_later(HANDSHAKE, self._late)
        self._stream.write(self._handshake.hello())

    def received(self, data: bytes) -> None:
        """Pass on bytes of the other node, or go on with the handshake."""
        if self._step is _Step.PASSING:
            self._wire.write(data)
            return
        try:
            self._shake(data)
        except HandshakeError as error:
            self._fail(f"it {error}")

    def full(self) -> None:
        """The other node reads too slowly: read no more from the client."""
        self._wire.pause_reading()

    def drained(self) -> None:
        """Read from the client again."""
        if self._step in (_Step.ASKING, _Step.PASSING):
            self._wire.resume_reading()

    def ended(self, error: str) -> None:
        """The other node has closed the connection."""
        if self._step is _Step.PASSING:
            self._finish()
            self._wire.close()
        elif self._step is not _Step.OVER:
            self._fail(error or "it closed the connection during the handshake")

    def _shake(self, data: bytes) -> None:
        if self._step is _Step.GREETING:
            if not self._handshake.challenge(data):
                return
            self._ask()
            data = b""
        found = self._handshake.reply(data)
        if found is None or self._step is not _Step.ASKING:
            return
        reply, rest = found
        if reply.reason:
            self._fail(f"refused: {reply.reason}")
            return
        self._cancel()
        self._step = _Step.PASSING
        counters = self._relays.counters
        counters.relayed_out += 1
        counters.open_out += 1
        if rest:
            self._wire.write(rest)

    def _ask(self) -> None:
        self._stream.write(self._handshake.request(self._request))
        self._step = _Step.ASKING
        for data in self._waiting:
            self._stream.write(data)
        self._waiting.clear()
        if self._left:
            self._finish()
        elif self._size > WAITING:
            self._wire.resume_reading()

    def _late(self) -> None:
        self._fail(f"no answer within {HANDSHAKE:g} s")

    def _fail(self, reason: str) -> None:
        """Give up, and let the core refuse the client."""
        if self._step is _Step.OVER:
            return
        self._step = _Step.OVER
        self._relays.open.discard(self)
        self._cancel()
        self._waiting.clear()
        self._stream.abort()
        counters = self._relays.counters
        counters.failed(self._loop.time(), self.node, self._address, reason)
        self._wire.close()

    def _finish(self) -> None:
        if self._step is _Step.PASSING:
            self._relays.counters.open_out -= 1
        self._step = _Step.OVER
        self._relays.open.discard(self)
        self._cancel()
        self._stream.close()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
