"""Turns the items of another store into the entries of a cluster's log."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from hookmq.plugin import Runtime
from hookmq.storage_api import (
    PutMessage,
    PutReceived,
    PutSession,
    PutState,
    PutSubscription,
    Record,
    group_owner,
)

from hookmq_cluster.claims import encode_session
from hookmq_cluster.compaction import weight_of
from hookmq_cluster.engine import Engine, Entry
from hookmq_cluster.frames import Origin, OwnerFrame, encode_owner
from hookmq_cluster.log_writer import LogWriter
from hookmq_cluster.names import Names
from hookmq_cluster.retained import RetainedEntry, log_entry
from hookmq_cluster.store_items import Item, RetainedItem

FRAME: Final = 256 << 10
"""Bytes of records from which a frame is complete."""


class LaneImport:
    """Spreads sessions over `lanes`, and writes everything with `writer`, whose lanes are empty.

    The queue of a shared subscription goes to the lane of one of its members. The state of plugins goes to the first
    lane.
    """

    def __init__(
        self,
        writer: LogWriter,
        engine: Engine,
        names: Names,
        runtime: Runtime,
        lanes: Sequence[str],
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self._lanes = lanes
        self._records: dict[str, list[Record]] = {lane: [] for lane in lanes}
        self._sizes = dict.fromkeys(lanes, 0)
        self._sent: dict[str, set[int]] = {lane: set() for lane in lanes}
        """The ids of the messages that are in the lane."""
        self._groups: dict[str, str] = {}
        """The lanes of queues of shared subscriptions."""
        self._frames = 0

    def lane_of(self, client_id: str) -> str:
        """Return the lane of a session."""
        digest = blake2b(client_id.encode(errors="surrogatepass"), digest_size=8).digest()
        return self._lanes[int.from_bytes(digest) % len(self._lanes)]

    async def put(self, item: Item) -> None:
        """Write an item. It may wait until `finish`."""
        if isinstance(item, RetainedItem):
            message, publisher = item
            entry = RetainedEntry("", self._writer.token, message.topic, message, publisher)
            await self._writer.add([log_entry(self._names, self._runtime.time(), entry)])
        elif isinstance(item, PutState):
            await self._add(self._lanes[0], item)
        elif isinstance(item, PutSession):
            client_id = item.session.client_id
            lane = self.lane_of(client_id)
            await self._add(lane, item)
            subject = self._names.session(client_id)
            await self._writer.add([Entry(subject, encode_session(client_id, lane), replace=True)])
        elif isinstance(item, PutSubscription):
            lane = self.lane_of(item.client_id)
            one = item.subscription
            if one.share is not None:
                self._groups.setdefault(group_owner(one.share, one.topic_filter), lane)
            await self._add(lane, item)
        elif isinstance(item, PutReceived):
            await self._add(self.lane_of(item.client_id), item)
        else:
            queued = item.entry
            owner = queued.owner
            if owner.startswith("c/"):
                lane = self.lane_of(owner[2:])
            else:
                lane = self._groups.get(owner, self._lanes[0])
            if queued.message_ref not in self._sent[lane]:
                self._sent[lane].add(queued.message_ref)
                await self._add(lane, PutMessage(queued.message_ref, item.message), queued)
            else:
                await self._add(lane, queued)

    async def _add(self, lane: str, *records: Record) -> None:
        """Add records to the same frame of a lane. A message without a queue entry would be deleted."""
        self._records[lane] += records
        self._sizes[lane] += sum(map(weight_of, records))
        if self._sizes[lane] >= FRAME:
            await self._flush(lane)

    async def _flush(self, lane: str) -> None:
        records, self._records[lane] = self._records[lane], []
        self._sizes[lane] = 0
        self._frames += 1
        # No other node has written to the lane, so everything before this frame counts as delivered.
        frame = OwnerFrame(
            Origin("", self._writer.token, self._frames), self._writer.last, tuple(records)
        )
        subject = self._names.lane(lane)
        await self._writer.add(
            [Entry(subject, data) for data in encode_owner(frame, self._engine.max_entry)]
        )

    async def finish(self) -> None:
        """Write the waiting entries. Each lane gets a frame, so that its inbox begins here."""
        for lane in self._lanes:
            await self._flush(lane)
        await self._writer.flush()
