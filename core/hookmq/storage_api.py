"""Public: the protocols for plugins that provide a store or a journal, and the records that they receive.

Everything in ``__all__`` stays compatible within a major version of `HOOK_API`, like `hookmq.plugin`. `Message`,
`Will`, `Subscription` and `StoreError` are in `hookmq.plugin`.
"""

from hookmq.model.client import ClientRecord
from hookmq.model.message import make_message
from hookmq.storage.columns import MessageColumns, Room, collect
from hookmq.storage.memory_store import MemoryStore
from hookmq.storage.protocols import (
    Bounded,
    BoundedJournal,
    Columnar,
    Committed,
    Diverting,
    ExpiredEntries,
    ExpiringStore,
    Journal,
    Paged,
    Readable,
    Sealing,
    Store,
    StoreFailed,
    Volatile,
)
from hookmq.storage.records import (
    MAX_STATE_KEY,
    CommitId,
    Dequeue,
    DropPublisher,
    DropReceived,
    DropRetained,
    DropSession,
    DropState,
    DropSubscription,
    Enqueue,
    Loaded,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    Queued,
    QueueSummary,
    Record,
    SessionRecord,
    SetPacket,
    group_owner,
    session_owner,
    state_space,
    timer_space,
)

__all__ = [
    "MAX_STATE_KEY", "Bounded", "BoundedJournal", "ClientRecord", "Columnar", "CommitId", "Committed", "Dequeue",
    "Diverting", "DropPublisher", "DropReceived", "DropRetained", "DropSession", "DropState", "DropSubscription",
    "Enqueue", "ExpiredEntries", "ExpiringStore", "Journal", "Loaded", "MemoryStore", "MessageColumns", "Paged",
    "PutMessage", "PutPublisher", "PutReceived", "PutRetained", "PutSession", "PutState", "PutSubscription",
    "QueueSummary", "Queued", "Readable", "Record", "Room", "Sealing", "SessionRecord", "SetPacket", "Store",
    "StoreFailed", "Volatile", "collect", "group_owner", "make_message", "session_owner", "state_space", "timer_space",
]  # fmt: skip
