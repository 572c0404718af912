"""Opens the lanes of this node, adopts those of dead nodes, gives lanes away, and drops those that it has lost."""

from collections.abc import Callable
from functools import partial
from itertools import chain
from math import inf
from typing import Final

from hookmq.cluster_api import Node
from hookmq.plugin import ReasonCode, Runtime, StoreError
from hookmq.storage_api import StoreFailed

from hookmq_cluster.engine import Engine, Refused, Stored, Unavailable
from hookmq_cluster.forwarding import Forwarding
from hookmq_cluster.group_queues import GroupQueues
from hookmq_cluster.inbox import Inbox
from hookmq_cluster.interest import Interest
from hookmq_cluster.lane_backlog import LaneBacklog
from hookmq_cluster.lane_state import LaneState
from hookmq_cluster.lanes import Lanes, OtherOwner, Owner
from hookmq_cluster.membership import Member, Membership
from hookmq_cluster.names import Names
from hookmq_cluster.store import ClusterStore
from hookmq_cluster.waiting import answer, pause

_RETRY: Final = 1.0
"""Seconds between two attempts to get the home lane."""
_GLANCE: Final = 0.05
"""Seconds between two looks at the owner of an awaited lane."""
_CATCH_UP: Final = 20.0
"""Seconds to wait for an inbox. Order is lost if it takes longer, but a lane cannot wait for ever."""
_TRY_AGAIN: Final = 60.0
"""Seconds between two attempts to load a lane."""
_BATCH: Final = 500
"""Sessions that are released in one turn."""
_HOME_FIRST: Final = 2.0
"""Seconds for which a lane without an owner is left to the node whose home lane it is."""
_SENDING: Final = 1.0
"""Seconds to wait until the other nodes have all messages of publishers whose sessions move."""
_SPREAD: Final = 0.5
"""The longest random pause before an adoption, in seconds, so that the survivors share the lanes of a dead node."""


def code_for(moved: bool) -> ReasonCode:
    """Return the reason code for clients that should use another server: for now, or from now on."""
    return ReasonCode.SERVER_MOVED if moved else ReasonCode.USE_ANOTHER_SERVER


class LaneKeeper:
    """Keeps the lanes of this node. `me` is this node, and `home` its home lane. ``ask(node, lane)`` asks another node
    for a lane.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        names: Names,
        me: Member,
        home: str,
        node: Node,
        lanes: Lanes,
        store: ClusterStore,
        inbox: Inbox,
        interest: Interest,
        forwarding: Forwarding,
        membership: Membership,
        ask: Callable[[str, str], None],
    ) -> None:
        self._runtime = runtime
        self._engine = engine
        self._names = names
        self._me = me
        self.home = home
        self._node = node
        self._lanes = lanes
        self._store = store
        self._inbox = inbox
        self._interest = interest
        self._forwarding = forwarding
        self._membership = membership
        self._ask = ask
        self._groups = GroupQueues(runtime, node, store, interest, forwarding)
        self._taking: set[str] = set()
        """Lanes that this node tries to adopt."""
        self._giving: set[str] = set()
        self._released: set[str] = set()
        """Lanes that are being given away, and whose sessions this broker has already forgotten."""
        self._failed: dict[str, float] = {}
        """When lanes of this node could not be loaded."""
        self._wills: dict[tuple[str, str], Callable[[], None]] = {}
        """Functions that publish the wills of former sessions, by lane and client id. They wait until the node has
        joined."""
        self.open: set[str] = set()
        """Lanes whose sessions are in this broker."""
        self.adopted = 0
        """How many lanes of other nodes this node has adopted."""
        self.lost_lanes = 0
        """How many lanes other processes have taken from this node."""
        self.joined = False
        """Whether this node knows the subscriptions of all nodes."""
        self.leaving = False
        """Whether this node gives its lanes away and adopts no others."""
        self.releasing = False
        """Whether this broker forgets the sessions of a lane now."""

    def has(self, lane: str) -> bool:
        """Return whether the sessions of `lane` are in this broker."""
        return lane in self.open and lane not in self._released

    def live_owner(self, lane: str) -> Member | None:
        """Return the live node that owns `lane` and has opened it, as far as this node knows, or None."""
        owner = self._lanes.owners.get(lane)
        if owner is None or lane in self._released:
            return None
        if owner.node == self._me.node:
            return self._me if lane in self.open and owner.boot == self._me.boot else None
        member = self._membership.others.get(owner.node)
        return member if member is not None and member.boot == owner.boot else None

    @property
    def taking(self) -> set[str]:
        """The lanes that this node is adopting or loading."""
        return set(self._taking)

    def is_giving(self, lane: str) -> bool:
        """Return whether this node is giving a lane away, or does not know yet whether it has."""
        return lane in self._giving

    def is_own(self, owner: Owner) -> bool:
        """Return whether `owner` is this process."""
        return (owner.node, owner.boot) == (self._me.node, self._me.boot)

    async def open_home(self, patience: float = inf) -> None:
        """Become the owner of the home lane, and load its sessions. If another node has adopted the lane, ask for it.

        Raises StoreError if the lane is damaged, or if another node still has it after `patience` seconds.
        """
        lane = self.home
        if not self._store.homeless:
            await self._store.away.read(self._runtime)
        until = self._runtime.now() + patience
        while True:
            won = await answer(self._runtime, partial(self._lanes.take_own, lane))
            if isinstance(won, int):
                # With a lease, nobody adopts the lane while it is loaded, which may take long.
                await answer(self._runtime, self._membership.renew)
                await self._open(lane, won)
                return
            if isinstance(won, Refused):
                raise StoreError(won.reason)
            if isinstance(won, OtherOwner):
                if not self._membership.is_live(won.node):
                    await self._take_from_dead(lane)
                    continue
                self._ask(won.node, lane)
            reason = won.reason
            self._runtime.log("info", "cluster.lane_awaited", lane=lane, reason=reason)
            if self._runtime.now() >= until:
                raise StoreError(f"lane {lane!r} was not returned within {patience:g} s: {reason}")
            await self._until_given(lane)

    async def _until_given(self, lane: str) -> None:
        """Wait a moment for this node to become the owner of `lane`."""
        waited = 0.0
        while waited < _RETRY:
            await pause(self._runtime, _GLANCE)
            waited += _GLANCE
            owner = self._lanes.owners.get(lane)
            if owner is not None and owner.node == self._me.node:
                return

    async def _take_from_dead(self, lane: str) -> None:
        """Become the owner of a lane whose owner is dead, if nobody else does."""
        if self._membership.trusts_leases:
            await answer(
                self._runtime, partial(self._lanes.take, lane, self._lanes.owners.get(lane))
            )
        else:
            await pause(self._runtime, _RETRY)

    async def _open(self, lane: str, fence: int) -> None:
        """Load a lane that this node owns.

        Until then, this node's own messages to the lane travel through the log. Afterwards, they are delivered directly.
        These must not overtake those, so the lane is added while a commit is held. Everything that was committed is read
        and delivered first, then the messages that no commit has taken.
        """
        found = await answer(self._runtime, partial(self._store.open_lane, lane, fence))
        if isinstance(found, StoreFailed):
            raise StoreError(f"lane {lane!r}: {found.reason}")
        if reason := self._obstacle(lane, found):
            self._store.close_lane(lane)
            raise StoreError(reason)
        subject = self._names.lane(lane)
        backlog = LaneBacklog(self._runtime, self._engine, subject, found.inbox)
        known: set[str] = set()
        while self._holds(lane, fence):
            for own in sorted(self.open - known):
                await self._catch_up(own, lane, fence)
                known.add(own)
            # Most of the log is read before, because the commit must not wait long.
            if await backlog.read() and await self._load(lane, fence, found, backlog, known):
                return
            await pause(self._runtime, _GLANCE)
        self._store.close_lane(lane)
        raise StoreError(f"lane {lane!r} was lost while it was loaded")

    async def _load(
        self, lane: str, fence: int, state: LaneState, backlog: LaneBacklog, known: set[str]
    ) -> bool:
        """Hold a commit, and add a lane. Return False if that is not possible now, or if `known` misses an open lane."""
        held = bool(self.open)  # without its home lane, the node commits nothing
        if held:
            await answer(self._runtime, self._hold_commit)
        try:
            read = not held or await backlog.read()
            # The store still has messages that were handed on since the last commit. They must not be loaded again.
            current = not (held and self._forwarding.handing_on)
            ready = read and current and self._holds(lane, fence) and self.open <= known
            if ready:
                self._add(lane, fence, state, backlog)
            return ready
        finally:
            if held:
                self._store.hold.release()

    def _hold_commit(self, ready: Callable[[None], None]) -> None:
        self._store.hold.request(partial(ready, None))
        self._node.touch()

    def _obstacle(self, lane: str, found: LaneState) -> str:
        """Return why a home lane that comes back cannot be loaded, or an empty string."""
        if lane != self.home or not self._store.homeless:
            return ""
        both = sorted(owner for owner in found.groups if owner in self._interest.local.groups)
        if not both:
            return ""
        # The broker has queued messages for them meanwhile, under the same numbers.
        return f"plugins of this node have the shared subscriptions {both} of lane {lane!r}: restart the node"

    def _holds(self, lane: str, fence: int) -> bool:
        return self._lanes.fences.get(lane) == fence

    async def _catch_up(self, own: str, lane: str, fence: int) -> None:
        """Wait until the inbox of lane `own` has delivered everything before `fence`, the fence of the new `lane`.

        Publishers of the new lane may have sent messages to `own` through the log. What they send from now on is
        delivered directly, and must not overtake those.
        """

        def last(done: Callable[[Stored | None | Unavailable], None]) -> None:
            self._engine.last(self._names.lane(own), done, exact=True)

        stored = await answer(self._runtime, last)
        while isinstance(stored, Unavailable) and self._holds(lane, fence):
            await pause(self._runtime, _RETRY)
            stored = await answer(self._runtime, last)
        newest = stored.sequence if isinstance(stored, Stored) else 0
        waited = 0.0
        while own in self.open and self._inbox.position(own) < min(newest, fence):
            if waited >= _CATCH_UP:
                self._runtime.log("warning", "cluster.inbox_slow", lane=own)
                return
            await pause(self._runtime, _GLANCE)
            waited += _GLANCE

    def _add(self, lane: str, fence: int, state: LaneState, backlog: LaneBacklog) -> None:
        if backlog.too_large:
            self._runtime.log("warning", "cluster.lane_behind", lane=lane)
        self.open.add(lane)
        separate = self._groups.separate(lane, state)
        returning = lane == self.home and self._store.homeless
        sessions_only = returning or lane != self.home
        loaded = state.loaded(sessions_only=sessions_only)
        if not sessions_only:
            loaded = self._store.away.merged(loaded)
        if lane == self.home:
            self._groups.opened_home(state)
        else:
            loaded = chain(loaded, self._groups.summaries())
        others = self._store.placement.add_volatile(lane, state)
        count, wills = self._node.adopt(loaded, self.joined, others)
        self._interest.lane_adopted(lane, fence)
        self._groups.merge(lane, separate)
        self._inbox.open_lane(lane, fence, state.inbox, backlog.frames, backlog.last)
        self._inbox.deliver(lane, self._forwarding.take_back(lane))
        self._wills.update(((lane, client_id), publish) for client_id, publish in wills.items())
        if lane == self.home:
            self._store.come_home()
            self._node.touch()
        if self.joined:
            self._publish_wills()
        self._runtime.log("info", "cluster.lane_opened", lane=lane, sessions=count)

    def join(self) -> None:
        """This node knows the subscriptions of all nodes. Publish the wills that waited for that. Call this in the turn
        in which clients may connect, because their new sessions may use the same lanes."""
        self.joined = True
        self._publish_wills()

    def _publish_wills(self) -> None:
        """End the former sessions of clients that have another one here. The next owner of a lane does so otherwise."""
        wills, self._wills = self._wills, {}
        for (lane, client_id), publish in wills.items():
            if self.has(lane):
                self._store.placement.drop(client_id, lane)
                publish()
                self._node.touch()

    def given(self, lane: str, fence: int) -> None:
        """Open a lane that its owner has given to this node."""
        if self.leaving or self.home not in self.open:
            return
        if lane in self.open or lane in self._taking or lane in self._giving:
            return
        self._taking.add(lane)
        self._lanes.fences[lane] = fence
        self._runtime.spawn(self._open(lane, fence), partial(self._opened, lane))

    def _opened(self, lane: str, _: object, error: BaseException | None) -> None:
        self._taking.discard(lane)
        if error is None:
            self._failed.pop(lane, None)
            self.adopted += 1
            return
        self._failed[lane] = self._runtime.now()
        if not self.leaving:  # otherwise another node adopts it
            self._runtime.log("error", "cluster.lane_unusable", lane=lane, error=str(error))

    def look(self) -> None:
        """Adopt the lanes whose owners are dead, and try those again that could not be loaded. Call this whenever a node
        has left, and now and then."""
        if self.leaving or self.home not in self.open:
            return
        self._groups.look()
        now = self._runtime.now()
        for lane, owner in list(self._lanes.owners.items()):
            if lane in self._taking or lane in self._giving or lane in self.open:
                continue
            if self.is_own(owner):
                if now - self._failed.get(lane, -_TRY_AGAIN) >= _TRY_AGAIN:
                    self.given(lane, owner.sequence)
                continue
            if self._lives(lane, owner):
                continue
            self._taking.add(lane)
            pause = self._runtime.random() * _SPREAD
            self._runtime.call_later(pause, partial(self._adopt, lane))

    async def settle_queues(self) -> None:
        """See `GroupQueues.settle`. Call this when the home lane was opened, before clients may connect."""
        await self._groups.settle(self.home, self._interest.synced)

    def is_unusable(self, lane: str) -> bool:
        """Return whether this node owns a lane that it could not load."""
        owner = self._lanes.owners.get(lane)
        return lane in self._failed and owner is not None and owner.boot == self._me.boot

    def _lives(self, lane: str, owner: Owner) -> bool:
        """Return whether the owner of a lane is alive, or may be about to join."""
        if owner.node == self._me.node:
            return owner.boot == self._me.boot  # an earlier process of this node is dead
        if not owner.node:
            return self._lanes.owned_for(lane) < _HOME_FIRST
        if (
            not self._membership.trusts_leases
            or self._lanes.owned_for(lane) < self._membership.lease
        ):
            return True
        member = self._membership.others.get(owner.node)
        return member is not None and member.boot == owner.boot

    def _adopt(self, lane: str) -> None:
        owner = self._lanes.owners[lane]
        if self.leaving or self._lives(lane, owner):
            self._taking.discard(lane)
            return

        def taken(won: int | Refused | Unavailable) -> None:
            if isinstance(won, int):
                self._runtime.log(
                    "warning", "cluster.lane_adopted", lane=lane, from_node=owner.node
                )
                self._runtime.spawn(self._open(lane, won), partial(self._opened, lane))
            else:
                self._taking.discard(lane)

        self._lanes.take(lane, owner, taken)

    def give(
        self, lane: str, to: Member | None, done: Callable[[str], None], moved: bool = False
    ) -> None:
        """Give an own lane to another node: stop its inbox, disconnect its clients, commit, and change the owner. If `to`
        is None, the lane has no owner after that, and any node may take it. If `moved`, the clients are asked to use
        the other node from now on.

        `done` is called with the reason why this was not possible, or with an empty string.
        """
        if lane not in self.open or lane in self._giving:
            done(f"node {self._me.node!r} does not have lane {lane!r}")
            return
        self._giving.add(lane)
        self._interest.lane_leaving(lane, partial(self._prepared, lane, to, done, moved))

    def _prepared(
        self, lane: str, to: Member | None, done: Callable[[str], None], moved: bool
    ) -> None:
        if lane not in self.open:
            self._giving.discard(lane)
            done("the lane was lost")
            return
        self._inbox.close_lane(lane)
        self._groups.stop(lane)
        placement = self._store.placement
        clients, queues = placement.clients(lane), placement.queues(lane)
        self._interest.lane_left(lane)
        # A client that comes back now must not get a new session, which would replace the one in the log.
        self._released.add(lane)
        reference = "" if to is None else to.clients
        self._release(clients, code_for(moved), "the session moves to another node", reference)
        placement.keep_groups(owner for owner in self._interest.local.groups if owner in queues)
        self._node.forget_queues(queues)  # except those with members
        self._node.touch()
        self._node.after_commit(partial(self._committed, lane, to, done))

    def _committed(self, lane: str, to: Member | None, done: Callable[[str], None]) -> None:
        self.open.discard(lane)
        if lane == self.home:
            self._store.close_lane(lane)
            self._store.homeless = True
        # What the publishers send through the next owner must not overtake what they have sent through this node.
        self._forwarding.flush_all(_SENDING, partial(self._sent, lane, to, done))

    def _sent(
        self, lane: str, to: Member | None, done: Callable[[str], None], complete: bool
    ) -> None:
        def given(won: int | Refused | Unavailable) -> None:
            self._giving.discard(lane)
            self._released.discard(lane)
            self._store.close_lane(lane)
            if isinstance(won, int):
                if to is None:
                    self._runtime.log("info", "cluster.lane_freed", lane=lane)
                else:
                    self._runtime.log("info", "cluster.lane_given", lane=lane, to=to.node)
                owner = self._lanes.owners[lane]
                if self.is_own(owner):  # it has come back before the answer
                    self.given(lane, owner.sequence)
                done("")
            else:
                # Its owner is unknown. If it is still this process, a survivor or its next start takes the lane.
                self._lanes.fences.pop(lane, None)
                self._runtime.log("error", "cluster.lane_not_given", lane=lane, reason=won.reason)
                done(won.reason)

        if not complete:
            self._runtime.log("warning", "cluster.messages_unsent", lane=lane)
        self._lanes.give(lane, to, given)

    def lost(self, lane: str, reason: str) -> None:
        """Drop a lane that another process owns now."""
        if lane not in self.open:
            return
        self.open.discard(lane)
        self.lost_lanes += 1
        self._runtime.log("error", "cluster.lane_lost", lane=lane, reason=reason)
        self._inbox.close_lane(lane)
        self._groups.stop(lane)
        clients = self._store.placement.clients(lane)
        self._interest.lane_left(lane)
        self._release(clients, ReasonCode.SERVER_BUSY, "another node has the session")
        self._store.close_lane(lane)

    def _release(
        self, clients: list[str], code: ReasonCode, reason: str, reference: str = ""
    ) -> None:
        self.releasing = True
        try:
            for start in range(0, len(clients), _BATCH):
                self._node.release(clients[start : start + _BATCH], code, reason, reference)
        finally:
            self.releasing = False
