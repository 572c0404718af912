"""A plugin reads the broker's state."""

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.model.client import ClientInfo
from hookmq.model.message import Message
from hookmq.model.metrics import Metrics
from hookmq.mqtt.topics import validate_filter
from hookmq.session.session import Session


class Inspection(HandleBase):
    """The part of the handle that reads state."""

    __slots__ = ()

    @property
    def metrics(self) -> Metrics:
        """Return the broker's counters, for reading only."""
        return self._state.metrics

    def client(self, client_id: str) -> ClientInfo | None:
        """Return a connected client, or None."""
        self._only_on_loop("client()")
        session = self._state.sessions.get(client_id)
        return session.client if session is not None and session.connection is not None else None

    def clients(self) -> list[ClientInfo]:
        """Return all connected clients."""
        self._only_on_loop("clients()")
        sessions: list[Session] = list(self._state.sessions.values())
        return [session.client for session in sessions if session.connection is not None]

    def retained(self, filter: str) -> list[Message]:
        """Return the retained messages that match `filter`."""
        self._only_on_loop("retained()")
        validate_filter(filter)
        now = self._state.runtime.time()
        found = (outgoing.message for _, outgoing in self._state.retained.match(filter))
        return [m for m in found if m.expires_at is None or m.expires_at > now]
