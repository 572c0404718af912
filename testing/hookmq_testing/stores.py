"""Stores and journals for tests: a durable store, a store with delayed commits, and a recording journal."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from hookmq.model.message import Message
from hookmq.storage.memory_store import MemoryStore
from hookmq.storage.protocols import Committed, Paged, Store, StoreFailed
from hookmq.storage.records import (
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
    SetPacket,
    session_owner,
)


class DurableStore:
    """A store whose data survives `Harness.restart`, but not the process itself. It is the simplest store that meets
    `StoreContract`.

    `messages`, `sessions`, `subscriptions`, `received`, `retained`, `queues` and `plugin_state` hold the committed state.
    """

    durable = True

    def __init__(self, identity: str = "durable") -> None:
        self.identity = identity
        self.number = 0
        self.next_id = 1
        self.messages: dict[int, Message] = {}
        self.sessions: dict[str, PutSession] = {}
        self.subscriptions: dict[tuple[str, str], PutSubscription] = {}
        self.received: set[PutReceived] = set()
        self.retained: dict[str, PutRetained] = {}
        self.publishers: dict[int, PutPublisher] = {}
        self.queues: dict[str, dict[int, Enqueue]] = {}
        self.plugin_state: dict[tuple[str, str], PutState] = {}

    def load(self) -> Iterator[Loaded]:
        """Return the committed state."""
        yield from list(self.plugin_state.values())
        yield from list(self.sessions.values())
        yield from list(self.subscriptions.values())
        yield from sorted(self.received)
        yield from list(self.publishers.values())
        yield from list(self.retained.values())
        for owner, queue in list(self.queues.items()):
            waiting = []
            for entry in self._in_order(owner):
                if entry.packet_id:
                    yield PutMessage(entry.message_ref, self.messages[entry.message_ref])
                    yield entry
                else:
                    waiting.append(entry)
            size = sum(entry.size for entry in waiting)
            yield QueueSummary(owner, len(waiting), size, max(queue))

    def last_commit(self) -> CommitId:
        """Return the newest commit."""
        return CommitId(self.identity, self.number)

    def next_message_id(self) -> int:
        """Return an id higher than any used so far."""
        return self.next_id

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        """Commit the records at once."""
        for record in records:
            self._apply(record)
        used = {entry.message_ref for queue in self.queues.values() for entry in queue.values()}
        self.messages = {id: message for id, message in self.messages.items() if id in used}
        self.number += 1
        done(self.last_commit())

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Callable[[list[Queued]], None],
    ) -> None:
        """Read a page of the queue at once."""
        page: list[Queued] = []
        size = 0
        for entry in self._in_order(owner):
            if entry.seq <= after:
                continue
            size += entry.size
            if page and (len(page) >= max_count or size > max_size):
                break
            page.append((entry, self.messages[entry.message_ref]))
        done(page)

    def close(self, done: Callable[[], None]) -> None:
        """Call `done`. There is nothing to release."""
        done()

    def _in_order(self, owner: str) -> list[Enqueue]:
        queue = self.queues.get(owner, {})
        return [queue[seq] for seq in sorted(queue)]

    def _apply(self, record: Record) -> None:
        match record:
            case PutSession(session):
                self.sessions[session.client_id] = record
            case DropSession(client_id):
                self.sessions.pop(client_id, None)
                self.queues.pop(session_owner(client_id), None)
                self.received = {one for one in self.received if one.client_id != client_id}
                for key in [key for key in self.subscriptions if key[0] == client_id]:
                    del self.subscriptions[key]
            case PutSubscription(client_id, subscription):
                self.subscriptions[client_id, subscription.filter] = record
            case DropSubscription(client_id, filter):
                self.subscriptions.pop((client_id, filter), None)
            case PutMessage(id, message):
                self.messages[id] = message
                self.next_id = max(self.next_id, id + 1)
            case Enqueue():
                if record.message_ref not in self.messages:
                    raise AssertionError(f"{record} before its message")
                self.queues.setdefault(record.owner, {})[record.seq] = record
            case SetPacket(owner, seq, packet_id, released):
                queue = self.queues.get(owner, {})
                if seq in queue:
                    queue[seq] = queue[seq]._replace(packet_id=packet_id, released=released)
            case Dequeue(owner, seq):
                queue = self.queues.get(owner, {})
                queue.pop(seq, None)
                if not queue:
                    self.queues.pop(owner, None)
            case PutReceived():
                self.received.add(record)
            case DropReceived(client_id, packet_id):
                self.received.discard(PutReceived(client_id, packet_id))
            case PutPublisher(id):
                self.publishers[id] = record
            case DropPublisher(id):
                self.publishers.pop(id, None)
            case PutRetained(message):
                self.retained[message.topic] = record
            case DropRetained(topic):
                self.retained.pop(topic, None)
            case PutState(space, key):
                self.plugin_state[space, key] = record
            case DropState(space, key):
                self.plugin_state.pop((space, key), None)


class SlowStore:
    """A store that wraps `inner` (by default a `MemoryStore`) and delays each commit until the test finishes it.

    `committing` is the waiting batch, or None. `committed` holds the finished batches. If `slow` is False, commits do
    not wait.
    """

    def __init__(self, inner: Store | None = None, slow: bool = True, durable: bool = True) -> None:
        self.inner: Store = inner or MemoryStore()
        self.identity = self.inner.identity
        self.durable = durable
        self.slow = slow
        self.committing: tuple[Record, ...] | None = None
        self.committed: list[tuple[Record, ...]] = []
        self._done: Committed | None = None

    def finish(self, all: bool = True) -> None:
        """Finish the waiting commit and, with `all`, any commits that it triggers. Call `Harness.settle` or an `expect`
        afterwards.
        """
        while self._done is not None:
            records, done = self.committing or (), self._done
            self.committing = self._done = None
            self.committed.append(records)
            self.inner.commit(records, done)
            if not all:
                return

    def fail(self, reason: str = "disk on fire") -> None:
        """Fail the waiting commit."""
        done, self.committing, self._done = self._done, None, None
        if done is None:
            raise AssertionError("no commit is waiting")
        done(StoreFailed(reason))

    def records(self, *kinds: type) -> list[Record]:
        """Return the records that were committed or are being committed, either of the given `kinds` or all of them."""
        batches = [*self.committed, self.committing or ()]
        return [one for batch in batches for one in batch if not kinds or isinstance(one, kinds)]

    # Store ------------------------------------------------------------------------------------------

    def load(self) -> Iterable[Loaded]:
        """Call the inner store's `load`."""
        return self.inner.load()

    def last_commit(self) -> CommitId:
        """Call the inner store's `last_commit`."""
        return self.inner.last_commit()

    def next_message_id(self) -> int:
        """Call the inner store's `next_message_id`."""
        return self.inner.next_message_id()

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        """Commit the records. If `slow` is True, wait until `finish` or `fail` is called."""
        if self._done is not None:
            raise AssertionError("a second commit started while one is running")
        if not self.slow:
            self.committed.append(tuple(records))
            self.inner.commit(records, done)
            return
        self.committing, self._done = tuple(records), done

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Paged,
    ) -> None:
        """Call the inner store's `read`."""
        self.inner.read(owner, after, max_count, max_size, done)

    def close(self, done: Callable[[], None]) -> None:
        """Call the inner store's `close`."""
        self.inner.close(done)


class RecordingJournal:
    """A journal that keeps messages whose topic `wants` accepts; by default, all messages.

    `appended` holds all messages, `safe` the flushed messages, and `made` the commits that the store finished. If
    `slow` is True, flushes wait until you call `finish` or `fail`.
    """

    def __init__(
        self,
        name: str = "recording",
        wants: Callable[[str], bool] = lambda topic: True,
        slow: bool = False,
    ) -> None:
        self.name = name
        self.slow = slow
        self.appended: list[tuple[CommitId, Message]] = []
        self.safe: list[tuple[CommitId, Message]] = []
        self.flushes: list[CommitId] = []
        self.recovered: list[CommitId] = []
        self.made: list[CommitId] = []
        self._wants = wants
        self._waiting: list[tuple[CommitId, Callable[[StoreFailed | None], None]]] = []

    @property
    def topics(self) -> list[str]:
        """The topics of the safe messages."""
        return [message.topic for _, message in self.safe]

    def finish(self) -> None:
        """Finish the waiting flushes."""
        waiting, self._waiting = self._waiting, []
        for commit, done in waiting:
            self._save(commit, done)

    def fail(self, reason: str = "outbox on fire") -> None:
        """Fail the waiting flushes."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            raise AssertionError("no flush is waiting")
        for _, done in waiting:
            done(StoreFailed(reason))

    # Journal ----------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Call the `wants` function passed to the constructor."""
        return self._wants(topic)

    def append(self, commit: CommitId, message: Message) -> None:
        """Record the message."""
        self.appended.append((commit, message))

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Make the commit's messages safe, or wait if `slow` is True."""
        self.flushes.append(commit)
        if self.slow:
            self._waiting.append((commit, done))
        else:
            self._save(commit, done)

    def committed(self, commit: CommitId) -> None:
        """Record the commit."""
        self.made.append(commit)

    def recover(self, last: CommitId) -> None:
        """Drop all messages after commit `last`, if `last` belongs to the store that this journal was used with."""
        self.recovered.append(last)
        known = {commit.store for commit, _ in self.safe}
        if last.store in known:
            self.safe = [
                one
                for one in self.safe
                if one[0].store != last.store or one[0].number <= last.number
            ]
        self.appended = list(self.safe)

    def _save(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        self.safe = [
            one
            for one in self.appended
            if one[0].store != commit.store or one[0].number <= commit.number
        ]
        done(None)
