"""The store contract for process crashes, power cuts and disk failures."""

from hookmq.storage.protocols import Store, StoreFailed
from hookmq.storage.records import (
    CommitId,
    Dequeue,
    DropReceived,
    DropRetained,
    DropSession,
    DropState,
    Enqueue,
    Loaded,
    PutMessage,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    QueueSummary,
    Record,
    SetPacket,
    state_space,
    timer_space,
)

from hookmq_testing.contracts.kit import StoreKit, Trouble
from hookmq_testing.contracts.samples import (
    SESSION,
    SUBSCRIPTION,
    make_entry,
    make_message,
    of_kind,
    renamed,
)

BEFORE: tuple[Record, ...] = (
    PutSession(SESSION),
    PutSession(renamed("c2")),
    PutReceived("c1", 1),
    PutRetained(make_message("old", b"old")),
    PutState(state_space("p"), "old", b"x" * 3000),
    PutState(timer_space("p"), "k", b"", 5.0),
    PutMessage(1, make_message("m1", b"x" * 3000)),
    PutMessage(2, make_message("m2")),
    make_entry("c/c1", 1, 1, 3000, qos=2),
    make_entry("c/c1", 2, 2),
    make_entry("c/c2", 1, 1, 3000),
)
AFTER: tuple[Record, ...] = (
    PutSubscription("c1", SUBSCRIPTION),
    PutReceived("c1", 7),
    DropReceived("c1", 1),
    PutMessage(3, make_message("m3", b"y" * 5000)),
    make_entry("c/c1", 3, 3, 5000),
    make_entry("c/c2", 2, 3, 5000),
    SetPacket("c/c1", 1, 11, True),
    Dequeue("c/c1", 2),
    DropRetained("old"),
    PutRetained(make_message("new", b"new")),
    DropState(state_space("p"), "old"),
    PutState(state_space("p"), "new", b"y" * 5000),
    PutState(timer_space("p"), "k", b"", 7.0),
)
"""A batch with nearly every kind of record. After a crash, either all of it must be stored or none of it."""


class StoreCrashes(StoreKit):
    """Tests of crashes and failed commits."""

    def test_a_crash_keeps_every_commit_that_was_told(self) -> None:
        store = self._durable()
        identity = store.identity
        for number in range(1, 6):
            record = PutRetained(make_message(f"t{number}", b"%d" % number))
            assert self.commit(store, record).number == number
            store, loaded = self.crashed(store)
            assert store.last_commit() == CommitId(identity, number)
            found = {one.message.topic for one in of_kind(loaded, PutRetained)}
            assert found == {f"t{one}" for one in range(1, number + 1)}
        self.close(store)

    def test_a_crash_leaves_a_commit_whole_or_none_of_it(self) -> None:
        store = self._durable()
        for turns in range(8):
            first = store.last_commit().number + 1
            assert self.commit(store, *self._shifted(BEFORE, turns)).number == first
            told: list[CommitId | StoreFailed] = []
            store.commit(self._shifted(AFTER, turns), told.append)
            for _ in range(turns // 2):
                self.settle()
            promised = any(isinstance(one, CommitId) for one in told)
            store, loaded = self.crashed(store)
            kept = self._kept(store, loaded)
            assert kept or not promised, "a finished commit is lost"
            assert store.last_commit().number == first + kept
            assert store.next_message_id() > self._id(2 + kept, turns)
            self.commit(store, *self._undone())
        self.close(store)

    def test_a_commit_that_fails_is_told_and_not_there(self) -> None:
        self._fails("error")

    def test_a_commit_of_which_nobody_knows_is_told_and_whole_or_not_there(self) -> None:
        self._fails("unknown")

    def _fails(self, kind: Trouble) -> None:
        store = self._durable()
        self.commit(store, *BEFORE)
        self.trouble(store, kind)
        told: list[CommitId | StoreFailed] = []
        store.commit(AFTER, told.append)
        result = self.wait(told)
        assert isinstance(result, StoreFailed)
        assert result.reason
        # The broker stops, so it acknowledges nothing.
        store, loaded = self.crashed(store)
        kept = self._kept(store, loaded)
        assert not (kept and kind == "error"), "a commit that was reported as failed is there"
        assert store.last_commit().number == 1 + kept
        self.commit(store, PutRetained(make_message("on", b"it goes")))
        assert store.last_commit().number == 2 + kept
        self.close(store)

    def test_a_store_that_failed_can_be_closed(self) -> None:
        store = self._durable()
        self.commit(store, *BEFORE)
        self.trouble(store, "error")
        told: list[CommitId | StoreFailed] = []
        store.commit(AFTER, told.append)
        assert isinstance(self.wait(told), StoreFailed)
        store, loaded = self.reopened(store)
        assert not self._kept(store, loaded)
        self.close(store)

    # the two batches, again and again with other message ids --------------------------------------------------------

    @staticmethod
    def _id(id: int, turn: int) -> int:
        return id + 10 * turn

    def _shifted(self, records: tuple[Record, ...], turn: int) -> list[Record]:
        shifted: list[Record] = []
        for record in records:
            if isinstance(record, PutMessage):
                record = record._replace(id=self._id(record.id, turn))
            elif isinstance(record, Enqueue):
                record = record._replace(message_ref=self._id(record.message_ref, turn))
            shifted.append(record)
        return shifted

    def _kept(self, store: Store, loaded: list[Loaded]) -> bool:
        """Return whether the second batch is stored. Raises AssertionError if only part of it is."""
        received = {one.packet_id for one in of_kind(loaded, PutReceived)}
        retained = {one.message.topic for one in of_kind(loaded, PutRetained)}
        sent = [(one.owner, one.packet_id, one.released) for one in of_kind(loaded, Enqueue)]
        state = {(one.key, one.due) for one in of_kind(loaded, PutState)}
        left = {one.owner: one.entries for one in of_kind(loaded, QueueSummary)}
        found = (
            len(of_kind(loaded, PutSubscription)),
            received,
            retained - {"on"},
            state,
            sent,
            left,
            [message.topic for _, message in self.read(store, "c/c1")],
            [message.topic for _, message in self.read(store, "c/c2")],
            self.messages(store),
        )
        before: tuple[object, ...] = (
            0,
            {1},
            {"old"},
            {("old", None), ("k", 5.0)},
            [],
            {"c/c1": 2, "c/c2": 1},
            ["m1", "m2"],
            ["m1"],
            2,
        )
        after: tuple[object, ...] = (
            1, {7}, {"new"}, {("new", None), ("k", 7.0)}, [("c/c1", 11, True)], {"c/c1": 1, "c/c2": 2},
            ["m1", "m3"], ["m1", "m3"], 2,
        )  # fmt: skip
        assert found in (before, after), f"neither before nor after the commit: {found}"
        return found == after

    @staticmethod
    def _undone() -> list[Record]:
        """Return records that empty the store."""
        keys = [DropState(state_space("p"), key) for key in ("old", "new")]
        sessions = [DropSession("c1"), DropSession("c2")]
        return [*sessions, DropRetained("old"), DropRetained("new"), *keys]
