"""Write lines to a size-limited file, in a thread."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import BufferedWriter
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import BrokerHandle, Promise

WAITING: Final = 1000
"""Maximum number of lines waiting for the disk."""


class RotatedFile:
    """A file that is renamed to PATH.1 before it exceeds `max_bytes`. Up to `files` old files are kept.

    The file is opened for each write, so another program may move it. It has mode 0640, because it contains user names
    and addresses.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files

    def write(self, lines: list[bytes]) -> None:
        """Append lines, each of which already ends in a newline. This call blocks. Raises OSError."""
        file = self._open()
        try:
            size = os.fstat(file.fileno()).st_size
            for line in lines:
                if size and size + len(line) > self._max_bytes:
                    file.close()
                    self._rotate()
                    file, size = self._open(), 0
                file.write(line)
                size += len(line)
        finally:
            file.close()

    def _open(self) -> BufferedWriter:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.fdopen(os.open(self._path, flags, 0o640), "ab")

    def _rotate(self) -> None:
        for number in range(self._files - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")


class LogFile:
    """Appends lines to `path` and keeps `files` older files of up to `max_bytes` each, as PATH.1 to PATH.N.

    If the disk fails or cannot keep up, lines are dropped and counted in `dropped`. `report` is called with the error
    when writing starts to fail, and with None when it works again.
    """

    def __init__(
        self, path: Path, max_bytes: int, files: int, report: Callable[[BaseException | None], None]
    ) -> None:
        self._rotated = RotatedFile(path, max_bytes, files)
        self._report = report
        self._lines: list[bytes] = []
        self._writing = False
        self._failing = False
        self._idle: Promise | None = None
        self.dropped = 0

    def add(self, line: str, broker: BrokerHandle) -> None:
        """Queue a line for writing, or drop it if too many lines are waiting."""
        if len(self._lines) >= WAITING:
            self.dropped += 1
            return
        self._lines.append(line.encode("ascii") + b"\n")
        self._start(broker)

    async def close(self, broker: BrokerHandle) -> None:
        """Wait until all lines are written."""
        if self._writing:
            self._idle = broker.runtime.promise()
            await self._idle

    def _start(self, broker: BrokerHandle) -> None:
        if self._writing:
            return
        self._writing = True
        lines, self._lines = self._lines, []
        call = partial(self._rotated.write, lines)
        broker.runtime.run_blocking(call, partial(self._written, broker, len(lines)))

    def _written(
        self, broker: BrokerHandle, count: int, _: Any, error: BaseException | None
    ) -> None:
        self._writing = False
        if error is not None:
            self.dropped += count
        if self._failing != (error is not None):
            self._failing = error is not None
            self._report(error)
        if self._lines:
            self._start(broker)
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
