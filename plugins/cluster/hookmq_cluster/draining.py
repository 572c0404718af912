"""Takes a running node out of service: its clients and lanes go to other nodes. Puts it back later.

    serving --start--> draining --nothing left--> drained --undo--> returning --home lane loaded--> serving

A drained node is still a member of the cluster. It has no lane, takes none, and refuses clients.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from math import ceil
from typing import Final, Literal

from hookmq.cluster_api import Node, Refused
from hookmq.plugin import ReasonCode, Runtime, StoreError

from hookmq_cluster.claims import MOVING
from hookmq_cluster.engine import Refused as NotAppended
from hookmq_cluster.engine import Unavailable
from hookmq_cluster.keeper import LaneKeeper, code_for
from hookmq_cluster.lanes import Lanes
from hookmq_cluster.membership import Member
from hookmq_cluster.names import Names
from hookmq_cluster.store import ClusterStore
from hookmq_cluster.waiting import pause

SLICE: Final = 0.1
"""Seconds between two slices of clients."""
TURN: Final = 50
"""The largest number of clients that are disconnected in one turn."""
PATIENCE: Final = 30.0
"""Seconds to wait for the home lane when the node is put back."""
_GLANCE: Final = 0.05
"""Seconds between two looks at whether lanes that are being loaded can be given away."""

DrainState = Literal["", "draining", "drained", "returning"]


class NodeDrain:
    """Drains this node.

    - `target` returns the node that should take a lane or the clients, or None if there is none.
    - ``give(lane, to, moved)`` gives an own lane away and returns the reason if that fails, or an empty string.
    - `announce` tells all nodes whether this one takes lanes.
    - ``end_relays(count)`` closes up to `count` connections that this node relays, and returns how many are left.
    """

    def __init__(
        self,
        runtime: Runtime,
        names: Names,
        node: Node,
        home: str,
        lanes: Lanes,
        store: ClusterStore,
        keeper: LaneKeeper,
        target: Callable[[], Member | None],
        give: Callable[[str, Member, bool], Awaitable[str]],
        announce: Callable[[bool], None],
        end_relays: Callable[[int], int],
    ) -> None:
        self.state: DrainState = ""
        self.problem = ""
        """Why the last attempt to drain the node or to put it back did not succeed."""
        self._runtime = runtime
        self._names = names
        self._node = node
        self._home = home
        self._lanes = lanes
        self._store = store
        self._keeper = keeper
        self._target = target
        self._give_lane = give
        self._announce = announce
        self._end_relays = end_relays
        self._running = False
        self._former: DrainState = ""
        """The state before the last request."""
        self._passing: set[str] = set()
        """Lanes that this node got by mistake, and passes on."""

    @property
    def running(self) -> bool:
        """Whether clients or lanes are moving now."""
        return self._running

    def refusal(self, client_id: str) -> Refused | None:
        """Return why a client must not connect here, or None."""
        lane = self._store.lane_of(client_id)
        if lane is not None:
            return None if self._keeper.has(lane) else MOVING
        if not self.state:
            return None
        return Refused(ReasonCode.USE_ANOTHER_SERVER, "the node is drained", self._reference())

    def refusal_of_new(self, client_id: str) -> Refused | None:
        """Return why a client without a session here must not connect here, or None."""
        return self.refusal(client_id) if self._store.lane_of(client_id) is None else None

    def fence(self) -> tuple[str, int]:
        """Return the entry of the log that must be unchanged while this node lives: the owner of its home lane. If the
        node has given that lane away, its next process takes it, and this one can no longer renew the lease."""
        fence = self._lanes.fences.get(self._home, 0)
        if self._store.homeless and (owner := self._lanes.owners.get(self._home)) is not None:
            fence = owner.sequence
        return self._names.own(self._home), fence

    def owns_home(self, done: Callable[[bool | None], None]) -> None:
        """Find out whether another process has the home lane. Pass None to `done` if that is not known, or on purpose."""
        if self._store.homeless:
            done(None)
        else:
            self._lanes.check(self._home, done)

    def start(self, seconds: float, moved: bool) -> None:
        """Drain the node, in the background. Clients without a durable session are disconnected over `seconds`. If
        `moved`, all clients are asked to use the other server from now on."""
        self._begin("draining")
        self._runtime.spawn(self._empty(seconds, moved), partial(self._ended, "drained"))

    def undo(self) -> None:
        """Put the node back into service, in the background."""
        self._begin("returning")
        self._runtime.spawn(self._return(), partial(self._ended, ""))

    def _begin(self, state: DrainState) -> None:
        self._former = self.state
        self.state, self.problem, self._running = state, "", True

    def _ended(self, state: DrainState, _: object, error: BaseException | None) -> None:
        self._running = False
        if error is None:
            self.state = state
            if state:
                self._runtime.log("info", "cluster.node_drained")
            else:
                self._runtime.log("info", "cluster.node_returned")
            return
        self.problem = str(error)
        if self.state == "returning":
            # A drain that had failed has not ended all relays.
            self._keeper.leaving = True
            self.state = self._former
        self._runtime.log("error", "cluster.drain_failed", state=self.state, error=self.problem)

    # --- drain -------------------------------------------------------------------------------------------------------

    async def _empty(self, seconds: float, moved: bool) -> None:
        keeper = self._keeper
        keeper.leaving = True
        self._announce(False)
        while others := keeper.open - {self._home} or keeper.taking:
            await self._give_all(sorted(others & keeper.open), moved)
            await pause(self._runtime, _GLANCE)
        await self._move_clients(seconds, moved)
        # Without those clients, no shared subscription has members here when its queue leaves with the home lane.
        await self._give_all([self._home] if self._home in keeper.open else [], moved)
        for lane, owner in list(self._lanes.owners.items()):
            while keeper.is_giving(lane):
                await pause(self._runtime, _GLANCE)
            if lane not in keeper.open and keeper.is_own(self._lanes.owners.get(lane, owner)):
                if (target := self._target()) is None:
                    raise StoreError(f"no other node can take lane {lane!r}")
                await self._pass_on(lane, self._lanes.owners[lane].sequence, target)
        while self._end_relays(TURN):
            await pause(self._runtime, SLICE)

    async def _give_all(self, lanes: Collection[str], moved: bool) -> None:
        for lane in lanes:
            target = self._target()
            if target is None:
                raise StoreError(f"no other node can take lane {lane!r}")
            reason = await self._give_lane(lane, target, moved)
            if reason:
                raise StoreError(f"lane {lane!r} was not given to node {target.node!r}: {reason}")

    async def _move_clients(self, seconds: float, moved: bool) -> None:
        """Disconnect the clients whose sessions do not move with a lane."""
        store, node = self._store, self._node
        waiting = [one for one in node.clients() if store.lane_of(one) is None]
        count = max(1, ceil(len(waiting) * SLICE / max(seconds, SLICE)))
        code = code_for(moved)
        step = min(count, TURN)
        for at in range(0, len(waiting), step):
            reference = self._reference()
            for client_id in waiting[at : at + step]:
                if store.lane_of(client_id) is None:
                    node.disconnect(client_id, code, "the node is drained", reference)
            await pause(self._runtime, SLICE * step / count)

    def _reference(self) -> str:
        target = self._target()
        return "" if target is None else target.clients

    def received(self, lane: str, fence: int) -> None:
        """Another node has given a lane to this one, because it did not know yet that it is drained. Pass it on."""
        if lane not in self._passing:
            self._passing.add(lane)
            self._announce(False)
            self._runtime.spawn(self._pass_on_later(lane, fence), partial(self._passed_on, lane))

    def look(self) -> None:
        """Pass on lanes that this drained node still owns: it did not notice them, or could not. Call this regularly."""
        if self._running or not self.state:
            return
        for lane, owner in list(self._lanes.owners.items()):
            if not self._keeper.is_own(owner) or self._keeper.is_giving(lane):
                continue
            if lane not in self._keeper.open:
                self.received(lane, owner.sequence)

    async def _pass_on_later(self, lane: str, fence: int) -> None:
        while (target := self._target()) is None:
            await pause(self._runtime, 1.0)
            owner = self._lanes.owners.get(lane)
            if not self.state or owner is None or owner.sequence != fence:
                return
        await self._pass_on(lane, fence, target)

    def return_lane(self, lane: str, to: Member) -> None:
        """Give a lane to the node that asks for it, also if this node has not opened it."""
        owner = self._lanes.owners.get(lane)
        if not self.state or self._keeper.has(lane):
            self._keeper.give(lane, to, lambda _: None)
            return
        if owner is not None and self._keeper.is_own(owner):
            self._runtime.spawn(
                self._pass_on(lane, owner.sequence, to), partial(self._passed, lane)
            )

    async def _pass_on(self, lane: str, fence: int, target: Member) -> None:
        self._lanes.fences[lane] = fence
        given = self._runtime.promise()

        def answered(won: int | NotAppended | Unavailable) -> None:
            given.set_result("" if isinstance(won, int) else won.reason)

        self._lanes.give(lane, target, answered)
        reason = await given
        if reason:
            self._lanes.fences.pop(lane, None)
            raise StoreError(f"lane {lane!r} was not given to node {target.node!r}: {reason}")

    def _passed_on(self, lane: str, _: object, error: BaseException | None) -> None:
        self._passing.discard(lane)
        self._passed(lane, None, error)

    def _passed(self, lane: str, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._runtime.log("error", "cluster.lane_not_given", lane=lane, reason=str(error))

    # --- undo --------------------------------------------------------------------------------------------------------

    async def _return(self) -> None:
        while self._keeper.is_giving(self._home):
            await pause(self._runtime, _GLANCE)
        self._keeper.leaving = False
        if self._home not in self._keeper.open:
            await self._keeper.open_home(PATIENCE)
            await self._keeper.settle_queues()
        self._announce(True)
