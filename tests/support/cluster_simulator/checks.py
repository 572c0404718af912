"""The promises of a cluster, checked at the end of a run."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hookmq_cluster.lanes import decode_owner
from hookmq_cluster.names import Names

from cluster_simulator.clients import Client, Publisher, Subscriber
from cluster_simulator.world import World

NAMES: Final = Names("test")
_HEADER: Final = 100
"""The bytes of a frame that contain its header."""
_BAD_EVENTS: Final = {
    "internal.error",
    "cluster.delivery_failed",
    "cluster.frame_invalid",
    "cluster.announcement_invalid",
    "cluster.retained_invalid",
    "cluster.retain_failed",
    "cluster.publisher_unknown",
    "cluster.session_unreadable",
    "cluster.owner_unreadable",
}
"""Log events that no fault explains."""


def delivery(publisher: Publisher, subscriber: Subscriber) -> Iterator[str]:
    """Yield each broken promise about the messages from `publisher` to `subscriber`."""
    way = f"{publisher.client_id} to {subscriber.client_id}:"
    since = subscriber.since
    if since is None:
        yield f"{way} no SUBACK"
        return
    got = subscriber.messages.get(publisher.client_id, [])
    first = list(dict.fromkeys(got))
    begin = since[publisher.client_id]
    if not subscriber.expiry and any(
        time >= subscriber.since_time for time in subscriber.world.departures()
    ):
        begin = publisher.final  # a node that is regarded as dead loses its volatile sessions
    missing = {number for number in publisher.acknowledged if number > begin} - set(got)
    if missing:
        yield f"{way} {sorted(missing)} acknowledged and lost"
    # At QoS 1, a message that was sent before SUBACK may come only when it is sent again, after later messages.
    ordered = [n for n in first if n > since[publisher.client_id] or publisher.qos != 1]
    if ordered != sorted(ordered) and (publisher.qos or not subscriber.world.unsent()):
        yield f"{way} out of order: {first}"
    if min(publisher.qos, subscriber.qos) == 2 and len(first) != len(got):
        yield f"{way} received twice at QoS 2: {got}"
    if not publisher.qos and len(first) != len(got):
        yield f"{way} received twice at QoS 0: {got}"


def group(publisher: Publisher, members: Sequence[Subscriber]) -> Iterator[str]:
    """Yield each broken promise about the messages from `publisher` to a shared subscription."""
    durable = [one for one in members if one.expiry]
    if not durable:
        return
    name = publisher.client_id
    begin = min(
        (one.since[name] for one in durable if one.since is not None), default=publisher.sent
    )
    world = members[0].world
    lossy = world.crashes or world.departures()
    if len(durable) < len(members) and (publisher.qos == 2 or lossy):
        # A dead node had the messages of its volatile members, also if it was back before the others noticed. What a
        # client has begun to receive at QoS 2, no other one may get [MQTT-4.8.2-5].
        begin = publisher.final
    counts = Counter(number for one in members for number in one.ever.get(name, []))
    missing = {number for number in publisher.acknowledged if number > begin} - set(counts)
    if missing:
        yield f"{name} to the group: {sorted(missing)} acknowledged and lost"
    twice = sorted(number for number, count in counts.items() if count > 1)
    if twice and publisher.qos == 2 and all(one.expiry and one.qos == 2 for one in members):
        yield f"{name} to the group: {twice} received twice at QoS 2"


def retained(world: World, publishers: Iterable[Publisher]) -> Iterator[str]:
    """Yield each difference between the nodes' retained messages, and each that is not the last one."""
    found = {
        name: {topic: kept.message.payload for topic, kept in node.broker.state.retained.match("#")}
        for name, node in world.nodes.items()
    }
    first, *others = sorted(found)
    for other in others:
        if found[first] != found[other]:
            yield f"retained messages differ: {first} {found[first]}, {other} {found[other]}"
    writers = [one for one in publishers if one.keys]
    if len(writers) == 1:
        [writer] = writers
        expected = {
            message.topic: message.payload
            for message in (writer.packet(number, False) for number in range(1, writer.sent + 1))
        }
        expected = {topic: payload for topic, payload in expected.items() if payload}
        if writer.qos and found[first] != expected:
            yield f"retained messages are {found[first]}, not {expected}"


def lanes(world: World) -> Iterator[str]:
    """Yield what `owners` yields, and each frame of a process that did not own its lane."""
    yield from owners(world)
    yield from _fenced(world)


def owners(world: World) -> Iterator[str]:
    """Yield each lane that is not open on exactly one node, or whose owner is another node."""
    wanted = {
        name: [one for one in world.nodes if name in world.cluster(one).keeper.open]
        for name in world.cluster(next(iter(world.nodes))).lanes.owners
    }
    for lane, nodes in wanted.items():
        if len(nodes) != 1:
            yield f"lane {lane} is open on the nodes {nodes}"
        told = {one: world.cluster(one).lanes.owners.get(lane) for one in world.nodes}
        if {None if owner is None else owner.node for owner in told.values()} != set(nodes):
            yield f"lane {lane} is open on {nodes}, but the nodes know the owners {told}"


def _fenced(world: World) -> Iterator[str]:
    """Yield each frame in the log that a process wrote while another one owned its lane."""
    boots: dict[str, bytes] = {}
    for stored in world.log.history():
        if stored.subject.startswith(NAMES.own("")):
            owner = decode_owner(stored)
            if owner is not None:
                boots[NAMES.lane(owner[0])] = owner[1].boot.encode()
        elif stored.subject in boots and stored.data[2:3] == b"\x01":
            boot = boots[stored.subject]
            if not boot or boot not in stored.data[:_HEADER]:
                yield f"{stored.subject} {stored.sequence}: a frame of a process that is not the owner"


def drained(world: World, name: str, clients: Iterable[Client]) -> Iterator[str]:
    """Yield a line for each thing that the drained node `name` has, although it must be empty."""
    yield from world.remains(name)
    for client in clients:
        for connection in (client.connection, *client.former):
            if connection is not None and connection.node == name and connection.open:
                yield f"node {name} is drained, and {client.client_id} is connected to it"


def connections(clients: Iterable[Client]) -> Iterator[str]:
    """Yield each client that is not online, that lost its session, or that has an old connection."""
    for client in clients:
        if not client.online:
            yield f"{client.client_id} cannot connect"
        if client.lost:
            yield f"{client.client_id} lost its session"
        for former in client.former:
            if not former.wire.closed:
                yield f"{client.client_id} has a second connection, to node {former.node}"


def events(world: World) -> Iterator[str]:
    """Yield each log event of a node that no fault explains."""
    for clock in (*world.past, *world.clocks.values()):
        for _, event, fields in clock.logged:
            if event in _BAD_EVENTS:
                yield f"{event}: {fields}"
