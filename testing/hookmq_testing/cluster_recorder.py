"""A cluster that records the calls of the broker, and answers as a test decides."""

from collections.abc import Callable, Sequence
from typing import Any

from hookmq.cluster_api import Cluster, Here, Node, Place, Refused, RemotePackets, RemoteRoute
from hookmq.hooks.specs import hookimpl
from hookmq.model.client import ClientInfo
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.plugin import Context, Plugin
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import CommitId


class ClusterRecorder(Plugin):
    """A plugin that provides itself as the cluster. The test plays the other nodes: it reads `recorded`, and calls
    `node`.

        cluster = ClusterRecorder()
        with Harness([cluster]) as harness:
            cluster.node.add_remote(Remote("other"), Subscription("a/#", "a/#", 1))

    All calls are answered at once, unless `hold` names them.
    """

    def __init__(self, name: str = "recorded") -> None:
        super().__init__(None, Context("cluster"))
        self.name = name
        self.node: Node
        """The broker. It is set once the broker exists."""
        self.recorded: list[tuple[Any, ...]] = []
        """Every call, in order: the method's name and its arguments except `done`."""
        self.place: Place = Here()
        """What `locate` answers."""
        self.refused: Refused | None = None
        """What `claim` answers."""
        self.failed: StoreFailed | None = None
        """What `flush` answers."""
        self.unready_because = ""
        """What `unready` answers."""
        self.awaited = True
        """Whether the acknowledgements of messages with QoS 1 and 2 wait for `flush`."""
        self.collectors: Sequence[RemotePackets] | None = None
        """What `packets` answers."""
        self.groups_elsewhere: set[str] = set()
        """The queue owners of the shared subscriptions that have a member elsewhere."""
        self._held: set[str] = set()
        self._waiting: list[tuple[str, Callable[[], None]]] = []

    @hookimpl
    def provide_cluster(self) -> Cluster:
        return self

    def calls(self, *names: str) -> list[tuple[Any, ...]]:
        """Return the calls to the given methods, in order."""
        return [call for call in self.recorded if call[0] in names]

    def hold(self, *names: str) -> None:
        """Answer no calls to these methods from now on: ``locate``, ``claim``, ``settled`` or ``flush``."""
        self._held.update(names)

    def let_go(self) -> int:
        """Answer the held calls, and all calls from now on at once. Return how many were held."""
        self._held.clear()
        waiting, self._waiting = self._waiting, []
        for _, answer in waiting:
            answer()
        return len(waiting)

    def attach(self, node: Node) -> None:
        self.node = node

    def unready(self) -> str:
        return self.unready_because

    def locate(self, client_id: str, done: Callable[[Place], None]) -> None:
        self._record("locate", lambda: done(self.place), client_id)

    def claim(
        self, client: ClientInfo, durable: bool, done: Callable[[Refused | None], None]
    ) -> None:
        self._record("claim", lambda: done(self.refused), client, durable)

    def subscribed(
        self, client_id: str, durable: bool, subscription: Subscription, added: bool
    ) -> None:
        self.recorded.append(("subscribed", client_id, durable, subscription, added))

    def settled(self, done: Callable[[], None]) -> bool:
        self.recorded.append(("settled",))
        if "settled" not in self._held:
            return True
        self._waiting.append(("settled", done))
        return False

    def online(self, owner: str, members: int) -> None:
        self.recorded.append(("online", owner, members))

    def elsewhere(self, owner: str) -> bool:
        self.recorded.append(("elsewhere", owner))
        return owner in self.groups_elsewhere

    def hand_on(self, owner: str, message: Message) -> bool:
        self.recorded.append(("hand_on", owner, message))
        return owner in self.groups_elsewhere

    def forward(self, message: Message, route: RemoteRoute) -> bool:
        self.recorded.append(("forward", message, route))
        return self.awaited and message.qos > 0

    def packets(self, route: RemoteRoute) -> Sequence[RemotePackets] | None:
        return self.collectors

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        self._record("flush", lambda: done(self.failed), commit)

    def _record(self, name: str, answer: Callable[[], None], *arguments: Any) -> None:
        self.recorded.append((name, *arguments))
        if name in self._held:
            self._waiting.append((name, answer))
        else:
            answer()
