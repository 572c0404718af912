"""Helpers that open, use and crash a store in its tests, and the methods that you override for your store."""

from pathlib import Path
from typing import Any, Literal

import pytest
from hookmq.storage.protocols import Store, StoreFailed
from hookmq.storage.records import CommitId, Loaded, Queued, Record

Trouble = Literal["error", "unknown"]


class StoreKit:
    """Helpers for store tests."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def open(self) -> Store:
        """Return a store for the data in `folder`. The tests call this for a new store, and to reopen a closed one."""
        raise NotImplementedError

    def messages(self, store: Store) -> int:
        """Return how many messages the store holds."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let background work continue. The tests call this repeatedly until the expected callback runs, at most 10,000
        times."""

    def crash(self, store: Store) -> None:
        """Simulate a crash of the store's process, or a power cut of its machine. `open` then opens the remaining data.

        Nothing is closed. A commit in progress may or may not take effect.
        """
        pytest.skip("this store cannot be crashed")

    def trouble(self, store: Store, kind: Trouble) -> None:
        """Make the next commit fail. With ``error`` it has no effect; with ``unknown`` it may or may not take
        effect."""
        pytest.skip(f"this store has no trouble of the kind {kind}")

    # helpers for further tests of a store ----------------------------------------------------------------------------

    def opened(self) -> Store:
        """Return a store that is open, loaded and ready for use by the broker."""
        store = self.open()
        list(store.load())
        return store

    def wait(self, told: list[Any]) -> Any:
        """Wait for a callback that appends its only argument to `told`, and return the argument. Background work
        continues meanwhile."""
        for _ in range(10_000):
            if told:
                break
            self.settle()
        assert len(told) == 1, f"the callback was called {len(told)} times"
        return told[0]

    def commit(self, store: Store, *records: Record) -> CommitId:
        """Commit a batch and return its id."""
        told: list[CommitId | StoreFailed] = []
        store.commit(records, told.append)
        result = self.wait(told)
        assert isinstance(result, CommitId), result
        return result

    def read(
        self,
        store: Store,
        owner: str,
        after: int = -(1 << 62),
        count: int = 1000,
        size: int = 1 << 30,
    ) -> list[Queued]:
        """Return a page of a queue."""
        told: list[list[Queued] | StoreFailed] = []
        store.read(owner, after, count, size, told.append)
        page: list[Queued] = self.wait(told)
        return page

    def topics(self, store: Store, owner: str, **options: Any) -> list[str]:
        """Return the topics of the messages on a page."""
        return [message.topic for _, message in self.read(store, owner, **options)]

    def close(self, store: Store) -> None:
        """Close a store and wait until it is closed."""
        told: list[None] = []
        store.close(lambda: told.append(None))
        self.wait(told)

    def reopened(self, store: Store) -> tuple[Store, list[Loaded]]:
        """Close and reopen a store. Return the store and the records that it loaded."""
        self.close(store)
        again = self.open()
        return again, list(again.load())

    def crashed(self, store: Store) -> tuple[Store, list[Loaded]]:
        """Crash and reopen a store. Return the store and the records that it loaded."""
        self.crash(store)
        again = self.open()
        return again, list(again.load())

    def _durable(self) -> Store:
        store = self.opened()
        if not store.durable:
            pytest.skip("this store promises nothing across a restart")
        return store
