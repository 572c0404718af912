"""The folder of one store: its files, the lock that keeps a second broker out, and the mark of what is safe."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from hookmq.errors import ConfigError, StoreError

DATABASE: Final = "hookmq.db"
LOCK: Final = "lock"
MARK: Final = "mark"
BUILDING: Final = "building"
"""A folder inside in which a new database is made."""
BUILT: Final = "built"
"""Its name when that is done: what is in it takes the place of the database, now or at the next start."""
_OURS: Final = frozenset(
    {
        *(DATABASE, *(f"{DATABASE}-{one}" for one in ("journal", "wal", "shm"))),
        *(LOCK, MARK, BUILDING, BUILT),
    }
)
_IGNORED: Final = frozenset({"lost+found"})
_SAVED: Final = "saved-"
"""Begins the names of folders that `migrate` and `repair` put copies into."""
_MARK_SIZE: Final = 128


CURE: Final = "name another folder with --data-dir, or as `path` of the plugin"
"""What helps against most of what may be wrong with a folder."""


class Mark(NamedTuple):
    """What was safe for certain: commit `number` of the store `identity`."""

    identity: str
    number: int


def default_folder() -> Path:
    """Where a store lies that nobody named a folder for: what the service manager made for the broker, else where this
    user's programs keep their state. Never the working directory: another one, and everything would be forgotten."""
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if service:
        return Path(service, "storage")
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(
        state
    ):  # also the empty one; the XDG specification has relative ones ignored
        state = os.path.expanduser("~/.local/state")
        if not os.path.isabs(state):
            raise ConfigError(f"this user has no home directory to keep state in; {CURE}")
    return Path(state, "hookmq", "storage")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder safe: a power cut may take what is in a file whose name is not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_way(folder: Path, made: Path) -> None:
    """Make the name of `folder` safe, and those of the folders above it up to `made`."""
    path = folder.absolute()
    while True:
        try:
            sync_folder(path.parent)
        except PermissionError:
            return  # who may not even look into it did not make anything in it
        if path == made or path.parent == path:
            return
        path = path.parent


def prepare(folder: Path) -> None:
    """Make sure that `folder` is there, safe from a power cut, and ours or empty. Raises StoreError."""
    made = path = folder.absolute()
    try:
        while not path.exists() and path.parent != path:
            made, path = path, path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sync_way(folder, made)
        names = set(os.listdir(folder))
    except (FileExistsError, NotADirectoryError):
        at = next((one for one in (folder, *folder.parents) if one.exists()), folder)
        raise StoreError(f"{at} is a file: a folder is needed; {CURE}") from None
    except OSError as error:
        what = "cannot be read" if folder.exists() else "cannot be made"
        raise StoreError(f"{folder} {what}: {error.strerror}; {CURE}") from error
    strange = sorted(name for name in names - _OURS - _IGNORED if not name.startswith(_SAVED))
    if DATABASE not in names and strange:
        shown = ", ".join(strange[:3]) + (", …" if len(strange) > 3 else "")
        raise StoreError(
            f"{folder} holds files of something else ({shown}): name an empty folder with"
            " --data-dir, or as `path` of the plugin"
        )
    if (folder / DATABASE).is_symlink():
        raise StoreError(
            f"{folder / DATABASE} is a symbolic link, and its log lies elsewhere: let a link name the whole folder"
        )


def begin_building(folder: Path) -> Path:
    """An empty folder for a new database of `folder`, which is locked; what an earlier attempt left there is removed."""
    path = folder / BUILDING
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(mode=0o700)
    return path


def end_building(folder: Path) -> None:
    """Have the new database, which is whole and safe, take the place of the old one, its log and its mark. Whenever it is
    killed or the power goes, what is found is the one or the other, or `finish_building` makes it so."""
    sync_folder(folder / BUILDING)
    os.rename(folder / BUILDING, folder / BUILT)
    sync_folder(folder)
    finish_building(folder)


def finish_building(folder: Path) -> None:
    """Do what is left to do of `end_building`, if anything."""
    built = folder / BUILT
    if not built.is_dir():
        return
    if (built / DATABASE).exists():
        for name in (f"{DATABASE}-wal", f"{DATABASE}-shm", MARK):
            (folder / name).unlink(missing_ok=True)
        # The log of the one must never be found beside the other.
        sync_folder(folder)
        os.replace(built / DATABASE, folder / DATABASE)
        sync_folder(folder)
    shutil.rmtree(built)


def saved_folder(folder: Path, why: str) -> Path:
    """A new, empty folder inside for a copy."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for number in range(1, 1000):
        path = folder / f"{_SAVED}{why}-{stamp}-{number}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise StoreError(f"{folder}: too many copies")


def lock(
    folder: Path,
    patience: float = 10.0,
    pause: Callable[[float], None] = time.sleep,
    cure: str = f"two brokers cannot share a folder; {CURE}",
) -> int:
    """Take the folder for this process; the descriptor that holds it, for as long as it is open anywhere.

    The lock outlives a broker that was killed by the moment its writer needs to finish; that is waited for up to
    `patience` seconds. Raises StoreError, which ends in `cure`, when another process has the folder, and when it cannot
    be written to.
    """
    path = folder / LOCK
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written to: {error.strerror}; {CURE}") from error
    waited = 0.0
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                os.close(file)
                raise StoreError(f"{path} cannot be locked: {error.strerror}") from error
        holder = _holder(file)
        if waited >= patience or (holder is not None and _alive(holder)):
            os.close(file)
            if holder is None or _alive(holder):
                who = f"process {holder}" if holder is not None else "another process"
                raise StoreError(f"{folder} is in use by {who}: {cure}")
            raise StoreError(
                f"{folder} is in use by process {holder}, which has ended, but what it started to write there has not:"
                " the disk is slow, or hangs; start again later"
            )
        pause(0.05)
        waited += 0.05
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        os.close(file)
        raise StoreError(f"{folder} cannot be written to: {error.strerror}; {CURE}") from error
    return file


def holder(folder: Path) -> int | None:
    """The process that has the folder now; None when nobody has."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _holder(file) or 0
    finally:
        os.close(file)
    return None


def _holder(file: int) -> int | None:
    try:
        return int(os.pread(file, 32, 0))
    except (OSError, ValueError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def read_mark(folder: Path) -> Mark | None:
    """The mark; None where there is none or it was torn: it is but a check."""
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
    """A descriptor for `write_mark`."""
    return os.open(folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write_mark(file: int, mark: Mark) -> None:
    """Write the mark over the one before; it fits into one sector, which disks write whole."""
    text = f"hookmq-storage {mark.identity} {mark.number}".encode()
    text += b" %08x" % crc32(text)
    os.pwrite(file, text.ljust(_MARK_SIZE - 1) + b"\n", 0)
