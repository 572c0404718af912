"""Contract tests for stores, journals and plugins. Inherit from them to test your own.

    class TestMyStore(StoreContract):
        def open(self) -> Store:
            return MyStore(self.folder / "data.db")

        def messages(self, store: Store) -> int:
            return store.count_messages()

Every test gets its own empty `folder`. Override `settle` if your class does work in the background. Override `crash`
and `trouble` to test crashes and disk failures.
"""

from hookmq_testing.contracts.crashes import StoreCrashes
from hookmq_testing.contracts.journal import JournalContract
from hookmq_testing.contracts.kit import StoreKit, Trouble
from hookmq_testing.contracts.plugin import PluginContract
from hookmq_testing.contracts.samples import (
    MESSAGE,
    SESSION,
    SUBSCRIPTION,
    comparable,
    fields_of,
    make_entry,
    make_message,
    of_kind,
)
from hookmq_testing.contracts.store import StoreContract

__all__ = [
    "MESSAGE", "SESSION", "SUBSCRIPTION", "JournalContract", "PluginContract", "StoreContract", "StoreCrashes",
    "StoreKit", "Trouble", "comparable", "fields_of", "make_entry", "make_message", "of_kind",
]  # fmt: skip
