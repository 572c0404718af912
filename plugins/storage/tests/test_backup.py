"""Test backups as a service: progress, result, failures, and the end of the broker."""

from pathlib import Path
from typing import Any

import pytest
from hookmq_storage import database
from hookmq_storage.backup import BackupJob
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
    assert not (tmp_path / "copy").exists()
    with pytest.raises(BackupError, match="the store is not open"):
        job.start(tmp_path / "copy")


def test_the_plugin_offers_it_unless_nothing_is_on_disk(tmp_path: Path) -> None:
    def offered(durability: str) -> Any:
        config = {"path": str(tmp_path), "durability": durability}
        return make_plugin(StoragePlugin, config, "storage").plugin.offered_services

    assert isinstance(offered("group")[SERVICE], BackupMaker)
    assert SERVICE not in offered("memory")
