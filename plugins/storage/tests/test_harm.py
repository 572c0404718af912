"""Test what happens if other programs change a running broker's folder. The broker acknowledges only data that it would
find at its next startup.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashing import Client, crashing
from hookmq.plugin import Message
from hookmq.storage_api import CommitId, PutRetained, StoreFailed
from hookmq_storage.folder import DATABASE
from hookmq_storage.store import SQLiteStore
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.state_folder import LOCK

REMOVED = "it was removed, replaced or made inaccessible while the broker ran"


def put(store: SQLiteStore, topic: str) -> Any:
    """Commit a retained message and return the result."""
    told: list[Any] = []
    store.commit([PutRetained(Message(topic, b"x", 1, True))], told.append)
    return told.pop()


def replaced(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    shutil.copytree(folder.with_name("elsewhere"), folder)


@pytest.mark.parametrize(
    "harm",
    [
        shutil.rmtree,
        lambda folder: folder.rename(folder.with_name("elsewhere")),
        replaced,
        lambda folder: (folder / DATABASE).unlink(),
        lambda folder: (folder / f"{DATABASE}-wal").unlink(),
    ],
    ids=["folder removed", "folder renamed", "folder replaced", "database removed", "log removed"],
)
def test_files_that_are_gone(
    tmp_path: Path, store: SQLiteStore, harm: Callable[[Path], object]
) -> None:
    assert put(store, "one") == CommitId(store.identity, 1)
    assert put(store, "two") == CommitId(store.identity, 2)
    harm(tmp_path / "data")
    assert put(store, "three") == StoreFailed(f"{tmp_path}/data/hookmq.db: {REMOVED}")


def test_a_real_broker_whose_folder_is_removed(tmp_path: Path) -> None:
    with crashing(tmp_path) as broker:
        one = Client(broker, "one")
        one.subscribe("kept", 1)
        one.publish(1, "kept", 1)
        one.wait(lambda: one.acked == [1])
        shutil.rmtree(tmp_path / "data")
        one.publish(2, "kept", 1)
        assert broker.served is not None
        assert broker.served.wait_for("store.failed")["reason"].endswith(REMOVED)
        assert broker.ended() == 1
        assert one.acked == [1]


@pytest.mark.parametrize("empty", [False, True])
def test_a_second_broker_whose_lock_was_taken_away(
    tmp_path: Path, store: SQLiteStore, runtime: VirtualRuntime, empty: bool
) -> None:
    """If a running broker's lock is removed and a second broker starts, the first of the two to commit keeps running.
    The other one fails, because its memory no longer matches the store.
    """
    folder = tmp_path / "data"
    assert put(store, "one") == CommitId(store.identity, 1)
    (folder / LOCK).unlink()
    other = SQLiteStore(folder, VirtualRuntime())
    list(other.load())
    assert put(other, "two") == CommitId(store.identity, 2)
    says = f"{folder}/hookmq.db: another process wrote to it; two brokers cannot share a folder"
    if empty:  # a commit of journals, whose store has nothing to write
        told: list[Any] = []
        store.commit([], told.append)
        assert told == [StoreFailed(says)]
    else:
        assert put(store, "three") == StoreFailed(says)
    assert put(other, "four") == CommitId(store.identity, 3)
    other.close(lambda: None)
    assert os.listdir(folder)
