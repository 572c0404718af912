"""Writes items into a store through `hookmq.storage_api`."""

from functools import partial
from typing import Final

from hookmq.plugin import Runtime, StoreError
from hookmq.storage_api import PutMessage, PutPublisher, PutRetained, Record, Store, StoreFailed

from hookmq_cluster.compaction import weight_of
from hookmq_cluster.frames import encode_client, encode_value
from hookmq_cluster.store_items import Item, QueueItem, RetainedItem
from hookmq_cluster.waiting import answer

BATCH: Final = 10_000
"""Records in one commit."""
BATCH_SIZE: Final = 8 << 20
"""About how many bytes one commit has."""


class StoreExport:
    """Fills `store`, which is empty."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._records: list[Record] = []
        self._size = 0
        self._messages: set[int] = set()
        self._publishers: dict[bytes, int] = {}

    async def put(self, item: Item) -> None:
        """Write an item. It may wait until `finish`. Raises StoreError if the store fails."""
        if isinstance(item, RetainedItem):
            self._add_retained(item)
        elif not isinstance(item, QueueItem):
            self._add(item)
        else:
            entry, message = item
            if entry.message_ref not in self._messages:
                self._messages.add(entry.message_ref)
                self._add(PutMessage(entry.message_ref, message))
            self._add(entry)
        if len(self._records) >= BATCH or self._size >= BATCH_SIZE:
            await self.finish()

    def _add(self, record: Record) -> None:
        self._records.append(record)
        self._size += weight_of(record)

    def _add_retained(self, item: RetainedItem) -> None:
        id = 0
        if item.publisher is not None:
            key = encode_value(encode_client(item.publisher))
            known = self._publishers.get(key)
            if known is None:
                known = self._publishers[key] = len(self._publishers) + 1
                self._add(PutPublisher(known, item.publisher))
            id = known
        self._add(PutRetained(item.message, id))
        self._size += len(item.message.payload)

    async def finish(self) -> None:
        """Commit the waiting records."""
        records, self._records = self._records, []
        self._size = 0
        if records:
            result = await answer(self._runtime, partial(self._store.commit, records))
            if isinstance(result, StoreFailed):
                raise StoreError(result.reason)
