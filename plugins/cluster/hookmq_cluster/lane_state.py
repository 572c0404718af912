"""The state of one lane, as the frames in its log make it."""

from collections.abc import Iterator, KeysView
from math import inf
from typing import Final, TypeVar

from hookmq.storage_api import (
    Dequeue,
    DropPublisher,
    DropReceived,
    DropSession,
    DropState,
    DropSubscription,
    Enqueue,
    Loaded,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutSession,
    PutState,
    PutSubscription,
    Queued,
    QueueSummary,
    Record,
    SetPacket,
    group_owner,
    session_owner,
)

from hookmq_cluster.compaction import (
    MOST,
    Kept,
    LogAge,
    weight_of,
    weight_of_entry,
    weight_of_message,
)
from hookmq_cluster.frames import OwnerFrame

K = TypeVar("K")
L = TypeVar("L")
ID_BITS: Final = 32
"""The bits of an id of a message that a process counts. Each process draws the bits above at random."""
_NOWHERE: Final = -(1 << 63)


class _Message(Kept):
    """A message, and the number of queue entries that refer to it. The record is None until its frame is read."""

    __slots__ = ("uses",)

    def __init__(self) -> None:
        super().__init__()
        self.uses = 0


class _Queue:
    """The entries of one queue, by sequence number."""

    __slots__ = ("entries", "last", "ordered")

    def __init__(self) -> None:
        self.entries: dict[int, Kept] = {}
        self.last = _NOWHERE
        """The highest key that was ever added."""
        self.ordered = True

    def in_order(self) -> dict[int, Kept]:
        if not self.ordered:
            self.entries = dict(sorted(self.entries.items()))
            self.ordered = True
        return self.entries


class LaneState:
    """Sessions, subscriptions, queues, messages, packet ids, publishers and the state of plugins of one lane.

    Apply all frames in the log, call `complete`, then apply new frames. The beginning of a log may have been deleted.
    A frame may delete an unknown object, which is ignored. A queue entry may precede its message, which was written
    again later.
    """

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.inbox = 0
        """The sequence up to which frames of other nodes are delivered."""
        self.newest = 0
        """The sequence of the newest frame of the owner, or 0. The log must not be deleted from here on, because this
        frame has the current `inbox`."""
        self._age = LogAge()
        self._sessions: dict[str, Kept] = {}
        self._subscriptions: dict[str, dict[str, Kept]] = {}
        self._received: dict[str, dict[int, Kept]] = {}
        self._messages: dict[int, _Message] = {}
        self._queues: dict[str, _Queue] = {}
        self._publishers: dict[int, Kept] = {}
        self._plugin_state: dict[tuple[str, str], Kept] = {}
        self._left: list[int] = []
        """Messages that may have no queue entry at the end of the current frame."""
        self._replaying = True
        self._expiring = 0
        """The number of messages that expire."""
        self._soonest = inf
        """No message that the last search found expires before this time."""
        self._noted = inf
        """No message that was noted since that search began expires before this time."""
        self._searches = 0

    # sizes and age -------------------------------------------------------------------------------------------------

    @property
    def live_bytes(self) -> int:
        """About how many bytes the lane's objects have in the log, and in memory."""
        return self._age.live_bytes

    @property
    def log_bytes(self) -> int:
        """The size of the lane's log in bytes, as far as this owner knows."""
        return self._age.log_bytes

    @property
    def oldest(self) -> int:
        """The sequence of the oldest frame with a live object, or 0 if the lane is empty."""
        return self._age.oldest

    @property
    def trim_point(self) -> int:
        """The log may be deleted below this sequence."""
        return min(self._age.oldest or self.newest, self.newest, self.inbox + 1)

    def trimmed(self, before: int) -> None:
        """The log was deleted below the sequence `before`."""
        self._age.trimmed(before)

    def delivered(self, sequence: int, size: int) -> None:
        """Account for `size` bytes of other nodes' frames up to `sequence`."""
        self._age.grow(sequence, size)

    def take_oldest(self, count: int, size: int = MOST) -> list[Record]:
        """Return the full current records of the oldest live objects: at most `count`, of about `size` bytes. Applying a
        frame with them makes them the newest. They must precede other records of that frame."""
        return self._age.take(count, size)

    def due(self, size: int) -> list[Record]:
        """Return the records to write again together with a commit of `size` bytes."""
        return self._age.due(size, self.inbox)

    # contents ------------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> KeysView[str]:
        """The client ids of all sessions."""
        return self._sessions.keys()

    def is_volatile(self, client_id: str) -> bool:
        """Return whether the lane has a session, because of its will, that ends with its connection."""
        found = self._sessions.get(client_id)
        if found is None:
            return False
        session: PutSession = found.record
        return not session.session.expiry

    @property
    def groups(self) -> list[str]:
        """The owners of queues of shared subscriptions."""
        return [owner for owner in self._queues if owner.startswith("g/")]

    @property
    def messages(self) -> int:
        """The number of messages."""
        return len(self._messages)

    def id_ranges(self) -> set[int]:
        """Return the upper parts of all message ids: see `ID_BITS`."""
        return {id >> ID_BITS for id in self._messages}

    def message(self, id: int) -> PutMessage | None:
        """Return the message with an id, or None if it is not in this lane."""
        kept = self._messages.get(id)
        return None if kept is None else kept.record

    def has_queue(self, owner: str) -> bool:
        """Return whether a queue has entries."""
        return owner in self._queues

    def loaded(self, sessions_only: bool = False) -> Iterator[Loaded]:
        """Yield everything in the order that `hookmq.storage_api.Store.load` defines. With `sessions_only`, leave out the
        state of plugins and the publishers: those of another node must not replace the own ones.
        """
        for kept in () if sessions_only else self._plugin_state.values():
            yield kept.record
        for kept in self._sessions.values():
            yield kept.record
        for client_id, subscriptions in self._subscriptions.items():
            if client_id in self._sessions:
                for kept in subscriptions.values():
                    yield kept.record
        for client_id, received in self._received.items():
            if client_id in self._sessions:
                for kept in received.values():
                    yield kept.record
        for kept in () if sessions_only else self._publishers.values():
            yield kept.record
        for owner, queue in self._queues.items():
            for kept in queue.in_order().values():
                entry: Enqueue = kept.record
                if entry.packet_id:
                    yield self._messages[entry.message_ref].record
                    yield entry
            yield self.summary(owner)

    def summary(self, owner: str) -> QueueSummary:
        """Return the summary of a queue, which must have entries."""
        entries = self.entries(owner)
        sizes = [entry.size for entry in entries if not entry.packet_id]
        return QueueSummary(owner, len(sizes), sum(sizes), entries[-1].seq)

    def orphans(self) -> list[str]:
        """Return the owners of queues of shared subscriptions without a member in this lane."""
        groups = self.groups
        if not groups:
            return []
        members = {
            group_owner(one.share, one.topic_filter)
            for subscriptions in self._subscriptions.values()
            for one in (kept.record.subscription for kept in subscriptions.values())
            if one.share is not None
        }
        return [owner for owner in groups if owner not in members]

    def entries(self, owner: str) -> list[Enqueue]:
        """Return all entries of a queue, in order."""
        queue = self._queues.get(owner)
        return [] if queue is None else [kept.record for kept in queue.in_order().values()]

    def queue(self, owner: str) -> list[Queued]:
        """Return a whole queue."""
        queue = self._queues[owner].in_order().values()
        return [
            (one.record, self._messages[one.record.message_ref].record.message) for one in queue
        ]

    def read(self, owner: str, after: int, max_count: int, max_size: int) -> list[Queued]:
        """Return a page of a queue. See `hookmq.storage_api.Store.read`."""
        page: list[Queued] = []
        queue = self._queues.get(owner)
        if queue is None:
            return page
        size = 0
        for seq, kept in queue.in_order().items():
            if seq <= after:
                continue
            entry: Enqueue = kept.record
            size += entry.size
            if page and (len(page) >= max_count or size > max_size):
                break
            page.append((entry, self._messages[entry.message_ref].record.message))
        return page

    def expired(self, now: float) -> Iterator[Enqueue | None]:
        """Yield the unsent entries whose messages have expired by `now`, and None for each other entry that was examined.
        The state may change between two steps."""
        if not self._expiring or now < min(self._soonest, self._noted):
            return
        self._soonest = -inf  # search again if this search is not finished
        self._noted = inf
        self._searches += 1
        search = self._searches
        found = inf
        for owner in list(self._queues):
            queue = self._queues.get(owner)
            for kept in [] if queue is None else list(queue.in_order().values()):
                entry: Enqueue | None = kept.record
                expires_at = None if entry is None else self._expires_at(entry)
                if entry is None or expires_at is None or entry.packet_id:
                    yield None
                    continue
                found = min(found, expires_at)
                yield None if expires_at > now else entry
        if search == self._searches:
            self._soonest = found

    def _expires_at(self, entry: Enqueue) -> float | None:
        expires_at: float | None = self._messages[entry.message_ref].record.message.expires_at
        return expires_at

    # frames --------------------------------------------------------------------------------------------------------

    def apply(self, sequence: int, frame: OwnerFrame, size: int) -> None:
        """Apply a frame of the lane's owner, of `size` bytes. `sequence` is that of its first part."""
        self._age.begin(sequence, size)
        self.newest = sequence
        self.inbox = frame.inbox
        for record in frame.records:
            # The most frequent records come first.
            if type(record) is Enqueue:
                self._enqueue(record)
            elif type(record) is PutMessage:
                self._put_message(record)
            elif type(record) is Dequeue:
                self._dequeue(record.owner, record.seq)
            elif type(record) is SetPacket:
                self._set_packet(record)
            else:
                self._apply(record)
        # Not earlier: within a frame, a message may lose its last entry and gain another. During the replay, an entry
        # that was written again may follow much later.
        if self._left and not self._replaying:
            self._delete_unused()

    def complete(self) -> str:
        """End the replay of the log. Return a description of the first missing message, or ''."""
        self._replaying = False
        self._left = [id for id, message in self._messages.items() if not message.uses]
        self._delete_unused()
        if all(message.record is not None for message in self._messages.values()):
            return ""
        for owner, queue in self._queues.items():
            for seq, kept in queue.entries.items():
                id = kept.record.message_ref
                if self._messages[id].record is None:
                    return f"message {id} of queue {owner!r}, entry {seq}, is missing"
        return "a message is missing"

    def _delete_unused(self) -> None:
        for id in self._left:
            message = self._messages.get(id)
            if message is not None and not message.uses:
                del self._messages[id]
                self._forget_expiry(message)
                self._age.drop(message)
        self._left.clear()

    def _apply(self, record: Record) -> None:
        if isinstance(record, PutReceived):
            received = self._received.setdefault(record.client_id, {})
            self._put(received, record.packet_id, record)
        elif isinstance(record, DropReceived):
            self._drop_inner(self._received, record.client_id, record.packet_id)
        elif isinstance(record, PutSession):
            self._put(self._sessions, record.session.client_id, record)
        elif isinstance(record, PutSubscription):
            subscriptions = self._subscriptions.setdefault(record.client_id, {})
            self._put(subscriptions, record.subscription.filter, record)
        elif isinstance(record, DropSubscription):
            self._drop_inner(self._subscriptions, record.client_id, record.filter)
        elif isinstance(record, DropSession):
            self._drop_session(record.client_id)
        elif isinstance(record, PutState):
            self._put(self._plugin_state, (record.space, record.key), record)
        elif isinstance(record, DropState):
            self._drop(self._plugin_state, (record.space, record.key))
        elif isinstance(record, PutPublisher):
            self._put(self._publishers, record.id, record)
        elif isinstance(record, DropPublisher):
            self._drop(self._publishers, record.id)
        # Retained messages have subjects of their own.

    def _put(self, objects: dict[K, Kept], key: K, record: Record) -> None:
        kept = objects.get(key)
        if kept is None:
            kept = objects[key] = Kept()
        self._age.put(kept, record, weight_of(record))

    def _drop(self, objects: dict[K, Kept], key: K) -> None:
        kept = objects.pop(key, None)
        if kept is not None:
            self._age.drop(kept)

    def _drop_inner(self, objects: dict[K, dict[L, Kept]], key: K, inner: L) -> None:
        found = objects.get(key)
        if found is not None:
            self._drop(found, inner)
            if not found:
                del objects[key]

    def _drop_session(self, client_id: str) -> None:
        self._drop(self._sessions, client_id)
        for kept in self._subscriptions.pop(client_id, {}).values():
            self._age.drop(kept)
        for kept in self._received.pop(client_id, {}).values():
            self._age.drop(kept)
        owner = session_owner(client_id)
        queue = self._queues.get(owner)
        for seq in [] if queue is None else list(queue.entries):
            self._dequeue(owner, seq)

    # queues ----------------------------------------------------------------------------------------------------------

    def _enqueue(self, record: Enqueue) -> None:
        queue = self._queues.get(record.owner)
        if queue is None:
            queue = self._queues[record.owner] = _Queue()
        seq = record.seq
        kept = queue.entries.get(seq)
        message = self._messages.get(record.message_ref)
        if message is None:
            # Its frame comes later, because it was written again.
            message = self._new_message(record.message_ref)
        if kept is None:
            kept = queue.entries[seq] = Kept()
            if seq < queue.last:
                queue.ordered = False
            else:
                queue.last = seq
            message.uses += 1
        elif kept.record.message_ref != record.message_ref:
            self._release(kept.record.message_ref)
            message.uses += 1
        if self._expiring and message.record is not None:
            self._note_expiry(message.record.message.expires_at)
        self._age.put(kept, record, weight_of_entry(record))

    def _dequeue(self, owner: str, seq: int) -> None:
        queue = self._queues.get(owner)
        kept = None if queue is None else queue.entries.pop(seq, None)
        if kept is None or queue is None:
            return
        if not queue.entries:
            del self._queues[owner]
        self._release(kept.record.message_ref)
        self._age.drop(kept)

    def _release(self, id: int) -> None:
        message = self._messages[id]
        message.uses -= 1
        if not message.uses and not self._replaying:
            self._left.append(id)

    def _set_packet(self, record: SetPacket) -> None:
        queue = self._queues.get(record.owner)
        kept = None if queue is None else queue.entries.get(record.seq)
        if kept is not None:
            # The frame of the entry and this frame are both still in the log, so the entry becomes no younger.
            kept.record = kept.record._replace(packet_id=record.packet_id, released=record.released)

    def _put_message(self, record: PutMessage) -> None:
        message = self._messages.get(record.id)
        if message is None:
            message = self._new_message(record.id)
        else:
            self._forget_expiry(message)
        if not message.uses and not self._replaying:
            self._left.append(record.id)
        if record.message.expires_at is not None:
            self._expiring += 1
            self._note_expiry(record.message.expires_at)
        self._age.put(message, record, weight_of_message(record.message))

    def _new_message(self, id: int) -> _Message:
        message = self._messages[id] = _Message()
        return message

    def _note_expiry(self, expires_at: float | None) -> None:
        if expires_at is not None and expires_at < self._noted:
            self._noted = expires_at

    def _forget_expiry(self, message: _Message) -> None:
        if message.record is not None and message.record.message.expires_at is not None:
            self._expiring -= 1
