"""Copy a consistent snapshot of a store to a new folder, even while a broker is running. Both the command and the
backup service use this.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import Log, Runtime, StoreError
from hookmq_toolkit.backups import BackupError, BackupStatus
from hookmq_toolkit.durable_files import sync_folder
from hookmq_toolkit.state_folder import lock_holder, make_folder, try_lock

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


_LARGE_LOG: Final = 64 << 20
"""Free space is not checked until the log exceeds this size, in bytes."""


def _spare_log(folder: Path) -> None:
    """Raise StoreError if the store's log may soon fill its disk, which would stop the broker. While a copy is being
    made, the log cannot be emptied.
    """
    try:
        size = (folder / f"{DATABASE}-wal").stat().st_size
    except FileNotFoundError:
        return
    if size <= _LARGE_LOG:
        return
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < size:
        raise StoreError(
            f"the log of {folder} has grown to {size >> 20} MiB during the copy, and {free >> 20} MiB are free:"
            " copy to a faster disk"
        )


def write_backup(folder: Path, target: Path, progress: Callable[[int, int], None]) -> int:
    """Copy the store in `folder` to the new folder `target`, and return the number of bytes. Blocks.

    The copy is made in a folder with ``.part`` appended to its name. That folder is renamed once the copy is complete
    and synced. Even after a kill or a power cut, no broker can therefore mistake an incomplete `target` for an empty
    store.

    `progress` is called with the number of pages copied and the total. If it raises, or if the copy fails, the folder
    is removed. The log grows during the copy. The copy fails before the log can fill the store's disk. Raises
    StoreError.
    """
    target = target.absolute()

    def advance(done: int, total: int) -> None:
        _spare_log(folder)
        progress(done, total)

    with reading(folder) as db:
        if os.path.lexists(target):
            raise StoreError(f"{target} exists: name a new folder")
        part = target.with_name(f"{target.name}.part")
        try:
            with _own_folder(part):
                copy(db, part / DATABASE, advance, pages=4096)
                os.rename(part, target)
            sync_folder(target.parent)
            return (target / DATABASE).stat().st_size
        except (OSError, sqlite3.Error) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise StoreError(f"{folder} cannot be copied to {target}: {why}") from error


@contextmanager
def _own_folder(part: Path) -> Iterator[None]:
    """Create the folder `part`, or take over one left behind by a killed process. Remove it if the block raises."""
    make_folder(part)
    held = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(held).st_uid != os.geteuid():
            raise StoreError(f"{part} belongs to another user")
        os.fchmod(held, 0o700)
        if not try_lock(held):
            raise StoreError(f"another process writes to {part}")
        unknown = [name for name in os.listdir(part) if not name.startswith(DATABASE)]
        if unknown:
            raise StoreError(f"{part} contains unknown files: {unknown[0]}")
        try:
            for name in os.listdir(part):
                (part / name).unlink()
            yield
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    finally:
        os.close(held)


class _Stopped(Exception):
    """The broker is stopping."""


class BackupJob:
    """Implements `hookmq_toolkit.backups.BackupMaker` for the store in `folder`, using one of the runtime's threads."""

    def __init__(self, folder: Path, log: Log) -> None:
        self._folder = folder
        self._log = log
        self._runtime: Runtime | None = None
        self._status = BackupStatus()
        self._pages = (0, 0)

    def open(self, runtime: Runtime) -> None:
        """Allow backups from now on."""
        self._runtime = runtime

    def close(self) -> None:
        """Refuse further backups. A running backup ends within a few milliseconds, and its folder is removed."""
        self._runtime = None

    def start(self, target: Path) -> None:
        """Start a backup. Raises BackupError."""
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
        """Record the progress. Called in the backup thread."""
        if self._runtime is None:
            raise _Stopped
        self._pages = (done, total)

    def _ended(self, runtime: Runtime, size: Any, error: BaseException | None) -> None:
        status = replace(self.status(), ended_at=runtime.time())
        if error is None:
            self._status = replace(status, state="done", progress=1.0, bytes=size)
            self._log("info", "storage.backed_up", target=str(status.target), bytes=size)
            return
        why = "the broker is stopping" if self._runtime is None else str(error)
        self._status = replace(status, state="failed", error=why)
        self._log("error", "storage.backup_failed", target=str(status.target), error=why)

    def status(self) -> BackupStatus:
        """Return the progress or result of the latest backup."""
        done, total = self._pages
        if self._status.state != "running" or not total:
            return self._status
        return replace(self._status, progress=done / total)
