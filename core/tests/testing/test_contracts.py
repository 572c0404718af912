"""The contracts, kept by the stores, journals and plugins of the kit itself."""

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

import pytest
from hookmq.hooks.entry import PluginInstance
from hookmq.plugin import ClientInfo, Message, Plugin, hookimpl
from hookmq.store import Journal, MemoryStore, PutMessage, Record, Store
from hookmq.testing import (
    DurableStore,
    HookRecorder,
    JournalContract,
    PluginContract,
    RecordingJournal,
    SlowStore,
    StoreContract,
)
from hookmq.testing.plugins import instance_of


class TestMemoryStore(StoreContract):
    def open(self) -> Store:
        return MemoryStore()

    def messages(self, store: Store) -> int:
        assert isinstance(store, MemoryStore)
        return len(store._messages)


class TestDurableStore(StoreContract):
    def open(self) -> Store:
        made = self.__dict__.setdefault("stores", {})
        if self.folder not in made:
            made[self.folder] = DurableStore(str(self.folder))
        store: Store = made[self.folder]
        return store

    def messages(self, store: Store) -> int:
        assert isinstance(store, DurableStore)
        return len(store.messages)


class TestSlowStore(TestDurableStore):
    def open(self) -> Store:
        self.slow = SlowStore(super().open())
        return self.slow

    def messages(self, store: Store) -> int:
        assert isinstance(store, SlowStore)
        return super().messages(store.inner)

    def settle(self) -> None:
        self.slow.finish()


class TestRecordingJournal(JournalContract):
    slow: ClassVar[bool] = False

    def open(self) -> Journal:
        if "journal" not in self.__dict__:
            self.journal = RecordingJournal(slow=self.slow)
        return self.journal

    def payloads(self, journal: Journal) -> list[bytes]:
        assert isinstance(journal, RecordingJournal)
        return [message.payload for _, message in journal.safe]

    def settle(self) -> None:
        self.journal.finish()


class TestSlowJournal(TestRecordingJournal):
    slow = True


class TestHookRecorder(PluginContract):
    kind = HookRecorder

    def instance(self, config: Mapping[str, Any], id: str = "") -> PluginInstance:
        return instance_of(HookRecorder(id=id or "recorder"))


class Sloppy(Plugin):
    """A plugin that fails on ordinary traffic."""

    @hookimpl
    def on_publish(self, client: ClientInfo, message: Message) -> None:
        message.payload.decode("utf-99")


def test_plugin_contract_notices_failing_hooks() -> None:
    class Contract(PluginContract):
        kind = Sloppy

    Contract().test_it_starts_and_stops()
    with pytest.raises(AssertionError, match="on_publish"):
        Contract().test_ordinary_traffic()


class Broken(DurableStore):
    """A store that does not do one thing."""

    skips: Any = Record

    def _apply(self, record: Record) -> None:
        if not isinstance(record, self.skips):
            super()._apply(record)


@pytest.mark.parametrize("skips", [kind for kind in get_args(Record) if kind is not PutMessage])
def test_store_contract_notices_a_store_that_skips(skips: type[Any]) -> None:
    failed = []
    for name in [name for name in dir(StoreContract) if name.startswith("test_")]:
        store = Broken(name)
        store.skips = skips

        class Contract(TestDurableStore):
            def open(self, store: Store = store) -> Store:
                return store

        try:
            getattr(Contract(), name)()
        except (AssertionError, ValueError, KeyError):
            failed.append(name)
        except AttributeError:
            assert name == "test_other_data_has_another_identity"
    assert failed
