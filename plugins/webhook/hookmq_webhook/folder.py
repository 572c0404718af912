"""The folder of one outbox: made so that a power cut does not take it, and ours alone."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from hookmq.errors import StoreError

CURSOR: Final = "cursor.json"
LOG: Final = "log"
DEAD: Final = "dead"
RESERVE: Final = "reserve"
RESERVED: Final = 64 << 10
"""Bytes kept back for a full disk."""
_OURS: Final = frozenset({CURSOR, CURSOR + ".new", LOG, DEAD, RESERVE, "lost+found"})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def default_folder(plugin_id: str) -> Path:
    """Where an outbox lies that nobody named a folder for: what the service manager made for the broker, else where this
    user's programs keep their state."""
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    name = quote(plugin_id, safe="")
    name = "%2E" * len(name) if not name.strip(".") else name
    if service:
        return Path(service, "webhook", name)
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # also the empty one; the XDG specification has those ignored
        state = os.path.expanduser("~/.local/state")
    return Path(state, "hookmq", "webhook", name)


def prepare(folder: Path, known: frozenset[str] = _OURS, below: tuple[str, ...] = (LOG,)) -> None:
    """Make `folder`, and the folders `below` it, if need be, with their names safe. Raises StoreError: it cannot be made,
    or has files of something else."""
    try:
        for name in ("", *below):
            _make(folder / name)
        strange = sorted(set(os.listdir(folder)) - known)
    except (FileExistsError, NotADirectoryError):
        at = next((one for one in (folder, *folder.parents) if one.exists()), folder)
        raise StoreError(f"{at} is a file: a folder is needed") from None
    except OSError as error:
        what = "cannot be read" if folder.exists() else "cannot be made"
        raise StoreError(f"{folder} {what}: {error.strerror}") from error
    if strange:
        raise StoreError(f"{folder} holds files of something else: {', '.join(strange[:3])}")


def _make(folder: Path) -> None:
    """A folder and those above it. Names that were there already may be those of a process that died before they were
    safe, so that the last is always made safe."""
    made = path = folder.absolute()
    while not path.exists() and path.parent != path:
        made, path = path, path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder.absolute()
    while True:
        try:
            sync_folder(path.parent)
        except PermissionError:
            return  # who may not even look into it did not make anything in it
        if path == made or path.parent == path:
            return
        path = path.parent


def sync_folder(folder: Path) -> None:
    """Make the names in a folder safe. Raises OSError."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_atomically(
    path: Path, data: bytes, rename: Callable[[Path, Path], object] = os.replace
) -> None:
    """Replace a file: after a crash it is the old one or the new one, whole. Raises OSError."""
    new = path.with_name(path.name + ".new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
    finally:
        os.close(file)
    rename(new, path)
    sync_folder(path.parent)


def reserve(folder: Path) -> None:
    """Keep some room back, if there is any."""
    path = folder / RESERVE
    try:
        if not path.exists():
            path.write_bytes(bytes(RESERVED))
    except OSError:
        path.unlink(missing_ok=True)


def write_at_any_cost(path: Path, data: bytes) -> None:
    """As `write_atomically`; on a full disk into the room that was kept back: what it says lets other room go. Raises
    OSError."""
    try:
        write_atomically(path, data)
    except OSError as error:
        reserved = path.with_name(RESERVE)
        if error.errno not in _FULL or not reserved.exists():
            raise
        reserved.unlink()
        write_atomically(path, data)
