"""The folder where a plugin keeps its data: its default path, its creation and its lock."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from hookmq.plugin import ConfigError, StoreError

from hookmq_toolkit.durable_files import sync_folder

__all__ = [
    "LOCK",
    "default_folder",
    "lock_folder",
    "lock_holder",
    "make_folder",
    "prepare_folder",
    "refuse_foreign",
    "try_lock",
]

LOCK: Final = "lock"
"""The lock file that keeps other processes out of a folder."""
_PAUSE: Final = 0.05
"""Seconds between two attempts to take a lock."""


def default_folder(*names: str, cure: str = "") -> Path:
    """Return the default folder for data, with `names` as the subfolders.

    It is in ``$STATE_DIRECTORY``, which systemd sets, or in ``hookmq`` in the user's state folder (``$XDG_STATE_HOME``,
    by default ``~/.local/state``). It never depends on the working directory. Characters in `names` that are unsuitable
    for file names are escaped. Raises ConfigError, with a message that ends with `cure`, if the user has no home
    directory.
    """
    below = [_file_name(name) for name in names]
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if service:
        return Path(service, *below)
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG specification ignores relative paths
        state = os.path.expanduser("~/.local/state")
        if not os.path.isabs(state):
            raise ConfigError(_with("this user has no home directory for state", cure))
    return Path(state, "hookmq", *below)


def _file_name(name: str) -> str:
    quoted = quote(name, safe="")
    return quoted if quoted.strip(".") else "%2E" * len(quoted)


def make_folder(folder: Path) -> None:
    """Create `folder` and missing parent folders with mode 0700, and make their names safe. This call blocks. Raises
    OSError.

    An existing folder's name is made safe too, because the process that created the folder may have been killed before
    doing so.
    """
    missing: list[Path] = []
    path = folder.absolute()
    while not os.path.exists(path) and path.parent != path:
        missing.append(path)
        path = path.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    for one in missing or [folder.absolute()]:
        try:
            sync_folder(one.parent)
        except PermissionError:
            return  # this process cannot read the folder, so it has created nothing in it


def prepare_folder(folder: Path, cure: str = "") -> set[str]:
    """Create `folder` if it is missing, as `make_folder` does, and return the names in it. This call blocks. Raises
    StoreError, with a message that ends with `cure`, if the folder cannot be created or read.
    """
    try:
        make_folder(folder)
        return set(os.listdir(folder))
    except (FileExistsError, NotADirectoryError):
        at = next((one for one in (folder, *folder.parents) if os.path.exists(one)), folder)
        raise StoreError(_with(f"{at} is a file, not a folder", cure)) from None
    except OSError as error:
        what = "cannot be read" if os.path.exists(folder) else "cannot be created"
        raise StoreError(_with(f"{folder} {what}: {error.strerror}", cure)) from error


def refuse_foreign(
    folder: Path, names: Iterable[str], known: Callable[[str], bool], cure: str = ""
) -> None:
    """Raise StoreError unless all `names`, the contents of `folder`, are `known`: the folder may belong to another
    program. ``lost+found`` is always accepted."""
    foreign = sorted(name for name in names if name != "lost+found" and not known(name))
    if foreign:
        shown = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise StoreError(_with(f"{folder} contains unknown files: {shown}", cure))


def try_lock(file: int) -> bool:
    """Take the exclusive lock of the open file `file`. Return False if another process holds it.

    The kernel releases the lock when the last copy of the descriptor is closed. Raises OSError.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise
        return False
    return True


def lock_folder(
    folder: Path,
    *,
    in_use: str = "",
    cure: str = "",
    patience: float = 10.0,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Lock `folder` for this process and return the descriptor that holds the lock.

    Child processes that inherit the descriptor hold the lock too. When a process is killed, its children may take a
    moment to exit. This function waits for them, up to `patience` seconds, using `pause`. It does not wait if a live
    process holds the lock. Raises StoreError if the folder is in use (the message ends with `in_use`) or cannot be
    written to (it ends with `cure`).
    """
    path = folder / LOCK
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(_with(f"{folder} cannot be written to: {error.strerror}", cure)) from error
    try:
        _wait_for_lock(file, folder, in_use, patience, pause)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        os.close(file)
        raise StoreError(_with(f"{folder} cannot be locked: {error.strerror}", cure)) from error
    except BaseException:
        os.close(file)
        raise
    return file


def _wait_for_lock(
    file: int, folder: Path, in_use: str, patience: float, pause: Callable[[float], None]
) -> None:
    waited = 0.0
    while not try_lock(file):
        holder = _read_process_id(file)
        if holder is not None and _is_alive(holder):
            raise StoreError(_with(f"{folder} is in use by process {holder}", in_use))
        if waited >= patience:
            if holder is None:  # the process never wrote its id
                raise StoreError(_with(f"{folder} is in use by another process", in_use))
            raise StoreError(
                f"{folder} is still in use by a child of process {holder}, which has ended: the disk is slow or hangs;"
                " start again later"
            )
        pause(_PAUSE)
        waited += _PAUSE


def lock_holder(folder: Path) -> int | None:
    """Return the id of the process that holds the lock of `folder`. Return 0 if the id is unknown, and None if the
    folder is not locked.
    """
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read_process_id(file) or 0
    finally:
        os.close(file)
    return None


def _read_process_id(file: int) -> int | None:
    try:
        return int(os.pread(file, 32, 0))
    except (OSError, ValueError):
        return None


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists, but belongs to another user
    return True


def _with(text: str, cure: str) -> str:
    return f"{text}; {cure}" if cure else text
