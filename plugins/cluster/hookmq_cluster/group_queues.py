"""Merges the queues of shared subscriptions in adopted lanes into the queues that this node has already."""

from collections.abc import Container
from functools import partial
from typing import Final

from hookmq.cluster_api import Node
from hookmq.plugin import Runtime
from hookmq.storage_api import Dequeue, Record

from hookmq_cluster.inbox import nobody
from hookmq_cluster.store import ClusterStore

_PAGE: Final = 256
"""Messages that move in one turn."""
_PAGE_BYTES: Final = 1 << 20


class GroupQueues:
    """The queues of shared subscriptions in adopted lanes that this node has already. `members` has the owners of the
    queues of all shared subscriptions with a member here.

    The core has one queue for each shared subscription, in one lane. The messages of the queue in the other lane are
    delivered to it. The same commit removes them from that lane.
    """

    def __init__(
        self, runtime: Runtime, node: Node, store: ClusterStore, members: Container[str]
    ) -> None:
        self._runtime = runtime
        self._node = node
        self._store = store
        self._members = members
        self._merging: set[str] = set()

    def separate(self, lane: str) -> list[str]:
        """Return the owners of the queues in an adopted lane that must be merged. The others are served from that lane.
        Call this when the core is about to adopt the sessions of the lane."""
        return self._store.placement.add_groups(lane, self._members)

    def merge(self, lane: str, owners: list[str]) -> None:
        """Move the messages of these queues, page by page. Does not block. A queue without members here stays."""
        self._merging.add(lane)
        for owner in owners:
            self._page(lane, owner, 0)

    def stop(self, lane: str) -> None:
        """Leave the other messages in the lane, because this node gives it away or has lost it."""
        self._merging.discard(lane)

    def _page(self, lane: str, owner: str, after: int) -> None:
        state = self._store.lanes().get(lane)
        if state is None or lane not in self._merging or owner not in self._members:
            return
        page = state.read(owner, after, _PAGE, _PAGE_BYTES)
        moved: list[Record] = []
        for entry, message in page:
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
        if not page:
            return
        self._store.append(lane, moved)
        self._node.touch()
        self._node.after_commit(partial(self._page, lane, owner, page[-1][0].seq))
