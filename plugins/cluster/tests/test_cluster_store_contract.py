"""The store of a cluster meets the contract of stores, if its lane is opened again after each restart."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from cluster_stores import Bench, Process
from hookmq.plugin import Store
from hookmq.storage_api import CommitId, Loaded
from hookmq_cluster.engine import Entry, Unavailable
from hookmq_cluster.store import ClusterStore
from hookmq_testing import StoreContract
from hookmq_testing.contracts import Trouble
from simulated_engine import Faults


class OneLane(ClusterStore):
    """A store that loads its lane as other stores load their files. Its commits are numbered across restarts."""

    process: Process

    def load(self) -> Iterator[Loaded]:
        return self.process.loaded()


class OneLaneProcess(Process):
    def __init__(self, bench: Bench, identity: str) -> None:
        super().__init__(bench)
        self.store.identity = identity
        keys = [one.key.split("/") for one in bench.log.commits]
        self.store._number = max((int(key[1]) for key in keys if len(key) > 1), default=0)

    def make(self, node: str, home: str) -> ClusterStore:
        store = super().make(node, home)
        store.__class__ = OneLane
        store.process = self  # type: ignore[attr-defined]
        return store


class TestClusterStore(StoreContract):
    """Each folder has a log of its own, and each process of the node another boot."""

    faults = Faults()

    @pytest.fixture(autouse=True)
    def _logs(self) -> None:
        self.benches: dict[Any, Bench] = {}

    def open(self) -> Store:
        bench = self.benches.setdefault(self.folder, Bench(1, self.faults))
        return OneLaneProcess(bench, f"c/n1/{self.folder.name}").store

    @staticmethod
    def process(store: Store) -> Process:
        assert isinstance(store, OneLane)
        return store.process

    def settle(self) -> None:
        for bench in self.benches.values():
            if not bench.runtime.turn():
                bench.runtime.advance(0.0005)

    def messages(self, store: Store) -> int:
        return self.process(store).messages()

    def crash(self, store: Store) -> None:
        self.process(store).crash()

    def trouble(self, store: Store, kind: Trouble) -> None:
        engine = self.process(store).engine
        append = engine.commit

        def commit(entries: Sequence[Entry], done: Callable[[Any], None], key: str = "") -> None:
            failed = Unavailable("no majority")
            if kind == "unknown":
                append(entries, lambda result: done(failed), key)
            else:
                done(failed)

        setattr(engine, "commit", commit)  # noqa: B010

    def test_identity_and_number_survive(self) -> None:
        """A process numbers its own commits: its boot is part of the identity."""
        bench = Bench()
        first, second = Process(bench), Process(bench)
        assert first.store.identity == "c/n1/b1"
        assert second.store.identity == "c/n1/b2"
        assert second.store.last_commit() == CommitId("c/n1/b2", 0)
        assert second.commit() == CommitId("c/n1/b2", 1)

    def test_message_ids_are_not_used_again(self) -> None:
        """Each process draws a range of ids; see `test_a_range_of_message_ids_is_not_used_twice`."""
        bench = Bench()
        ids = {Process(bench).store.next_message_id() for _ in range(10)}
        assert len({id >> 32 for id in ids}) == 10
        assert all(0 < id < 1 << 63 for id in ids)

    def test_a_crash_leaves_a_commit_whole_or_none_of_it(self) -> None:
        # The ids of the contract start at 1, not in the range of the process.
        ClusterStore.next_message_id, kept = (lambda self: 1 << 40), ClusterStore.next_message_id  # type: ignore
        try:
            super().test_a_crash_leaves_a_commit_whole_or_none_of_it()
        finally:
            ClusterStore.next_message_id = kept  # type: ignore[method-assign]


class TestWithFaults(TestClusterStore):
    """The engine loses requests and answers, and pages are small."""

    faults = Faults(lost_request=0.1, lost_answer=0.1, late=0.1, page=3)
