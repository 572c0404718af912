"""The protocols between a broker and the other brokers of its cluster.

A plugin implements `Cluster` and calls the broker as `Node`. The broker asks the cluster where a client's session is,
reports its own subscriptions, and passes on messages for which other nodes have subscribers. The cluster tells the
broker which filters have subscribers elsewhere, and brings it the messages, retained messages and sessions of other
nodes.

All calls and callbacks run on the event loop's thread. No call may block.
"""

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import NamedTuple, Protocol

from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.message import Message
from hookmq.model.runtime import Wire
from hookmq.model.subscription import Subscription
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.cluster_packets import RemotePackets
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import CommitId, Loaded


class Remote:
    """Subscribers elsewhere, as one entry of the subscription tree: those of a node, or those of one of its lanes.

    Two objects are different remotes, even if their names are equal.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Remote({self.name!r})"


class RemoteMatch(NamedTuple):
    """A remote that wants a topic, and its entry that matches. If several entries of a remote match, there is a match for
    each.
    """

    remote: Remote
    subscription: Subscription


class RemoteRoute:
    """The remotes of a topic. It is valid as long as the route that it belongs to."""

    __slots__ = ("matches", "plan")

    def __init__(self, matches: tuple[RemoteMatch, ...]) -> None:
        self.matches = matches
        self.plan: object = None
        """What the cluster computed from `matches`, to use it again for the next message. The broker ignores it."""


class Here(NamedTuple):
    """The client belongs to this node: it has no session elsewhere."""


class Refused(NamedTuple):
    """The client cannot connect now. `reference` names a server that it should use instead, or is empty."""

    code: ReasonCode
    reason: str
    reference: str = ""


class Relay(Protocol):
    """Passes the bytes of a connection to the node that has the client's session. See `Cluster.locate`."""

    def feed(self, data: bytes) -> None:
        """Pass on bytes that the client sent. The first call contains the whole CONNECT."""

    def closed(self) -> None:
        """The client's connection has ended. Pass on the bytes that it has sent, then close. The broker calls this once,
        also if the relay itself has closed the wire.
        """

    def pause_writing(self) -> None:
        """The client's wire takes no more bytes for now. Read no more from the other node."""

    def resume_writing(self) -> None:
        """The client's wire takes bytes again."""


Relaying = Callable[[Wire, Peer, Scope], Relay]
"""Starts a relay. It writes the other node's answers to the wire, and closes the wire when that node closes. If the
wire is closed before anything has been written, the broker answers that the server is unavailable.
"""


class Redirect(NamedTuple):
    """The client belongs to the server `reference`. A client that cannot learn this is passed on by `relaying`."""

    reference: str
    relaying: Relaying


SendSocket = Callable[[int, bytes], bool]
"""Passes a client's socket to another process: its descriptor, and the bytes read from it, which begin with CONNECT. It
must not block. If it returns True, the broker closes its own descriptor, and the connection stays open there.
"""


class Transfer(NamedTuple):
    """The client belongs to another process of this machine, which can go on with its socket.

    ``ask(peer, scope, answered)`` asks that process whether it takes the client. It calls `answered` once, before or
    after returning. Its argument is a function that the broker may call before `answered` returns, or None if the process
    does not take the client. `otherwise` applies after None, if the function returns False, and to clients that use TLS
    or WebSocket.
    """

    ask: Callable[[Peer, Scope, Callable[[SendSocket | None], None]], None]
    otherwise: Here | Relaying | Redirect


Wanted = Callable[[str, bool, int], bool]
"""Returns whether a session gets a message, from its client id, its durability, and the QoS of its subscription."""
Wills = dict[str, Callable[[], None]]
"""Functions that publish the wills of sessions, by client id."""
Place = Here | Refused | Relaying | Redirect | Transfer
"""Where a client belongs: to this node, nowhere for now, or to another node."""


class RelayedConnection(Protocol):
    """The broker's side of a connection that another node relays to it."""

    def feed(self, data: bytes) -> None:
        """Process bytes that the client sent."""

    def closed(self, error: str = "") -> None:
        """Clean up after the connection has closed. Call it once, also if the broker has closed the wire."""

    def pause_writing(self) -> None:
        """Write less, because the bytes that wait for the other node exceed a limit."""

    def resume_writing(self) -> None:
        """Write again, because the bytes that waited for the other node have been sent."""


class RelayTarget(NamedTuple):
    """A listener, for connections that another node relays to this one."""

    scope: Scope
    accept: Callable[[Wire, Peer], RelayedConnection]
    """Accepts a connection of the client at `Peer`, as if the listener had accepted it. It counts towards the listener's
    limits, and may close the wire before it returns. It is not relayed again.
    """


class Cluster(Protocol):
    """The other nodes, as the broker sees them."""

    name: str
    """The name of the cluster, for errors."""

    def attach(self, node: "Node") -> None:
        """Remember `node`. The broker calls this once, before it loads any state."""

    def unready(self) -> str:
        """Return why new clients should use another node, in one word, or an empty string. ``/readyz`` shows it."""

    def locate(self, client_id: str, done: Callable[[Place], None]) -> None:
        """Find the node with the durable session of `client_id`. Call `done` once, before or after returning.

        The broker asks this for each CONNECT, before it authenticates the client.
        """

    def claim(
        self, client: ClientInfo, durable: bool, done: Callable[[Refused | None], None]
    ) -> None:
        """Make this node the only one that has a connection or a session of the client. Call `done` once with None, or
        with the reason why the client cannot connect.

        The broker asks this after it has authenticated the client, before it opens or resumes the session. `durable` is
        true if the session will outlive the connection, or exists and does so already.
        """

    def subscribed(
        self, client_id: str, durable: bool, subscription: Subscription, added: bool
    ) -> None:
        """A session has a new or changed subscription, or has one less. The broker calls this for every subscription,
        shared or not, also for those that it loads from the store.
        """

    def settled(self, done: Callable[[], None]) -> bool:
        """Return True if every live node routes messages to all subscriptions reported so far. Otherwise return False,
        and call `done` once they do. SUBACK waits for this.
        """

    def online(self, owner: str, members: int) -> None:
        """The shared subscription with the queue `owner` has `members` members online now."""

    def elsewhere(self, owner: str) -> bool:
        """Return whether a message for the shared subscription `owner` goes to another node. The broker asks this only
        if it has no member online here. `forward` decides in the same way.
        """

    def hand_on(self, owner: str, message: Message) -> bool:
        """Send a message that waits in the shared subscription `owner` to a node that has a member online. Return False
        if there is none. Otherwise the broker removes the message from its queue with the next commit. The broker calls
        this only if it has no member online itself.
        """

    def forward(self, message: Message, route: RemoteRoute) -> bool:
        """Send `message` to the remotes of `route`. Return whether its acknowledgement must wait for the next commit.

        The message has been authorized, transformed and retained. The call must be fast: buffer the message until the
        end of the turn. If it returns True, the broker calls `flush` and commits, even if it has nothing to store itself.
        """

    def packets(self, route: RemoteRoute) -> Sequence[RemotePackets] | None:
        """Return what collects QoS 0 packets for the remotes of `route`, or None if they need `forward`. The result must
        hold until the route is dropped; see `Node.forget_routes`.
        """

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Call `done` with None once the nodes have all messages that `forward` returned True for. The broker calls
        this for each commit with such a message, and may call it for other commits, before it commits to the store.
        Messages that the store commits itself need no wait here.
        """


class Node(Protocol):
    """This broker, as its cluster sees it."""

    def add_remote(self, remote: Remote, subscription: Subscription) -> None:
        """Route messages that match ``subscription.topic_filter`` to `remote`. One remote has at most one subscription
        for each topic filter; a second one replaces it.
        """

    def remove_remote(self, remote: Remote, topic_filter: str) -> None:
        """Undo `add_remote`. Does nothing if there is no such entry."""

    def deliver(self, message: Message, wanted: Wanted, groups: Collection[str]) -> None:
        """Deliver another node's message to sessions of this node. No hook decides on it again except `on_deliver`.

        It goes to each matching session for which ``wanted(client_id, durable, qos)`` is true; `qos` is that of its
        subscription. It also goes to the shared subscriptions whose queue owners are in `groups`. It is not retained,
        not forwarded and not journaled. What must be stored becomes part of the next commit.
        """

    def deliver_packets(self, sender: str, five: bool, data: bytes, wanted: Wanted | None) -> None:
        """Deliver packets of one publisher that another node has collected with `RemotePackets`. They go to all matching
        sessions, or to those that `deliver` would choose by `wanted`. Raises ProtocolError for a damaged packet.
        """

    def forget_routes(self) -> None:
        """Compile all routes again, because a result of `Cluster.packets` has changed."""

    def hand_on(self, owner: str) -> None:
        """Call `Cluster.hand_on` for the messages that wait in the shared subscription `owner`, because another node may
        have a member online now."""

    def flush(self) -> None:
        """Write what `deliver` has queued, and start the commit. Call this after the last `deliver` of a turn."""

    def touch(self) -> None:
        """Make the next commit happen even if it has no records."""

    def after_commit(self, call: Callable[[], None]) -> None:
        """Run `call` once everything recorded so far is committed."""

    def adopt(
        self, records: Iterable[Loaded], joined: bool = True, others: Collection[str] = ()
    ) -> tuple[int, Wills]:
        """Add sessions that another process has stored, in the order that `Store.load` defines. Return their number, and
        the wills of former sessions. Unless this node has `joined` the cluster, their wills and ends wait until the
        plugins have started: without the subscriptions of all nodes, a will would be lost.

        Clients that were online count as offline from now on; their wills become due as after a restart. Sessions whose
        client id exists here already, or is one of `others`, are left out, with their subscriptions and messages. So are
        publishers, retained messages, the state of plugins that have state here already, and the queues of shared
        subscriptions that exist here already or have no member in `records`. The store must answer `Store.read` for the
        other queues before it returns; otherwise the broker stops as after a failed commit.

        A session that is left out and ends with its connection is a former one: its client has had another session since.
        Call the function that publishes its will once this node has joined, and messages reach the added sessions by one
        way only. The same commit must remove the session from the store.
        """

    def release(
        self, client_ids: Sequence[str], code: ReasonCode, reason: str, reference: str = ""
    ) -> None:
        """Forget these sessions without ending them, because another node has them now. Nothing is recorded, no will is
        published. Clients that are connected are disconnected with `code`, and asked to use the server `reference` if it
        is not empty. Messages that wait for any member of a shared subscription stay here, even if it has no member left.
        """

    def forget_queues(self, owners: Container[str]) -> None:
        """Forget the shared subscriptions without members whose queue is in `owners`, because another node has their
        messages now. Nothing is recorded.
        """

    def disconnect(
        self, client_id: str, code: ReasonCode, reason: str, reference: str = ""
    ) -> bool:
        """Disconnect the client if it is connected, and ask it to use the server `reference` if it is not empty. Its
        session ends if it is not durable. Return whether it was connected.
        """

    def clients(self) -> Sequence[str]:
        """Return the ids of the connected clients, without those of plugins."""

    def retain(self, message: Message, publisher: ClientInfo | None) -> None:
        """Keep a retained message of another node, or clear its topic if the payload is empty. Nothing is recorded and
        no subscriber receives it. `publisher` is the client that published it, or None if it was not a client.

        In a cluster, the broker does not record that a retained message has expired, because each node sees that itself.
        """

    def relay_target(self, listener: str) -> RelayTarget | None:
        """Return the MQTT listener with this name, or None if it is not open."""

    def fail(self, reason: str) -> None:
        """Stop the broker, because this node may not go on. Nothing more is acknowledged."""
