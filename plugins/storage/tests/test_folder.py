"""Test that an unusable folder causes an error that states the reason. The folder may belong to another program, a
newer version or another broker, or be read-only.
"""

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Message, StoreError
from hookmq.storage_api import CommitId, PutRetained, StoreFailed
from hookmq_storage import schema
from hookmq_storage.database import connect, open_store
from hookmq_storage.folder import (
    DATABASE,
    MARK,
    Mark,
    open_mark,
    read_mark,
    write_mark,
)
from hookmq_storage.store import SQLiteStore
from hookmq_testing import EPOCH, VirtualRuntime
from hookmq_toolkit.state_folder import lock_holder


def opened(folder: Path, runtime: VirtualRuntime) -> SQLiteStore:
    store = SQLiteStore(folder, runtime)
    list(store.load())
    return store


def closed(store: SQLiteStore) -> None:
    told: list[None] = []
    store.close(lambda: told.append(None))
    assert told == [None]


def put(store: SQLiteStore, topic: str = "t") -> CommitId:
    told: list[CommitId | StoreFailed] = []
    store.commit([PutRetained(Message(topic, b"x", 1, True))], told.append)
    assert isinstance(told[0], CommitId), told
    return told[0]


def refused(folder: Path, runtime: VirtualRuntime) -> str:
    with pytest.raises(StoreError) as caught:
        SQLiteStore(folder, runtime)
    return str(caught.value)


# --- whose folder -------------------------------------------------------------------------------------------------------


def test_a_folder_is_made(tmp_path: Path, runtime: VirtualRuntime) -> None:
    folder = tmp_path / "a" / "b"
    store = opened(folder, runtime)
    assert sorted(path.name for path in folder.iterdir() if "-" not in path.name) == [
        DATABASE, "lock", MARK,
    ]  # fmt: skip
    assert folder.stat().st_mode & 0o077 == 0
    closed(store)
    assert not (folder / f"{DATABASE}-wal").exists()


def test_a_file_in_its_place(tmp_path: Path, runtime: VirtualRuntime) -> None:
    (tmp_path / "data").write_text("x")
    assert "is a file" in refused(tmp_path / "data", runtime)


def test_a_folder_of_something_else(tmp_path: Path, runtime: VirtualRuntime) -> None:
    (tmp_path / "PG_VERSION").write_text("15")
    told = refused(tmp_path, runtime)
    assert "contains unknown files: PG_VERSION; name an empty folder" in told
    assert [path.name for path in tmp_path.iterdir()] == ["PG_VERSION"]


def test_a_database_of_another_program(tmp_path: Path, runtime: VirtualRuntime) -> None:
    with sqlite3.connect(tmp_path / DATABASE) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = (tmp_path / DATABASE).read_bytes()
    assert "belongs to another program" in refused(tmp_path, runtime)
    db = sqlite3.connect(tmp_path / DATABASE)
    assert db.execute("SELECT count(*) FROM theirs").fetchone() == (0,)
    db.execute("PRAGMA application_id = 4711")
    db.close()
    assert "belongs to another program" in refused(tmp_path, runtime)
    assert len(before) == (tmp_path / DATABASE).stat().st_size


def test_no_database_at_all(tmp_path: Path, runtime: VirtualRuntime) -> None:
    (tmp_path / DATABASE).write_bytes(b"a letter to somebody\n" * 50)
    assert "not an SQLite database" in refused(tmp_path, runtime)


def test_a_read_only_folder(
    tmp_path: Path, runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder's mode does not stop root, and tests in containers run as root.
    real = os.open

    def read_only(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert refused(tmp_path, runtime).endswith(
        "cannot be written to: Read-only file system; name another folder with --data-dir, or as `path` of the plugin"
    )


# --- versions -----------------------------------------------------------------------------------------------------------


def set_version(folder: Path, version: int) -> None:
    db = sqlite3.connect(folder / DATABASE, isolation_level=None)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()


def test_a_newer_version(tmp_path: Path, runtime: VirtualRuntime) -> None:
    closed(opened(tmp_path / "data", runtime))
    set_version(tmp_path / "data", schema.VERSION + 1)
    told = refused(tmp_path / "data", runtime)
    assert f"has version {schema.VERSION + 1}" in told
    assert "install a newer one" in told


def test_older_versions_are_migrated(tmp_path: Path, runtime: VirtualRuntime) -> None:
    folder = tmp_path / "data"
    store = opened(folder, runtime)
    put(store, "old")
    closed(store)
    db = sqlite3.connect(folder / DATABASE, isolation_level=None)
    db.execute("ALTER TABLE retained RENAME COLUMN sender TO author")
    db.close()
    set_version(folder, 0)

    def from_0(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE retained RENAME COLUMN author TO sender")

    db, state = open_store(folder, migrations={0: from_0}, version=1)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert state.number == 1
    db.execute(f"PRAGMA user_version = {schema.VERSION}")  # for it is of this one but for the name
    db.close()
    [saved] = folder.glob("saved-version0-*")
    copy = sqlite3.connect(saved / DATABASE)
    assert copy.execute("SELECT author FROM retained").fetchone() == (None,)
    copy.close()
    store = SQLiteStore(folder, runtime)
    assert [one.message.topic for one in store.load() if isinstance(one, PutRetained)] == ["old"]
    closed(store)


def test_every_older_version_has_a_way_on() -> None:
    assert sorted(schema.MIGRATIONS) == list(range(1, schema.VERSION))


def test_a_failed_migration_changes_nothing(tmp_path: Path, runtime: VirtualRuntime) -> None:
    closed(opened(tmp_path / "data", runtime))
    set_version(tmp_path / "data", 0)

    def fails(db: sqlite3.Connection) -> None:
        db.execute("DROP TABLE retained")
        db.execute("no SQL at all")

    with pytest.raises(StoreError, match="syntax error"):
        open_store(tmp_path / "data", migrations={0: fails}, version=1)
    db = connect(tmp_path / "data")
    assert db.execute("PRAGMA user_version").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM retained").fetchone() == (0,)
    db.close()
    with pytest.raises(StoreError, match="there is no migration from version 0"):
        open_store(tmp_path / "data")


# --- one broker ---------------------------------------------------------------------------------------------------------


def test_two_brokers_in_one_process(tmp_path: Path, runtime: VirtualRuntime) -> None:
    first = opened(tmp_path / "data", runtime)
    told = refused(tmp_path / "data", runtime)
    assert f"in use by process {os.getpid()}; two brokers cannot share a folder" in told
    assert lock_holder(tmp_path / "data") == os.getpid()
    closed(first)
    assert lock_holder(tmp_path / "data") is None
    closed(opened(tmp_path / "data", runtime))


def test_another_process_has_it(tmp_path: Path, runtime: VirtualRuntime) -> None:
    code = """
import pathlib, sys
from hookmq_toolkit.state_folder import lock_folder
lock_folder(pathlib.Path(sys.argv[1]))
print(1)
input()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "1\n"
    assert f"in use by process {other.pid}" in refused(tmp_path, runtime)
    other.communicate("\n")


# --- copies and lost commits --------------------------------------------------------------------------------------------


def test_a_copy_has_an_identity_of_its_own(tmp_path: Path, runtime: VirtualRuntime) -> None:
    store = opened(tmp_path / "data", runtime)
    first = put(store)
    closed(store)
    (tmp_path / "copy").mkdir()
    data = (tmp_path / "data" / DATABASE).read_bytes()
    (tmp_path / "copy" / DATABASE).write_bytes(data)
    copy = opened(tmp_path / "copy", runtime)
    assert copy.identity != first.store
    assert copy.last_commit() == CommitId(copy.identity, 1)
    assert [event for _, event, _ in runtime.logged].count("storage.copy") == 1
    closed(copy)
    again = opened(tmp_path / "copy", runtime)
    assert again.identity == copy.identity
    closed(again)


def test_a_database_behind_what_was_safe(tmp_path: Path, runtime: VirtualRuntime) -> None:
    folder = tmp_path / "data"
    store = opened(folder, runtime)
    put(store)
    closed(store)
    older = (folder / DATABASE).read_bytes()
    store = opened(folder, runtime)
    put(store)
    put(store)
    closed(store)
    mark = read_mark(folder)
    assert mark == Mark(store.identity, 3)
    (folder / DATABASE).write_bytes(older)  # the same file: the inode stays
    told = refused(folder, runtime)
    assert "ends at commit 1, but commit 3 was safe" in told
    assert "repair --accept" in told


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: os.truncate(path, 0)])
def test_a_database_that_is_gone(
    tmp_path: Path, runtime: VirtualRuntime, harm: Callable[[Path], object]
) -> None:
    """The broker does not start if the database is gone. A new empty database would lose all
    acknowledged data.
    """
    store = opened(tmp_path / "data", runtime)
    store.commit([PutRetained(Message("t", b"x", 1, True))], lambda result: None)
    closed(store)
    harm(tmp_path / "data" / DATABASE)
    for _ in range(2):
        told = refused(tmp_path / "data", VirtualRuntime(seed=1))
        assert f"lacks {DATABASE}, which contained commit 1: restore it" in told


def test_a_link_for_the_database_alone(tmp_path: Path, runtime: VirtualRuntime) -> None:
    """A link in place of the database file alone is refused. The log would be next to the link's target, where the
    broker does not limit, sync or copy it.
    """
    closed(opened(tmp_path / "data", runtime))
    (tmp_path / "data" / DATABASE).rename(tmp_path / "real")
    (tmp_path / "data" / DATABASE).symlink_to(tmp_path / "real")
    assert "is a symbolic link" in refused(tmp_path / "data", runtime)
    (tmp_path / "data" / DATABASE).unlink()
    (tmp_path / "real").rename(tmp_path / "data" / DATABASE)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    closed(opened(tmp_path / "link", runtime))


def test_a_torn_mark_is_no_obstacle(tmp_path: Path, runtime: VirtualRuntime) -> None:
    store = opened(tmp_path, runtime)
    put(store)
    closed(store)
    data = (tmp_path / MARK).read_bytes()
    for torn in (b"", data[:30], data.replace(b"1", b"2", 1), b"\0" * 128, b"\xff" * 128):
        (tmp_path / MARK).write_bytes(torn)
        assert read_mark(tmp_path) is None
    closed(opened(tmp_path, runtime))


def test_the_mark_is_written_over(tmp_path: Path) -> None:
    file = open_mark(tmp_path)
    for number in (1, 10**12, 7):
        write_mark(file, Mark("ab" * 16, number))
        assert read_mark(tmp_path) == Mark("ab" * 16, number)
    os.close(file)
    assert (tmp_path / MARK).stat().st_size == 128


# --- clocks -------------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumped_back_is_told(tmp_path: Path, runtime: VirtualRuntime) -> None:
    runtime.advance(7200)
    store = opened(tmp_path, runtime)
    put(store)
    closed(store)
    assert [event for _, event, _ in runtime.logged] == ["storage.opened"]
    earlier = VirtualRuntime()
    assert earlier.time() == EPOCH
    store = opened(tmp_path, earlier)
    [(level, _, fields)] = [one for one in earlier.logged if one[1] == "storage.clock_behind"]
    assert (level, fields["seconds"]) == ("warning", 7200)
    assert put(store).number == 2
    closed(store)
