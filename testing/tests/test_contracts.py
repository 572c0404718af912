"""Test the contracts, applied to the stores, journals and plugins of the testing kit."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, get_args

import pytest
from hookmq.hooks.instance import PluginInstance
from hookmq.plugin import ClientInfo, Journal, Message, Plugin, Store, hookimpl
from hookmq.storage_api import Committed, PutMessage, Record
from hookmq_testing import (
    DurableStore,
    HookRecorder,
    JournalContract,
    PluginContract,
    RecordingJournal,
    SlowStore,
    StoreContract,
)
from hookmq_testing.contracts.crashes import StoreCrashes
from hookmq_testing.contracts.kit import Trouble
from hookmq_testing.plugins import instance_of
from simulator.clock import Clock
from simulator.disk import Disk, OpenDisk


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

    def crash(self, store: Store) -> None:
        """Do nothing, because this store outlives the broker."""


class TestSlowStore(TestDurableStore):
    failing = ""

    def open(self) -> Store:
        self.slow = SlowStore(super().open())
        self.failing = ""
        return self.slow

    def trouble(self, store: Store, kind: Trouble) -> None:
        self.failing = kind

    def messages(self, store: Store) -> int:
        assert isinstance(store, SlowStore)
        return super().messages(store.inner)

    def settle(self) -> None:
        if self.failing:
            self.slow.fail()
        else:
            self.slow.finish()


class Complaints:
    """Ignores the errors that the simulator's disk reports about the core."""

    def __call__(self, kind: str, text: str) -> None:
        pass


class TestSimulatedDisk(StoreContract):
    """The contract for the simulator's disk, with slow commits."""

    seed = 0
    latency = 1.0
    make: type[Disk] = Disk

    def open(self) -> Store:
        made = self.__dict__.setdefault("disks", {})
        if self.folder not in made:
            self.clock = Clock()
            random = Random(f"{self.seed} {self.folder.name}")
            made[self.folder] = self.make(
                self.clock, random, self.latency, self.latency, Complaints()
            )
        disk: Disk = made[self.folder]
        store = disk.open()
        store.identity = str(self.folder)
        return store

    def messages(self, store: Store) -> int:
        assert isinstance(store, OpenDisk)
        return len(store.disk.image.messages)

    def settle(self) -> None:
        for _ in self.clock.until(self.clock.now + 0.1):
            pass

    def crash(self, store: Store) -> None:
        assert isinstance(store, OpenDisk)
        store.lost = True
        store.disk.crash()

    def trouble(self, store: Store, kind: Trouble) -> None:
        assert isinstance(store, OpenDisk)
        store.disk.trouble = kind


class TestSimulatedDiskAgain(TestSimulatedDisk):
    seed = 1


class TestSimulatedDiskAtOnce(TestSimulatedDisk):
    latency = 0.0


class Tearing(Disk):
    """A disk that keeps only the first half of a commit if a power cut interrupts it."""

    def crash(self) -> None:
        records, self._writing = self._writing, None
        if records is not None:
            self.keep(records[: len(records) // 2])


class Forgetting(Disk):
    """A disk that has lost data it reported as committed."""

    def crash(self) -> None:
        self.number -= self.number > 1
        super().crash()


class Guessing(Disk):
    """A disk that has committed data it reported as failed."""

    def begin(self, store: OpenDisk, records: Sequence[Record], done: Committed) -> None:
        if self.trouble == "error":
            self.keep(records)
        super().begin(store, records, done)


@pytest.mark.parametrize("kind", [Tearing, Forgetting, Guessing])
def test_store_contract_notices_a_disk_that(kind: type[Disk], tmp_path: Path) -> None:
    failed = []
    for name in [name for name in dir(StoreCrashes) if name.startswith("test_")]:
        contract = TestSimulatedDisk()
        contract.folder = tmp_path / name
        contract.make = kind
        try:
            getattr(contract, name)()
        except AssertionError:
            failed.append(name)
    assert failed


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


def test_plugin_contract_notices_what_hookmq_deprecates() -> None:
    class Old(Plugin):
        words = "hookmq.plugin.Old is deprecated: use hookmq.plugin.New"

        @hookimpl
        def on_publish(self) -> None:
            warnings.warn(self.words, DeprecationWarning, stacklevel=1)

    class OfOthers(Old):
        words = "somebody else's"

    class Contract(PluginContract):
        kind = Old

    with pytest.raises(AssertionError, match="on_publish"):
        Contract().test_ordinary_traffic()
    Contract.kind = OfOthers
    with pytest.warns(DeprecationWarning, match="somebody"):
        Contract().test_ordinary_traffic()


def test_plugin_contract_notices_failing_hooks() -> None:
    class Contract(PluginContract):
        kind = Sloppy

    Contract().test_it_starts_and_stops()
    with pytest.raises(AssertionError, match="on_publish"):
        Contract().test_ordinary_traffic()


class Broken(DurableStore):
    """A store that omits one operation."""

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
        except pytest.skip.Exception:
            assert (
                name.startswith("test_a_commit_")
                or name == "test_a_store_that_failed_can_be_closed"
            )
        except AttributeError:
            assert name == "test_other_data_has_another_identity"
    assert failed
