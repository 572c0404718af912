"""A plugin acts on clients, sessions and routes."""

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.broker.sessions.wills import cancel_will
from hookmq.mqtt.reason_codes import ReasonCode


class Actions(HandleBase):
    """The part of the handle that changes state."""

    __slots__ = ()

    def disconnect(
        self,
        client_id: str,
        code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION,
        reason: str = "",
        drop_will: bool = False,
    ) -> bool:
        """End a client's connection. Return False if it is not connected."""
        self._only_on_loop("disconnect()")
        session = self._state.sessions.get(client_id)
        if session is None or session.connection is None:
            return False
        if drop_will:
            cancel_will(session)
        session.connection.disconnect(code, reason)
        return True

    def invalidate_routes(self) -> None:
        """Ask every journal again which topics it wants."""
        self._on_loop(self._state.router.clear_cache)
