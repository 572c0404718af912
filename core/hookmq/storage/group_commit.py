"""The commit point: a turn's changes form a batch, and everything that depends on them waits for its commit.

While a commit runs, new changes are collected in the next batch, so that they share the cost of one disk write (group
commit). First the journals flush in parallel, then the store commits, then waiting packets are sent. If a journal or the
store fails, nothing more is acknowledged. A batch that one journal alone holds needs no commit of the store.

A message that is acknowledged before its batch is committed is removed from the batch. If the batch becomes empty,
nothing is written, and its packets are sent at once.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

from hookmq.model.histogram import Histogram
from hookmq.model.message import Message
from hookmq.session.inflight import Delivery
from hookmq.storage.cluster import Cluster
from hookmq.storage.protocols import Journal, Readable, Sealing, Store, StoreFailed, Volatile
from hookmq.storage.records import CommitId, Enqueue, PutMessage, Record

MAX_RECORDS = 20000
MAX_BYTES = 64 << 20
"""A batch is split at the first safe point after this many records, or bytes of messages."""
_NO_SPLIT = -1
"""The index for a waiter that comes in the middle of an effect, where the batch cannot be split."""


def entry_of(owner: str, delivery: Delivery, message: int) -> Enqueue:
    """Return the queue entry for `delivery`. `message` is the message's id in the store."""
    group = delivery.group
    # This is a third faster than calling the class. All fields are passed in order.
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


class GroupCommit:
    """Collects records, and the calls waiting for their commit.

    `failed` is called once, with the reason. `go_on` is called after each commit; it must call `flush`, at once or soon
    after. `clock` returns seconds, for `durations`; commits are not timed without it.
    """

    __slots__ = (
        "_began", "_bytes", "_clock", "_commit_id", "_failed", "_go_on", "_gone", "_guarded", "_held", "_identity",
        "_journaled", "_last_owner", "_members", "_pending", "_put", "_records", "_running", "_seal", "_sizes",
        "_splits", "_storing", "_taken", "_told", "_unawaited", "_waiters", "added", "collecting", "commits",
        "durations", "fresh", "journals", "number", "started", "store",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        journals: Sequence[Journal],
        failed: Callable[[str], None],
        guarded: Callable[[Callable[[], None]], None],
        go_on: Callable[[], None] | None = None,
        put: Callable[[Delivery], tuple[PutMessage, Enqueue]] | None = None,
        clock: Callable[[], float] | None = None,
        durations: Histogram | None = None,
    ) -> None:
        self.store = store
        self.journals: tuple[Journal | Cluster, ...] = ()
        """The journals to flush at each commit, and the cluster if there is one."""
        self._members: set[int] | None = None
        """The identities of the journals that take messages, or None as long as none has been removed."""
        self._unawaited: frozenset[int] = frozenset()
        """The identities of the journals that no acknowledgement waits for."""
        self._told: tuple[Callable[[CommitId], None], ...] = ()
        self._seal: Callable[[Callable[[StoreFailed | None], None]], bool] | None = None
        """Makes a batch of the only journal durable without the store, or None if there are several journals."""
        self._set_journals(tuple(journals))
        self._failed: Callable[[str], None] | None = failed
        self._guarded = guarded
        self._go_on = go_on or self.flush
        self._put = put
        self._clock = clock
        self._began = 0.0
        self.durations = durations or Histogram()
        """The durations of commits, from the first journal's flush to the store's answer."""
        self._identity = store.identity
        self.number = store.last_commit().number + 1
        """The number of the commit that is collecting records."""
        self._commit_id = CommitId(self._identity, self.number)
        """The id that the newest journaled message got."""
        self.started = 0
        """Batches of which at least a part was written, or is being written."""
        self.commits = 0
        self.added = 0
        """Records and journaled messages so far. Compare two values to see whether an effect added any."""
        self.collecting = False
        """Whether `flush` may have something to do."""
        self.fresh = 0
        """Collected queue entries for sent messages, which may be acknowledged before the commit."""
        self._records: list[Record | Delivery | None] = []
        """A `Delivery` in this list stands for the message and the queue entry that `put` creates from it."""
        self._gone = 0
        """The number of records that were removed and are now None."""
        self._bytes = 0
        self._waiters: list[Callable[[], None]] = []
        self._last_owner: object | None = None
        """The owner of the newest waiter."""
        self._splits: list[int] = []
        self._sizes: list[int] = []
        """Bytes up to each index in `_splits`."""
        self._journaled = False
        self._running = False
        self._storing = False
        """Whether the running commit is one of the store."""
        self._held = False
        self._pending = 0
        self._taken: list[Record] = []

    @property
    def busy(self) -> bool:
        """Whether anything is being collected or committed."""
        return self._running or bool(self._records) or bool(self._waiters) or self._journaled

    @property
    def awaited(self) -> bool:
        """Whether anything waits for the commit of the current batch."""
        return bool(self._waiters)

    @property
    def running(self) -> bool:
        """Whether a commit is running."""
        return self._running

    @property
    def seconds(self) -> float:
        """Seconds since the running commit began, or 0 if commits are not timed. Functions passed to `after_commit` may
        use this."""
        return 0.0 if self._clock is None else self._clock() - self._began

    def add(self, record: Record, size: int = 0) -> None:
        """Add `record` to the batch. If it contains a message, `size` is its size in bytes."""
        self.added += 1
        self.collecting = True
        self._bytes += size
        if self._failed is not None:
            self._records.append(record)

    def sent(self, delivery: Delivery) -> None:
        """Mark the newest record as the queue entry for `delivery`, which is being sent at QoS 1."""
        delivery.batch = self.number
        delivery.position = len(self._records) - 1
        self.fresh += 1

    def add_sent(self, delivery: Delivery) -> None:
        """Add `delivery`, which is being sent at QoS 1 to the only session that receives its message.

        Its records are created at the commit, because most deliveries are removed from the batch before that.
        """
        self.added += 1
        self.collecting = True
        self._bytes += delivery.outgoing.size
        if self._failed is not None:
            delivery.batch = self.number
            delivery.position = len(self._records)
            self._records.append(delivery)
            self.fresh += 1

    def take_back(self, delivery: Delivery) -> bool:
        """Remove the queue entry of an acknowledged delivery from the batch. Also remove its message if this was the
        message's only entry.

        Returns False if the entry is already in another commit and must be dequeued.
        """
        if delivery.batch != self.number:
            return False
        delivery.batch = 0
        self.fresh -= 1
        if self._failed is None:
            return True
        records = self._records
        records[delivery.position] = None
        self._gone += 1
        outgoing = delivery.outgoing
        if outgoing.id == 0:
            return True  # it has no records yet
        outgoing.uses -= 1
        if outgoing.uses == 0 and outgoing.record_index < len(records):
            put = records[outgoing.record_index]
            if isinstance(put, PutMessage) and put.id == outgoing.id:
                records[outgoing.record_index] = None
                self._gone += 1
                outgoing.id = 0  # later recipients store it again
        return True

    def next_index(self) -> int:
        """Return the index of the next record in the batch."""
        return len(self._records)

    @property
    def finished(self) -> CommitId:
        """The id of the store's last commit that has finished."""
        return CommitId(self._identity, self.number - (2 if self._storing else 1))

    def _set_journals(self, journals: tuple[Journal | Cluster, ...]) -> None:
        self.journals = journals
        self._told = tuple(one.committed for one in journals if isinstance(one, Readable))
        self._unawaited = frozenset(
            id(one) for one in journals if isinstance(one, Volatile) and one.volatile
        )
        seals = [one.seal for one in journals if isinstance(one, Sealing)]
        self._seal = seals[0] if seals and len(journals) == 1 and not self._unawaited else None

    def add_journal(self, journal: Journal | Cluster) -> None:
        """Add a recovered journal. The commit that is running does not include it."""
        self._set_journals((*self.journals, journal))
        if self._members is not None:
            self._members.add(id(journal))

    def close_journal(self, journal: Journal) -> None:
        """Add no more messages to `journal`: later calls of the method `journal` skip it. Messages already added are
        still flushed.
        """
        if self._members is None:
            self._members = {id(one) for one in self.journals}
        self._members.discard(id(journal))

    def remove_journal(self, journal: Journal) -> None:
        """Stop flushing `journal`. Call this once everything recorded before `close_journal` is committed."""
        self._set_journals(tuple(one for one in self.journals if one is not journal))

    def journal(self, journal: Journal, message: Message) -> None:
        """Add `message` to the batch in `journal`, unless that journal is being removed."""
        if self._members is not None and id(journal) not in self._members:
            return
        if not self._unawaited or id(journal) not in self._unawaited:
            self._journaled = True
            self.added += 1
            self.collecting = True
        commit = self._commit_id
        if commit.number != self.number:
            commit = self._commit_id = CommitId(self._identity, self.number)
        try:
            journal.append(commit, message)
        except Exception as error:
            self._fail(f"journal {journal.name}: {error!r}")

    def stored(self) -> None:
        """Note that a message of the current batch was added to the columns of journals, or passed to the cluster."""
        self._journaled = True
        self.added += 1
        self.collecting = True

    def hold_batch(self) -> None:
        """Prevent the batch from being committed or split until `release_batch`. Call this if more records of the same
        effect will follow in later turns.
        """
        self._held = True
        self.added += 1

    def release_batch(self) -> None:
        """Mark the current effect as complete, so that the next `flush` may commit it."""
        self._held = False

    def after_commit(
        self, call: Callable[[], None], may_split: bool = True, owner: object | None = None
    ) -> None:
        """Run `call` once every record added before this call is committed.

        The batch may be split here, unless `may_split` is False because more records of the same effect follow. `owner`
        identifies the call for `still_last`.
        """
        if self._failed is not None:
            self.collecting = True
            self._last_owner = owner
            self._waiters.append(call)
            self._splits.append(len(self._records) if may_split and not self._held else _NO_SPLIT)
            self._sizes.append(self._bytes)

    def still_last(self, owner: object) -> bool:
        """If the newest waiter of the batch belongs to `owner`, make it also wait for all records added since, and
        return True.

        The batch may then be split here instead of at the waiter's old point.
        """
        # Comparing owners is cheaper than creating and comparing bound methods, and this runs for each message.
        if self._last_owner is not owner or self._held or not self._waiters:
            return False
        if not _NO_SPLIT < self._splits[-1] < MAX_RECORDS or self._sizes[-1] >= MAX_BYTES:
            return False  # the batch must be split at the old point
        self._splits[-1] = len(self._records)
        self._sizes[-1] = self._bytes
        return True

    def flush(self) -> None:
        """Start a commit if none is running and the batch is complete and not empty."""
        while not self._running and not self._held and self._failed is not None:
            if len(self._records) == self._gone and not self._journaled:
                # Nothing to write: the waiters only kept their order, or all records were taken back.
                if not self._records and not self._waiters:
                    self.collecting = False
                    return
                waiters, self._waiters = self._waiters, []
                self._empty()
                for call in waiters:
                    self._guarded(call)
                continue
            self._start()

    def _start(self) -> None:
        records, waiters, splits, sizes = self._records, self._waiters, self._splits, self._sizes
        take, calls = len(records), len(waiters)
        total, done = self._bytes, self._bytes
        if (take > MAX_RECORDS or total > MAX_BYTES) and not self._journaled:
            # Journals have this commit's number for each message, so such a batch is never split.
            calls = next(
                (
                    i + 1
                    for i, split in enumerate(splits)
                    if split >= MAX_RECORDS or (split > 0 and sizes[i] >= MAX_BYTES)
                ),
                calls,
            )
            if calls < len(waiters):
                take = splits[calls - 1]
                done = sizes[calls - 1]
                while calls < len(waiters) and splits[calls] == take:
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
        self._splits = [
            _NO_SPLIT if split == _NO_SPLIT else split - take for split in splits[calls:]
        ]
        self._sizes = [size - done for size in sizes[calls:]]
        self._bytes = total - done
        self._running = True
        self._taken = taken
        if self._clock is not None:
            self._began = self._clock()
        ready = waiters if calls == len(waiters) else waiters[:calls]
        self.started += 1
        if not taken and self._journaled and self._seal is not None and self._sealed(ready):
            return
        self._storing = True
        commit = CommitId(self._identity, self.number)
        self.number += 1
        if not self._journaled:
            self._commit(commit, ready, ())
            return
        self._journaled = False
        # A journal that is added while this commit runs has no part in it.
        journals, told = self.journals, self._told
        self._pending = len(journals)

        def flushed(result: StoreFailed | None) -> None:
            if result is not None:
                self._fail(result.reason)
                return
            self._pending -= 1
            if self._pending == 0 and self._failed is not None:
                self._commit(commit, ready, told)
                # An in-memory store has finished by now, so start the next batch here.
                self.flush()

        for journal in journals:
            try:
                journal.flush(commit, flushed)
            except Exception as error:
                self._fail(f"journal {journal.name}: {error!r}")

    def _empty(self) -> None:
        self._records = []
        self._splits = []
        self._sizes = []
        self._gone = self._bytes = self.fresh = 0

    def _commit(
        self,
        commit: CommitId,
        ready: list[Callable[[], None]],
        told: tuple[Callable[[CommitId], None], ...],
    ) -> None:
        synchronous = True

        def done(result: CommitId | StoreFailed) -> None:
            if isinstance(result, StoreFailed):
                self._fail(result.reason)
                return
            for tell in told:
                self._guarded(partial(tell, commit))
            self._finish(ready)
            if not synchronous:
                self._go_on()

        records, self._taken = self._taken, []
        try:
            self.store.commit(records, done)
        except Exception as error:
            # Its result is unknown, which is a failure.
            self._fail(repr(error))
        synchronous = False

    def _sealed(self, ready: list[Callable[[], None]]) -> bool:
        """Let the only journal make the batch durable. Return False if it needs the store's commit. The next batch gets
        the same number, because the store makes no commit."""
        synchronous = True

        def done(result: StoreFailed | None) -> None:
            if result is not None:
                self._fail(result.reason)
            elif self._failed is not None:
                self._finish(ready)
                if not synchronous:
                    self._go_on()

        assert self._seal is not None
        self._journaled = False  # the next batch may begin before `seal` returns
        try:
            begun = self._seal(done)
        except Exception as error:
            self._fail(f"journal {self.journals[0].name}: {error!r}")
            begun = True
        self._journaled |= not begun
        synchronous = False
        return begun

    def _finish(self, ready: list[Callable[[], None]]) -> None:
        self.commits += 1
        if self._clock is not None:
            # `Histogram.add` inline: this runs for each commit, which may be for each message.
            seconds = self._clock() - self._began
            durations = self.durations
            durations.counts[bisect_left(durations.bounds, seconds)] += 1
            durations.sum += seconds
        for call in ready:
            self._guarded(call)
        self._running = self._storing = False

    def fail(self, reason: str) -> None:
        """Report a store failure outside a commit. Nothing more is acknowledged."""
        self._fail(reason)

    def end(self) -> None:
        """Stop recording and stop calling waiters. Call this before closing the store."""
        self._failed = None
        self._waiters = []
        self._empty()

    def _fail(self, reason: str) -> None:
        failed, self._failed = self._failed, None
        self._waiters = []
        self._empty()
        if failed is not None:
            failed(reason)
