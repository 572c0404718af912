"""Stores and journals for tests: one that outlives the broker, commits that wait until they are let through, and a
journal that remembers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from hookmq.store import (
    CommitId,
    Committed,
    Dequeue,
    DropPublisher,
    DropReceived,
    DropRetained,
    DropSession,
    DropSubscription,
    Enqueue,
    Loaded,
    MemoryStore,
    Paged,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutSubscription,
    Queued,
    QueueSummary,
    Record,
    SetPacket,
    Store,
    StoreFailed,
    session_owner,
)
from hookmq.types import Message


class DurableStore:
    """A store that outlives the broker, though not the process: for `Harness.restart`. The plainest store there can be,
    and so the measure of what `StoreContract` means.

    `messages`, `sessions`, `subscriptions`, `received`, `retained` and `queues` hold what is committed.
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

    def load(self) -> Iterator[Loaded]:
        """What was committed."""
        yield from list(self.sessions.values())
        yield from list(self.subscriptions.values())
        yield from sorted(self.received)
        yield from list(self.publishers.values())
        yield from list(self.retained.values())
        for owner, queue in list(self.queues.items()):
            waiting = []
            for entry in self._in_order(owner):
                if entry.packet_id:
                    yield PutMessage(entry.message_id, self.messages[entry.message_id])
                    yield entry
                else:
                    waiting.append(entry)
            size = sum(entry.size for entry in waiting)
            yield QueueSummary(owner, len(waiting), size, max(queue))

    def last_commit(self) -> CommitId:
        """The newest one."""
        return CommitId(self.identity, self.number)

    def next_message_id(self) -> int:
        """Above every id that was ever used."""
        return self.next_id

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        """At once."""
        for record in records:
            self._apply(record)
        used = {entry.message_id for queue in self.queues.values() for entry in queue.values()}
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
        """At once."""
        page: list[Queued] = []
        size = 0
        for entry in self._in_order(owner):
            if entry.seq <= after:
                continue
            size += entry.size
            if page and (len(page) >= max_count or size > max_size):
                break
            page.append((entry, self.messages[entry.message_id]))
        done(page)

    def close(self, done: Callable[[], None]) -> None:
        """Nothing to let go of."""
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
                if record.message_id not in self.messages:
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


class SlowStore:
    """A store in front of `inner` (a `MemoryStore`) whose commits wait until the test lets them through.

    `committing` is the batch that waits, None when none does; `committed` are the batches done. With `slow` False commits
    are done at once, as in the inner store.
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
        """Let the waiting commit through; with `all` also those that begin thereby. Call `Harness.settle`, or an
        `expect`, to see the effect."""
        while self._done is not None:
            records, done = self.committing or (), self._done
            self.committing = self._done = None
            self.committed.append(records)
            self.inner.commit(records, done)
            if not all:
                return

    def fail(self, reason: str = "disk on fire") -> None:
        """Let the waiting commit fail."""
        done, self.committing, self._done = self._done, None, None
        if done is None:
            raise AssertionError("no commit is waiting")
        done(StoreFailed(reason))

    def records(self, *kinds: type) -> list[Record]:
        """All that was committed or is being committed, of some kinds or of all."""
        batches = [*self.committed, self.committing or ()]
        return [one for batch in batches for one in batch if not kinds or isinstance(one, kinds)]

    # hookmq.store.Store ------------------------------------------------------------------------------------------

    def load(self) -> Iterable[Loaded]:
        """As the inner store."""
        return self.inner.load()

    def last_commit(self) -> CommitId:
        """As the inner store."""
        return self.inner.last_commit()

    def next_message_id(self) -> int:
        """As the inner store."""
        return self.inner.next_message_id()

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        """Wait for `finish`."""
        if self._done is not None:
            raise AssertionError("a second commit began while one runs")
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
        """As the inner store."""
        self.inner.read(owner, after, max_count, max_size, done)

    def close(self, done: Callable[[], None]) -> None:
        """As the inner store."""
        self.inner.close(done)


class RecordingJournal:
    """A journal that keeps messages whose topic `wants` (all by default).

    `appended` is what was given to it, `safe` what a flush covered, `made` the commits that the
    store made. With `slow` True flushes wait for `finish` or `fail`.
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
        """Topics of what is safe."""
        return [message.topic for _, message in self.safe]

    def finish(self) -> None:
        """Let the waiting flushes through."""
        waiting, self._waiting = self._waiting, []
        for commit, done in waiting:
            self._save(commit, done)

    def fail(self, reason: str = "outbox on fire") -> None:
        """Let the waiting flushes fail."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            raise AssertionError("no flush is waiting")
        for _, done in waiting:
            done(StoreFailed(reason))

    # hookmq.store.Journal ----------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """As told at construction."""
        return self._wants(topic)

    def append(self, commit: CommitId, message: Message) -> None:
        """Keep it."""
        self.appended.append((commit, message))

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Make it safe, or wait."""
        self.flushes.append(commit)
        if self.slow:
            self._waiting.append((commit, done))
        else:
            self._save(commit, done)

    def committed(self, commit: CommitId) -> None:
        """Note it."""
        self.made.append(commit)

    def recover(self, last: CommitId) -> None:
        """Drop what lies above `last`, if that names the store this journal knows."""
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
