"""Where files land: a folder of this machine, or an object store through fsspec. A file is there whole or not at all."""

import fcntl
import hashlib
import importlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from hookmq.errors import HookMQError, StoreError

from hookmq_spark_sink.files import sync_folder

EXTRA: Final = "in a checkout, uv pip install './plugins/spark_sink[export]'"
_TEMPORARY: Final = ".hookmq"
_LOCK: Final = ".hookmq-export.lock"
_PIECE: Final = 1 << 20


class UsageError(HookMQError):
    """The command cannot be carried out as it was given."""

    exit_code = 2


class PlaceError(StoreError):
    """The place cannot be read or written at this moment; another try may help."""


class Stored(NamedTuple):
    """A file as it was written."""

    size: int
    sha256: str


Fill = Callable[[BinaryIO], None]


class Place(Protocol):
    """Names are relative, with / between folders. All of it blocks, and raises PlaceError."""

    url: str

    def write(self, name: str, fill: Fill) -> Stored:
        """Make or replace a file with what `fill` writes; safe when this returns. What `fill` raises goes through, and
        leaves no file."""

    def names(self, folder: str) -> list[str]:
        """Of the files in a folder that are whole; none where there is no such folder."""

    def read(self, name: str) -> bytes:
        """All of a file."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else of this machine exports to here meanwhile. Raises UsageError if somebody does."""


def open_place(target: str) -> Place:
    """The place that a path or a URL names. Raises UsageError, PlaceError."""
    scheme, separator, rest = target.partition("://")
    if not separator:
        return Folder(Path(target))
    if scheme == "file":
        return Folder(Path(rest))
    fsspec = package("fsspec")
    try:
        files, root = fsspec.core.url_to_fs(target)
    except ImportError as error:
        raise UsageError(f"{target}: {error} (with pip, beside hookmq-spark-sink)") from None
    except ValueError as error:
        raise UsageError(f"{target}: {error}; give a folder, s3://, gs://, abfs://, ...") from None
    except Exception as error:  # whatever the store's package raises
        raise PlaceError(f"{target}: {_told(error)}") from error
    return Remote(files, root, target)


def package(name: str) -> Any:
    """A package of the extra, which the broker never imports. Raises UsageError."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"hookmq spark export needs {name} ({error}): {EXTRA}") from None


def _told(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _Counted(io.RawIOBase):
    """Passes on what is written, and knows its size and checksum."""

    def __init__(self, write: Callable[[memoryview], int]) -> None:
        self._write = write
        self._sum = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """All of it."""
        whole = view = memoryview(data).cast("B")
        while view:
            view = view[self._write(view) :]
        self._sum.update(whole)
        self.size += len(whole)
        return len(whole)

    def tell(self) -> int:
        """Bytes so far."""
        return self.size

    @property
    def stored(self) -> Stored:
        """What was written up to now."""
        return Stored(self.size, self._sum.hexdigest())


class Folder:
    """A folder of this machine: a hidden file, fsync, its name, fsync of the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.url = str(path)
        self._made: set[Path] = set()

    def write(self, name: str, fill: Fill) -> Stored:
        """See `Place`."""
        path = self.path / name
        hidden = path.with_name(f".{path.name}{_TEMPORARY}")
        try:
            self._make(path.parent)
            file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                counted = _Counted(lambda data: os.write(file, data))
                fill(counted)  # type: ignore[arg-type]  # what is used of it is there
                os.fsync(file)
            except BaseException:
                hidden.unlink(missing_ok=True)
                raise
            finally:
                os.close(file)
            hidden.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            raise _of_system(error, path) from error
        return counted.stored

    def _make(self, folder: Path) -> None:
        """The folder and those above it; what a process that was killed left in it goes."""
        if folder in self._made:
            return
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        for one in reversed(missing):
            one.mkdir(exist_ok=True)
            sync_folder(one.parent)
        for left in folder.glob(f".*{_TEMPORARY}"):
            left.unlink()
        self._made.add(folder)

    def names(self, folder: str) -> list[str]:
        """See `Place`."""
        try:
            return [
                one.name for one in os.scandir(self.path / folder) if not one.name.startswith(".")
            ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _of_system(error, self.path / folder) from error

    def read(self, name: str) -> bytes:
        """See `Place`."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise _of_system(error, self.path / name) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """See `Place`. A file in the folder, so that containers that share it notice one another."""
        try:
            self._make(self.path)
        except OSError as error:
            raise _of_system(error, self.path) from error
        with _held(self.path / _LOCK, self.url):
            yield


class Remote:
    """An object store: one PUT of the whole file."""

    def __init__(self, files: Any, root: str, url: str) -> None:
        self.url = url
        self._files = files
        self._root = root.rstrip("/")

    def write(self, name: str, fill: Fill) -> Stored:
        """See `Place`. The file is in memory until then."""
        parts: list[bytes] = []

        def keep(data: memoryview) -> int:
            parts.append(bytes(data))
            return len(data)

        counted = _Counted(keep)
        fill(counted)  # type: ignore[arg-type]  # what is used of it is there
        with self._asked(name):
            self._files.pipe_file(f"{self._root}/{name}", b"".join(parts))
        return counted.stored

    def names(self, folder: str) -> list[str]:
        """See `Place`."""
        with self._asked(folder):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(f"{self._root}/{folder}", detail=False)
            except FileNotFoundError:
                return []
        return [one.rstrip("/").rpartition("/")[2] for one in found]

    def read(self, name: str) -> bytes:
        """See `Place`."""
        with self._asked(name):
            return bytes(self._files.cat_file(f"{self._root}/{name}"))

    @contextmanager
    def _asked(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever the store's package raises
            raise PlaceError(f"{self.url}: {name}: {_told(error)}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """See `Place`. A file of this machine, where the log is, so that nobody else can export it."""
        key = hashlib.sha256(self.url.rstrip("/").encode()).hexdigest()[:32]
        name = f"hookmq-export-{os.getuid()}-{key}.lock"
        with _held(Path(tempfile.gettempdir(), name), self.url):
            yield


@contextmanager
def _held(path: Path, url: str) -> Iterator[None]:
    """The kernel lets go when the process ends, however it does."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _of_system(error, path) from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{url}: another hookmq spark export writes there") from None
        yield
    finally:
        os.close(file)


def _of_system(error: OSError, path: Path) -> PlaceError:
    return PlaceError(f"{error.filename or path}: {error.strerror or error}")
