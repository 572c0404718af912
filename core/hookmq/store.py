"""Durable state behind one commit point: the protocols `Store` and `Journal`, the records they keep, and the store that
forgets when the process ends.

Nothing leaves the broker that relies on state not yet committed: every effect of one loop turn is one batch, the batch is
atomic, and only then are the packets that rely on it sent. The in-memory store commits at once, so it costs nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hookmq.types import ClientRecord, Message, Subscription, Will


class CommitId(NamedTuple):
    """Names one commit: the identity of the store that made it and its number there, counting up from 1."""

    store: str
    number: int


class StoreFailed(NamedTuple):
    """A commit that did not happen, or of which nobody knows: nothing that relied on it may be acknowledged."""

    reason: str


def session_owner(client_id: str) -> str:
    """The queue owner of a client's own messages."""
    return "c/" + client_id


def group_owner(share: str, topic_filter: str) -> str:
    """The queue owner of a shared subscription's messages. A share name holds no slash, so no two collide."""
    return f"g/{share}/{topic_filter}"


# --- records: what a batch is made of -------------------------------------------------------------------------------


class SessionRecord(NamedTuple):
    """A session without its subscriptions and messages. `ended_at` is the epoch second at which its connection ended,
    None while it is online; `expiry` counts from there. Everything that happens in the name of `client` after a restart,
    its will included, is authorized as that client."""

    client: ClientRecord
    expiry: float
    limits: Mapping[str, int] = {}
    ended_at: float | None = None
    will: Will | None = None
    will_at: float | None = None
    """Epoch second at which the will is due; None while the connection is up."""
    revoked: tuple[str, ...] = ()
    """Filters of subscriptions that were taken away while messages for them were queued: these are not to be sent."""

    @property
    def client_id(self) -> str:
        """The client id, by which the record is found."""
        return self.client.client_id


class PutSession(NamedTuple):
    """Create or replace a session's record."""

    session: SessionRecord


class DropSession(NamedTuple):
    """End a session: its record, subscriptions, queue and received packet ids go."""

    client_id: str


class PutSubscription(NamedTuple):
    """Create or replace one subscription, by its filter text."""

    client_id: str
    subscription: Subscription


class DropSubscription(NamedTuple):
    """Remove one subscription."""

    client_id: str
    filter: str


class PutMessage(NamedTuple):
    """Keep a message for the queue entries that point to `id`, until a batch is done after which none does. Stands in a
    batch before the first `Enqueue` that names it; within the batch entries may go before others come."""

    id: int
    message: Message


class Enqueue(NamedTuple):
    """One queue entry: `message_id` for `owner`, at place `seq` (rising within the owner). `packet_id` is 0 until it
    was sent; `released` is True once PUBREC came and only PUBREL may be sent [MQTT-4.3.3-6]."""

    owner: str
    seq: int
    message_id: int
    qos: int
    size: int
    retain: bool = False
    identifiers: tuple[int, ...] = ()
    filter: str = ""
    packet_id: int = 0
    released: bool = False
    group: str = ""
    """The share group it was taken from and returns to; '' for none."""


class SetPacket(NamedTuple):
    """A queue entry was sent as `packet_id`, or its PUBREC came."""

    owner: str
    seq: int
    packet_id: int
    released: bool


class Dequeue(NamedTuple):
    """A queue entry is done with: acknowledged, dropped, expired or moved."""

    owner: str
    seq: int


class PutReceived(NamedTuple):
    """An inbound QoS 2 packet id was taken; in one batch with its message [MQTT-4.3.3-10]."""

    client_id: str
    packet_id: int


class DropReceived(NamedTuple):
    """PUBREL came: the id is free."""

    client_id: str
    packet_id: int


class PutPublisher(NamedTuple):
    """Keep the client that published retained messages, which point to `id`. Stands in a batch before the first of
    them."""

    id: int
    client: ClientRecord


class DropPublisher(NamedTuple):
    """Forget a publisher: no retained message points to it any more."""

    id: int


class PutRetained(NamedTuple):
    """Replace a topic's retained message. `publisher` is the id of its `PutPublisher`; 0 if no client published it."""

    message: Message
    publisher: int = 0


class DropRetained(NamedTuple):
    """Clear a topic's retained message."""

    topic: str


class QueueSummary(NamedTuple):
    """What `load` tells of a queue instead of its entries: those not yet sent stay in the store until they are read."""

    owner: str
    entries: int
    size: int
    last_seq: int


Record = (
    PutSession
    | DropSession
    | PutSubscription
    | DropSubscription
    | PutMessage
    | Enqueue
    | SetPacket
    | Dequeue
    | PutReceived
    | DropReceived
    | PutPublisher
    | DropPublisher
    | PutRetained
    | DropRetained
)
Loaded = Record | QueueSummary
Queued = tuple[Enqueue, Message]
Paged = Callable[[list[Queued] | StoreFailed], None]
Committed = Callable[[CommitId | StoreFailed], None]


class Store(Protocol):
    """Where sessions, queues and retained messages live. All calls and callbacks are on the loop's thread."""

    durable: bool
    """Whether commits outlive the process."""

    identity: str
    """Unique to this data; another folder, or a restored copy, has another."""

    def load(self) -> Iterable[Loaded]:
        """Everything kept, once, before the first commit: sessions before their subscriptions, publishers before their
        retained messages, messages that were sent
        and not yet acknowledged as `PutMessage` and `Enqueue`, the rest of each queue as a `QueueSummary`.

        Raises `StoreError` when the data cannot be trusted.
        """

    def last_commit(self) -> CommitId:
        """The newest commit that is safe; number 0 when there was none."""

    def next_message_id(self) -> int:
        """An id above every one in use."""

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        """Make `records` durable, all or none, after everything committed before, and tell `done` once: before
        returning or later. The core never starts a second commit while one runs. An empty batch is a commit too: it
        gives the journals a number."""

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Paged,
    ) -> None:
        """The entries of `owner` with a `seq` above `after`, in order: at most `max_count`, and of at most `max_size`
        payload bytes unless the first alone is larger. Sees every commit that is done. `done` is told why where they
        cannot be read: an empty page would say that the queue is empty. That ends the broker, as a failed commit does."""

    def close(self, done: Callable[[], None]) -> None:
        """Let go of everything, after the last commit."""


class Expired(NamedTuple):
    """Queue entries that were not sent yet and whose message has expired: (owner, seq, size, message id). `place` says
    where to go on looking, None that this is the end."""

    entries: Sequence[tuple[str, int, int, int]]
    place: object


@runtime_checkable
class ExpiringStore(Protocol):
    """A `Store` that finds expired messages without reading queues."""

    def expired(
        self,
        now: float,
        place: object,
        max_count: int,
        done: Callable[[Expired | StoreFailed], None],
    ) -> None:
        """At most `max_count` entries whose message expired by `now` (epoch seconds), from `place` on; None for the
        beginning. Sees every commit that is done. They stay until they are dequeued."""


class Journal(Protocol):
    """Something that must have a message safe before its publisher is acknowledged: a log, an outbox."""

    name: str

    def wants(self, topic: str) -> bool:
        """Whether messages of `topic` belong here. Compiled into the route: asked once per topic, not per message; call
        ``broker.invalidate_routes()`` when the answer changes."""

    def append(self, commit: CommitId, message: Message) -> None:
        """Buffer `message` as part of `commit`; must not block."""

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Make safe what was appended up to `commit`, then tell `done`: None, or why not."""

    def recover(self, last: CommitId) -> None:
        """At start: drop what lies above `last` if it names the store this journal knows; keep everything and start a new
        epoch if it names another."""


@runtime_checkable
class Bounded(Protocol):
    """What a `Journal` has besides, if it may have no room: then a message that it wants is not acknowledged."""

    name: str

    @property
    def full(self) -> bool:
        """Whether to refuse what it would have to take now. MQTT 5.0 clients are told 0x97 Quota exceeded. One of 3.x is
        acknowledged when there is room: until then this is asked ten times a second. Subscribers get the message at once,
        but not at QoS 2. QoS 0 and wills are not kept for the journal. Asked for every message: be quick."""


class BoundedJournal(Journal, Bounded, Protocol):
    """A `Journal` that may have no room."""


@runtime_checkable
class Readable(Protocol):
    """What a `Journal` has besides, if others read from it: they never see what the store did not commit, so it must be
    told when that has happened."""

    def committed(self, commit: CommitId) -> None:
        """The store made `commit`, for which this journal was flushed: readers may see it."""


class _Entry:
    __slots__ = ("message", "uses")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.uses = 0


class MemoryStore:
    """The store that forgets: what `durability: memory` means. Commits at once; it keeps queues of offline sessions."""

    durable = False

    def __init__(self, identity: str = "memory") -> None:
        self.identity = identity
        self._number = 0
        self._messages: dict[int, _Entry] = {}
        self._queues: dict[str, dict[int, Enqueue]] = {}
        self._left: list[int] = []
        """Messages that were left by their entries in the batch at work."""
        self._next_id = 1

    def load(self) -> Iterator[Loaded]:
        """Nothing: this store was born empty."""
        return iter(())

    def last_commit(self) -> CommitId:
        return CommitId(self.identity, self._number)

    def next_message_id(self) -> int:
        return self._next_id

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        for record in records:
            if type(record) is Enqueue:
                queue = self._queues.get(record.owner)
                if queue is None:
                    queue = self._queues[record.owner] = {}
                ordered = not queue or record.seq > next(reversed(queue))
                queue[record.seq] = record
                if not ordered:  # returned to its group, before what waits there
                    self._queues[record.owner] = dict(sorted(queue.items()))
                self._messages[record.message_id].uses += 1
            elif type(record) is Dequeue:
                self._dequeue(record.owner, record.seq)
            elif type(record) is PutMessage:
                self._messages[record.id] = _Entry(record.message)
            elif type(record) is SetPacket:
                queue = self._queues.get(record.owner)
                if queue is not None and record.seq in queue:
                    queue[record.seq] = queue[record.seq]._replace(
                        packet_id=record.packet_id, released=record.released
                    )
            elif type(record) is DropSession:
                self._drop_queue(session_owner(record.client_id))
        if self._left:
            # Not before: one entry of a message may come and go in the batch that brings the next.
            for id in self._left:
                kept = self._messages.get(id)
                if kept is not None and kept.uses == 0:
                    del self._messages[id]
            self._left.clear()
        self._number += 1
        done(CommitId(self.identity, self._number))

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Callable[[list[Queued]], None],
    ) -> None:
        page: list[Queued] = []
        size = 0
        for seq, entry in self._queues.get(owner, {}).items():
            # Sequence numbers rise in a queue, and a dict keeps the order in which they came.
            if seq <= after:
                continue
            if page and (len(page) >= max_count or size + entry.size > max_size):
                break
            page.append((entry, self._messages[entry.message_id].message))
            size += entry.size
        done(page)

    def close(self, done: Callable[[], None]) -> None:
        done()

    def _dequeue(self, owner: str, seq: int) -> None:
        queue = self._queues.get(owner)
        entry = queue.pop(seq, None) if queue is not None else None
        if entry is None or queue is None:
            return
        if not queue:
            del self._queues[owner]
        kept = self._messages[entry.message_id]
        kept.uses -= 1
        if kept.uses == 0:
            self._left.append(entry.message_id)

    def _drop_queue(self, owner: str) -> None:
        for seq in list(self._queues.get(owner, ())):
            self._dequeue(owner, seq)
