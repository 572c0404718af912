"""Write files and folders so that they survive a power cut.

A file's data is safe once the file has been fsynced. Its name is safe only once its folder has been fsynced. All
functions here block, and raise OSError if they fail.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = [
    "move_into_place",
    "replacing",
    "sync_file",
    "sync_folder",
    "write_all",
    "write_atomically",
]

_NEW: Final = ".new"


def sync_folder(folder: Path) -> None:
    """Fsync `folder`, so that the names in it are safe."""
    _sync(folder, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Fsync the data of the file `path`, which may have been written by another process."""
    _sync(path, 0)


def _sync(path: Path, flags: int) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_all(file: int, data: bytes) -> None:
    """Write all of `data` to the descriptor `file`, in as many calls as the system needs."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def move_into_place(part: Path, path: Path) -> None:
    """Fsync the file `part`, rename it to `path`, and fsync their folder. Both paths must be in the same folder."""
    sync_file(part)
    os.replace(part, path)
    sync_folder(path.parent)


@contextmanager
def replacing(
    path: Path, part: Path | None = None, mode: int = 0o600, sync: bool = True
) -> Iterator[int]:
    """Yield the descriptor of a new file that replaces `path` when the block ends.

    After a crash, `path` is either the complete old file or the complete new one. Inside the block the new file is
    called `part`, by default `path` with ``.new`` appended. A leftover `part` is removed first. If the block raises,
    `part` is removed and `path` remains unchanged. Without `sync`, the replacement survives a crash of the process but
    not a power cut.
    """
    part = part or path.with_name(path.name + _NEW)
    part.unlink(missing_ok=True)
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            yield file
            if sync:
                os.fsync(file)
        finally:
            os.close(file)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def write_atomically(
    path: Path, data: bytes, *, sync: bool = True, owner_of_folder: bool = False
) -> None:
    """Replace the file `path` with a file that contains `data` and has mode 0600; see `replacing`.

    With `owner_of_folder`, a file written by root gets the folder's owner, so that the broker can read files that an
    administrator's command wrote.
    """
    with replacing(path, sync=sync) as file:
        write_all(file, data)
        if owner_of_folder and os.geteuid() == 0:
            owner = os.stat(path.parent)
            os.fchown(file, owner.st_uid, owner.st_gid)
