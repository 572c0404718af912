"""What every store, journal and plugin must keep to, as tests to inherit.

    class TestMyStore(StoreContract):
        def open(self) -> Store:
            return MyStore(self.folder / "data.db")

        def messages(self, store: Store) -> int:
            return store.count_messages()

Every test gets an empty `folder` of its own. Where something goes on in the background, override `settle`; and `crash`
and `trouble`, to have tested what a store must keep to when its process ends or its disk fails.
"""

from hookmq.testing.contracts.crashes import StoreCrashes
from hookmq.testing.contracts.journal import JournalContract
from hookmq.testing.contracts.kit import StoreKit
from hookmq.testing.contracts.plugin import PluginContract
from hookmq.testing.contracts.samples import fields_of
from hookmq.testing.contracts.store import StoreContract

__all__ = [
    "JournalContract", "PluginContract", "StoreContract", "StoreCrashes", "StoreKit", "fields_of",
]  # fmt: skip
