"""Which subscriptions exist on which node, and which of them receives a message of a shared subscription."""

from collections.abc import Callable
from typing import Final

from hookmq.cluster_api import Node
from hookmq.plugin import Runtime, Subscription

from hookmq_cluster.announcements import AnnouncementError, Put, decode_changes
from hookmq_cluster.links import Links
from hookmq_cluster.local_interest import LocalFeed, LocalInterest
from hookmq_cluster.remote_interest import Entry, RemoteInterest, Table

_QUIET: Final = 60.0
"""Seconds between two log events about announcements that cannot be read."""


class Interest:
    """The subscriptions of this node and of all others. See `hookmq_cluster.local_interest` and `remote_interest`.

    - `home`: the home lane of this node.
    - `lane_of`: returns the lane of a durable session, or None if it is not known.
    - `left`: called with each node that has left, after its links are closed.
    """

    def __init__(
        self, runtime: Runtime, links: Links, home: str, lane_of: Callable[[str], str | None]
    ) -> None:
        self.malformed = 0
        self.local = LocalInterest(home, lane_of, self._changed)
        self.remote = RemoteInterest(runtime)
        self._runtime = runtime
        self._links = links
        self._feeds: dict[str, LocalFeed] = {}
        self._scheduled = False
        self._silent_until = 0.0
        links.announced = self._receive

    def attach(self, node: Node) -> None:
        """Use the subscription tree of `node`."""
        self.remote.attach(node)

    # --- called by the broker ---------------------------------------------------------------------------------------

    def subscribed(
        self, client_id: str, durable: bool, subscription: Subscription, added: bool
    ) -> None:
        """See `hookmq.storage.cluster.Cluster.subscribed`."""
        self.local.subscribed(client_id, durable, subscription, added)

    def online(self, owner: str, members: int) -> None:
        """See `hookmq.storage.cluster.Cluster.online`."""
        self.local.online(owner, members)

    def settled(self, done: Callable[[], None]) -> bool:
        """See `hookmq.storage.cluster.Cluster.settled`."""
        return self.local.settled(done)

    def elsewhere(self, owner: str) -> bool:
        """See `hookmq.storage.cluster.Cluster.elsewhere`."""
        return bool(self._candidates(owner))

    def choose(self, owner: str) -> Table | None:
        """Return the remote that receives the next message of a shared subscription, or None if this node does.

        Members that are online come first: those here, then those of the other nodes, in proportion to their numbers. If
        nobody is online, the message is queued here, or else in a lane that has a member.
        """
        found = self._candidates(owner)
        if len(found) < 2:
            return found[0][0] if found else None
        left = self._runtime.random() * sum(weight for _, weight in found)
        for table, weight in found:
            left -= weight
            if left < 0:
                return table
        return found[-1][0]

    def _candidates(self, owner: str) -> list[tuple[Table, int]]:
        """Return the remotes that may receive a message of a shared subscription, and their weights."""
        entries: dict[Table, Entry] | None = self.remote.groups.get(owner)
        if not entries:
            return []
        here = self.local.groups.get(owner)
        if here is not None and here.online:
            return []
        online = [
            (table, entry.online)
            for table, entry in entries.items()
            if entry.online and table.live and table.owner is not None
        ]
        if online or here is not None:
            return online
        live = [table for table in entries if table.live]
        lanes = [table for table in live if table.is_lane]
        return [(table, 1) for table in lanes or live]

    # --- called by the cluster --------------------------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        """Whether this node knows all subscriptions of all live nodes and of all lanes."""
        return not self.remote.unknown_nodes() and not self.remote.unknown_lanes()

    def member_joined(self, node: str, boot: str) -> None:
        """Exchange all subscriptions with a node. A node that has a new boot joins again."""
        self.member_left(node)
        self.remote.member_joined(node)
        feed = self._feeds[node] = self.local.feed()
        self._links.open(node, boot, feed)

    def member_left(self, node: str) -> None:
        """Forget a node. `settled` does not wait for it any more."""
        self._links.close(node)
        self.remote.member_left(node)
        feed = self._feeds.pop(node, None)
        if feed is not None:
            self.local.end_feed(feed)

    def lapsed(self) -> None:
        """Announce everything again, because this node's lease had ended, and the others may have forgotten it.

        Call this when the lease is renewed after its end. `settled` then waits until all nodes know everything.
        """
        self._links.reopen()

    def lane_owner(self, lane: str, node: str | None) -> None:
        """Note which live node owns a lane of another node; None if its owner is dead. Call this for every lane."""
        self.remote.lane_owner(lane, node)

    def lane_adopted(self, lane: str, fence: int) -> None:
        """Announce the subscriptions of a lane that this node owns now. `fence` is the lane's fence.

        Call this for the home lane at the start, and for an adopted lane in the same turn as `Node.adopt`, after it.
        """
        self.remote.own(lane, fence)
        self.local.own(lane, fence)

    def lane_leaving(self, lane: str, done: Callable[[], None]) -> None:
        """Prepare to forward messages to an own lane. Call `done` once `lane_left` is quick. It may take many turns."""
        changes = (entry.change() for entry in self.local.entries(lane))
        self.local.prepared[lane] = self.remote.prepare(lane, changes, done)

    def lane_left(self, lane: str) -> None:
        """Forward messages to a lane that this node does not own any more. Call this directly before `Node.release`.

        Without `lane_leaving` before, messages are not forwarded until the entries are built, or the next owner has
        announced them.
        """
        if lane in self.local.prepared:
            self.remote.leave(lane)
        else:
            changes: list[Put] = []
            for entry in self.local.entries(lane):
                change = entry.change()
                if isinstance(change, Put):
                    changes.append(change)
            self.remote.leave(lane)
            self.remote.prepare(lane, changes, _nothing)
        self.local.leave(lane)

    def _changed(self) -> None:
        """Announce changes at the end of the turn."""
        if not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._announce)

    def _announce(self) -> None:
        self._scheduled = False
        self._links.pump()

    def _receive(self, node: str, boot: str, content: bytes) -> None:
        try:
            changes = decode_changes(content)
        except AnnouncementError as error:
            self.malformed += 1
            now = self._runtime.now()
            if now >= self._silent_until:
                self._silent_until = now + _QUIET
                self._runtime.log(
                    "warning", "cluster.announcement_invalid", node=node, reason=str(error),
                    malformed=self.malformed,
                )  # fmt: skip
            return
        self.remote.announced(node, changes)


def _nothing() -> None:
    """Do nothing."""
