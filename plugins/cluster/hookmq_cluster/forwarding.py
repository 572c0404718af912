"""Sends messages to the nodes and lanes that want them.

The messages of one turn for one target form a frame. Frames for nodes are sent at the end of the turn, or after a short
pause if messages follow each other quickly. Frames for lanes are part of the next commit. Messages with QoS 0 go to nodes
only: to the owner of a lane instead of the lane. If possible, the broker's fast path collects their packets, and frames
contain these instead of messages.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from hookmq.cluster_api import RemotePackets, RemoteRoute
from hookmq.plugin import Message, Runtime
from hookmq.storage_api import CommitId, StoreFailed, group_owner

from hookmq_cluster.engine import Entry
from hookmq_cluster.frames import (
    WITH_PACKETS,
    MessageItem,
    Origin,
    PacketRun,
    PeerFrame,
    encode_fence,
    encode_peer,
    make_item,
)
from hookmq_cluster.interest import Interest
from hookmq_cluster.link import Link
from hookmq_cluster.links import Links
from hookmq_cluster.names import Names
from hookmq_cluster.packet_runs import PacketRuns

FRAME_BYTES: Final = 256 * 1024
"""The largest part of a frame."""
PAUSE: Final = 0.001
"""Seconds between two frames for a node, unless an acknowledgement waits for one. A frame costs as much as a hundred
packets in it."""
LONG_PAUSE: Final = 0.003
"""Seconds after frames with at least `MANY` packets."""
MANY: Final = 32
_NO_GROUPS: Final[tuple[str, ...]] = ()


class _Node:
    """The messages of this turn for one node. `reliable` says whether one of them must be acknowledged. `packets` has
    those that are not in `items` yet.

    `held` counts the batches of QoS 2 messages that wait for a commit. Those that follow without a need to wait, and must
    not overtake them, are `behind`.
    """

    __slots__ = ("behind", "held", "items", "link", "packets", "reliable")

    def __init__(self, link: Link, ready: Callable[[bool], None]) -> None:
        self.link = link
        self.items: list[MessageItem | PacketRun] = []
        self.reliable = False
        self.packets = PacketRuns(ready)
        self.held = 0
        self.behind: list[MessageItem] = []


class _Plan:
    """Where the messages of a route go, without those of shared subscriptions.

    - `nodes`: the nodes with volatile sessions, and whether one of them has a subscription with QoS 1 or 2.
    - `lanes`: the lanes with durable sessions.
    - `everyone`: the nodes that receive messages with QoS 0.
    - `groups`: the queue owners of the shared subscriptions.
    """

    __slots__ = ("everyone", "generation", "groups", "lanes", "nodes")

    def __init__(
        self,
        generation: int,
        nodes: tuple[tuple[_Node, bool], ...],
        lanes: tuple[str, ...],
        everyone: tuple[_Node, ...],
        groups: tuple[str, ...],
    ) -> None:
        self.generation = generation
        self.nodes = nodes
        self.lanes = lanes
        self.everyone = everyone
        self.groups = groups


class Forwarding:
    """Forwards messages of this node. `dropped` counts messages with QoS 0 that a node did not get, because too much was
    waiting for it.

    `max_bytes` is the largest part of a frame.
    """

    def __init__(
        self,
        runtime: Runtime,
        names: Names,
        node: str,
        boot: str,
        links: Links,
        interest: Interest,
        max_bytes: int = FRAME_BYTES,
    ) -> None:
        self.handing_on = False
        """Whether queues have lost messages to other nodes, and no commit says so yet."""
        self.dropped = 0
        self.forwarded = 0
        """The number of messages sent to a node or lane, counted once for each."""
        self.frames = 0
        """The number of frames that contain them, counted once for each node or lane."""
        self._runtime = runtime
        self._names = names
        self._origin = (node, boot)
        self._links = links
        self._interest = interest
        self._remote = interest.remote
        self._max_bytes = max_bytes
        self._number = 0
        self._nodes: dict[str, _Node] = {}
        self._frames: dict[str, int] = {}
        """The newest version of frames that each live node reads."""
        self._lanes: dict[str, list[MessageItem]] = {}
        self._sealed: dict[str, list[MessageItem]] | None = None
        """The messages for lanes in the next commit, if its records are complete. Later messages belong to the commit
        after it."""
        self._held: dict[_Node, list[MessageItem]] = {}
        """Messages with QoS 2 for nodes. They are sent after the commit with their packet ids. Otherwise, a client could
        repeat one to an adopter that does not know it, and sessions of other nodes would get it twice."""
        self._scheduled = False
        self._sent = -PAUSE
        """When frames were last sent."""
        self._pause = PAUSE
        """Seconds until the next ones."""
        self._packets = 0
        """The number of packets in the next frames."""

    def forward(self, message: Message, route: RemoteRoute) -> bool:
        """See `hookmq.storage.cluster.Cluster.forward`."""
        plan = self._plan_of(route)
        if plan.groups:
            return self._forward_groups(message, plan)
        item = make_item((message, _NO_GROUPS, True))
        waits = False
        if not message.qos:
            for node in plan.everyone:
                self._send(node, item, False)
            return False
        for node, reliable in plan.nodes:
            self._send(node, item, reliable)
            waits |= reliable
        for lane in plan.lanes:
            self._store(lane, item)
            waits = True
        return waits

    def packets(self, route: RemoteRoute) -> Sequence[RemotePackets] | None:
        """See `hookmq.storage.cluster.Cluster.packets`."""
        plan = self._plan_of(route)
        if plan.groups or any(
            self._frames.get(node.link.node, 1) < WITH_PACKETS for node in plan.everyone
        ):
            return None
        return tuple(node.packets.collector for node in plan.everyone)

    def _plan_of(self, route: RemoteRoute) -> _Plan:
        plan = route.plan
        if type(plan) is not _Plan or plan.generation != self._remote.generation:
            plan = route.plan = self._plan(route)
        return plan

    def _forward_groups(self, message: Message, plan: _Plan) -> bool:
        """Forward a message that shared subscriptions match. Each of them gets it once."""
        nodes: dict[_Node, list[str]] = {}
        lanes: dict[str, list[str]] = {}
        reliable = {node for node, one in plan.nodes if one}
        stored = False
        for owner in plan.groups:
            table = self._interest.choose(owner)
            if table is None:
                continue
            if message.qos and table.is_lane:
                lanes.setdefault(table.name, []).append(owner)
                continue
            node = self._node(table.owner)
            if node is not None:
                nodes.setdefault(node, []).append(owner)
                if message.qos and self._remote.groups[owner][table].qos:
                    reliable.add(node)
        plain = plan.everyone if not message.qos else [node for node, _ in plan.nodes]
        for node in {**dict.fromkeys(plain), **nodes}:
            item = MessageItem(message, tuple(nodes.get(node, ())), node in plain)
            self._send(node, item, bool(message.qos) and node in reliable)
        if not message.qos:
            return False
        for lane in {**dict.fromkeys(plan.lanes), **lanes}:
            self._store(lane, MessageItem(message, tuple(lanes.get(lane, ())), lane in plan.lanes))
            stored = True
        return stored or bool(reliable)

    def hand_on(self, owner: str, message: Message) -> bool:
        """See `hookmq.storage.cluster.Cluster.hand_on`."""
        table = self._interest.choose(owner)
        if table is None:
            return False
        item = MessageItem(message, (owner,), False)
        if message.qos and table.is_lane:
            self.handing_on = True
            self._store(table.name, item)
            return True
        node = self._node(table.owner)
        if node is None:
            return False
        self.handing_on = True
        self._send(node, item, bool(message.qos))
        return True

    def _send(self, node: _Node, item: MessageItem, reliable: bool) -> None:
        if item.message.qos == 2 and (reliable or node.held):
            self._hold(node, item, reliable)
            return
        if reliable:
            node.reliable = True
        elif node.link.full:
            self.dropped += 1
            return
        self._take_packets(node)
        node.items.append(item)
        self._ready(False)

    def _hold(self, node: _Node, item: MessageItem, reliable: bool) -> None:
        """Keep a QoS 2 message until the next commit, or until those before it are sent."""
        held = self._held.get(node)
        if held is not None:
            held.append(item)
        elif reliable:
            self._held[node] = [item]
            node.held += 1
        else:
            node.behind.append(item)

    def _ready(self, full: bool) -> None:
        """Send the frames for nodes soon or, if `full`, now."""
        if full:
            self.end_turn()
        elif not self._scheduled:
            self._scheduled = True
            pause = self._sent + self._pause - self._runtime.now()
            if pause > 0:
                self._runtime.call_later(pause, self._end_turn)
            else:
                self._runtime.call_soon(self._end_turn)

    def _take_packets(self, node: _Node) -> None:
        """Add the packets that were published before the next message to it."""
        runs = node.packets.take()
        if not runs:
            return
        count = sum(run[2] for run in runs)
        if node.link.full:
            self.dropped += count
        else:
            node.items += runs
            self._packets += count
            self.forwarded += count - len(runs)  # `_encode` counts each run as one

    def _store(self, lane: str, item: MessageItem) -> None:
        items = self._lanes.get(lane)
        if items is None:
            items = self._lanes[lane] = []
        items.append(item)

    def _plan(self, route: RemoteRoute) -> _Plan:
        nodes: dict[_Node, bool] = {}
        lanes: list[str] = []
        everyone: dict[_Node, None] = {}
        groups: dict[str, None] = {}
        for remote, subscription in route.matches:
            table = self._remote.tables.get(remote)
            if table is None or not table.live:
                continue
            if subscription.share is not None:
                groups[group_owner(subscription.share, subscription.topic_filter)] = None
                continue
            node = self._node(table.owner)
            if node is not None:
                everyone[node] = None
            if table.is_lane:
                if table.name not in lanes:
                    lanes.append(table.name)
            elif node is not None:
                nodes[node] = nodes.get(node, False) or subscription.qos > 0
        return _Plan(
            self._remote.generation,
            tuple(nodes.items()),
            tuple(lanes),
            tuple(everyone),
            tuple(groups),
        )

    def _node(self, name: str | None) -> _Node | None:
        """Return the buffer of a live node."""
        if name is None:
            return None
        link = self._links.link(name)
        if link is None:
            return None
        node = self._nodes.get(name)
        if node is None or node.link is not link:
            node = self._nodes[name] = _Node(link, self._ready)
        return node

    # --- frames ------------------------------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        self._scheduled = False
        self.end_turn()

    def end_turn(self) -> None:
        """Send the frames for nodes."""
        encoded: dict[tuple[int, ...], list[bytes]] = {}
        for node in self._nodes.values():
            self._take_packets(node)
        self._pause = LONG_PAUSE if self._packets >= MANY else PAUSE
        self._packets = 0
        for node in self._nodes.values():
            if node.items:
                self._sent = self._runtime.now()
                items, node.items = node.items, []
                reliable, node.reliable = node.reliable, False
                if node.link.closed:
                    continue
                for part in self._encode(items, encoded):
                    node.link.add(part, reliable)

    def take_entries(self) -> tuple[list[Entry], bool]:
        """Return the frames for lanes since the last call, up to `seal` if it was called, and whether they have messages
        with QoS 2. All of them must be part of the next commit."""
        self.seal()
        lanes, self._sealed = self._sealed or {}, None
        encoded: dict[tuple[int, ...], list[bytes]] = {}
        entries: list[Entry] = []
        for lane, items in lanes.items():
            subject = self._names.lane(lane)
            entries.extend(Entry(subject, part) for part in self._encode(items, encoded))
        exactly_once = any(item.message.qos == 2 for items in lanes.values() for item in items)
        return entries, exactly_once

    def seal(self) -> None:
        """The records of the next commit are complete. The messages that are forwarded from now on are not part of it."""
        if self._sealed is None:
            self._sealed, self._lanes = self._lanes, {}
            self.handing_on = False

    def take_back(self, lane: str) -> list[MessageItem]:
        """Return the messages for `lane` that no commit has taken, because this node delivers them itself from now on.
        They stay part of the next commit."""
        return self._lanes.pop(lane, [])

    def _encode(
        self, items: Sequence[MessageItem | PacketRun], encoded: dict[tuple[int, ...], list[bytes]]
    ) -> list[bytes]:
        """Return the parts of a frame. Targets with the same messages share it."""
        self.forwarded += len(items)
        self.frames += 1
        key = tuple(map(id, items))
        parts = encoded.get(key)
        if parts is None:
            self._number += 1
            frame = PeerFrame(Origin(*self._origin, self._number), tuple(items))
            parts = encoded[key] = encode_peer(frame, self._max_bytes)
        return parts

    def after_commit(self) -> Callable[[Callable[[], None]], None] | None:
        """Return None, or a function that sends the messages that wait for the commit that begins now. Call it after that
        commit. It calls its argument once the nodes have them."""
        held, self._held = self._held, {}
        return partial(self._send_held, held) if held else None

    def _send_held(self, held: dict[_Node, list[MessageItem]], done: Callable[[], None]) -> None:
        encoded: dict[tuple[int, ...], list[bytes]] = {}
        for node, items in held.items():
            node.held -= 1
            items += node.behind
            node.behind = []
            if not node.link.closed:
                for part in self._encode(items, encoded):
                    node.link.add(part, True)
        self._wait(done)

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """See `hookmq.storage.cluster.Cluster.flush`."""
        self.end_turn()
        self._wait(partial(done, None))

    def flush_all(self, seconds: float, done: Callable[[bool], None]) -> None:
        """Pass True to `done` once all nodes have everything that was sent to them until now, also with QoS 0. Pass
        False if that takes longer than `seconds`."""
        ended = False

        def end(complete: bool) -> None:
            nonlocal ended
            if not ended:
                ended = True
                too_late.cancel()
                done(complete)

        too_late = self._runtime.call_later(seconds, partial(end, False))
        self.end_turn()
        self._wait(partial(end, True), every=True)

    def _wait(self, done: Callable[[], None], every: bool = False) -> None:
        """Call `done` once all nodes have everything that is reliable, or simply everything if `every`."""
        waiting = 1

        def one() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                done()

        for link in list(self._links.links()):
            if not link.wait(one, every):
                waiting += 1
        one()

    def owner_known(self, node: str, fence: int) -> None:
        """Tell a live node that this one knows it as the owner of a lane with this fence, from the log or from that node.
        The lane's sessions must not get earlier messages with QoS 0 there, because the former owner may have delivered
        them."""
        link = self._links.link(node)
        if link is not None:
            self.end_turn()
            link.add(
                encode_fence(Origin(*self._origin, self._number), fence), False, messages=False
            )

    def node_joined(self, node: str, frames: int) -> None:
        """Note the newest version of frames that a node reads. Call this before `Interest.member_joined`."""
        self._frames[node] = frames

    def node_gone(self, node: str) -> None:
        """Forget the messages for a node that has left. Call this after `Interest.member_left`."""
        self._nodes.pop(node, None)
