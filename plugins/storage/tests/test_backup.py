"""Test backups as a service: progress, results, failures, and a broker that stops during a backup."""

import fcntl
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hookmq.plugin import StoreError
from hookmq_storage import database
from hookmq_storage.backup import BackupJob, write_backup
from hookmq_storage.plugin import StoragePlugin
from hookmq_storage.store import SQLiteStore
from hookmq_testing import VirtualRuntime
from hookmq_testing.plugins import make_plugin
from hookmq_toolkit.backups import SERVICE, BackupError, BackupMaker, BackupStatus

Logged = list[tuple[str, str, dict[str, object]]]


@pytest.fixture
def logged() -> Logged:
    return []


@pytest.fixture
def job(tmp_path: Path, store: SQLiteStore, runtime: VirtualRuntime, logged: Logged) -> BackupJob:
    def log(level: str, event: str, /, **fields: object) -> None:
        logged.append((level, event, fields))

    made = BackupJob(tmp_path / "data", log)
    made.open(runtime)
    return made


def test_a_store_in_use_is_copied(
    tmp_path: Path, job: BackupJob, runtime: VirtualRuntime, logged: Logged
) -> None:
    target = tmp_path / "new" / "copy"
    assert job.status() == BackupStatus()
    job.start(target)
    assert (job.status().state, job.status().target) == ("running", target)
    with pytest.raises(BackupError, match="a backup is running"):
        job.start(tmp_path / "other")
    runtime.advance(1)
    status = job.status()
    size = (target / "hookmq.db").stat().st_size
    assert (status.state, status.progress, status.bytes, status.error) == ("done", 1.0, size, "")
    assert logged == [("info", "storage.backed_up", {"target": str(target), "bytes": size})]
    copy = SQLiteStore(target, VirtualRuntime(seed=1))
    list(copy.load())
    copy.close(lambda: None)
    assert target.stat().st_mode & 0o777 == 0o700


def test_a_failure_is_reported_and_leaves_other_files_alone(
    tmp_path: Path, job: BackupJob, runtime: VirtualRuntime, logged: Logged
) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    (target / "mine").touch()
    job.start(target)
    runtime.advance(1)
    assert job.status().state == "failed"
    assert "exists" in job.status().error
    assert (target / "mine").exists()
    assert logged[0][:2] == ("error", "storage.backup_failed")
    job.start(tmp_path / "next")
    runtime.advance(1)
    assert job.status().state == "done"


def test_what_a_killed_backup_left_is_replaced_and_anything_else_is_refused(
    tmp_path: Path, store: SQLiteStore
) -> None:
    data, target = tmp_path / "data", tmp_path / "copy"
    part = tmp_path / "copy.part"
    part.mkdir(mode=0o777)
    (part / "hookmq.db.part").write_text("half")
    held = os.open(part, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(StoreError, match="another process writes to"):
        write_backup(data, target, print)
    os.close(held)
    (part / "mine").touch()
    with pytest.raises(StoreError, match="contains unknown files: mine"):
        write_backup(data, target, print)
    assert not target.exists()
    (part / "mine").unlink()
    assert write_backup(data, target, print) == (target / "hookmq.db").stat().st_size
    assert (target.stat().st_mode & 0o777, part.exists()) == (0o700, False)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "next.part").symlink_to(elsewhere)
    with pytest.raises(StoreError, match="cannot be copied to"):
        write_backup(data, tmp_path / "next", print)
    assert not list(elsewhere.iterdir())


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, job: BackupJob, runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(db: Any, target: Path, progress: Any, pages: int) -> None:
        target.write_text("half")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("hookmq_storage.backup.copy", copy)
    job.start(tmp_path / "backups" / "copy")
    runtime.advance(1)
    target = tmp_path / "backups" / "copy"
    why = f"{tmp_path / 'data'} cannot be copied to {target}: database or disk is full"
    assert (job.status().state, job.status().error) == ("failed", why)
    assert not list(target.parent.iterdir())


def test_a_copy_ends_before_the_log_of_the_store_fills_the_disk(
    tmp_path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    size = (data / "hookmq.db-wal").stat().st_size
    free = size
    monkeypatch.setattr(
        "hookmq_storage.backup.os.statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1)
    )
    free = size - 1
    write_backup(data, tmp_path / "small", print)  # the log is not large
    monkeypatch.setattr("hookmq_storage.backup._LARGE_LOG", size - 1)
    with pytest.raises(StoreError, match="copy to a faster disk"):
        write_backup(data, tmp_path / "copy", print)
    assert not list(tmp_path.glob("copy*"))
    free = size
    write_backup(data, tmp_path / "copy", print)


def test_a_stop_ends_a_backup_and_removes_its_folder(
    tmp_path: Path, job: BackupJob, runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = database.copy
    seen: list[float] = []

    def copy(db: Any, target: Path, progress: Any, pages: int) -> None:
        progress(1, 4)
        seen.append(job.status().progress)
        job.close()
        whole(db, target, progress, pages=1)

    monkeypatch.setattr("hookmq_storage.backup.copy", copy)
    job.start(tmp_path / "copy")
    runtime.advance(1)
    assert seen == [0.25]
    assert (job.status().state, job.status().error) == ("failed", "the broker is stopping")
    assert not list(tmp_path.glob("copy*"))
    with pytest.raises(BackupError, match="the store is not open"):
        job.start(tmp_path / "copy")


def test_the_plugin_offers_it_unless_nothing_is_on_disk(tmp_path: Path) -> None:
    def offered(durability: str) -> Any:
        config = {"path": str(tmp_path), "durability": durability}
        return make_plugin(StoragePlugin, config, "storage").plugin.offered_services

    assert isinstance(offered("group")[SERVICE], BackupMaker)
    assert SERVICE not in offered("memory")
