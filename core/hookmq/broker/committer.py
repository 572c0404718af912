"""The one commit point: what a turn changed becomes one batch, and what relies on it waits for it.

While one commit runs the next batch collects, so that the cost of a disk is shared by all that wait (group commit).
For
a commit the journals flush first, in parallel, then the store commits, then the waiting packets leave. A failure of
either stops everything: nothing is acknowledged any more.
"""

from collections.abc import Callable, Sequence
from functools import partial

from hookmq.store import CommitId, Journal, Readable, Record, Store, StoreFailed
from hookmq.types import Message

MAX_RECORDS = 20000
"""A batch is cut at the first safe place after so many records."""
_NO_CUT = -1
"""Stands for the place of a waiter in the midst of an effect."""


class Committer:
    """Collects records and the calls that wait for them; `failed` is told once, with the reason."""

    __slots__ = (
        "_cuts", "_failed", "_guarded", "_held", "_identity", "_journaled", "_pending", "_records", "_running", "_taken",
        "_told", "_waiters", "added", "commits", "journals", "number", "store",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        journals: Sequence[Journal],
        failed: Callable[[str], None],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        self.store = store
        self.journals = tuple(journals)
        self._told: tuple[Callable[[CommitId], None], ...] = tuple(
            journal.committed for journal in journals if isinstance(journal, Readable)
        )
        self._failed: Callable[[str], None] | None = failed
        self._guarded = guarded
        self._identity = store.identity
        self.number = store.last_commit().number + 1
        """The number of the commit that collects now."""
        self.commits = 0
        self.added = 0
        """Records and journaled messages so far: whoever notes it before an effect sees whether that added any."""
        self._records: list[Record] = []
        self._waiters: list[Callable[[], None]] = []
        self._cuts: list[int] = []
        self._journaled = False
        self._running = False
        self._held = False
        self._pending = 0
        self._taken: list[Record] = []

    @property
    def busy(self) -> bool:
        """Whether anything is collected or being committed."""
        return self._running or bool(self._records) or bool(self._waiters) or self._journaled

    def add(self, record: Record) -> None:
        """Make `record` part of the batch that collects."""
        self.added += 1
        if self._failed is not None:
            self._records.append(record)

    def journal(self, journal: Journal, message: Message) -> None:
        """Make `message` part of the batch in `journal`."""
        self._journaled = True
        self.added += 1
        try:
            journal.append(CommitId(self._identity, self.number), message)
        except Exception as error:
            self._fail(f"journal {journal.name}: {error!r}")

    def hold(self) -> None:
        """More records of this effect come in later turns: until `release`, nothing of what collects is committed, nor is
        it cut anywhere from here on."""
        self._held = True
        self.added += 1

    def release(self) -> None:
        """The effect is whole. The next `flush` may commit it."""
        self._held = False

    def then(self, call: Callable[[], None], cut: bool = True) -> None:
        """Run `call` when everything added so far is committed. Also marks a place where a batch may be cut, unless `cut`
        is False: then more records of the same effect are still to come."""
        if self._failed is not None:
            self._waiters.append(call)
            self._cuts.append(len(self._records) if cut and not self._held else _NO_CUT)

    def still_last(self, call: Callable[[], None]) -> bool:
        """Whether `call` is the newest that waits, in the batch that collects. Then it waits from now on for what was
        added since as well, and the place where a batch may be cut moves on to here."""
        waiters = self._waiters
        if not waiters or self._held or waiters[-1] != call:
            return False
        if not _NO_CUT < self._cuts[-1] < MAX_RECORDS:  # a place that is needed stays where it is
            return False
        self._cuts[-1] = len(self._records)
        return True

    def flush(self) -> None:
        """Start a commit if there is something to commit, all of it is there and none runs."""
        while not self._running and not self._held and self._failed is not None:
            if not self._records and not self._journaled:
                # Nothing to make safe: what waits only kept its place behind an earlier commit.
                if not self._waiters:
                    return
                waiters, self._waiters = self._waiters, []
                self._cuts = []
                for call in waiters:
                    self._guarded(call)
                continue
            self._start()

    def _start(self) -> None:
        records, waiters, cuts = self._records, self._waiters, self._cuts
        take, calls = len(records), len(waiters)
        if take > MAX_RECORDS and not self._journaled:
            # A journal was told this commit's number for every message it holds, so that such a batch stays whole.
            calls = next((i + 1 for i, cut in enumerate(cuts) if cut >= MAX_RECORDS), calls)
            if calls < len(waiters):
                take = cuts[calls - 1]
                while calls < len(waiters) and cuts[calls] == take:
                    calls += 1
        self._records, self._waiters = records[take:], waiters[calls:]
        self._cuts = [_NO_CUT if cut == _NO_CUT else cut - take for cut in cuts[calls:]]
        self._running = True
        self._taken = records if take == len(records) else records[:take]
        ready = waiters if calls == len(waiters) else waiters[:calls]
        commit = CommitId(self._identity, self.number)
        self.number += 1
        if not self._journaled:
            self._commit(commit, ready, False)
            return
        self._journaled = False
        self._pending = len(self.journals)

        def flushed(result: StoreFailed | None) -> None:
            if result is not None:
                self._fail(result.reason)
                return
            self._pending -= 1
            if self._pending == 0 and self._failed is not None:
                self._commit(commit, ready, True)
                # A store in memory is done by now, and nobody else may come to start what was collected meanwhile.
                self.flush()

        for journal in self.journals:
            try:
                journal.flush(commit, flushed)
            except Exception as error:
                self._fail(f"journal {journal.name}: {error!r}")

    def _commit(self, commit: CommitId, ready: list[Callable[[], None]], journaled: bool) -> None:
        synchronous = True

        def done(result: CommitId | StoreFailed) -> None:
            if isinstance(result, StoreFailed):
                self._fail(result.reason)
                return
            self.commits += 1
            if journaled:
                for tell in self._told:
                    self._guarded(partial(tell, commit))
            for call in ready:
                self._guarded(call)
            self._running = False
            if not synchronous:
                self.flush()

        records, self._taken = self._taken, []
        try:
            self.store.commit(records, done)
        except Exception as error:
            # Nobody knows what became of it, so that it is a failure like any other.
            self._fail(repr(error))
        synchronous = False

    def fail(self, reason: str) -> None:
        """The store failed otherwise than in a commit: nothing is acknowledged any more."""
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        failed, self._failed = self._failed, None
        self._waiters = []
        self._cuts = []
        self._records = []
        if failed is not None:
            failed(reason)
