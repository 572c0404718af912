"""Files that somebody else writes: opening them, and following their changes. Public, for plugins that are given one."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, Generic, NamedTuple, TypeVar

from hookmq.errors import HookMQError
from hookmq.runtime import Cancel, Runtime, Timer

RETRY: Final = 5.0
"""Seconds after which a file that could not be read is tried again, if it is not looked at more often."""
T = TypeVar("T")


def open_regular(path: Path) -> BinaryIO:
    """Return the file, open for reading. It never waits for the other end of a pipe. Raises OSError, also if it is not a
    regular file."""
    file = open(path, "rb", opener=_at_once)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def check_regular(path: Path) -> None:
    """Check that a file can be read, before something else opens it that would wait at a pipe. Blocks. Raises OSError as
    `open_regular` does."""
    open_regular(path).close()


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return `path` for a message: absolute, so that the message tells where a relative one was looked for."""
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory was removed
        return os.fspath(path)


def open_private(path: Path) -> BinaryIO:
    """Create a file that only its owner may read and write, open for writing. An older one is emptied and its mode
    changed before anything is written. Blocks; raises OSError."""
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
    """Write a new file with mode 0600. Never replaces one: a secret that is in use would be lost. Blocks; raises OSError,
    also if the file is there."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


class FileStamp(NamedTuple):
    """What tells one state of a file from another. Times are in nanoseconds."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int
    """When its inode was last changed."""

    @classmethod
    def of(cls, found: os.stat_result) -> "FileStamp":
        """Return the stamp of what `os.stat` or `os.fstat` found."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def file_stamp(path: Path) -> FileStamp:
    """Return the state that a file is in. Blocks; raises OSError."""
    return FileStamp.of(os.stat(path))


class FileWatch(Generic[T]):
    """Follows a file and reads it when it has changed.

    `stamp` is the state that was read last. Every `interval` seconds the file is looked at in one of the runtime's
    threads; 0 leaves that to `look`. A changed file is read if two looks in a row find it in the same state, so that a
    writer is not caught half-way.

    `load` reads the file in a thread and returns the state it read and what it made of it. If it raises OSError, or an
    error raised from one, the file is tried again until it can be read: after `interval`, or 5 seconds if that is 0. Any
    other error refuses this state of the file: it is read again when it has changed.

    `took` is told what was loaded, on the loop; also if the file is as it was before a failure. `failed` is told why a
    file cannot be used, once for each reason. Only the text of a HookMQError is quoted.

    `prepare` is called before each look and calls what it is given when the look may begin; for a caller that writes the
    file itself. Methods are for the loop's thread.
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
        """Why the file cannot be used now; empty if it can."""
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
        """Begin to look, `interval` seconds from now."""
        self._runtime = runtime
        self._wait(self._interval)

    def stop(self) -> None:
        """End. Nothing is told any more, except that a `look` that was asked for has ended."""
        self._runtime = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._end()

    def look(self, then: Callable[[], None] | None = None) -> None:
        """Read the file now, whatever state it is in, and call `then` when that has ended, well or not."""
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
            # Not even its state is known.
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
            why = f"{self.path}: {error.strerror or 'cannot be read'}"
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
    """Whether the file may be good although it could not be read: a broker without file descriptors cannot tell."""
    return isinstance(error, OSError | MemoryError) or isinstance(error.__cause__, OSError)


def _nothing() -> None:
    """Nobody waits for the look."""
