"""Open the database after checking that it belongs to HookMQ, is intact, and includes the commit recorded in the mark."""

import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

from hookmq.plugin import StoreError
from hookmq_toolkit.durable_files import move_into_place, sync_file, sync_folder

from hookmq_storage import schema
from hookmq_storage.folder import (
    CURE,
    DATABASE,
    finish_building,
    prepare,
    read_mark,
    saved_folder,
)

Durability = Literal["memory", "os", "group"]
MIN_SQLITE: Final = (3, 24, 0)


class Limits(NamedTuple):
    """Size limits for the files and the page cache, in bytes; 0 means no limit."""

    page_cache: int = 32 << 20
    wal: int = 16 << 20
    size: int = 0


USUAL: Final = Limits()


class State(NamedTuple):
    """The contents of the `state` table."""

    identity: str
    number: int
    next_message: int
    at: float
    """Wall clock time of the latest commit."""
    fresh: bool
    """Whether the identity is new, because the database was empty or is a copy."""


def wrong(folder: Path, error: BaseException) -> StoreError:
    """Convert an SQLite or system error to a StoreError that names the path and, if possible, gives advice."""
    text = str(error)
    path = folder / DATABASE
    if isinstance(error, sqlite3.Error):
        if "not a database" in text:
            return StoreError(f"{path} is not an SQLite database; {CURE}")
        if "full" in text:
            text += f" ({_free(folder)} free)"
        if "malformed" in text or "corrupt" in text:
            text += "; hookmq storage repair saves the readable rows"
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
    """Return a connection for writing. The caller runs the checkpoints; see `hookmq_storage.engine`."""
    db = sqlite3.connect(
        folder / DATABASE, timeout=10.0, isolation_level=None, check_same_thread=False
    )
    try:
        if not db.execute("PRAGMA page_count").fetchone()[0]:
            # Set this before the first table is created, or it has no effect. It lets free pages be returned to the
            # disk.
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
    """Return a read-only connection. It sees every completed commit of a concurrent writer."""
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
    """Open the database in a locked folder, creating or migrating it if necessary.

    Raises StoreError if the database belongs to another program or to a newer version of this plugin, if it cannot be
    written, or if its commits would not be safe.
    """
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; 3.24 or newer is needed")
    prepare(folder)
    db: sqlite3.Connection | None = None
    try:
        finish_building(folder)
        mark = read_mark(folder)
        if not _check_header(folder) and mark is not None:
            raise StoreError(
                f"{folder} lacks {DATABASE}, which contained commit {mark.number}: restore it, or name a backup;"
                " for an empty store, remove the whole folder"
            )
        if durability == "group":
            _sync_log(folder)
        db = connect(folder, limits, durability)
        fresh = _claim(db, folder, token, now, migrations, version)
        # Sync at each start: the process that created the files may have been killed before it synced them.
        sync_folder(folder)
        found = state(db)
        if mark is not None and mark.identity == found.identity and mark.number > found.number:
            raise StoreError(
                f"{folder / DATABASE} ends at commit {found.number}, but commit {mark.number} was safe: an older copy was"
                " restored, or the disk lost writes; hookmq storage repair --accept accepts it"
            )
        inode = os.stat(folder / DATABASE).st_ino
        if not fresh and db.execute("SELECT inode FROM state").fetchone()[0] != inode:
            # A copy needs its own identity. Otherwise, journals would drop messages that only the original contains.
            fresh = True
            db.execute("UPDATE state SET identity = ?, inode = ?", (token(16), inode))
        # Shared subscriptions that have no waiting messages.
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
    """Return the database's state. Raises StoreError if the database contains no state."""
    row = db.execute("SELECT identity, number, next_message, at FROM state").fetchone()
    if row is None:
        raise StoreError(
            "the table `state` is empty; hookmq storage repair saves the readable rows"
        )
    identity, number, next_message, at = row
    return State(identity, number, next_message, at, fresh)


def _sync_log(folder: Path) -> None:
    """Sync the log left by a writer that was killed or ran with ``durability: os``. Its commits then count as safe, so
    the broker may acknowledge them without another commit.
    """
    with suppress(FileNotFoundError):
        sync_file(folder / f"{DATABASE}-wal")


def _check_header(folder: Path) -> bool:
    """Refuse a file that belongs to another program, before SQLite writes to it. Return whether the database has any
    content.
    """
    path = folder / DATABASE
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return False
    if not header:
        return False  # a crash before the first commit
    if path.stat().st_size <= 4096 and (folder / f"{DATABASE}-journal").exists():
        return False  # a power cut while the first page was written, before any table existed: SQLite rolls it back
    if not header.startswith(b"SQLite format 3\0"):
        raise StoreError(f"{path} is not an SQLite database; {CURE}")
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
    """Create or migrate the tables. Return whether they were created."""
    application: int = db.execute("PRAGMA application_id").fetchone()[0]
    if application == 0:
        db.execute("BEGIN IMMEDIATE")
        schema.create(db, token(16), os.stat(folder / DATABASE).st_ino, now())
        db.execute("COMMIT")
        return True
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    if found > version:
        raise StoreError(
            f"{folder / DATABASE} has version {found}, but this hookmq-storage supports up to {version}:"
            " install a newer one"
        )
    if found < version:
        missing = next((one for one in range(found, version) if one not in migrations), None)
        if missing is not None:
            raise StoreError(f"{folder / DATABASE}: there is no migration from version {missing}")
        saved = saved_folder(folder, f"version{found}")
        try:
            copy(db, saved / DATABASE)
        except BaseException:
            # A service manager may retry often, so failed attempts must not fill the disk.
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
    """Copy a snapshot of the database to the file `target`. Other processes may write to the database during the copy.

    `progress` is called with the number of pages copied and the total. The copy has a temporary name until it is
    complete and synced, so that no broker can open it too early. It gets a new identity when it is first opened.
    """
    with_progress = None
    if progress is not None:
        report = progress

        def with_progress(status: int, left: int, total: int) -> None:
            report(total - left, total)

    part = target.with_name(f"{target.name}.part")
    other = sqlite3.connect(part, isolation_level=None)
    try:
        # Read all pages from one snapshot. Otherwise, a commit by another process would restart the copy.
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
    move_into_place(part, target)
