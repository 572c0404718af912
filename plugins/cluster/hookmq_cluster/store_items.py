"""The contents of any store, as items that another store can take over. See `hookmq.storage_api`."""

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from hookmq.plugin import ClientRecord, Message, Runtime, StoreError
from hookmq.storage_api import (
    Enqueue,
    Loaded,
    Paged,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    Queued,
    QueueSummary,
    StoreFailed,
)

from hookmq_cluster.waiting import answer

PAGE: Final = 1000
"""Queue entries in one page."""
PAGE_SIZE: Final = 4 << 20
"""Bytes in one page."""
FIRST: Final = -(1 << 63)
"""Below all sequences of queue entries."""

Read = Callable[[str, int, int, int, Paged], None]
"""Reads a page of a queue; see `hookmq.storage_api.Store.read`."""


class RetainedItem(NamedTuple):
    """A retained message, and the client that published it, or None."""

    message: Message
    publisher: ClientRecord | None


class QueueItem(NamedTuple):
    """A queue entry and its message."""

    entry: Enqueue
    message: Message


Item = PutSession | PutSubscription | PutReceived | PutState | RetainedItem | QueueItem


class ItemCounts:
    """The number of items of each kind."""

    def __init__(self) -> None:
        self.sessions = 0
        self.subscriptions = 0
        self.received = 0
        self.wills = 0
        self.queue_entries = 0
        self.in_flight = 0
        self.shared_entries = 0
        self.retained = 0
        self.plugin_state = 0

    def add(self, item: Item) -> None:
        """Count an item."""
        if isinstance(item, PutSession):
            self.sessions += 1
            self.wills += item.session.will is not None
        elif isinstance(item, PutSubscription):
            self.subscriptions += 1
        elif isinstance(item, PutReceived):
            self.received += 1
        elif isinstance(item, PutState):
            self.plugin_state += 1
        elif isinstance(item, RetainedItem):
            self.retained += 1
        else:
            entry = item.entry
            self.queue_entries += 1
            self.in_flight += bool(entry.packet_id)
            self.shared_entries += entry.owner.startswith("g/")

    @property
    def total(self) -> int:
        """The number of all items."""
        return (
            self.sessions + self.subscriptions + self.received + self.queue_entries + self.retained
            + self.plugin_state
        )  # fmt: skip

    def fields(self) -> dict[str, int]:
        """Return all counts by name."""
        return dict(vars(self))


async def items_of(runtime: Runtime, loaded: Iterable[Loaded], read: Read) -> AsyncIterator[Item]:
    """Yield everything in a store. `loaded` is what `hookmq.storage_api.Store.load` returns.

    A session precedes its subscriptions and its queue. The entries of a queue that are in flight precede the others,
    which are in order. Raises StoreError if the store cannot be read.
    """
    publishers: dict[int, ClientRecord] = {}
    messages: dict[int, Message] = {}
    queues: list[QueueSummary] = []
    entries: list[Enqueue] = []
    for record in loaded:
        if isinstance(record, PutPublisher):
            publishers[record.id] = record.client
        elif isinstance(record, PutRetained):
            publisher = None
            if record.publisher:
                publisher = publishers.get(record.publisher)
                if publisher is None:
                    raise StoreError(
                        f"the publisher of the retained message {record.message.topic!r} is missing"
                    )
            yield RetainedItem(record.message, publisher)
        elif isinstance(record, PutMessage):
            messages[record.id] = record.message
        elif isinstance(record, Enqueue):
            entries.append(record)
        elif isinstance(record, QueueSummary):
            queues.append(record)
        elif isinstance(record, PutSession | PutSubscription | PutReceived | PutState):
            yield record
    for entry in entries:
        yield QueueItem(entry, messages[entry.message_ref])
    for queue in queues:
        after = FIRST if queue.entries else queue.last_seq
        while after < queue.last_seq:
            ask = partial(read, queue.owner, after, PAGE, PAGE_SIZE)
            page: list[Queued] | StoreFailed = await answer(runtime, ask)
            if isinstance(page, StoreFailed):
                raise StoreError(page.reason)
            if not page:
                break
            after = page[-1][0].seq
            for entry, message in page:
                if not entry.packet_id:
                    yield QueueItem(entry, message)
