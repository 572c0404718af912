"""What the clients of other nodes want, as entries of this broker's subscription tree.

There is one table for each other node, and one for each lane of other nodes. A lane's table outlives its owner, so that
messages are stored in the lane while nobody owns it. The owner with the highest fence announces a lane. Long work, such
as removing the table of a node that has left, is done in slices.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hookmq.cluster_api import Node, Remote
from hookmq.plugin import Runtime, Subscription
from hookmq.storage_api import group_owner

from hookmq_cluster.announcements import (
    NODE,
    Begin,
    BeginAll,
    Change,
    Drop,
    End,
    Leave,
    Put,
)

Key = tuple[str | None, str]
"""A share name and a topic filter."""
SLICE: Final = 500
"""The largest number of entries to remove or add in one turn."""


class Entry:
    """One entry of a table. `round` is the announcement that it was last part of."""

    __slots__ = ("online", "qos", "round")

    def __init__(self, qos: int, online: int, round: int) -> None:
        self.qos = qos
        self.online = online
        self.round = round


class Table:
    """The entries of a node, or of a lane."""

    __slots__ = (
        "announcer", "current", "entries", "fence", "is_lane", "live", "name", "owner", "remotes", "round", "swept",
    )  # fmt: skip

    def __init__(self, name: str, is_lane: bool, live: bool = True) -> None:
        self.name = name
        self.is_lane = is_lane
        self.live = live
        """Whether messages are forwarded to it."""
        self.owner: str | None = None if is_lane else name
        """The live node that owns the lane, or the node itself."""
        self.announcer: str | None = None
        """The node whose announcements of the lane count."""
        self.fence = 0
        self.round = 0
        self.current = 0
        """The number of entries that were announced in the current round."""
        self.swept = -1
        """The last round of which all entries are known; -1 if there was none."""
        self.entries: dict[Key, Entry] = {}
        self.remotes: dict[str | None, Remote] = {}

    def begin(self) -> None:
        """Begin a round: all entries are announced again."""
        self.round += 1
        self.current = 0

    def remote(self, share: str | None) -> Remote:
        """Return the object for this table's subscriptions with this share name."""
        found = self.remotes.get(share)
        if found is None:
            found = self.remotes[share] = Remote(self.name)
        return found


class RemoteInterest:
    """The tables of all other nodes and lanes. `generation` changes if messages to the same remotes must go elsewhere."""

    def __init__(self, runtime: Runtime) -> None:
        self.generation = 0
        self.begun: Callable[[str, int], None] = _nothing
        """Called with each node that announces a lane of its own, and the fence of that lane."""
        self.tables: dict[Remote, Table] = {}
        """The table that each remote belongs to."""
        self.groups: dict[str, dict[Table, Entry]] = {}
        """The entries of each shared subscription, by its queue owner."""
        self._offered: dict[str, None] = {}
        """Shared subscriptions for which another node has reported members in this turn."""
        self.lanes: dict[str, Table] = {}
        self.nodes: dict[str, Table] = {}
        """The tables of the live nodes."""
        self._node: Node | None = None
        self._runtime = runtime
        self._own: dict[str, int] = {}
        self._owners: dict[str, str | None] = {}
        self._begun: dict[str, set[str]] = {}
        self._jobs: deque[Iterator[None]] = deque()

    def attach(self, node: Node) -> None:
        """Use this broker's subscription tree."""
        self._node = node

    @property
    def busy(self) -> bool:
        """Whether there is work left for later turns."""
        return bool(self._jobs)

    def _moved(self) -> None:
        """Compute again where messages go."""
        self.generation += 1
        if self._node is not None:
            self._node.forget_routes()

    # --- members -----------------------------------------------------------------------------------------------------

    def member_joined(self, node: str) -> None:
        """Begin a table for a node that has joined."""
        self.member_left(node)
        self.nodes[node] = Table(node, is_lane=False)
        self._moved()

    def member_left(self, node: str) -> None:
        """Forget the table of a node. The tables of its lanes remain."""
        self._begun.pop(node, None)
        table = self.nodes.pop(node, None)
        if table is not None:
            self._discard(table)
        for lane in self.lanes.values():
            if lane.announcer == node:
                lane.announcer = None

    def unknown_nodes(self) -> list[str]:
        """Return the live nodes that have not announced everything."""
        return [node for node, table in self.nodes.items() if table.swept < 0]

    def unknown_lanes(self) -> list[str]:
        """Return the lanes whose subscriptions are not known."""
        tables = self.lanes
        return [
            lane
            for lane in self._owners
            if lane not in self._own and (lane not in tables or tables[lane].swept < 0)
        ]

    # --- lanes -------------------------------------------------------------------------------------------------------

    def lane_owner(self, lane: str, node: str | None) -> None:
        """Note the live owner of a lane; None if its owner is dead."""
        self._owners[lane] = node
        table = self.lanes.get(lane)
        if table is not None and table.owner != node:
            table.owner = node
        self._moved()

    def own(self, lane: str, fence: int) -> None:
        """Note that this node owns `lane` now, so that messages for it are delivered here."""
        self._own[lane] = fence
        table = self.lanes.pop(lane, None)
        if table is not None:
            self._discard(table)
        self._moved()

    def prepare(
        self, lane: str, entries: Iterable[Put | Drop], done: Callable[[], None]
    ) -> Callable[[Put | Drop], None]:
        """Build the table of an own lane that will have another owner, without using it. Call `done` when it is built.

        Return a function that changes an entry of it. Until `leave`, the caller must pass all changes to it.
        """
        table = self._lane(lane)

        def change(item: Put | Drop) -> None:
            self._change(table, item)

        def build() -> Iterator[None]:
            for item in entries:
                if self.lanes.get(lane) is not table:
                    return
                if (item[1], item[2]) not in table.entries:
                    change(item)
                yield
            done()

        self._start(build())
        return change

    def leave(self, lane: str) -> None:
        """Note that another node owns `lane`. Messages for it are forwarded from now on."""
        self._own.pop(lane, None)
        self._lane(lane).live = True
        self._moved()

    def _lane(self, lane: str) -> Table:
        table = self.lanes.get(lane)
        if table is None:
            table = self.lanes[lane] = Table(lane, is_lane=True, live=lane not in self._own)
            table.owner = self._owners.get(lane)
        return table

    # --- announcements -----------------------------------------------------------------------------------------------

    def announced(self, node: str, changes: Iterable[Change]) -> None:
        """Apply announcements of a live node, in order."""
        own = self.nodes.get(node)
        if own is None:
            return
        for change in changes:
            if isinstance(change, Put | Drop):
                if change.target == NODE:
                    self._change(own, change)
                else:
                    lane = self.lanes.get(change.target)
                    if lane is not None and lane.announcer == node:
                        self._change(lane, change)
            elif isinstance(change, Begin):
                self._begin(node, change)
            elif isinstance(change, End):
                lane = self.lanes.get(change.lane)
                if lane is not None and lane.announcer == node and lane.fence == change.fence:
                    self._sweep(lane)
            elif isinstance(change, Leave):
                lane = self.lanes.get(change.lane)
                if lane is not None and lane.announcer == node:
                    lane.announcer = None
            elif isinstance(change, BeginAll):
                own.begin()
                self._begun[node] = set()
            else:
                self._end_all(node, own)

    def _begin(self, node: str, change: Begin) -> None:
        if change.fence <= self._own.get(change.lane, -1):
            return  # this node has the lane
        lane = self._lane(change.lane)
        if change.fence < lane.fence:
            return
        lane.fence = change.fence
        lane.announcer = node
        self.begun(node, change.fence)
        lane.begin()
        if node in self._begun:
            self._begun[node].add(change.lane)

    def _end_all(self, node: str, own: Table) -> None:
        self._sweep(own)
        begun = self._begun.pop(node, set())
        for name, lane in self.lanes.items():
            if lane.announcer == node and name not in begun:
                lane.announcer = None

    def _sweep(self, table: Table) -> None:
        """Drop the entries that were not announced in the current round."""
        table.swept = round = table.round

        def sweep() -> Iterator[None]:
            for key, entry in list(table.entries.items()):
                if entry.round < round and table.entries.get(key) is entry:
                    self._change(table, Drop("", *key))
                    yield

        if table.current < len(table.entries):
            self._start(sweep())

    # --- entries -----------------------------------------------------------------------------------------------------

    def _change(self, table: Table, change: Put | Drop) -> None:
        share, topic_filter = key = (change.share, change.topic_filter)
        entry = table.entries.get(key)
        if isinstance(change, Drop):
            if entry is not None:
                del table.entries[key]
                table.current -= entry.round == table.round
                self._remove(table, key)
            return
        if share is not None and change.online and self._node is not None:
            self._has_members(group_owner(share, topic_filter))
        if entry is None:
            entry = table.entries[key] = Entry(change.qos, change.online, table.round)
            table.current += 1
            if share is not None:
                self.groups.setdefault(group_owner(share, topic_filter), {})[table] = entry
        else:
            table.current += entry.round != table.round
            entry.round = table.round
            entry.online = change.online
            if entry.qos == change.qos:
                return
            entry.qos = change.qos
        remote = table.remote(share)
        self.tables[remote] = table
        filter = topic_filter if share is None else f"$share/{share}/{topic_filter}"
        if self._node is not None:
            self._node.add_remote(
                remote, Subscription(filter, topic_filter, change.qos, share=share)
            )

    def _has_members(self, owner: str) -> None:
        """Offer waiting messages of a shared subscription to another node, which has a member online."""
        if not self._offered:
            self._runtime.call_soon(self._offer)
        self._offered[owner] = None

    def _offer(self) -> None:
        offered, self._offered = self._offered, {}
        for owner in offered:
            if self._node is not None:
                self._node.hand_on(owner)

    def _remove(self, table: Table, key: Key) -> None:
        share, topic_filter = key
        if share is not None:
            self._leave_group(table, share, topic_filter)
        if self._node is not None:
            self._node.remove_remote(table.remotes[share], topic_filter)

    def _leave_group(self, table: Table, share: str, topic_filter: str) -> None:
        owner = group_owner(share, topic_filter)
        members = self.groups.get(owner)
        if members is not None and members.pop(table, None) is not None and not members:
            del self.groups[owner]

    def _discard(self, table: Table) -> None:
        """Stop forwarding to `table` now, and remove it from the tree in slices."""
        table.live = False
        table.announcer = None
        self._moved()

        def discard() -> Iterator[None]:
            for key in table.entries:
                self._remove(table, key)
                yield
            for remote in table.remotes.values():
                del self.tables[remote]

        self._start(discard())

    def _start(self, job: Iterator[None]) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._runtime.call_soon(self._work)

    def _work(self) -> None:
        """Do a slice of the oldest job."""
        job = self._jobs[0]
        for _ in range(SLICE):
            try:
                next(job)
            except StopIteration:
                self._jobs.popleft()
                break
        if self._jobs:
            self._runtime.call_soon(self._work)


def _nothing(node: str, fence: int) -> None:
    """Do nothing."""
