"""Open private files safely, and reload files when they change."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, Generic, NamedTuple, TypeVar

from hookmq.plugin import Cancel, HookMQError, Runtime, Timer
from hookmq.server_api import check_regular, open_regular, shown_path

__all__ = [
    "FileStamp",
    "FileWatch",
    "check_regular",
    "file_stamp",
    "open_private",
    "open_regular",
    "shown_path",
    "write_secret",
]

RETRY: Final = 5.0
"""Seconds before an unreadable file is read again, if the watch has no interval."""
T = TypeVar("T")


def open_private(path: Path) -> BinaryIO:
    """Open a file for writing, with mode 0600. An existing file is emptied once its mode has been changed. This call
    blocks. Raises OSError.
    """
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_ISREG(os.fstat(number).st_mode):
            os.fchmod(number, 0o600)
            os.ftruncate(number, 0)
        return os.fdopen(number, "wb")
    except BaseException:
        os.close(number)
        raise


def write_secret(path: Path, text: str) -> None:
    """Write a new file with mode 0600 and fsync it. This call blocks.

    Raises OSError, including if the file exists: replacing it could destroy a secret that is in use.
    """
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class FileStamp(NamedTuple):
    """Identifies one state of a file. The times are in nanoseconds."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int
    """When the inode last changed."""

    @classmethod
    def of(cls, found: os.stat_result) -> "FileStamp":
        """Return the stamp for a result of `os.stat` or `os.fstat`."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def file_stamp(path: Path) -> FileStamp:
    """Return a file's current state. This call blocks. Raises OSError."""
    return FileStamp.of(os.stat(path))


class FileWatch(Generic[T]):
    """Watches a file and loads it when it changes.

    `stamp` is the state that was loaded last. A thread of the runtime checks the file every
    `interval` seconds; with 0, only `look` checks it. A changed file is loaded once two consecutive
    checks find the same state, so that a half-written file is not read.

    `load` reads the file in a thread, and returns the file's state and the result. If `load` raises
    OSError, or an error caused by an OSError, it is retried after `interval`, or after 5 seconds if
    the interval is 0. After any other error, the file is read again only when it has changed.

    `took` receives the result on the event loop, even if the file has returned to the state that it had before a
    failure. `failed` receives the reason why the file cannot be used, once for each reason. The reason contains the text
    of an error only if it is a HookMQError.

    `prepare` is meant for callers that also write the file. It is called before each check, and must call its argument
    once the check may start. Call all methods on the event loop's thread.
    """

    def __init__(
        self,
        path: Path,
        interval: float,
        stamp: FileStamp | None,
        load: Callable[[], tuple[FileStamp, T]],
        took: Callable[[T], None],
        failed: Callable[[str], None],
        prepare: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.path = path
        self.stamp = stamp
        self.failing = ""
        """Why the file cannot be used; empty if it can."""
        self._interval = interval
        self._load = load
        self._took = took
        self._failed = failed
        self._prepare = prepare
        self._runtime: Runtime | None = None
        self._timer: Timer | None = None
        self._cancel: Cancel | None = None
        self._looking = False
        self._seen = stamp
        self._refused: FileStamp | None = None
        self._wanted: list[Callable[[], None]] = []
        self._told: list[Callable[[], None]] = []

    def start(self, runtime: Runtime) -> None:
        """Start watching. The first check happens after `interval` seconds."""
        self._runtime = runtime
        self._wait(self._interval)

    def stop(self) -> None:
        """Stop watching. Neither `took` nor `failed` is called afterwards, but callbacks passed to `look` still are."""
        self._runtime = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._end()

    def look(self, then: Callable[[], None] | None = None) -> None:
        """Load the file now, even if it has not changed. Call `then` afterwards, even if loading fails."""
        if self._runtime is None:
            if then is not None:
                then()
            return
        self._wanted.append(then or _nothing)
        if not self._looking:
            self._begin()

    def _wait(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._runtime is not None and delay > 0:
            self._timer = self._runtime.call_later(delay, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self._looking:
            self._begin()

    def _begin(self) -> None:
        self._looking = True
        if self._prepare is not None:
            self._prepare(self._look)
        else:
            self._look()

    def _look(self) -> None:
        if self._runtime is None:
            return
        self._told, self._wanted = self._wanted, []
        at_once = bool(self._told)
        stamp = None if self.failing else self.stamp
        seen, refused = self._seen, self._refused

        def read() -> tuple[FileStamp, tuple[FileStamp, T] | Exception | None]:
            now = file_stamp(self.path)
            if not at_once and (now in (stamp, refused) or now != seen):
                return now, None
            try:
                return now, self._load()
            except Exception as error:
                return now, error

        self._cancel = self._runtime.run_blocking(read, self._looked)

    def _looked(
        self,
        found: tuple[FileStamp, tuple[FileStamp, T] | Exception | None] | None,
        error: BaseException | None,
    ) -> None:
        self._cancel = None
        delay = self._interval
        if found is None:
            # Even the state of the file is unknown.
            self._seen = self._refused = None
            delay = delay or RETRY
            self._fail(error)
        else:
            self._seen, read = found
            if isinstance(read, tuple):
                self.stamp, made = read
                self._seen, self._refused, self.failing = self.stamp, None, ""
                self._took(made)
            elif read is not None:
                if _may_pass(read):
                    self._refused = None
                    delay = delay or RETRY
                else:
                    self._refused = self._seen
                self._fail(read)
        self._end()
        if self._runtime is None:
            return
        if self._wanted:
            self._begin()
        else:
            self._wait(delay)

    def _fail(self, error: BaseException | None) -> None:
        if isinstance(error, HookMQError):
            why = str(error)
        elif isinstance(error, OSError):
            why = f"{self.path}: {error.strerror or 'cannot read the file'}"
        else:
            why = f"{self.path}: {type(error).__name__}"
        if why != self.failing:
            self.failing = why
            self._failed(why)

    def _end(self) -> None:
        self._looking = False
        told, self._told = self._told, []
        if self._runtime is None:
            told, self._wanted = told + self._wanted, []
        for then in told:
            then()


def _may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed even if the file does not change, for example if the broker had run out of file
    descriptors.
    """
    return isinstance(error, OSError | MemoryError) or isinstance(error.__cause__, OSError)


def _nothing() -> None:
    """Do nothing, because no caller waits for this check."""
