"""Calls that plugins use to drain the broker without stopping it."""

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.model.drain import Drainer, DrainRequest, DrainStatus


class Draining(HandleBase):
    """The methods of a plugin's handle that drain the broker."""

    __slots__ = ()

    def drain(self, request: DrainRequest) -> None:
        """Refuse new connections and disconnect the clients in slices."""
        drainer = self._drainer("drain()")
        self._check_types("drain", ("request", request, DrainRequest))
        try:
            drainer.begin(request)
        except (RuntimeError, ValueError) as error:
            raise self._refusal("drain", str(error)) from error
        status = drainer.status()
        self._tell(
            "warning", "broker.drain_started", None,
            seconds=request.seconds, reference=request.reference, connections=status.connections,
        )  # fmt: skip

    def cancel_drain(self) -> bool:
        """Accept connections again."""
        cancelled = self._drainer("cancel_drain()").cancel()
        if cancelled:
            self._tell("warning", "broker.drain_cancelled", None)
        return cancelled

    def drain_status(self) -> DrainStatus:
        """Return how far the drain has progressed."""
        return self._drainer("drain_status()").status()

    def _drainer(self, name: str) -> Drainer:
        self._only_on_loop(name)
        drainer = self._state.drainer
        if drainer is None:
            raise self._refusal("drain", "this broker has no listeners")
        return drainer
