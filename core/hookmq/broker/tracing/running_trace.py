"""A running trace: the events that match its request, within its limits."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from hookmq.hooks.chain import any_matches, any_overlaps
from hookmq.hooks.traces import TraceEvent, TraceKind, TraceRequest
from hookmq.model.client import Peer
from hookmq.model.runtime import Promise, Runtime

BUFFER: Final = 10_000
"""Maximum number of events waiting to be read."""
TEXT: Final = 1024
"""Maximum length of a topic or other string in an event, in characters. A client may send topics of 65,535 bytes."""


class RunningTrace:
    """Implements `hookmq.hooks.traces.Trace`. `ending` is called once, when the trace ends."""

    def __init__(
        self, runtime: Runtime, request: TraceRequest, ending: Callable[["RunningTrace"], None]
    ) -> None:
        self.request = request
        self.ended = ""
        self.skipped = 0
        self.connections = 0
        """The number of connections whose packets are traced."""
        self._runtime = runtime
        self._ending = ending
        self._events: deque[TraceEvent] = deque()
        self._reader: Promise | None = None
        self._second = 0
        self._count = 0
        self._unsaid = 0
        self._matches = any_matches((request.filter,)) if request.filter else None
        self._overlaps = any_overlaps((request.filter,)) if request.filter else None
        self._timer = runtime.call_later(request.seconds, self._over)

    def selects(self, client_id: str | None, username: str | None, peer: Peer) -> bool:
        """Return whether the request selects the packets of this client."""
        wanted = self.request
        return (
            wanted.selects_clients
            and (not wanted.client_id or wanted.client_id == client_id)
            and (not wanted.username or wanted.username == username)
            and peer.host.startswith(wanted.address)
        )

    def wants(self, kind: TraceKind, topic: str | None, plugin: str) -> bool:
        """Return whether the request selects an event of `kind` about `topic`. `plugin` is the plugin that was
        called.
        """
        if self.ended or (
            self.request.plugin and (kind is not TraceKind.HOOK or plugin != self.request.plugin)
        ):
            return False
        if self._matches is None or self._overlaps is None:
            return True
        if topic is None:
            return False
        return self._overlaps(topic) if "#" in topic or "+" in topic else self._matches(topic)

    def take(self) -> bool:
        """Return whether one more event may be recorded now. If not, count it as skipped."""
        now = int(self._runtime.now())
        if now != self._second:
            self._second, self._count = now, 0
            self._say_skipped()
        self._count += 1
        if self._count > self.request.rate or len(self._events) >= BUFFER:
            self.skipped += 1
            self._unsaid += 1
            return False
        return True

    def add(
        self,
        kind: TraceKind,
        name: str,
        client_id: str | None,
        topic: str | None,
        fields: Mapping[str, object],
    ) -> None:
        """Add an event. The caller must call `wants` and `take` first."""
        if topic is not None:
            topic = shortened(topic)
        short = {
            key: shortened(value) if isinstance(value, str) else value
            for key, value in fields.items()
        }
        self._events.append(TraceEvent(self._runtime.time(), kind, name, client_id, topic, short))
        self._wake()

    def stop(self, reason: str = "stopped") -> None:
        """End the trace."""
        if self.ended:
            return
        self._say_skipped()
        self.ended = reason or "stopped"
        self._timer.cancel()
        self._ending(self)
        self._wake()

    def _over(self) -> None:
        self.stop("the time is over")

    def _say_skipped(self) -> None:
        if self._unsaid:
            fields = {"events": self._unsaid}
            self._unsaid = 0
            self.add(TraceKind.SKIPPED, "rate", None, None, fields)

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def __aiter__(self) -> "RunningTrace":
        return self

    async def __anext__(self) -> TraceEvent:
        while not self._events:
            if self.ended:
                raise StopAsyncIteration
            if self._reader is not None and not self._reader.done():
                raise RuntimeError("another reader of this trace waits for its next event")
            self._reader = self._runtime.promise()
            await self._reader
        return self._events.popleft()


def shortened(text: str) -> str:
    """Return `text`. If it has more than `TEXT` characters, cut it and append an ellipsis."""
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"
