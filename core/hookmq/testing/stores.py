"""Stores and journals for tests: commits that wait until they are let through, and journals that remember."""

from collections.abc import Callable, Iterable, Sequence

from hookmq.store import (
    CommitId,
    Committed,
    Loaded,
    MemoryStore,
    Queued,
    Record,
    Store,
    StoreFailed,
)
from hookmq.types import Message


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
        done: Callable[[list[Queued]], None],
    ) -> None:
        """As the inner store."""
        self.inner.read(owner, after, max_count, max_size, done)

    def close(self, done: Callable[[], None]) -> None:
        """As the inner store."""
        self.inner.close(done)


class RecordingJournal:
    """A journal that keeps messages whose topic `wants` (all by default).

    `appended` is what was given to it, `safe` what a flush covered. With `slow` True flushes wait for `finish` or `fail`.
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
