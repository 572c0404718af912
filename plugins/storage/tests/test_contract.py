"""The contract of stores, kept on real files: in the broker's process and in the writer's."""

from typing import Any

import pytest
from hookmq.store import Store
from hookmq.testing import StoreContract
from hookmq.testing.runtime import VirtualRuntime
from hookmq_storage.database import connect_reading
from hookmq_storage.store import SQLiteStore


class TestInline(StoreContract):
    @pytest.fixture(autouse=True)
    def _runtime(self) -> None:
        self.runtime = VirtualRuntime()

    def open(self) -> Store:
        return SQLiteStore(self.folder / "data", self.runtime)

    def settle(self) -> None:
        self.runtime.turn()

    def messages(self, store: Store) -> int:
        """What ended sessions leave is swept away in turns of its own."""
        self.runtime.run_until_idle()
        return self._count()

    def _count(self) -> int:
        db = connect_reading(self.folder / "data")
        count: int = db.execute("SELECT count(*) FROM message").fetchone()[0]
        db.close()
        return count


class TestInlineOs(TestInline):
    def open(self) -> Store:
        return SQLiteStore(self.folder / "data", self.runtime, "os")


class TestProcess(TestInline):
    @pytest.fixture(autouse=True)
    def _loop(self, loop: Any) -> None:
        self.loop = loop

    def open(self) -> Store:
        return SQLiteStore(self.folder / "data", self.loop.runtime)

    def settle(self) -> None:
        self.loop.turn()

    def messages(self, store: Store) -> int:
        db = connect_reading(self.folder / "data")
        for _ in range(10_000):
            if not db.execute("SELECT count(*) FROM owner WHERE name IS NULL").fetchone()[0]:
                break
        db.close()
        return self._count()
