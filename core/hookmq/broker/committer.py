"""The one commit point: what a turn changed becomes one batch, and what relies on it waits for it.

While one commit runs the next batch collects, so that the cost of a disk is shared by all that wait (group commit).
For
a commit the journals flush first, in parallel, then the store commits, then the waiting packets leave. A failure of
either stops everything: nothing is acknowledged any more.

A message that its receiver acknowledged while the batch that records it collects is taken out of it again. Where nothing
is left of a batch there is nothing to make safe, and what waits for it leaves at once.
"""

from collections.abc import Callable, Sequence
from functools import partial

from hookmq.qos import Delivery
from hookmq.store import (
    CommitId,
    Enqueue,
    Journal,
    PutMessage,
    Readable,
    Record,
    Store,
    StoreFailed,
)
from hookmq.types import Message

MAX_RECORDS = 20000
MAX_BYTES = 64 << 20
"""A batch is cut at the first safe place after so many records, or so many bytes of messages."""
_NO_CUT = -1
"""Stands for the place of a waiter in the midst of an effect."""


def entry_of(owner: str, delivery: Delivery, message: int) -> Enqueue:
    """The queue entry of `delivery`, whose message has the id `message`."""
    group = delivery.group
    # Two thirds of the time that calling the class takes; the fields are all there, in their order.
    return tuple.__new__(
        Enqueue,
        (
            owner,
            delivery.seq,
            message,
            delivery.qos,
            delivery.weight,
            delivery.retain,
            delivery.identifiers,
            delivery.subscription.filter,
            delivery.packet_id,
            delivery.released,
            group.owner if group is not None else "",
        ),
    )


class Committer:
    """Collects records and the calls that wait for them; `failed` is told once, with the reason. `go_on` is called when a
    commit has ended, and is to `flush`, at once or soon."""

    __slots__ = (
        "_bytes", "_cuts", "_failed", "_go_on", "_gone", "_guarded", "_held", "_identity", "_journaled", "_pending",
        "_put", "_records", "_running", "_sizes", "_taken", "_told", "_waiters", "added", "commits", "fresh", "journals",
        "number", "store",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        journals: Sequence[Journal],
        failed: Callable[[str], None],
        guarded: Callable[[Callable[[], None]], None],
        go_on: Callable[[], None] | None = None,
        put: Callable[[Delivery], tuple[PutMessage, Enqueue]] | None = None,
    ) -> None:
        self.store = store
        self.journals = tuple(journals)
        self._told: tuple[Callable[[CommitId], None], ...] = tuple(
            journal.committed for journal in journals if isinstance(journal, Readable)
        )
        self._failed: Callable[[str], None] | None = failed
        self._guarded = guarded
        self._go_on = go_on or self.flush
        self._put = put
        self._identity = store.identity
        self.number = store.last_commit().number + 1
        """The number of the commit that collects now."""
        self.commits = 0
        self.added = 0
        """Records and journaled messages so far: whoever notes it before an effect sees whether that added any."""
        self.fresh = 0
        """Queue entries that collect of messages that were sent: their receivers may be quicker than the commit."""
        self._records: list[Record | Delivery | None] = []
        """A delivery stands for the message and its queue entry that `put` makes of it."""
        self._gone = 0
        """Of those, how many were taken back and are None."""
        self._bytes = 0
        self._waiters: list[Callable[[], None]] = []
        self._cuts: list[int] = []
        self._sizes: list[int] = []
        """Bytes up to each place of `_cuts`."""
        self._journaled = False
        self._running = False
        self._held = False
        self._pending = 0
        self._taken: list[Record] = []

    @property
    def busy(self) -> bool:
        """Whether anything is collected or being committed."""
        return self._running or bool(self._records) or bool(self._waiters) or self._journaled

    @property
    def running(self) -> bool:
        """Whether a commit is under way."""
        return self._running

    def add(self, record: Record, size: int = 0) -> None:
        """Make `record`, which is of `size` bytes if it holds a message, part of the batch that collects."""
        self.added += 1
        self._bytes += size
        if self._failed is not None:
            self._records.append(record)

    def sent(self, delivery: Delivery) -> None:
        """The newest record is the queue entry of `delivery`, which leaves now, at QoS 1."""
        delivery.batch = self.number
        delivery.place = len(self._records) - 1
        self.fresh += 1

    def add_sent(self, delivery: Delivery) -> None:
        """Make `delivery`, which leaves now at QoS 1 to the only session that gets its message, part of the batch that
        collects. Records are made of it when that is committed, and not before: most are taken back until then."""
        self.added += 1
        self._bytes += delivery.outgoing.size
        if self._failed is not None:
            delivery.batch = self.number
            delivery.place = len(self._records)
            self._records.append(delivery)
            self.fresh += 1

    def take_back(self, delivery: Delivery) -> bool:
        """`delivery` was acknowledged by its receiver, to whom nothing is owed any more: if its queue entry still
        collects, it does so no more, nor does the message where it was the only entry. False: it must be dequeued."""
        if delivery.batch != self.number:
            return False
        delivery.batch = 0
        self.fresh -= 1
        if self._failed is None:
            return True
        records = self._records
        records[delivery.place] = None
        self._gone += 1
        outgoing = delivery.outgoing
        if outgoing.id == 0:
            return True  # no record was made of it
        outgoing.uses -= 1
        if outgoing.uses == 0 and outgoing.place < len(records):
            put = records[outgoing.place]
            if isinstance(put, PutMessage) and put.id == outgoing.id:
                records[outgoing.place] = None
                self._gone += 1
                outgoing.id = 0  # who gets it later has it put again
        return True

    def place(self) -> int:
        """Where the next record will stand in the batch that collects."""
        return len(self._records)

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
            self._sizes.append(self._bytes)

    def still_last(self, call: Callable[[], None]) -> bool:
        """Whether `call` is the newest that waits, in the batch that collects. Then it waits from now on for what was
        added since as well, and the place where a batch may be cut moves on to here."""
        waiters = self._waiters
        if not waiters or self._held or waiters[-1] != call:
            return False
        if not _NO_CUT < self._cuts[-1] < MAX_RECORDS or self._sizes[-1] >= MAX_BYTES:
            return False  # a place that is needed stays where it is
        self._cuts[-1] = len(self._records)
        self._sizes[-1] = self._bytes
        return True

    def flush(self) -> None:
        """Start a commit if there is something to commit, all of it is there and none runs."""
        while not self._running and not self._held and self._failed is not None:
            if len(self._records) == self._gone and not self._journaled:
                # Nothing to make safe: what waits only kept its place behind an earlier commit, or nothing is left of it.
                if not self._records and not self._waiters:
                    return
                waiters, self._waiters = self._waiters, []
                self._empty()
                for call in waiters:
                    self._guarded(call)
                continue
            self._start()

    def _start(self) -> None:
        records, waiters, cuts, sizes = self._records, self._waiters, self._cuts, self._sizes
        take, calls = len(records), len(waiters)
        total, done = self._bytes, self._bytes
        if (take > MAX_RECORDS or total > MAX_BYTES) and not self._journaled:
            # A journal was told this commit's number for every message it holds, so that such a batch stays whole.
            calls = next(
                (
                    i + 1
                    for i, cut in enumerate(cuts)
                    if cut >= MAX_RECORDS or (cut > 0 and sizes[i] >= MAX_BYTES)
                ),
                calls,
            )
            if calls < len(waiters):
                take = cuts[calls - 1]
                done = sizes[calls - 1]
                while calls < len(waiters) and cuts[calls] == take:
                    calls += 1
        taken: list[Record] = []
        for record in records if take == len(records) else records[:take]:
            if record is None:
                continue
            if isinstance(record, Delivery):
                assert self._put is not None
                taken += self._put(record)
            else:
                taken.append(record)
        self._empty()
        if take < len(records):
            self._records = records[take:]
            self._gone = self._records.count(None)
        self._waiters = waiters[calls:]
        self._cuts = [_NO_CUT if cut == _NO_CUT else cut - take for cut in cuts[calls:]]
        self._sizes = [size - done for size in sizes[calls:]]
        self._bytes = total - done
        self._running = True
        self._taken = taken
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

    def _empty(self) -> None:
        self._records = []
        self._cuts = []
        self._sizes = []
        self._gone = self._bytes = self.fresh = 0

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
                self._go_on()

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
        self._empty()
        if failed is not None:
            failed(reason)
