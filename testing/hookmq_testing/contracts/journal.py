"""The contract that every journal must meet."""

from pathlib import Path

import pytest
from hookmq.storage.protocols import Columnar, Journal, Readable, Sealing, StoreFailed
from hookmq.storage.records import CommitId

from hookmq_testing.contracts.samples import make_message


class JournalContract:
    """Tests of a `hookmq.storage.protocols.Journal`."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def open(self) -> Journal:
        """Return a journal for the data in `folder`. If the journal has no data on disk, return the same object each
        time."""
        raise NotImplementedError

    def close(self, journal: Journal) -> None:
        """Release the journal's resources."""

    def payloads(self, journal: Journal) -> list[bytes]:
        """Return the payloads of the journal's safe messages, in order."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let background work continue; see `StoreKit.settle`."""

    def flush(self, journal: Journal, commit: CommitId) -> None:
        """Flush the journal and wait until it is done."""
        told: list[StoreFailed | None] = []
        journal.flush(commit, told.append)
        for _ in range(10_000):
            if told:
                break
            self.settle()
        assert told == [None]

    def seal(self, journal: Sealing) -> None:
        """Seal the appended messages, and wait until it is done."""
        told: list[StoreFailed | None] = []
        assert journal.seal(told.append)
        for _ in range(10_000):
            if told:
                break
            self.settle()
        assert told == [None]

    def append(self, journal: Journal, commit: CommitId, *payloads: bytes) -> None:
        """Append one message for each payload."""
        for payload in payloads:
            journal.append(commit, make_message("journal/x", payload))

    def opened(self, last: CommitId) -> Journal:
        """Return a journal that is ready for use by the broker. `last` is the store's newest commit."""
        journal = self.open()
        journal.recover(last)
        return journal

    def reopened(self, journal: Journal, last: CommitId) -> Journal:
        """Close and reopen the journal, and return it."""
        self.close(journal)
        return self.opened(last)

    def test_it_has_a_name_and_says_what_it_wants(self) -> None:
        journal = self.opened(CommitId("s", 0))
        assert journal.name
        assert journal.wants("journal/x") is True
        self.close(journal)

    def test_what_is_flushed_is_kept_in_order(self) -> None:
        journal = self.opened(CommitId("s", 0))
        self.append(journal, CommitId("s", 1), b"1", b"2")
        self.append(journal, CommitId("s", 1), b"3")
        self.flush(journal, CommitId("s", 1))
        self.append(journal, CommitId("s", 2), b"4")
        self.flush(journal, CommitId("s", 2))
        assert self.payloads(journal) == [b"1", b"2", b"3", b"4"]
        self.close(journal)

    def test_what_its_columns_contain_belongs_to_the_next_flush(self) -> None:
        journal = self.opened(CommitId("s", 0))
        if not isinstance(journal, Columnar):
            pytest.skip("the journal has no columns")
        journal.columns("journal/x").add_message(make_message("journal/x", b"1"))
        self.append(journal, CommitId("s", 1), b"2")
        journal.columns("journal/x").add_message(make_message("journal/x", b"3"))
        self.flush(journal, CommitId("s", 1))
        journal.columns("journal/x").add_message(make_message("journal/x", b"4"))
        self.flush(journal, CommitId("s", 2))
        assert self.payloads(journal) == [b"1", b"2", b"3", b"4"]
        journal = self.reopened(journal, CommitId("s", 1))
        assert self.payloads(journal) == [b"1", b"2", b"3"]
        self.close(journal)

    def test_a_flush_of_nothing(self) -> None:
        journal = self.opened(CommitId("s", 0))
        self.flush(journal, CommitId("s", 1))
        assert self.payloads(journal) == []
        self.close(journal)

    def test_what_was_committed_is_recovered(self) -> None:
        journal = self.opened(CommitId("s", 0))
        for number in (1, 2):
            self.append(journal, CommitId("s", number), str(number).encode())
            self.flush(journal, CommitId("s", number))
        journal = self.reopened(journal, CommitId("s", 2))
        assert self.payloads(journal) == [b"1", b"2"]
        self.append(journal, CommitId("s", 3), b"3")
        self.flush(journal, CommitId("s", 3))
        journal = self.reopened(journal, CommitId("s", 3))
        assert self.payloads(journal) == [b"1", b"2", b"3"]
        self.close(journal)

    def test_what_the_store_did_not_commit_is_dropped(self) -> None:
        # The process died between the journal's flush and the store's commit: nothing was acknowledged.
        journal = self.opened(CommitId("s", 0))
        for number in (1, 2, 3):
            self.append(journal, CommitId("s", number), str(number).encode())
            self.flush(journal, CommitId("s", number))
        journal = self.reopened(journal, CommitId("s", 1))
        assert self.payloads(journal) == [b"1"]
        self.append(journal, CommitId("s", 2), b"2 again")
        self.flush(journal, CommitId("s", 2))
        journal = self.reopened(journal, CommitId("s", 2))
        assert self.payloads(journal) == [b"1", b"2 again"]
        self.close(journal)

    def test_what_is_sealed_needs_no_commit(self) -> None:
        journal = self.opened(CommitId("s", 3))
        if not isinstance(journal, Sealing):
            pytest.skip("the journal cannot seal")
        self.append(journal, CommitId("s", 4), b"1")
        self.seal(journal)
        self.append(journal, CommitId("s", 4), b"2")
        self.seal(journal)
        # The store may still make commit 4, or the process may die before that.
        self.append(journal, CommitId("s", 4), b"dropped")
        self.flush(journal, CommitId("s", 4))
        told: list[StoreFailed | None] = []
        assert not journal.seal(told.append)
        assert not told
        journal = self.reopened(journal, CommitId("s", 3))
        assert self.payloads(journal) == [b"1", b"2"]
        self.append(journal, CommitId("s", 4), b"3")
        self.flush(journal, CommitId("s", 4))
        if isinstance(journal, Readable):
            journal.committed(CommitId("s", 4))
        self.append(journal, CommitId("s", 5), b"4")
        assert isinstance(journal, Sealing)
        self.seal(journal)
        journal = self.reopened(journal, CommitId("s", 4))
        assert self.payloads(journal) == [b"1", b"2", b"3", b"4"]
        self.close(journal)

    def test_another_store_drops_nothing_and_begins_an_epoch(self) -> None:
        journal = self.opened(CommitId("s", 0))
        for number in (1, 2):
            self.append(journal, CommitId("s", number), str(number).encode())
            self.flush(journal, CommitId("s", number))
        journal = self.reopened(journal, CommitId("other", 0))
        assert self.payloads(journal) == [b"1", b"2"]
        for number in (1, 2):
            self.append(journal, CommitId("other", number), b"other %d" % number)
            self.flush(journal, CommitId("other", number))
        assert self.payloads(journal) == [b"1", b"2", b"other 1", b"other 2"]
        journal = self.reopened(journal, CommitId("other", 1))
        assert self.payloads(journal) == [b"1", b"2", b"other 1"]
        self.close(journal)
