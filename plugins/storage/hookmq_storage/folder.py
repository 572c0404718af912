"""The store's folder: its files, how its database is replaced, and the mark that records the last safe commit."""

import os
import shutil
import time
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from hookmq.plugin import StoreError
from hookmq_toolkit.durable_files import sync_folder
from hookmq_toolkit.state_folder import LOCK, prepare_folder, refuse_foreign

DATABASE: Final = "hookmq.db"
MARK: Final = "mark"
BUILDING: Final = "building"
"""Name of the subfolder where a new database is built."""
BUILT: Final = "built"
"""Name of that subfolder once the new database is complete. It then replaces the old one, now or at the next startup."""
_OURS: Final = frozenset(
    {
        *(DATABASE, *(f"{DATABASE}-{one}" for one in ("journal", "wal", "shm"))),
        *(LOCK, MARK, BUILDING, BUILT),
    }
)
_SAVED: Final = "saved-"
"""Prefix of the subfolders in which `migrate` and `repair` keep copies."""
_MARK_SIZE: Final = 128

CURE: Final = "name another folder with --data-dir, or as `path` of the plugin"
"""Advice at the end of most errors about the folder."""
IN_USE: Final = f"two brokers cannot share a folder; {CURE}"
_EMPTY: Final = "name an empty folder with --data-dir, or as `path` of the plugin"


class Mark(NamedTuple):
    """A commit that is known to be safe: its `number`, and the `identity` of the store."""

    identity: str
    number: int


def prepare(folder: Path) -> None:
    """Create `folder` durably if it is missing. This call blocks. Raises StoreError if it cannot be used or belongs to
    another program.
    """
    names = prepare_folder(folder, CURE)
    if DATABASE not in names:
        refuse_foreign(folder, names, _is_known, _EMPTY)
    if (folder / DATABASE).is_symlink():
        raise StoreError(
            f"{folder / DATABASE} is a symbolic link, but its log is not: link the whole folder instead"
        )


def _is_known(name: str) -> bool:
    return name in _OURS or name.startswith(_SAVED)


def begin_building(folder: Path) -> Path:
    """Return an empty folder in which to build a new database for `folder`, which must be locked. Files left behind by
    an earlier attempt are removed.
    """
    path = folder / BUILDING
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(mode=0o700)
    return path


def end_building(folder: Path) -> None:
    """Replace the old database, log and mark with the new database, which must be complete and synced.

    After a kill or a power cut, the folder contains either the old or the new database, or `finish_building` completes
    the replacement.
    """
    sync_folder(folder / BUILDING)
    os.rename(folder / BUILDING, folder / BUILT)
    sync_folder(folder)
    finish_building(folder)


def finish_building(folder: Path) -> None:
    """Complete any replacement that `end_building` started but did not finish."""
    built = folder / BUILT
    if not built.is_dir():
        return
    if (built / DATABASE).exists():
        for name in (f"{DATABASE}-wal", f"{DATABASE}-shm", MARK):
            (folder / name).unlink(missing_ok=True)
        # The old log must never be in the same folder as the new database.
        sync_folder(folder)
        os.replace(built / DATABASE, folder / DATABASE)
        sync_folder(folder)
    shutil.rmtree(built)


def saved_folder(folder: Path, why: str) -> Path:
    """Create a new subfolder of `folder` for a copy of the folder's files."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for number in range(1, 1000):
        path = folder / f"{_SAVED}{why}-{stamp}-{number}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise StoreError(f"{folder} contains too many copies")


def read_mark(folder: Path) -> Mark | None:
    """Return the mark, or None if it is missing or damaged. The mark serves only as an additional check."""
    try:
        data = (folder / MARK).read_bytes()[:_MARK_SIZE]
    except OSError:
        return None
    words = data.split()
    if len(words) != 4 or words[0] != b"hookmq-storage":
        return None
    try:
        if crc32(b" ".join(words[:3])) != int(words[3], 16):
            return None
        return Mark(words[1].decode(), int(words[2]))
    except ValueError:
        return None


def open_mark(folder: Path) -> int:
    """Open the mark file for `write_mark`, and return its descriptor."""
    return os.open(folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write_mark(file: int, mark: Mark) -> None:
    """Overwrite the mark. The mark fits into one sector, which disks write atomically."""
    text = f"hookmq-storage {mark.identity} {mark.number}".encode()
    text += b" %08x" % crc32(text)
    os.pwrite(file, text.ljust(_MARK_SIZE - 1) + b"\n", 0)
