"""Test the in-memory store, which keeps nothing after the process ends."""

from hookmq.storage.memory_store import MemoryStore
from hookmq.storage.protocols import Store
from hookmq_testing import StoreContract


class TestMemoryStore(StoreContract):
    def open(self) -> Store:
        return MemoryStore()

    def messages(self, store: Store) -> int:
        assert isinstance(store, MemoryStore)
        return len(store._messages)
