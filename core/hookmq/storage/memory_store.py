"""An in-memory store. Its contents are lost when the process ends."""

from collections.abc import Callable, Iterator, Sequence

from hookmq.model.message import Message
from hookmq.storage.protocols import Committed
from hookmq.storage.records import (
    CommitId,
    Dequeue,
    DropSession,
    Enqueue,
    Loaded,
    PutMessage,
    Queued,
    Record,
    SetPacket,
    session_owner,
)


class _Entry:
    __slots__ = ("message", "uses")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.uses = 0


class MemoryStore:
    """The store for ``durability: memory``. It commits at once and keeps offline sessions' queues in memory."""

    durable = False

    def __init__(self, identity: str = "memory") -> None:
        self.identity = identity
        self._number = 0
        self._messages: dict[int, _Entry] = {}
        self._queues: dict[str, dict[int, Enqueue]] = {}
        self._left: list[int] = []
        """Messages that had queue entries removed in the current batch."""
        self._next_id = 1

    def load(self) -> Iterator[Loaded]:
        """Return nothing: the store starts empty."""
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
                if not ordered:  # returned to its shared subscription, before the entries there
                    self._queues[record.owner] = dict(sorted(queue.items()))
                self._messages[record.message_ref].uses += 1
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
            # Only now: within a batch, a message may lose its last entry and gain another.
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
            # The dict is in the order of sequence numbers.
            if seq <= after:
                continue
            if page and (len(page) >= max_count or size + entry.size > max_size):
                break
            page.append((entry, self._messages[entry.message_ref].message))
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
        kept = self._messages[entry.message_ref]
        kept.uses -= 1
        if kept.uses == 0:
            self._left.append(entry.message_ref)

    def _drop_queue(self, owner: str) -> None:
        for seq in list(self._queues.get(owner, ())):
            self._dequeue(owner, seq)
