"""The file on its disk: read as a whole, written as a whole, one writer at a time."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from hookmq.files import FileStamp, open_regular, shown_path
from hookmq.plugin import ConfigError

MAX_BYTES: Final = 64 << 20


class Content(NamedTuple):
    """A file's text, the state it was read in, and its permissions."""

    text: str
    stamp: FileStamp
    mode: int


def read(path: Path) -> Content:
    """The whole file. Blocks; raises ConfigError for what is no text, too large, empty or being written."""
    try:
        with open_regular(path) as file:
            before = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise ConfigError(error.strerror or "cannot be read", source=shown_path(path)) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", source=str(path))
    if FileStamp.of(before) != FileStamp.of(after) or len(data) != after.st_size:
        raise ConfigError("it changes while it is read", source=str(path))
    if not data:
        # What a writer that truncates leaves for a moment; nobody means it.
        raise ConfigError("the file is empty", source=str(path))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise ConfigError("not UTF-8 text", source=str(path), line=line, column=column) from None
    return Content(text, FileStamp.of(after), stat.S_IMODE(after.st_mode))


def too_open(mode: int) -> str:
    """What is wrong with a file's permissions: '' for nothing. A group may read it, nobody else may do anything."""
    if mode & 0o022:
        return f"mode {mode:04o}: others than the owner may write to it; chmod 0600"
    return f"mode {mode:04o}: everybody may read it; chmod 0600 or 0640" if mode & 0o007 else ""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The only writer of `path`, among all that go through here. Waits for the others."""
    while True:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            held = os.fstat(file)
            now = os.stat(path)
            # The one before has put another file in its place: the lock is on what nobody sees any more.
            if (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino):
                yield
                return
        finally:
            os.close(file)


def rewrite(
    path: Path, edit: Callable[[Content], str | None]
) -> tuple[FileStamp, FileStamp] | None:
    """Replace the file by what `edit` makes of it, at once and safe on the disk, with its mode and its owner; nothing is
    done where that is None. The states before and after. Blocks; raises ConfigError, OSError and what `edit` raises."""
    real = Path(os.path.realpath(path))
    with _locked(real):
        content = read(real)
        text = edit(content)
        if text is None:
            return None
        return content.stamp, _replace(real, text, os.stat(real))


def create(path: Path, text: str) -> FileStamp:
    """A new file, with mode 0600. Blocks; raises FileExistsError and other OSErrors."""
    return _replace(path, text, None)


def _replace(path: Path, text: str, old: os.stat_result | None) -> FileStamp:
    # mkstemp: 0600 from the first moment
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
                os.link(name, path)  # unlike rename, it does not replace
                os.unlink(name)
            else:
                os.replace(name, path)
            found = FileStamp.of(os.fstat(out.fileno()))  # renaming may change it
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return found
