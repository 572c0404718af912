"""Opening files that somebody else writes, for plugins that are told one."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """The file, open for reading. It never waits for the other end of a pipe. Raises OSError, also for what is no regular
    file."""
    file = open(path, "rb", opener=_at_once)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
