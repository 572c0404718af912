"""Copy a store to a new folder as of one moment, even while a broker runs: for the command and as a service."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hookmq.plugin import Log, Runtime, StoreError
from hookmq_toolkit.backups import BackupError, BackupStatus
from hookmq_toolkit.durable_files import sync_folder
from hookmq_toolkit.state_folder import lock_holder

from hookmq_storage.database import connect_reading, copy
from hookmq_storage.folder import BUILT, DATABASE
from hookmq_storage.schema import APPLICATION_ID, VERSION


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open a store for reading, even while a broker uses it. Raises StoreError if it is not a HookMQ store."""
    if not (folder / DATABASE).exists():
        raise StoreError(f"{folder} contains no store")
    if (folder / BUILT).exists() and lock_holder(folder) is None:
        raise StoreError(
            f"{folder}: a repair or import was killed; start the broker or run hookmq storage repair to complete it"
        )
    with closing(connect_reading(folder)) as db:
        application: int = db.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION_ID:
            raise StoreError(f"{folder / DATABASE} belongs to another program")
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise StoreError(
                f"{folder / DATABASE} has version {version}: install a newer hookmq-storage"
            )
        yield db


def write_backup(folder: Path, target: Path, progress: Callable[[int, int], None]) -> int:
    """Copy the store in `folder` to the new folder `target`, and return the number of bytes. Blocks.

    `progress` is called with the number of copied pages and the total. If it raises, or if the copy fails, `target` is
    removed. Raises StoreError, OSError or sqlite3.Error.
    """
    with reading(folder) as db:
        target.mkdir(mode=0o700, parents=True)
        try:
            copy(db, target / DATABASE, progress, pages=4096)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        sync_folder(target.absolute().parent)
    return (target / DATABASE).stat().st_size


class _Stopped(Exception):
    """The broker stops."""


class BackupJob:
    """Implements `hookmq_toolkit.backups.BackupMaker` for the store in `folder`, in a thread of the runtime."""

    def __init__(self, folder: Path, log: Log) -> None:
        self._folder = folder
        self._log = log
        self._runtime: Runtime | None = None
        self._status = BackupStatus()
        self._pages = (0, 0)

    def open(self, runtime: Runtime) -> None:
        """Allow backups."""
        self._runtime = runtime

    def close(self) -> None:
        """Refuse further backups. A running backup ends within some milliseconds, and its folder is removed."""
        self._runtime = None

    def start(self, target: Path) -> None:
        """Begin a backup. Raises BackupError."""
        runtime = self._runtime
        if runtime is None:
            raise BackupError("the store is not open")
        if self._status.state == "running":
            raise BackupError("a backup is running")
        self._pages = (0, 0)
        self._status = BackupStatus("running", target, runtime.time())
        copying = partial(write_backup, self._folder, target, self._advance)
        runtime.run_blocking(copying, partial(self._ended, runtime))

    def _advance(self, done: int, total: int) -> None:
        """Note the progress. Called in the thread."""
        if self._runtime is None:
            raise _Stopped
        self._pages = (done, total)

    def _ended(self, runtime: Runtime, size: Any, error: BaseException | None) -> None:
        status = replace(self.status(), ended_at=runtime.time())
        if error is None:
            self._status = replace(status, state="done", progress=1.0, bytes=size)
            self._log("info", "storage.backed_up", target=str(status.target), bytes=size)
            return
        why = "the broker is stopping" if isinstance(error, _Stopped) else str(error)
        self._status = replace(status, state="failed", error=why)
        self._log("error", "storage.backup_failed", target=str(status.target), error=why)

    def status(self) -> BackupStatus:
        """Return how far the newest backup is, or its result."""
        done, total = self._pages
        if self._status.state != "running" or not total:
            return self._status
        return replace(self._status, progress=done / total)
