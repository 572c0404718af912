"""A cluster whose answers a test sets by hand, the plugin that provides it, and relays that record what passes."""

from collections.abc import Callable, Collection

from hookmq.cluster_api import Here, Node, Place, Refused, RemoteRoute
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.message import Message
from hookmq.model.runtime import Wire
from hookmq.model.subscription import Subscription
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import CommitId


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


class ScriptedCluster:
    """A cluster with no other nodes. `place` is where clients belong; None leaves `locate` unanswered until `answer`."""

    def __init__(self) -> None:
        self.node: Node
        self.place: Place | None = Here()
        self.asked: list[str] = []
        self.waiting: list[Callable[[Place], None]] = []
        self.claimed: list[str] = []
        self.relays: list[RecordingRelay] = []

    def relaying(self, wire: Wire, peer: Peer, scope: Scope) -> RecordingRelay:
        relay = RecordingRelay(wire, peer, scope)
        self.relays.append(relay)
        return relay

    def answer(self, place: Place) -> None:
        self.waiting.pop(0)(place)

    def attach(self, node: Node) -> None:
        self.node = node

    def locate(self, client_id: str, done: Callable[[Place], None]) -> None:
        self.asked.append(client_id)
        if self.place is None:
            self.waiting.append(done)
        else:
            done(self.place)

    def claim(
        self, client: ClientInfo, durable: bool, clean: bool, done: Callable[[Refused | None], None]
    ) -> None:
        self.claimed.append(client.client_id)
        done(None)

    def subscribed(
        self, client_id: str, durable: bool, subscription: Subscription, added: bool
    ) -> None:
        pass

    def settled(self, done: Callable[[], None]) -> bool:
        return True

    def online(self, owner: str, members: int) -> None:
        pass

    def elsewhere(self, owner: str) -> bool:
        return False

    def hand_on(self, owner: str, message: Message) -> bool:
        return False

    def forward(self, message: Message, route: RemoteRoute, groups: Collection[str] = ()) -> bool:
        return False

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        done(None)


class Clustered(Plugin):
    """Provides a `ScriptedCluster`."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        super().__init__(None, Context("clustered"))
        self.cluster = cluster

    @hookimpl
    def provide_cluster(self) -> ScriptedCluster:
        return self.cluster
