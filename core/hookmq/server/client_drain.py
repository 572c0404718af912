"""Drain a running server: refuse new connections and disconnect its clients in slices. The process keeps running."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from math import ceil
from typing import Final

from hookmq.model.drain import Disconnectable, DrainRequest, DrainStatus
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.server.connection_limit import ListenerConnections
from hookmq.server.protocols import Broker

SLICE: Final = 0.1
"""Minimum time between two slices, in seconds."""
TURN: Final = 50
"""Maximum number of clients to disconnect in one turn of the event loop."""


class ClientDrain:
    """Implements `hookmq.model.drain.Drainer`. `gates` returns the connections of each MQTT listener, and `phase` the
    server's phase."""

    def __init__(
        self,
        broker: Broker,
        loop: asyncio.AbstractEventLoop,
        gates: Callable[[], Iterable[ListenerConnections]],
        phase: Callable[[], str],
    ) -> None:
        self.active = False
        self._broker = broker
        self._loop = loop
        self._gates = gates
        self._phase = phase
        self._waiting: deque[Disconnectable] = deque()
        self._count = 0
        """Clients in each slice."""
        self._pause = SLICE
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, request: DrainRequest) -> None:
        """Close connections that have not sent CONNECT, refuse new ones, and disconnect the first slice of clients."""
        phase = self._phase()
        if phase != "ready":
            raise RuntimeError(f"the broker is {phase}")
        reference = request.reference or self._broker.settings.broker.server_reference
        if request.moved and not reference:
            raise ValueError("moved needs a server reference")
        self.active = True
        for gate in self._gates():
            gate.shut()
        self._waiting = deque(self._broker.network_clients())
        clients = len(self._waiting)
        self._count = ceil(clients * SLICE / max(request.seconds, SLICE))
        self._pause = max(SLICE, request.seconds * self._count / max(clients, 1))
        self._disconnect(self._count, request.code(reference), reference)

    def _disconnect(self, count: int, code: ReasonCode, reference: str) -> None:
        """Disconnect `count` clients, at most `TURN` per turn. The next slice follows after a pause."""
        self._timer = None
        waiting = self._waiting
        part = [waiting.popleft() for _ in range(min(count, TURN, len(waiting)))]
        self._broker.disconnect_clients(part, code, reference)
        if waiting:
            left = count - len(part)
            pause, count = (0.0, left) if left else (self._pause, self._count)
            self._timer = self._loop.call_later(pause, self._disconnect, count, code, reference)

    def cancel(self) -> bool:
        """Accept connections again. Clients still waiting for their slice stay connected."""
        if not self.active or self._phase() != "draining":
            return False
        self.end()
        self.active = False
        for gate in self._gates():
            gate.open = True
        return True

    def end(self) -> None:
        """Stop disconnecting clients. The server calls this when it stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    def status(self) -> DrainStatus:
        """Return how far the drain has progressed."""
        open_ = sum(len(gate.entered) for gate in self._gates())
        return DrainStatus(self.active, len(self._waiting), open_)
