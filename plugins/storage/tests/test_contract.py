"""Test the store contract on real files, in the broker's process and in a writer process."""

import errno
import os
import resource
import signal
from collections.abc import Iterable
from typing import Any

import pytest
from hookmq.plugin import Store
from hookmq_storage.batch import Operation
from hookmq_storage.database import connect_reading
from hookmq_storage.store import SQLiteStore
from hookmq_testing import StoreContract
from hookmq_testing.contracts import Trouble
from hookmq_testing.runtime import VirtualRuntime


class TestInline(StoreContract):
    @pytest.fixture(autouse=True)
    def _runtime(self) -> None:
        self.runtime = VirtualRuntime()

    def open(self) -> Store:
        return SQLiteStore(self.folder / "data", self.runtime)

    def settle(self) -> None:
        self.runtime.turn()

    def messages(self, store: Store) -> int:
        """Delete the messages of ended sessions in slices, then return the number of remaining messages."""
        self.runtime.run_until_idle()
        return self._count()

    def crash(self, store: Store) -> None:
        """Release the files and the lock without a checkpoint or an orderly close."""
        assert isinstance(store, SQLiteStore)
        assert store._engine is not None
        assert store._pages is not None
        store._closed = True
        store._pages.close()
        store._engine.abandon()
        os.close(store._lock)

    def trouble(self, store: Store, kind: Trouble) -> None:
        assert isinstance(store, SQLiteStore)
        engine = store._engine
        assert engine is not None
        if kind == "error":  # no room for another page
            pages = engine.db.execute("PRAGMA page_count").fetchone()[0]
            engine.db.execute(f"PRAGMA max_page_count = {pages}")
        else:
            commit = engine.commit

            def unsure(operations: Iterable[Operation]) -> int:
                if self.sure:
                    commit(operations)
                raise OSError(errno.EIO, "Input/output error")

            setattr(engine, "commit", unsure)  # noqa: B010

    sure = False
    """Whether a commit with an unknown result took effect."""

    def _count(self) -> int:
        db = connect_reading(self.folder / "data")
        held = "SELECT count(*) FROM entry WHERE body IS NOT NULL"
        count: int = db.execute(f"SELECT (SELECT count(*) FROM message) + ({held})").fetchone()[0]
        db.close()
        return count


class TestInlineOs(TestInline):
    sure = True

    def open(self) -> Store:
        return SQLiteStore(self.folder / "data", self.runtime, "os")


class TestProcess(TestInline):
    @pytest.mark.slow
    def test_a_crash_leaves_a_commit_whole_or_none_of_it(self) -> None:
        super().test_a_crash_leaves_a_commit_whole_or_none_of_it()

    @pytest.mark.slow
    def test_a_crash_keeps_every_commit_that_was_told(self) -> None:
        super().test_a_crash_keeps_every_commit_that_was_told()

    @pytest.fixture(autouse=True)
    def _loop(self, loop: Any) -> None:
        self.loop = loop

    def open(self) -> Store:
        return SQLiteStore(self.folder / "data", self.loop.runtime)

    def settle(self) -> None:
        self.loop.turn()

    def crash(self, store: Store) -> None:
        """Kill the writer, busy or not, and discard the broker's end of the connection."""
        assert isinstance(store, SQLiteStore)
        assert store._process is not None
        store._process.kill()
        store._closed = True
        os.close(store._lock)

    def trouble(self, store: Store, kind: Trouble) -> None:
        assert isinstance(store, SQLiteStore)
        assert store._process is not None
        pid = store._process.process.pid
        if kind == "error":  # a disk that takes no more
            size = (self.folder / "data" / "hookmq.db-wal").stat().st_size
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))
        else:
            # Killed before or during a commit: the waiting caller gets the same error.
            commit = store._process.commit

            def killed(batch: list[Any]) -> None:
                commit(batch)
                os.kill(pid, signal.SIGKILL)

            setattr(store._process, "commit", killed)  # noqa: B010

    def messages(self, store: Store) -> int:
        db = connect_reading(self.folder / "data")
        for _ in range(10_000):
            if not db.execute("SELECT count(*) FROM owner WHERE name IS NULL").fetchone()[0]:
                break
        db.close()
        return self._count()
