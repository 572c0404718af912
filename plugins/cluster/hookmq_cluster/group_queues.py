"""Keeps the queues of shared subscriptions in one place, while lanes come and go."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from hookmq.cluster_api import Node
from hookmq.plugin import Runtime
from hookmq.storage_api import Dequeue, Queued, QueueSummary

from hookmq_cluster.forwarding import Forwarding
from hookmq_cluster.inbox import nobody
from hookmq_cluster.interest import Interest
from hookmq_cluster.lane_state import LaneState
from hookmq_cluster.store import ClusterStore
from hookmq_cluster.waiting import answer

_PAGE: Final = 256
"""Messages that move in one turn."""
_PAGE_BYTES: Final = 1 << 20
_FIRST: Final = -(1 << 62)
"""A number below that of any queue entry."""


class GroupQueues:
    """The queues of shared subscriptions in this node's lanes that the core does not have, or has already.

    The core has one queue for each shared subscription with a member here, in one lane. The messages of its queues in
    other lanes are delivered to it. A queue without a member here goes to a node that has one. The same commit removes
    the messages from their lane.
    """

    def __init__(
        self,
        runtime: Runtime,
        node: Node,
        store: ClusterStore,
        interest: Interest,
        forwarding: Forwarding,
    ) -> None:
        self._runtime = runtime
        self._node = node
        self._store = store
        self._members = interest.local.groups
        """The shared subscriptions with a member here, by the owner of their queue."""
        self._forwarding = forwarding
        self._merging: set[str] = set()
        self._left: set[tuple[str, str]] = set()
        """Lanes, and queues in them, for which no node has a member."""
        self._orphans: dict[str, QueueSummary] = {}
        """Queues in the home lane that the core does not have, because they had no member when it was opened."""

    # lanes -----------------------------------------------------------------------------------------------------------

    def opened_home(self, state: LaneState) -> None:
        """Note the queues without members in the home lane. Their numbers must not be used again."""
        self._orphans = {owner: state.summary(owner) for owner in state.orphans()}

    def separate(self, lane: str, state: LaneState) -> list[str]:
        """Return the owners of the queues in an adopted lane that must be moved. The others are served from that lane.
        Call this when the core is about to adopt the sessions of the lane."""
        moved = {owner for owner in state.groups if owner in self._members}
        return self._store.placement.add_groups(lane, moved.union(state.orphans()))

    def summaries(self) -> Iterator[QueueSummary]:
        """Yield the queues in the home lane that the core loads if the lane that it adopts has a member."""
        yield from self._orphans.values()

    def merge(self, lane: str, owners: list[str]) -> None:
        """Move the messages of these queues, page by page. Does not block. Call this when the core has adopted the
        sessions of the lane."""
        self._orphans = {
            owner: one for owner, one in self._orphans.items() if owner not in self._members
        }
        self._merging.add(lane)
        for owner in owners:
            self._page(lane, owner, _FIRST)

    def look(self) -> None:
        """Try again to move the queues for which no node had a member."""
        left, self._left = self._left, set()
        for lane, owner in left:
            self._page(lane, owner, _FIRST)

    def stop(self, lane: str) -> None:
        """Leave the other messages in the lane, because this node gives it away or has lost it."""
        self._merging.discard(lane)

    # messages --------------------------------------------------------------------------------------------------------

    def _page(self, lane: str, owner: str, after: int) -> None:
        state = self._store.lanes().get(lane)
        if state is None or lane not in self._merging:
            return
        page = state.read(owner, after, _PAGE, _PAGE_BYTES)
        if not page:
            return
        moved = self._move(lane, owner, page)
        if moved is None:
            self._left.add((lane, owner))
            return
        # A member may have left in the middle of the page.
        last = page[-1][0].seq if owner in self._members else moved[-1].seq
        self._store.append(lane, moved)
        self._node.touch()
        self._node.after_commit(partial(self._page, lane, owner, last))

    def _move(self, lane: str, owner: str, page: Sequence[Queued]) -> list[Dequeue] | None:
        """Move messages to the queue of the core, or to another node. Return the records that remove them from their
        lane, or None if no node has a member."""
        moved: list[Dequeue] = []
        for entry, message in page:
            if owner not in self._members:
                if not self._forwarding.hand_on(owner, message):
                    return moved or None
                moved.append(Dequeue(owner, entry.seq))
                continue
            try:
                self._node.deliver(message, nobody, (owner,))
            except Exception as error:
                self._runtime.log(
                    "error",
                    "cluster.delivery_failed",
                    place=f"queue {owner} of lane {lane}",
                    topic=message.topic,
                    traceback=error,
                )
            else:
                moved.append(Dequeue(owner, entry.seq))
        return moved

    async def settle(self, home: str, complete: bool) -> None:
        """Move the queues in the home lane that the core does not have to nodes with members, before a client can
        subscribe here. If the subscriptions of all nodes are known, which `complete` says, drop those without members."""
        state = self._store.lanes()[home]
        while self._orphans:
            owner = self._orphans.popitem()[0]
            while page := state.read(owner, _FIRST, _PAGE, _PAGE_BYTES):
                moved = self._move(home, owner, page)
                if moved is None and not complete:
                    break
                if moved is None:
                    moved = [Dequeue(owner, entry.seq) for entry in state.entries(owner)]
                    self._runtime.log(
                        "warning", "cluster.queue_dropped", owner=owner, messages=len(moved)
                    )
                self._store.append(home, moved)
                self._node.touch()
                await answer(self._runtime, self._after_commit)

    def _after_commit(self, done: object) -> None:
        assert callable(done)
        self._node.after_commit(partial(done, None))
