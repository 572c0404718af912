"""The broker's disk: what is safe, what is still being written, and how writes fail.

`Disk` outlives the broker; `OpenDisk` is the store of one broker process. A commit is reported as done once it is safe.
A crash during a commit leaves all of the commit or none of it, because a torn commit fails its checksum and is removed
at recovery.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from hookmq.model.client import ClientRecord
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.storage.protocols import Committed, StoreFailed
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
    SessionRecord,
    SetPacket,
    session_owner,
)

from simulator.clock import Clock


class Image:
    """The safe contents of the disk, as tables."""

    def __init__(self) -> None:
        self.sessions: dict[str, SessionRecord] = {}
        self.subscriptions: dict[str, dict[str, Subscription]] = {}
        self.received: dict[str, set[int]] = {}
        self.retained: dict[str, PutRetained] = {}
        self.publishers: dict[int, ClientRecord] = {}
        self.queues: dict[str, dict[int, Enqueue]] = {}
        self.messages: dict[int, Message] = {}
        self.uses: dict[int, int] = {}
        self.plugin_state: dict[tuple[str, str], PutState] = {}
        self.next_id = 1

    def apply(self, record: Record, complain: Callable[[str], None]) -> None:
        """Apply a record. Call `complain` if it contradicts the contents."""
        match record:
            case PutSession(session):
                self.sessions[session.client_id] = session
            case DropSession(client_id):
                self.sessions.pop(client_id, None)
                self.subscriptions.pop(client_id, None)
                self.received.pop(client_id, None)
                owner = session_owner(client_id)
                for seq in list(self.queues.get(owner, ())):
                    self._dequeue(owner, seq)
            case PutSubscription(client_id, subscription):
                self._known(client_id, complain)
                self.subscriptions.setdefault(client_id, {})[subscription.filter] = subscription
            case DropSubscription(client_id, filter):
                self.subscriptions.get(client_id, {}).pop(filter, None)
            case PutMessage(id, message):
                if id in self.messages:
                    complain(f"message id {id} is in use")
                self.messages[id] = message
                self.uses.setdefault(id, 0)
                self.next_id = max(self.next_id, id + 1)
            case Enqueue():
                self._enqueue(record, complain)
            case SetPacket(owner, seq, packet_id, released):
                queue = self.queues.get(owner, {})
                if seq in queue:
                    queue[seq] = queue[seq]._replace(packet_id=packet_id, released=released)
                else:
                    complain(f"{record} is of no entry")
            case Dequeue(owner, seq):
                if not self._dequeue(owner, seq):
                    complain(f"nothing to dequeue: {owner!r} {seq}")
            case PutReceived(client_id, packet_id):
                self._known(client_id, complain)
                self.received.setdefault(client_id, set()).add(packet_id)
            case DropReceived(client_id, packet_id):
                self.received.get(client_id, set()).discard(packet_id)
            case PutPublisher(id, client):
                self.publishers[id] = client
            case DropPublisher(id):
                if self.publishers.pop(id, None) is None:
                    complain(f"no publisher {id} to forget")
            case PutRetained(message, publisher):
                if publisher and publisher not in self.publishers:
                    complain(f"{message.topic!r} is of no publisher")
                self.retained[message.topic] = record
            case DropRetained(topic):
                self.retained.pop(topic, None)
            case PutState(space, key):
                self.plugin_state[space, key] = record
            case DropState(space, key):
                if self.plugin_state.pop((space, key), None) is None:
                    complain(f"no key {key!r} of {space} to delete")

    def sweep(self) -> None:
        """Delete messages that are not in any queue."""
        for id in [id for id, uses in self.uses.items() if not uses]:
            del self.uses[id], self.messages[id]

    def entries(self, owner: str) -> list[Enqueue]:
        """Return the entries of a queue in order."""
        queue = self.queues.get(owner, {})
        return [queue[seq] for seq in sorted(queue)]

    def _known(self, client_id: str, complain: Callable[[str], None]) -> None:
        if client_id not in self.sessions:
            complain(f"{client_id!r} has no session on record")

    def _enqueue(self, entry: Enqueue, complain: Callable[[str], None]) -> None:
        if entry.owner.startswith("c/"):
            self._known(entry.owner[2:], complain)
        if entry.message_ref not in self.messages:
            complain(f"{entry} points to no message")
            return
        if self._dequeue(entry.owner, entry.seq):
            complain(f"{entry} is in the queue already")
        self.queues.setdefault(entry.owner, {})[entry.seq] = entry
        self.uses[entry.message_ref] += 1

    def _dequeue(self, owner: str, seq: int) -> bool:
        queue = self.queues.get(owner, {})
        entry = queue.pop(seq, None)
        if entry is None:
            return False
        self.uses[entry.message_ref] -= 1
        if not queue:
            del self.queues[owner]
        return True


class Disk:
    """The disk of one world. `latency` and `read_delay` are the maximum delays of a commit and of reading a page.

    `trouble` makes the next commit fail: ``error`` (reported, and nothing is written), ``unknown`` (perhaps written) or
    ``raise``.
    """

    def __init__(
        self,
        clock: Clock,
        random: Random,
        latency: float,
        read_delay: float,
        complain: Callable[[str, str], None],
        identity: str = "sim",
    ) -> None:
        self.identity = identity
        self.clock = clock
        self.random = random
        self.latency = latency
        self.read_delay = read_delay
        self.complain = complain
        self.image = Image()
        self.number = 0
        self.trouble = ""
        self.commits = 0
        self.begins: Callable[[int], None] | None = None
        """Called with the number of each commit before it is written."""
        self._writing: Sequence[Record] | None = None

    def open(self) -> "OpenDisk":
        """Return the store for a broker that starts now."""
        return OpenDisk(self)

    def crash(self) -> None:
        """Simulate a power cut. The commit in progress is kept or lost at random."""
        records, self._writing = self._writing, None
        if records is not None and self.random.random() < 0.5:
            self.keep(records)

    def keep(self, records: Sequence[Record]) -> None:
        """Make the records of a commit safe on disk."""
        for record in records:
            self.image.apply(record, self._wrong)
        self.image.sweep()
        self.number += 1
        self.commits += 1

    def _wrong(self, text: str) -> None:
        self.complain("store", f"a commit cannot be true: {text}")

    def begin(self, store: "OpenDisk", records: Sequence[Record], done: Committed) -> None:
        """Start writing a commit."""
        if self._writing is not None:
            self.complain("store", "a second commit began while one runs")
        if self.begins is not None:
            self.begins(self.number + 1)
        trouble, self.trouble = self.trouble, ""
        if trouble == "raise":
            raise OSError("disk full")
        if trouble:
            kept = trouble == "unknown" and self.random.random() < 0.5
            self.clock.after(self._delay(), partial(self._fail, store, records, done, kept))
            return
        delay = self._delay()
        if not delay:
            self.keep(records)
            done(store.last_commit())
            return
        self._writing = records
        self.clock.after(delay, partial(self._finish, store, done))

    def page_delay(self) -> float:
        """Return the delay before the next page is read, in seconds."""
        return self.random.random() * self.read_delay if self.read_delay else 0.0

    def _delay(self) -> float:
        return self.random.random() * self.latency if self.latency else 0.0

    def _finish(self, store: "OpenDisk", done: Committed) -> None:
        if store.lost:
            return
        records, self._writing = self._writing, None
        assert records is not None
        self.keep(records)
        done(store.last_commit())

    def _fail(
        self, store: "OpenDisk", records: Sequence[Record], done: Committed, kept: bool
    ) -> None:
        if store.lost:
            return
        if kept:
            self.keep(records)
        done(StoreFailed("input/output error"))


class OpenDisk:
    """`hookmq.storage.protocols.Store` on a `Disk`, for the lifetime of one broker."""

    durable = True

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.identity = disk.identity
        self.lost = False

    def load(self) -> Iterator[Loaded]:
        """Yield the safe state."""
        image = self.disk.image
        for kept in list(image.sessions.values()):
            yield PutSession(kept)
        for client_id, subscriptions in list(image.subscriptions.items()):
            for subscription in list(subscriptions.values()):
                yield PutSubscription(client_id, subscription)
        for client_id, received in list(image.received.items()):
            for number in sorted(received):
                yield PutReceived(client_id, number)
        for id, client in list(image.publishers.items()):
            yield PutPublisher(id, client)
        yield from list(image.retained.values())
        yield from list(image.plugin_state.values())
        for owner in list(image.queues):
            entries = image.entries(owner)
            waiting = [entry for entry in entries if not entry.packet_id]
            for entry in entries:
                if entry.packet_id:
                    yield PutMessage(entry.message_ref, image.messages[entry.message_ref])
                    yield entry
            size = sum(entry.size for entry in waiting)
            yield QueueSummary(owner, len(waiting), size, entries[-1].seq)

    def last_commit(self) -> CommitId:
        """Return the id of the newest safe commit."""
        return CommitId(self.identity, self.disk.number)

    def next_message_id(self) -> int:
        """Return an id higher than any in use."""
        return self.disk.image.next_id

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        """Commit, as `hookmq.storage.protocols.Store.commit` does. `done` is called later or, after a crash, never."""
        self.disk.begin(self, records, done)

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Callable[[list[Queued]], None],
    ) -> None:
        """Read a page, as `hookmq.storage.protocols.Store.read` does.

        A delayed page shows the state either at the time of the request or at the time of delivery.
        """
        delay = self.disk.page_delay()
        if not delay:
            done(self._page(owner, after, max_count, max_size))
            return
        early = None
        if self.disk.random.random() < 0.5:
            early = self._page(owner, after, max_count, max_size)

        def come() -> None:
            if not self.lost:
                done(self._page(owner, after, max_count, max_size) if early is None else early)

        self.disk.clock.after(delay, come)

    def close(self, done: Callable[[], None]) -> None:
        """Call `done` at once, because nothing is left to write."""
        done()

    def _page(self, owner: str, after: int, max_count: int, max_size: int) -> list[Queued]:
        page: list[Queued] = []
        size = 0
        for entry in self.disk.image.entries(owner):
            if entry.seq <= after:
                continue
            size += entry.size
            if page and (len(page) >= max_count or size > max_size):
                break
            page.append((entry, self.disk.image.messages[entry.message_ref]))
        return page
