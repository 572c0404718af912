"""The protocols for durable state: `Store` and `Journal`.

All changes in one turn form a batch, which is committed atomically. The broker sends packets that depend on these
changes only after the commit. The in-memory store commits immediately, so it adds no delay.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hookmq.model.message import Message
from hookmq.storage.columns import MessageColumns
from hookmq.storage.records import (
    CommitId,
    Loaded,
    Queued,
    Record,
)


class StoreFailed(NamedTuple):
    """A commit that failed or whose result is unknown. Nothing that depends on it may be acknowledged."""

    reason: str


Paged = Callable[[list[Queued] | StoreFailed], None]
"""Called with a page of a queue, or with the failure of the store."""
Committed = Callable[[CommitId | StoreFailed], None]
"""Called with the id of a commit, or with the failure of the store."""


class Store(Protocol):
    """Stores sessions, queues, retained messages and the state of plugins.

    All calls and callbacks run on the event loop's thread.
    """

    durable: bool
    """Whether commits survive the process."""

    identity: str
    """The unique id of this data. Another folder or a restored copy has a different id."""

    def load(self) -> Iterable[Loaded]:
        """Return all stored state. The broker calls this once, before the first commit. Raises StoreError if the data
        is damaged.

        Sessions come before their subscriptions, and publishers before their retained messages. Messages in flight are
        returned as `PutMessage` and `Enqueue`, the rest of each queue as a `QueueSummary`, and the state of plugins as
        `PutState`.
        """

    def last_commit(self) -> CommitId:
        """Return the id of the newest durable commit. Its number is 0 if nothing has been committed yet."""

    def next_message_id(self) -> int:
        """Return an id that is higher than the id of every stored message."""

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        """Make `records` durable atomically, after all earlier commits. Call `done` once, before or after returning.

        The core never starts a second commit while one is running. An empty batch is a commit too, because journals
        need its number.
        """

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Paged,
    ) -> None:
        """Read the queue entries of `owner` with a `seq` above `after`, in order. Include the changes of all finished
        commits.

        Return at most `max_count` entries, and at most `max_size` payload bytes unless the first entry alone is larger.
        If the entries cannot be read, call `done` with StoreFailed, which stops the broker like a failed commit. Never
        return an empty page instead, because that would mean that the queue is empty.
        """

    def close(self, done: Callable[[], None]) -> None:
        """Release all resources. The broker calls this after the last commit."""


class ExpiredEntries(NamedTuple):
    """Unsent queue entries whose messages have expired: (owner, seq, size, message's id). Pass `place` to the next call
    to continue; it is None at the end."""

    entries: Sequence[tuple[str, int, int, int]]
    place: object


@runtime_checkable
class ExpiringStore(Protocol):
    """A `Store` that can find expired messages without reading queues."""

    def expired(
        self,
        now: float,
        place: object,
        max_count: int,
        done: Callable[[ExpiredEntries | StoreFailed], None],
    ) -> None:
        """Find up to `max_count` entries whose messages have expired by `now` (epoch seconds). Include the changes of
        all finished commits.

        Start at `place`, or at the beginning if it is None. The entries remain stored until they are dequeued.
        """


class Journal(Protocol):
    """A log that must store a message before the publisher receives an acknowledgement."""

    name: str

    def wants(self, topic: str) -> bool:
        """Return whether this journal wants messages on `topic`. The result is cached in the route.

        Call ``broker.invalidate_routes()`` if the result changes.
        """

    def append(self, commit: CommitId, message: Message) -> None:
        """Buffer `message` as part of `commit`. This call must not block."""

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Make everything up to `commit` durable. Then call `done` with None, or with StoreFailed on failure."""

    def recover(self, last: CommitId) -> None:
        """Recover when the broker starts. If the journal already knows the store that `last` comes from, drop
        everything after `last`.

        If `last` comes from another store, keep everything and start a new epoch.
        """


@runtime_checkable
class Bounded(Protocol):
    """Optional members for a `Journal` that can be full. Messages for a full journal are not acknowledged."""

    name: str

    @property
    def full(self) -> bool:
        """Whether the journal has no room left. The broker reads this for every message, so it must be fast.

        MQTT 5 publishers receive 0x97, Quota exceeded. MQTT 3 publishers are acknowledged once there is room. Until
        then, the broker reads this property ten times a second. Subscribers receive the message at once, except at QoS
        2. QoS 0 messages and wills do not wait for the journal.
        """


class BoundedJournal(Journal, Bounded, Protocol):
    """A `Journal` that can be full."""


@runtime_checkable
class Columnar(Protocol):
    """Optional members for a `Journal` that collects messages as columns, which costs less than `Journal.append`."""

    def columns(self, topic: str) -> MessageColumns:
        """Return the columns for messages on `topic`, a topic that this journal wants.

        If no one else receives a message, the broker usually adds it to these columns. It calls `append` for all other
        messages. Once `Room.used` of the columns reaches `Room.limit`, it calls `append` for every message. At the next
        `flush`, the journal takes the contents of the columns, which belong to the commit being flushed.

        If the journal is `Bounded`, its columns must have a `Room`. The broker does not read `full` until `Room.limit`
        is reached. The columns are cached in the route, like the result of `Journal.wants`.
        """


@runtime_checkable
class Readable(Protocol):
    """Optional members for a `Journal` with readers. Readers must never see messages that the store has not
    committed."""

    def committed(self, commit: CommitId) -> None:
        """Make `commit` visible to readers. The broker calls this after flushing this journal and committing to the
        store.
        """


@runtime_checkable
class Sealing(Protocol):
    """Optional members for a `Journal` that can make a commit durable without the broker's store. If nothing else takes
    part in a commit, this saves the store's write."""

    def seal(self, done: Callable[[StoreFailed | None], None]) -> bool:
        """Make everything that was appended durable, and visible to readers. `recover` must keep it, although the store
        makes no commit for it. Then call `done` with None, or with StoreFailed on failure, before or after returning.

        Return False, without an effect, if this is not possible. The broker then calls `flush` and `committed`. It never
        calls this method while a `flush` is running, and only if no other journal exists.
        """


@runtime_checkable
class Diverting(Protocol):
    """Optional members for a `Journal` that delivers messages itself, such as those of a queue."""

    def diverts(self, topic: str) -> bool:
        """Return whether this journal takes messages on `topic`, a topic that it wants, away from subscriptions.

        Other journals still receive these messages. The result is cached in the route, like that of `Journal.wants`.
        Retained messages are not diverted.
        """


@runtime_checkable
class Volatile(Protocol):
    """Optional members for a `Journal` that keeps messages in memory only."""

    volatile: bool
    """Whether acknowledgements do not wait for this journal. A message that nothing else stores then causes no commit,
    and the commit passed to `Journal.append` may contain nothing. This is read once, when the broker gets the journal.
    """
