"""Opening the database: is it ours, is it whole, is it the newest."""

import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final, Literal, NamedTuple

from hookmq.errors import StoreError

from hookmq_storage import schema
from hookmq_storage.folder import (
    CURE,
    DATABASE,
    finish_building,
    prepare,
    read_mark,
    saved_folder,
    sync_folder,
)

Durability = Literal["memory", "os", "group"]
MIN_SQLITE: Final = (3, 24, 0)


class Limits(NamedTuple):
    """What the files and the memory for them may take, in bytes; 0 for no limit."""

    page_cache: int = 32 << 20
    wal: int = 16 << 20
    size: int = 0


USUAL: Final = Limits()


class State(NamedTuple):
    """What the database says of itself."""

    identity: str
    number: int
    next_message: int
    at: float
    """Wall clock of the newest commit."""
    fresh: bool
    """Whether the identity is new: an empty database, or a copy of another."""


def wrong(folder: Path, error: BaseException) -> StoreError:
    """The error of SQLite or the system, as ours: with the path, and with what helps where that is known."""
    text = str(error)
    path = folder / DATABASE
    if isinstance(error, sqlite3.Error):
        if "not a database" in text:
            return StoreError(f"{path} is not a database of SQLite; {CURE}")
        if "full" in text:
            text += f" ({_free(folder)} free)"
        if "malformed" in text or "corrupt" in text:
            text += "; hookmq storage repair saves what is readable"
        if "readonly" in text or "unable to open" in text:
            text += f"; {folder} must be writable for this user"
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror
    elif isinstance(error, StoreError) and str(folder) in text:
        return error
    return StoreError(f"{path}: {text}")


def _free(folder: Path) -> str:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return "unknown"
    return f"{disk.f_bavail * disk.f_frsize >> 20} MiB"


def connect(
    folder: Path, limits: Limits = USUAL, durability: Durability = "group"
) -> sqlite3.Connection:
    """A connection that may write. Checkpoints are the caller's: see `hookmq_storage.engine`."""
    db = sqlite3.connect(
        folder / DATABASE, timeout=10.0, isolation_level=None, check_same_thread=False
    )
    try:
        if not db.execute("PRAGMA page_count").fetchone()[0]:
            # Before the first table: deleted pages can be given back to the disk. Later it would only write.
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'group' else 'NORMAL'}")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(f"PRAGMA journal_size_limit = {limits.wal}")
        db.execute(f"PRAGMA cache_size = -{max(1, limits.page_cache >> 10)}")
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("PRAGMA temp_store = MEMORY")
        if limits.size:
            page: int = db.execute("PRAGMA page_size").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {max(1, limits.size // page)}")
    except BaseException:
        db.close()
        raise
    return db


def connect_reading(folder: Path, page_cache: int = 8 << 20) -> sqlite3.Connection:
    """A connection that only reads; beside a writer it sees every commit that is done."""
    path = (folder / DATABASE).absolute()
    db = sqlite3.connect(
        path.as_uri() + "?mode=ro",
        uri=True,
        timeout=10.0,
        isolation_level=None,
        check_same_thread=False,
    )
    db.execute(f"PRAGMA cache_size = -{max(1, page_cache >> 10)}")
    return db


def open_store(
    folder: Path,
    limits: Limits = USUAL,
    durability: Durability = "group",
    token: Callable[[int], str] = secrets.token_hex,
    now: Callable[[], float] = time.time,
    migrations: Mapping[int, schema.Migration] = schema.MIGRATIONS,
    version: int = schema.VERSION,
) -> tuple[sqlite3.Connection, State]:
    """The database of a folder that is locked already, made, migrated or taken as it is. Raises StoreError when it is of
    another program or a newer version, cannot be written to, or lacks commits that were safe."""
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: 3.24 is needed")
    prepare(folder)
    db: sqlite3.Connection | None = None
    try:
        finish_building(folder)
        mark = read_mark(folder)
        if not _check_header(folder) and mark is not None:
            raise StoreError(
                f"{folder} lacks {DATABASE}, in which commit {mark.number} was safe: put it back, or name a backup;"
                " to begin anew, remove the whole folder"
            )
        if durability == "group":
            _sync_log(folder)
        db = connect(folder, limits, durability)
        fresh = _claim(db, folder, token, now, migrations, version)
        # Each time: the process that made the files may have been killed before it did this.
        sync_folder(folder)
        found = state(db)
        if mark is not None and mark.identity == found.identity and mark.number > found.number:
            raise StoreError(
                f"{folder / DATABASE} ends at commit {found.number}, but commit {mark.number} was safe: an older copy was"
                " put back, or the disk lost writes; hookmq storage repair --accept takes it as it is"
            )
        inode = os.stat(folder / DATABASE).st_ino
        if not fresh and db.execute("SELECT inode FROM state").fetchone()[0] != inode:
            # A copy must not pass for the original: journals would drop what only the original knows of.
            fresh = True
            db.execute("UPDATE state SET identity = ?, inode = ?", (token(16), inode))
        # Shared subscriptions that nobody waits for any more.
        db.execute(
            "DELETE FROM owner WHERE name >= 'g/' AND name < 'g0'"
            " AND NOT EXISTS (SELECT 1 FROM entry WHERE entry.owner = owner.id)"
        )
        return db, state(db, fresh)
    except (sqlite3.Error, OSError) as error:
        if db is not None:
            db.close()
        raise wrong(folder, error) from error
    except BaseException:
        if db is not None:
            db.close()
        raise


def state(db: sqlite3.Connection, fresh: bool = False) -> State:
    """What the database says of itself. Raises StoreError where it says nothing."""
    row = db.execute("SELECT identity, number, next_message, at FROM state").fetchone()
    if row is None:
        raise StoreError("the table `state` is empty; hookmq storage repair saves what is readable")
    identity, number, next_message, at = row
    return State(identity, number, next_message, at, fresh)


def _sync_log(folder: Path) -> None:
    """Make safe what a writer that was killed had written and not synced, or one of ``durability: os``: from now on it is
    taken for committed, and may be acknowledged without another commit."""
    try:
        descriptor = os.open(folder / f"{DATABASE}-wal", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_header(folder: Path) -> bool:
    """Refuse the file of another program before SQLite writes to it; whether there is a database with anything in it."""
    path = folder / DATABASE
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return False
    if not header:
        return False  # a crash before the first commit
    if path.stat().st_size <= 4096 and (folder / f"{DATABASE}-journal").exists():
        return False  # a power cut while the first page was made, which holds no table yet: SQLite takes it back
    if not header.startswith(b"SQLite format 3\0"):
        raise StoreError(f"{path} is not a database of SQLite; {CURE}")
    application = int.from_bytes(header[68:72], "big")
    if application == 0:
        with closing(connect_reading(folder)) as db:
            application = db.execute("PRAGMA application_id").fetchone()[0]
            if not application and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise StoreError(f"{path} belongs to another program; {CURE}")
        if not application:
            return False
    if application not in (schema.APPLICATION_ID, 0):
        raise StoreError(
            f"{path} belongs to another program (application id {application:#x}); {CURE}"
        )
    return True


def _claim(
    db: sqlite3.Connection,
    folder: Path,
    token: Callable[[int], str],
    now: Callable[[], float],
    migrations: Mapping[int, schema.Migration],
    version: int,
) -> bool:
    """Make the tables or migrate them; whether they were made."""
    application: int = db.execute("PRAGMA application_id").fetchone()[0]
    if application == 0:
        db.execute("BEGIN IMMEDIATE")
        schema.create(db, token(16), os.stat(folder / DATABASE).st_ino, now())
        db.execute("COMMIT")
        return True
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    if found > version:
        raise StoreError(
            f"{folder / DATABASE} is of version {found}, this hookmq-storage knows up to {version}: install a newer one"
        )
    if found < version:
        missing = next((one for one in range(found, version) if one not in migrations), None)
        if missing is not None:
            raise StoreError(f"{folder / DATABASE}: nothing leads from version {missing} on")
        saved = saved_folder(folder, f"version{found}")
        try:
            copy(db, saved / DATABASE)
        except BaseException:
            # A service manager tries again and again: it must not fill the disk with parts.
            shutil.rmtree(saved, ignore_errors=True)
            raise
        schema.migrate(db, found, migrations, version)
    return False


def copy(
    db: sqlite3.Connection,
    target: Path,
    progress: Callable[[int, int], None] | None = None,
    pages: int = -1,
) -> None:
    """Copy the database as it is at one moment to the file `target`, while others write; `progress` is told pages done
    and in all. The copy has no identity of its own yet: whoever opens it gives it one. Until it is whole and safe it has
    another name, which no broker takes for a database."""
    with_progress = None
    if progress is not None:
        report = progress

        def with_progress(status: int, left: int, total: int) -> None:
            report(total - left, total)

    part = target.with_name(f"{target.name}.part")
    other = sqlite3.connect(part, isolation_level=None)
    try:
        # One moment for all pages: else each commit of another process would make the copy begin again.
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        try:
            db.backup(other, pages=pages, progress=with_progress, sleep=0.0)
        finally:
            db.execute("COMMIT")
        if other.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone():
            other.execute("UPDATE state SET inode = NULL")
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        other.close()
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(part, target)
    sync_folder(target.parent)
