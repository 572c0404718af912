"""This node's part of the cluster: the interface to the broker, and how the parts work together.

subscriptions -> interest -> other nodes' interest -> forwarding -> links (volatile) or the log (durable) -> inbox
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from hookmq.cluster_api import (
    Node,
    Place,
    Redirect,
    Refused,
    Relaying,
    RelayTarget,
    RemotePackets,
    RemoteRoute,
    Transfer,
)
from hookmq.plugin import (
    ClientInfo,
    Message,
    ReasonCode,
    Runtime,
    Subscription,
)
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_toolkit.cluster import NodeState

from hookmq_cluster.claims import Claims
from hookmq_cluster.connection_order import ConnectionOrder
from hookmq_cluster.draining import NodeDrain
from hookmq_cluster.engine import Engine, Unavailable
from hookmq_cluster.filling import refuse_unfinished
from hookmq_cluster.forwarding import Forwarding
from hookmq_cluster.frames import VERSION
from hookmq_cluster.inbox import Inbox
from hookmq_cluster.interest import Interest
from hookmq_cluster.keeper import LaneKeeper
from hookmq_cluster.lanes import Lanes, Owner
from hookmq_cluster.links import Links
from hookmq_cluster.member_messages import MemberMessages
from hookmq_cluster.membership import Member, Membership
from hookmq_cluster.names import Names
from hookmq_cluster.retained import Retained
from hookmq_cluster.shared_secret import shared_secret
from hookmq_cluster.store import ClusterStore
from hookmq_cluster.waiting import answer, ended, pause
from hookmq_cluster.wire_messages import (
    Ack,
    HandOver,
    Hello,
    Kick,
    Leaving,
    Open,
    Packet,
    Reopen,
    WireMessage,
)

_GIVING: Final = 5.0
"""Seconds to wait until another node has a lane."""
_SENDING: Final = 10.0
"""Seconds for which a lane waits until the other nodes have all messages of its publishers."""
_GLANCE: Final = 0.05
"""Seconds between two looks at whether the subscriptions of all nodes are known."""
_PATIENCE: Final = 100
"""Looks between two log events about a node that does not know all subscriptions."""
_SELDOM: Final = 10
"""Looks between two attempts to adopt the lanes of dead nodes, while a node starts."""
_LOOKS: Final = 6
"""Looks for lanes without a living owner, in one lease."""


class JoinedCluster:
    """The other nodes, as this broker sees them. Implements `hookmq.cluster_api.Cluster`.

    `relaying` returns how a client reaches a node that has a lane. `clients` is the address of this node for
    clients, if they should be told. ``end_relays(count)`` closes connections that are relayed to other nodes; see
    `NodeDrain`. ``end_relays_to(node)`` closes those to one node, which is dead.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        engine: Engine,
        node: str,
        boot: str,
        lease: float,
        relaying: Callable[[Member, str], Relaying | Redirect | Transfer],
        clients: str = "",
        end_relays: Callable[[int], int] = lambda _: 0,
        end_relays_to: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.me = Member(node, boot, "", VERSION, clients)
        self._end_relays = end_relays
        self._end_relays_to = end_relays_to
        self.lease = lease
        self._runtime = runtime
        self._engine = engine
        self._names = names = Names(name)
        self._node: Node
        self.home = home = node
        self.ready = False
        """Whether this node has joined, so that clients may connect."""
        self._order = ConnectionOrder(runtime, node)
        self._messages = MemberMessages(engine, names, runtime, self.me)
        self.links = Links(runtime, node, boot, self._messages.transmit)
        self.store = ClusterStore(
            engine, names, runtime, node, boot, home,
            lambda record: self.retained.entries(record),
            lambda: self.forwarding.take_entries(),
            lambda commit, last: self.retained.committed(commit, last),
            lambda lane, reason: self._lost(lane, reason),
            lambda lane, done: self.lanes.renew(lane, done),
        )  # fmt: skip
        self.interest = Interest(runtime, self.links, home, self.store.lane_of)
        self._retained_read: Callable[[], None] = _nothing
        self.retained = Retained(engine, names, runtime, node, boot, lambda: self._retained_read())
        self.forwarding = Forwarding(runtime, names, node, boot, self.links, self.interest)
        self.inbox = Inbox(
            engine, names, runtime, node, boot, self.store, self.links, self.interest.local.moving
        )
        self.inbox.members = self.interest.local.groups
        self.inbox.hand_on = self.forwarding.hand_on
        self.interest.remote.begun = self.forwarding.owner_known
        self.lanes = Lanes(engine, names, runtime, self.me, self._owner_changed)
        self.membership = Membership(
            engine, names, runtime, self.me, lease,
            lambda: self.drain.fence(),
            self._joined, self._left, self._expelled,
        )  # fmt: skip
        self.membership.lapsed = self._lapsed
        self.membership.owned = lambda done: self.drain.owns_home(done)
        self.claims = Claims(
            engine, names, runtime, node, home,
            self.store.lane_of, self.store.place, self._owner, relaying, self._kick,
        )  # fmt: skip
        self.keeper: LaneKeeper
        self.drain: NodeDrain

    # --- called by the broker -------------------------------------------------------------------------------------

    def attach(self, node: Node) -> None:
        self._node = node
        self.interest.attach(node)
        self.inbox.attach(node)
        self.retained.attach(node)
        self.keeper = LaneKeeper(
            self._runtime, self._engine, self._names, self.me, self.home, node, self.lanes, self.store, self.inbox,
            self.interest, self.forwarding, self.membership, self._ask_for_lane,
        )  # fmt: skip
        self.drain = NodeDrain(
            self._runtime, self._names, node, self.home, self.lanes, self.store, self.keeper,
            self._next_owner, self.give_lane, self._announce_drain, self._end_relays,
        )  # fmt: skip

    def relay_target(self, listener: str) -> RelayTarget | None:
        """Return this node's listener for connections that other nodes relay, or None."""
        return self._node.relay_target(listener) if self.ready else None

    def owns(self, lane: str) -> bool:
        """Return whether this node has the sessions of `lane`."""
        return self.keeper.has(lane)

    def unready(self) -> NodeState | Literal[""]:
        """Return why new clients should use another node, or an empty string."""
        if self.drain.state and self.ready:
            return self.drain.state
        if self.keeper.leaving:
            return "leaving"
        if not self.ready:
            return "joining"
        isolated = self.membership.isolated or self.membership.renewed_ago >= self.lease
        return "isolated" if isolated or not self._engine.connected() else ""

    def locate(self, client_id: str, done: Callable[[Place], None]) -> None:
        refusal = self.drain.refusal_of_new
        if not self.ready:
            done(Refused(ReasonCode.SERVER_UNAVAILABLE, "the node has not joined its cluster yet"))
        elif (refused := refusal(client_id)) is not None:
            done(refused)
        else:  # the node may be drained before the log answers
            self.claims.locate(client_id, lambda place: done(refusal(client_id) or place))

    def claim(
        self, client: ClientInfo, durable: bool, done: Callable[[Refused | None], None]
    ) -> None:
        def claimed(refused: Refused | None) -> None:
            # The lane may have left, or the node may have been drained, since the client was located.
            done(refused or self.drain.refusal(client.client_id))

        self.claims.claim(client, durable, claimed)

    def subscribed(
        self, client_id: str, durable: bool, subscription: Subscription, added: bool
    ) -> None:
        self.interest.subscribed(client_id, durable, subscription, added)

    def settled(self, done: Callable[[], None]) -> bool:
        return self.interest.settled(done)

    def online(self, owner: str, members: int) -> None:
        self.interest.online(owner, members)
        with_lane = self.keeper.leaving and self.keeper.releasing
        if not members and owner not in self.interest.local.groups and not with_lane:
            # The last member has left, and not with its lane.
            self._node.hand_on(owner)

    def elsewhere(self, owner: str) -> bool:
        return self.interest.elsewhere(owner)

    def hand_on(self, owner: str, message: Message) -> bool:
        # If the home lane has left, its new owner hands on the messages.
        return not self.store.homeless and self.forwarding.hand_on(owner, message)

    def forward(self, message: Message, route: RemoteRoute) -> bool:
        return self.forwarding.forward(message, route)

    def packets(self, route: RemoteRoute) -> Sequence[RemotePackets] | None:
        return self.forwarding.packets(route)

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        self.store.seal()
        self.forwarding.seal()
        send = self.forwarding.after_commit()
        if send is not None:
            self.store.hold.request(partial(send, self.store.hold.release))
        self.forwarding.flush(commit, done)

    # --- joining and leaving ---------------------------------------------------------------------------------------

    async def join(self, address: str) -> None:
        """Join the cluster. `address` is that of this node's relay listener. Return once clients may connect.

        Raises StoreError if another process has this node's name, if the home lane is damaged, or if a tool has not
        finished filling the cluster.
        """
        runtime = self._runtime
        self.me = self.membership.me = self._messages.me = self.me._replace(address=address)
        self._messages.open(self._receive)
        self._engine.on_connection(self._connection_changed)
        await self._messages.refuse_namesake(self.name)
        await refuse_unfinished(self._engine, runtime, self._names)
        self.lanes.watch()
        # Without the owners of all lanes, messages could be acknowledged that durable sessions do not get.
        for ask in (self.lanes.read, self.membership.watch):
            while isinstance(seen := await answer(runtime, ask), Unavailable):
                runtime.log("warning", "cluster.engine_silent", reason=seen.reason)
                await pause(runtime, 1.0)
        await self.keeper.open_home()
        # Again: a tool that looked for live nodes before may not have seen this one.
        await refuse_unfinished(self._engine, runtime, self._names)
        await self._read_retained()
        self._messages.send_all(Hello(address, True))
        await self._know_subscriptions()
        await self.keeper.settle_queues()
        self.keeper.join()
        self.ready = True
        runtime.call_later(self.lease / _LOOKS, self._look)
        runtime.log(
            "info", "cluster.joined", node=self.me.node, members=len(self.membership.others) + 1
        )

    async def _know_subscriptions(self) -> None:
        """Wait until the subscriptions of all nodes and lanes are known: without them, a message could be acknowledged
        that a durable session does not get. Adopt the lanes of dead nodes, because this may be the only node."""
        waited = 0
        while not self.interest.synced:
            nodes = self.interest.remote.unknown_nodes()
            lanes = self.interest.remote.unknown_lanes()
            if not nodes and all(map(self.keeper.is_unusable, lanes)):
                return
            if waited % _PATIENCE == _PATIENCE - 1:
                self._runtime.log("warning", "cluster.join_awaited", nodes=nodes, lanes=lanes)
            if waited % _SELDOM == 0:
                self.keeper.look()
            await pause(self._runtime, _GLANCE)
            waited += 1

    async def secret(self) -> str:
        """Return the secret that all nodes of the cluster share. The first node creates it."""
        return await shared_secret(self._runtime, self._engine, self._names)

    async def _read_retained(self) -> None:
        read = self._runtime.promise()
        self._retained_read = partial(read.set_result, None)
        self.retained.start()
        await read

    async def leave(self) -> None:
        """Give all lanes to other nodes, and leave the cluster. If all nodes stop, the lanes have no owner, and each node
        takes its own at its next start."""
        self.ready = False
        self.keeper.leaving = True
        self._messages.stop()
        if self.membership.others:
            # Nodes that stop at the same time hear of each other.
            await pause(self._runtime, _GLANCE)
        # Without its home lane, the node cannot commit records of the others.
        for lane in sorted(self.keeper.open, key=lambda lane: (lane == self.home, lane)):
            await self._give_away(lane)
        self._messages.close()
        self.lanes.close()
        for lane in list(self.keeper.open):
            self.inbox.close_lane(lane)
        self.retained.close()
        self.store.come_home()
        await ended(self._runtime, self.membership.stop)

    async def _give_away(self, lane: str) -> None:
        reason = await self._give(lane, self._next_owner(), moved=False)
        if reason:
            self._runtime.log("warning", "cluster.lane_kept", lane=lane, reason=reason)

    def _next_owner(self) -> Member | None:
        """Return the node that should take a lane, or None: the one with the fewest lanes."""
        return min(
            self.staying(),
            key=lambda member: (len(self.lanes.of(member.node)), member.node),
            default=None,
        )

    def staying(self) -> list[Member]:
        """Return the other nodes that take lanes and new clients."""
        others = self.membership.others.values()
        return [member for member in others if not self.is_stopping(member)]

    async def give_lane(self, lane: str, to: Member | None, moved: bool = False) -> str:
        """Give an own lane to another node, or to none. Return the reason why this was not possible, or an empty string.
        A lane whose change the log has not confirmed in time may still move.
        """
        # Clients can still use the lane while another node does not answer.
        await answer(self._runtime, partial(self.forwarding.flush_all, _SENDING))
        return await self._give(lane, to, moved)

    async def _give(self, lane: str, to: Member | None, moved: bool) -> str:
        given = self._runtime.promise()

        def done(reason: str) -> None:
            if not given.done():
                given.set_result(reason)

        too_late = self._runtime.call_later(_GIVING, partial(done, "the log does not answer"))
        self.keeper.give(lane, to, done, moved)
        reason: str = await given
        too_late.cancel()
        return reason

    def is_stopping(self, member: Member) -> bool:
        """Return whether a live node takes no lanes, because it stops or is drained."""
        return self._messages.is_stopping(member)

    def _connection_changed(self, connected: bool) -> None:
        if connected:
            self.links.reconnected()

    def _look(self) -> None:
        if self._messages.is_open:  # until the node leaves
            self.keeper.look()
            self.drain.look()
            self._messages.look(self.membership.others)
            self._runtime.call_later(self.lease / _LOOKS, self._look)

    # --- called for other nodes --------------------------------------------------------------------------------

    def _receive(self, node: str, boot: str, message: WireMessage) -> None:
        self.membership.heard_from(node, boot)
        if isinstance(message, Open | Reopen | Packet | Ack):
            self.links.receive(node, boot, message)
        elif isinstance(message, Kick):
            self._kicked(node, message)
        elif isinstance(message, Hello):
            self.membership.look()
            if message.answer:
                self._messages.send(node, Hello(self.me.address, False))
                self._warn(node)
        elif isinstance(message, HandOver):
            self._asked_for_lane(node, boot, message)

    def _kicked(self, node: str, kick: Kick) -> None:
        client_id = kick.client_id
        # The log decides which node has a durable session.
        if self._order.is_older(client_id, kick.stamp, node) and not self.store.has_durable(
            client_id
        ):
            reason = "another connection took over"
            self._node.disconnect(client_id, ReasonCode.SESSION_TAKEN_OVER, reason)

    def _asked_for_lane(self, node: str, boot: str, message: HandOver) -> None:
        """Give a node its home lane back. It asks again until it owns the lane, so it needs no answer."""
        if message.lane == node:
            owner = self.membership.others.get(node, Member(node, boot, ""))._replace(boot=boot)
            self.drain.return_lane(node, owner)

    def _joined(self, member: Member) -> None:
        self._runtime.log("info", "cluster.member_joined", node=member.node, address=member.address)
        self.forwarding.node_joined(member.node, member.frames)
        self.interest.member_joined(member.node, member.boot)
        self._warn(member.node)
        self._update_owners(member.node)

    def _left(self, member: Member) -> None:
        self._messages.forget(member)
        self._runtime.log("warning", "cluster.member_left", node=member.node)
        self.interest.member_left(member.node)
        self.forwarding.node_gone(member.node)
        self._end_relays_to(member.node)
        self._update_owners(member.node)
        self.keeper.look()

    def _update_owners(self, node: str) -> None:
        for lane in self.lanes.of(node):
            self._owner_changed(lane, self.lanes.owners[lane])

    def _owner_changed(self, lane: str, owner: Owner) -> None:
        if owner.node == self.me.node and owner.boot == self.me.boot:
            self.interest.lane_owner(lane, owner.node)
            if lane in self.keeper.open and not self.lanes.keeps(lane, owner):
                # This process did not notice that it had lost the lane. Its sessions have changed elsewhere.
                self._lost(lane, "another process has owned the lane meanwhile")
            if lane in self.lanes.fences:
                return
            if self.drain.state in ("draining", "drained"):
                self.drain.received(lane, owner.sequence)
            else:
                self.keeper.given(lane, owner.sequence)
            return
        if self.drain.state and (lane, owner.node) == (self.home, self.me.node):
            self._expelled("another process has taken its name")
            return
        if lane in self.keeper.open:
            self._lost(lane, f"node {owner.node!r} owns the lane now")
        live = self.membership.others.get(owner.node)
        alive = live is not None and live.boot == owner.boot
        self.interest.lane_owner(lane, owner.node if alive else None)
        if alive:
            self.forwarding.owner_known(owner.node, owner.sequence)

    def _lost(self, lane: str, reason: str) -> None:
        self.keeper.lost(lane, reason)
        self._expelled(reason)

    def _expelled(self, reason: str) -> None:
        """Stop the broker: another process has a lane, so the records of that lane cannot be committed."""
        self.ready = False
        self.store.fail(reason)
        self._node.fail(f"node {self.me.node!r} was expelled from cluster {self.name!r}: {reason}")

    # --- what this node asks the others ----------------------------------------------------------------------------

    def _owner(self, lane: str) -> Member | None:
        return self.keeper.live_owner(lane)

    def _kick(self, client_id: str) -> None:
        stamp = self._order.stamp(client_id)
        if self.membership.others:
            self._messages.send_all(Kick(client_id, stamp))

    def _lapsed(self) -> None:
        self.interest.lapsed()
        if self.drain.state in ("draining", "drained"):
            self._messages.stop()

    def _announce_drain(self, takes_lanes: bool) -> None:
        if takes_lanes:
            self._messages.resume(self.membership.others)
        else:
            self._messages.stop()

    def _warn(self, node: str) -> None:
        """Tell a node that this one takes no lanes, if that is so."""
        if self.drain.state in ("draining", "drained"):
            self._messages.send(node, Leaving())

    def _ask_for_lane(self, node: str, lane: str) -> None:
        self._messages.send(node, HandOver(lane))


def _nothing() -> None:
    """Do nothing."""
