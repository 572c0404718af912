"""Drain a running server: refuse new connections and disconnect its clients in slices. The process continues to run."""

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
"""Seconds between two slices."""


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
        count = ceil(len(self._waiting) * SLICE / max(request.seconds, SLICE))
        self._disconnect(count, request.code(reference), reference)

    def _disconnect(self, count: int, code: ReasonCode, reference: str) -> None:
        self._timer = None
        waiting = self._waiting
        part = [waiting.popleft() for _ in range(min(count, len(waiting)))]
        self._broker.disconnect_clients(part, code, reference)
        if waiting:
            self._timer = self._loop.call_later(SLICE, self._disconnect, count, code, reference)

    def cancel(self) -> bool:
        """Accept connections again. Clients that still wait for their slice stay connected."""
        if not self.active or self._phase() != "draining":
            return False
        self.end()
        self.active = False
        for gate in self._gates():
            gate.open = True
        return True

    def end(self) -> None:
        """Disconnect no further clients. The server calls this when it stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    def status(self) -> DrainStatus:
        """Return how far the drain is."""
        open_ = sum(len(gate.entered) for gate in self._gates())
        return DrainStatus(self.active, len(self._waiting), open_)
