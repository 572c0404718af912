"""Open files named in the configuration without blocking on pipes, and format their paths for messages."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Never block on a named pipe. Raises OSError if that fails or the file is of
    another kind.
    """
    file = open(path, "rb", opener=_at_once)  # noqa: SIM115 - the caller closes the file
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def check_regular(path: Path) -> None:
    """Check that `open_regular` can open a file, before passing it to code that would block on a pipe. Raises OSError."""
    open_regular(path).close()


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path for use in a message."""
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory was removed
        return os.fspath(path)


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
