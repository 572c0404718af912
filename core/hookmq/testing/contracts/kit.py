"""How the tests of a store open, use and crash it; what a store must offer to be tested."""

from pathlib import Path
from typing import Any, Literal

import pytest

from hookmq.store import CommitId, Loaded, Queued, Record, Store, StoreFailed

Trouble = Literal["error", "unknown"]


class StoreKit:
    """What the tests of a store use."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def open(self) -> Store:
        """The store over the data in `folder`: a new one, or the same again after it was closed."""
        raise NotImplementedError

    def messages(self, store: Store) -> int:
        """How many messages the store holds."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let work in the background go on; called until what is waited for has happened, at most 10,000 times."""

    def crash(self, store: Store) -> None:
        """End the process that has the store open, or the power of its machine: nothing is closed, and what is being
        committed may be done or not. Then `open` opens what is left."""
        pytest.skip("this store cannot be crashed")

    def trouble(self, store: Store, kind: Trouble) -> None:
        """Have the next commit fail: ``error`` is known not to be done, ``unknown`` may be done or not."""
        pytest.skip(f"this store has no trouble of the kind {kind}")

    # to be used by further tests of a store ------------------------------------------------------------------------

    def opened(self) -> Store:
        """A store that is open and loaded, as the broker uses it."""
        store = self.open()
        list(store.load())
        return store

    def wait(self, told: list[Any]) -> Any:
        """What a callback was told, once; background work is given its time."""
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
        """A page of a queue."""
        told: list[list[Queued] | StoreFailed] = []
        store.read(owner, after, count, size, told.append)
        page: list[Queued] = self.wait(told)
        return page

    def topics(self, store: Store, owner: str, **options: Any) -> list[str]:
        """Topics of a page."""
        return [message.topic for _, message in self.read(store, owner, **options)]

    def close(self, store: Store) -> None:
        """Close it."""
        told: list[None] = []
        store.close(lambda: told.append(None))
        self.wait(told)

    def reopened(self, store: Store) -> tuple[Store, list[Loaded]]:
        """The store closed and opened again, and what it loaded."""
        self.close(store)
        again = self.open()
        return again, list(again.load())

    def crashed(self, store: Store) -> tuple[Store, list[Loaded]]:
        """The store crashed and opened again, and what it loaded."""
        self.crash(store)
        again = self.open()
        return again, list(again.load())

    def _durable(self) -> Store:
        store = self.opened()
        if not store.durable:
            pytest.skip("this store promises nothing across a restart")
        return store
