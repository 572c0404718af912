"""A cluster of model brokers, for tests of the routing between nodes: `RoutingWorld`.

The routing is real, on the simulated engine and a virtual clock. The brokers are models: they match by brute force, and
count what each client receives.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection
from random import Random
from typing import NamedTuple, cast

from hookmq.model.client import ClientInfo
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt import topics
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Publish
from hookmq.storage.cluster import Node, Remote, RemoteMatch, RemoteRoute, Wanted
from hookmq.storage.records import CommitId, group_owner
from hookmq_cluster.engine import Appended, Refused, Unavailable
from hookmq_cluster.forwarding import Forwarding
from hookmq_cluster.frames import VERSION
from hookmq_cluster.inbox import Inbox
from hookmq_cluster.interest import Interest
from hookmq_cluster.links import Links
from hookmq_cluster.names import Names
from hookmq_cluster.wire_messages import Ack, Open, Packet, Reopen, WireReader
from hookmq_testing.decoder import Decoder
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import QUIET, Faults, SimulatedEngine, SimulatedLog

NAMES = Names("test")


def subscription(filter: str, qos: int = 1) -> Subscription:
    """Return the subscription of a SUBSCRIBE for `filter`."""
    if not filter.startswith("$share/"):
        return Subscription(filter, filter, qos)
    _, share, topic_filter = filter.split("/", 2)
    return Subscription(filter, topic_filter, qos, share=share)


class ModelSession:
    """A session: its subscriptions, and the payloads that it has received."""

    def __init__(self, client_id: str, durable: bool, online: bool = True) -> None:
        self.client_id = client_id
        self.durable = durable
        self.online = online
        self.subscriptions: dict[str, Subscription] = {}
        self.received: list[bytes] = []


class ModelBroker:
    """The part of a `Node` that the routing uses, as a model: sessions, groups, and the entries of remotes."""

    def __init__(self) -> None:
        self.sessions: dict[str, ModelSession] = {}
        self.remotes: dict[Remote, dict[str, Subscription]] = {}
        self.received_by_group: Counter[tuple[str, bytes]] = Counter()
        self.retained: dict[str, tuple[Message, ClientInfo | None]] = {}
        self.routes: dict[str, RemoteRoute] = {}
        self.flushed = 0
        self.touched = 0
        self.offered: list[str] = []
        self.packets = 0
        """The number of calls to `deliver_packets`."""

    def hand_on(self, owner: str) -> None:
        self.offered.append(owner)

    def add_remote(self, remote: Remote, subscription: Subscription) -> None:
        self.remotes.setdefault(remote, {})[subscription.topic_filter] = subscription
        self.routes.clear()

    def remove_remote(self, remote: Remote, topic_filter: str) -> None:
        del self.remotes[remote][topic_filter]
        if not self.remotes[remote]:
            del self.remotes[remote]
        self.routes.clear()

    def route(self, topic: str) -> RemoteRoute | None:
        """Return the cached route of `topic`, as the broker's router does; None without remotes."""
        found = self.routes.get(topic)
        if found is None:
            matches = [
                RemoteMatch(remote, one)
                for remote, entries in self.remotes.items()
                for one in entries.values()
                if topics.matches(one.topic_filter, topic)
            ]
            if not matches:
                return None
            found = self.routes[topic] = RemoteRoute(tuple(matches))
        return found

    def deliver(self, message: Message, wanted: Wanted, groups: Collection[str]) -> None:
        for session in self.sessions.values():
            qos = [
                one.qos
                for one in session.subscriptions.values()
                if one.share is None and topics.matches(one.topic_filter, message.topic)
            ]
            if qos and wanted(session.client_id, session.durable, max(qos)):
                session.received.append(message.payload)
        for owner in groups:
            if owner in self.groups():
                self.received_by_group[owner, message.payload] += 1

    def deliver_packets(self, sender: str, five: bool, data: bytes, wanted: Wanted | None) -> None:
        self.packets += 1
        for packet in Decoder(5 if five else 4).feed(data):
            assert isinstance(packet, Publish)
            self.deliver(
                Message(packet.topic, packet.payload, sender=sender),
                wanted or (lambda *_: True),
                (),
            )

    def forget_routes(self) -> None:
        self.routes.clear()

    def groups(self) -> dict[str, int]:
        """Return the number of online members of each group."""
        found: dict[str, int] = {}
        for session in self.sessions.values():
            for one in session.subscriptions.values():
                if one.share is not None:
                    owner = group_owner(one.share, one.topic_filter)
                    found[owner] = found.get(owner, 0) + session.online
        return found

    def flush(self) -> None:
        self.flushed += 1

    def touch(self) -> None:
        self.touched += 1

    def retain(self, message: Message, publisher: ClientInfo | None) -> None:
        if message.payload:
            self.retained[message.topic] = (message, publisher)
        else:
            self.retained.pop(message.topic, None)

    @property
    def node(self) -> Node:
        """This broker as a `Node`. The routing uses only the calls above."""
        return cast(Node, self)


class Settled(NamedTuple):
    """A subscription that `settled` has confirmed."""

    client_id: str
    filter: str


class RoutingNode:
    """One node: its routing, and a model broker. `lanes` maps the lanes that it owns to their fences. `frames` is the
    version of frames that it announces."""

    def __init__(
        self, world: "RoutingWorld", name: str, boot: str, buffer: int, frames: int
    ) -> None:
        self.world = world
        self.frames = frames
        self.name = name
        self.boot = boot
        self.home = name
        self.lanes: dict[str, int] = {}
        self.places: dict[str, str] = {}
        self.cursors: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        """Bytes of the frames of each lane that were delivered."""
        self.own_frames: list[tuple[str, int]] = []
        """The own frames that the inbox has passed: lane and sequence."""
        self.peers: dict[str, int] = {}
        """The live nodes, as this node sees them, and since which step of the world."""
        self.settled: dict[Settled, int] = {}
        """Confirmed subscriptions, and the step in which they were confirmed."""
        self.commits = 0
        self._committing: deque[Callable[[], None] | None] = deque()
        self.published = 0
        self.broker = ModelBroker()
        runtime = world.runtime
        self.engine = SimulatedEngine(world.log, runtime, world.random)
        self.links = Links(
            runtime, name, boot, lambda to, data: self.engine.send(NAMES.node(to), data), buffer
        )
        self.interest = Interest(runtime, self.links, self.home, self.lane_of)
        self.forwarding = Forwarding(
            runtime, NAMES, name, boot, self.links, self.interest, world.frame_bytes
        )
        self.inbox = Inbox(
            self.engine, NAMES, runtime, name, boot, self, self.links, self.interest.local.moving
        )
        self.inbox.members = self.interest.local.groups
        self.inbox.hand_on = self.forwarding.hand_on
        self.reader = WireReader(runtime)
        self.interest.attach(self.broker.node)
        self.inbox.attach(self.broker.node)
        self.engine.listen(NAMES.node(name), self._receive)
        self.engine.on_connection(lambda up: self.links.reconnected() if up else None)

    # LaneStore: see hookmq_cluster.inbox

    def lane_of(self, client_id: str) -> str | None:
        return self.places.get(client_id)

    def received(self, lane: str, sequence: int, size: int = 0) -> None:
        self.cursors[lane] = sequence
        self.sizes[lane] = self.sizes.get(lane, 0) + size

    def passed(self, lane: str, sequence: int) -> None:
        self.own_frames.append((lane, sequence))
        assert not self.inbox.waiting(lane) or sequence > self.cursors.get(lane, 0)

    def _receive(self, subject: str, data: bytes) -> None:
        received = self.reader.read(subject, data)
        assert received is not None
        assert isinstance(received.message, Open | Reopen | Packet | Ack)
        self.links.receive(received.node, received.boot, received.message)

    # clients

    def connect(self, client_id: str, durable: bool, lane: str = "") -> None:
        """Add a session."""
        self.broker.sessions[client_id] = ModelSession(client_id, durable)
        if durable:
            self.places[client_id] = lane or self.home

    def online(self, client_id: str, online: bool) -> None:
        """Let a session have a connection or not."""
        session = self.broker.sessions[client_id]
        session.online = online
        for one in session.subscriptions.values():
            self._report_online(one)

    def subscribe(self, client_id: str, filter: str, qos: int = 1) -> None:
        """Subscribe, and note when the subscription is settled."""
        session = self.broker.sessions[client_id]
        new = subscription(filter, qos)
        session.subscriptions[filter] = new
        self.settled.pop(Settled(client_id, filter), None)
        self.interest.subscribed(client_id, session.durable, new, True)
        self._report_online(new)
        name = Settled(client_id, filter)
        called = self.world.step

        def settled() -> None:
            here = self.broker.sessions.get(client_id) is session
            if here and session.subscriptions.get(filter) is new and self.is_up:
                self.settled[name] = self.world.step
                self.world.check_settled(self, name, called)

        if self.interest.settled(settled):
            settled()

    def unsubscribe(self, client_id: str, filter: str) -> None:
        """Unsubscribe."""
        session = self.broker.sessions[client_id]
        old = session.subscriptions.pop(filter)
        self.settled.pop(Settled(client_id, filter), None)
        self.interest.subscribed(client_id, session.durable, old, False)
        self._report_online(old)

    def _report_online(self, one: Subscription) -> None:
        if one.share is not None:
            owner = group_owner(one.share, one.topic_filter)
            self.interest.online(owner, self.broker.groups().get(owner, 0))

    @property
    def is_up(self) -> bool:
        """Whether the node has not crashed."""
        return not self.engine.crashed

    # messages

    def publish(
        self, topic: str, payload: bytes, qos: int = 1, acked: Callable[[], None] | None = None
    ) -> bool:
        """Publish as the broker does. `acked` is called when the publisher would be. Return whether it must wait."""
        message = Message(topic, payload, qos)
        route = self.broker.route(topic)
        waits = False
        self.published += 1
        if route is not None and not self._collect(message, route):
            waits = self.forwarding.forward(message, route)
        here = [
            owner
            for owner, online in self.broker.groups().items()
            if topics.matches(owner.split("/", 2)[2], topic)
            and (online or not self.interest.elsewhere(owner))
        ]
        self.broker.deliver(message, lambda *_: True, here)
        if acked is not None:
            if waits:
                self.commit(acked)
            else:
                acked()
        return waits

    def _collect(self, message: Message, route: RemoteRoute) -> bool:
        """Send two of three messages with QoS 0 as packets, as the broker's fast path does. Return whether one was."""
        packets = self.forwarding.packets(route)
        if message.qos or packets is None or self.published % 3 == 0:
            return False
        five = self.published % 2 == 0
        data = encode(Publish(message.topic, message.payload), 5 if five else 4)
        for one in packets:
            one.add("publisher", five, data)
        return True

    def commit(self, done: Callable[[], None] | None = None) -> None:
        """Flush, and commit the frames for lanes, after the commits before this one."""
        self._committing.append(done)
        if len(self._committing) == 1:
            self._commit()

    def _commit(self) -> None:
        self.commits += 1
        number = self.commits

        def ended() -> None:
            done = self._committing.popleft()
            if done is not None:
                done()
            if self._committing:
                self._commit()

        def committed() -> None:
            if send is None:
                ended()
            else:
                send(ended)

        def flushed(failed: object) -> None:
            assert failed is None
            if not taken:
                committed()
                return
            self.engine.commit(taken, appended, f"{self.name}/{self.boot}/{number}")

        def appended(result: Appended | Refused | Unavailable) -> None:
            if isinstance(result, Appended):
                committed()
            else:
                assert isinstance(result, Unavailable)
                self.engine.commit(taken, appended, f"{self.name}/{self.boot}/{number}")

        taken, _ = self.forwarding.take_entries()
        send = self.forwarding.after_commit()
        self.forwarding.flush(CommitId(self.boot, number), flushed)

    def covers(self, target: str, one: Subscription) -> bool:
        """Return whether this node forwards messages for a subscription of `target`, or has the group itself."""
        if (
            one.share is not None
            and group_owner(one.share, one.topic_filter) in self.broker.groups()
        ):
            return True
        for remote, entries in self.broker.remotes.items():
            table = self.interest.remote.tables[remote]
            name = f"{'lane' if table.is_lane else 'node'} {table.name}"
            # Groups are announced once for all their members.
            if not table.live or (name != target and one.share is None):
                continue
            entry = entries.get(one.topic_filter)
            if entry is None or entry.share != one.share:
                continue
            if one.share is not None or entry.qos >= one.qos:
                return True
        return False

    def tree(self) -> dict[tuple[str, str | None, str], int]:
        """Return what this node's tree has for other nodes and lanes: the QoS of each target, share and filter."""
        found: dict[tuple[str, str | None, str], int] = {}
        for remote, entries in self.broker.remotes.items():
            table = self.interest.remote.tables[remote]
            for one in entries.values():
                name = f"lane {table.name}" if table.is_lane else f"node {table.name}"
                key = (name, one.share, one.topic_filter)
                assert key not in found, key
                found[key] = one.qos
        return found

    def wants(self) -> dict[tuple[str, str | None, str], int]:
        """Return what other trees must have for this node and its lanes."""
        found: dict[tuple[str, str | None, str], int] = {}
        for session in self.broker.sessions.values():
            for one in session.subscriptions.values():
                target = f"node {self.name}"
                if session.durable and one.qos:
                    target = f"lane {self.places[session.client_id]}"
                key = (target, one.share, one.topic_filter)
                found[key] = max(found.get(key, 0), one.qos)
        for target, share, topic_filter in list(found):
            others = [key for key in found if key[1:] == (share, topic_filter)]
            if share is not None and target.startswith("node ") and len(others) > 1:
                del found[target, share, topic_filter]
        return found


class RoutingWorld:
    """The log and the nodes. `step` counts the steps of a test."""

    def __init__(
        self,
        seed: int = 1,
        faults: Faults = QUIET,
        frame_bytes: int = 256 * 1024,
        buffer: int = 64 * 1024 * 1024,
    ) -> None:
        self.runtime = VirtualRuntime(seed)
        self.random = Random(seed)
        self.log = SimulatedLog(self.runtime, self.random, faults)
        self.frame_bytes = frame_bytes
        self.buffer = buffer
        self.nodes: dict[str, RoutingNode] = {}
        self.confirmed: dict[Settled, tuple[Subscription, str, set[tuple[str, str]]]] = {}
        """For subscriptions of durable sessions: the lane, and the nodes that route to it."""
        self.boots = 0
        self.fence = 0
        self.step = 0

    def start(self, name: str, frames: int = VERSION) -> RoutingNode:
        """Start a node that nobody knows yet. It owns its home lane."""
        self.boots += 1
        node = RoutingNode(self, name, f"boot{self.boots}", self.buffer, frames)
        self.nodes[name] = node
        self.take(node, node.home)
        return node

    def take(self, node: RoutingNode, lane: str) -> None:
        """Let `node` own `lane`, after its sessions were added."""
        self.fence += 1
        node.lanes[lane] = self.fence
        node.interest.lane_adopted(lane, self.fence)
        node.inbox.open_lane(lane, self.log.sequence, node.cursors.get(lane, 0))

    def join(self, *names: str) -> None:
        """Start these nodes, and let all nodes see each other."""
        for name in names:
            self.start(name)
        self.see_all()

    def see_all(self) -> None:
        """Let all nodes see each other."""
        for one in self.nodes.values():
            for other in self.nodes.values():
                if one is not other and other.name not in one.peers:
                    self.see(one, other)
        self.runtime.advance(10.0)

    def see(self, one: RoutingNode, other: RoutingNode) -> None:
        """Let `one` regard `other` as alive."""
        self.step += 1
        one.peers[other.name] = self.step
        one.forwarding.node_joined(other.name, other.frames)
        one.interest.member_joined(other.name, other.boot)
        for lane in other.lanes:
            one.interest.lane_owner(lane, other.name)

    def lose(self, one: RoutingNode, other: str) -> None:
        """Let `one` regard `other` as dead."""
        self.step += 1
        one.peers.pop(other, None)
        one.interest.member_left(other)
        one.forwarding.node_gone(other)
        for lane, table in one.interest.remote.lanes.items():
            if table.owner == other:
                one.interest.lane_owner(lane, None)

    def crash(self, name: str) -> RoutingNode:
        """End a node. The others do not know it yet."""
        node = self.nodes.pop(name)
        node.engine.crash()
        for other in list(node.peers):
            node.links.close(other)
        return node

    def check_settled(self, node: RoutingNode, name: Settled, called: int) -> None:
        """Assert that all nodes that `node` regards as alive route to a subscription, unless they did not regard it as
        alive since the step `called`."""
        session = node.broker.sessions[name.client_id]
        one = session.subscriptions[name.filter]
        target = f"node {node.name}"
        if session.durable and one.qos:
            target = f"lane {node.places[session.client_id]}"
        confirmed: set[tuple[str, str]] = set()
        for other_name in node.peers:
            other = self.nodes.get(other_name)
            # A node that lost and saw this one again since then may have to be announced everything again.
            if other is None or other.peers.get(node.name, called + 1) > called:
                continue
            if other.interest.remote.nodes[node.name].swept < 0:
                continue
            assert other.covers(target, one), (other_name, node.name, name)
            confirmed.add((other_name, other.boot))
        if target.startswith("lane "):
            self.confirmed[name] = (one, target[5:], confirmed)
