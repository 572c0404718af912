"""A cluster whose answers a test sets by hand, and relays that record what passes."""

from collections.abc import Callable

from hookmq.cluster_api import Place
from hookmq.model.client import Peer, Scope
from hookmq.model.runtime import Wire
from hookmq_testing import ClusterRecorder


class RecordingRelay:
    """A relay to a node that answers only what a test writes to `wire`."""

    def __init__(self, wire: Wire, peer: Peer, scope: Scope) -> None:
        self.wire = wire
        self.peer = peer
        self.scope = scope
        self.fed: list[bytes] = []
        self.events: list[str] = []

    @property
    def received(self) -> bytes:
        return b"".join(self.fed)

    def feed(self, data: bytes) -> None:
        assert "closed" not in self.events
        self.fed.append(data)

    def closed(self) -> None:
        self.events.append("closed")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class ScriptedCluster(ClusterRecorder):
    """A cluster with no other nodes. `place` is where clients belong; None leaves `locate` unanswered until `answer`."""

    place: Place | None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("clustered")
        self.waiting: list[Callable[[Place], None]] = []
        self.relays: list[RecordingRelay] = []

    @property
    def asked(self) -> list[str]:
        """The clients that were located."""
        return [client_id for _, client_id in self.calls("locate")]

    @property
    def claimed(self) -> list[str]:
        """The clients that were claimed."""
        return [client.client_id for _, client, *_ in self.calls("claim")]

    def relaying(self, wire: Wire, peer: Peer, scope: Scope) -> RecordingRelay:
        relay = RecordingRelay(wire, peer, scope)
        self.relays.append(relay)
        return relay

    def answer(self, place: Place) -> None:
        self.waiting.pop(0)(place)

    def locate(self, client_id: str, done: Callable[[Place], None]) -> None:
        if self.place is None:
            self.recorded.append(("locate", client_id))
            self.waiting.append(done)
        else:
            super().locate(client_id, done)
