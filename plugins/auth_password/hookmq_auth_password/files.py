"""Read or replace the whole user file, with one writer at a time."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from hookmq.plugin import ConfigError
from hookmq_toolkit.durable_files import sync_folder
from hookmq_toolkit.files import FileStamp, open_regular, shown_path

MAX_BYTES: Final = 64 << 20


class Content(NamedTuple):
    """A file's text, its state when it was read, and its permissions."""

    text: str
    stamp: FileStamp
    mode: int


def read(path: Path) -> Content:
    """Return the whole file. This call blocks. Raises ConfigError if the file is not text, too large, empty or still
    being written.
    """
    try:
        with open_regular(path) as file:
            before = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise ConfigError(
            error.strerror or "cannot read the file", source=shown_path(path)
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", source=str(path))
    if FileStamp.of(before) != FileStamp.of(after) or len(data) != after.st_size:
        raise ConfigError("the file changed during the read", source=str(path))
    if not data:
        # The file is briefly empty while a writer truncates and rewrites it.
        raise ConfigError("the file is empty", source=str(path))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise ConfigError("not UTF-8 text", source=str(path), line=line, column=column) from None
    return Content(text, FileStamp.of(after), stat.S_IMODE(after.st_mode))


def too_open(mode: int) -> str:
    """Return why a file's permissions are too open, or ''. The file's group may read it, but others must have no
    access.
    """
    if mode & 0o022:
        return f"mode {mode:04o}: users other than the owner may write to it; chmod 0600"
    return f"mode {mode:04o}: all users may access it; chmod 0600 or 0640" if mode & 0o007 else ""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock `path` against other writers that use this function, waiting for them first."""
    while True:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            held = os.fstat(file)
            now = os.stat(path)
            # If the previous writer replaced the file, this lock is on a deleted file.
            if (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino):
                yield
                return
        finally:
            os.close(file)


def rewrite(
    path: Path, edit: Callable[[Content], str | None]
) -> tuple[FileStamp, FileStamp] | None:
    """Replace the file atomically with the result of `edit`. The new file is fsynced and keeps the old one's mode and
    owner.

    Return the file's states before and after. If `edit` returned None, nothing is written and None is returned. This
    call blocks. Raises ConfigError, OSError and the errors of `edit`.
    """
    real = Path(os.path.realpath(path))
    with _locked(real):
        content = read(real)
        text = edit(content)
        if text is None:
            return None
        return content.stamp, _replace(real, text, os.stat(real))


def create(path: Path, text: str) -> FileStamp:
    """Create a file with mode 0600. This call blocks. Raises FileExistsError or another OSError."""
    return _replace(path, text, None)


def _replace(path: Path, text: str, old: os.stat_result | None) -> FileStamp:
    # mkstemp creates it with mode 0600
    file, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(file, "wb") as out:
            out.write(text.encode())
            out.flush()
            if old is not None:
                made = os.fstat(out.fileno())
                if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
                    os.fchown(out.fileno(), old.st_uid, old.st_gid)
                os.fchmod(out.fileno(), stat.S_IMODE(old.st_mode))
            os.fsync(out.fileno())
            if old is None:
                os.link(name, path)  # unlike rename, link does not replace a file
                os.unlink(name)
            else:
                os.replace(name, path)
            found = FileStamp.of(os.fstat(out.fileno()))  # renaming may change the stamp
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    sync_folder(path.parent)
    return found
