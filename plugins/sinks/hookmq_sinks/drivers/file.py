"""The `file` driver: JSON lines or Parquet in rotating files, each message exactly once.

A sink's files are in one folder. The name of the file being written ends in ``.open``. A complete file has its final
name and does not change. The folder also contains a small position file, which holds the size of the newest file and
the offset of the next record. The position file is replaced after each batch, once the lines are on disk. If the newest
file is larger than the recorded size, the excess belongs to an interrupted batch. It is cut off before the first write.
"""

import asyncio
import errno
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.durable_files import sync_folder, write_all, write_atomically
from hookmq_toolkit.state_folder import try_lock

from hookmq_sinks.driver import (
    Batch,
    Driver,
    DriverContext,
    Position,
    Problem,
    Record,
    RecordError,
    TargetUnavailable,
    make_each,
    template_setting,
)
from hookmq_sinks.drivers.file_formats import (
    LINES,
    OPEN,
    FileFormat,
    LinesFormat,
    ParquetFormat,
    complete,
    is_complete,
)
from hookmq_sinks.drivers.rows import Row, Type
from hookmq_sinks.extras import extra_hint

_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_OPERATOR: Final = (
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
)
"""Errors that require an operator to act."""


@dataclass(frozen=True)
class FileSettings:
    """The `file` driver's settings."""

    path: Path = field(metadata={"help": "folder of the files; created if missing"})
    prefix: str = setting("", "beginning of the file names; default: the name of the sink")
    fields: Mapping[str, Any] = template_setting(
        {},
        "fields or columns and their templates; default: the payload and all properties of the message",
    )
    format: Literal["jsonl", "parquet"] = setting("jsonl", "JSON lines, or Parquet")
    types: Mapping[str, Type] = field(
        default_factory=dict,
        metadata={
            "help": "types of Parquet columns: string, long, double, boolean, timestamp or binary; default: string"
        },
    )
    rotate_size: Size = setting(
        64 << 20, "begin a new file after this size, before compression", minimum=1024
    )
    rotate_time: Seconds = setting(3600.0, "begin a new file after this time; 0 means never")
    compression: Literal["none", "gzip", "snappy", "zstd"] = setting(
        "none", "how complete files are compressed; snappy and zstd need Parquet"
    )
    keep_files: int = setting(0, "number of complete files that are kept; 0 means all")
    sync: bool = setting(
        True, "fsync each batch; false survives the end of the process but no power cut"
    )

    def __post_init__(self) -> None:
        if self.prefix and not _PREFIX.fullmatch(self.prefix):
            raise ConfigError(f"prefix: {self.prefix!r} is not a name; use letters, digits, _ . -")
        if self.format == "jsonl" and self.compression in ("snappy", "zstd"):
            raise ConfigError(f"compression: {self.compression} needs `format: parquet`")
        if self.types and self.format != "parquet":
            raise ConfigError("types: needs `format: parquet`")
        for name in self.types:
            if name not in self.fields:
                raise ConfigError(f"types: {name} is not one of the fields")


@dataclass
class _State:
    """The contents of the position file: the first offset in the newest file (`file`), its size, when it was begun, and
    how its name ends.
    """

    log_id: str
    offset: int
    file: int = -1
    size: int = 0
    began: float = 0.0
    suffix: str = LINES


_ROTATION: Final = 1.0
"""Seconds for which `close` waits until an old file is completed."""


class FileDriver(Driver):
    """Writes files; see the module docstring."""

    Settings: ClassVar[type] = FileSettings
    holds_position = True
    settings: FileSettings

    def __init__(self, settings: FileSettings, context: DriverContext) -> None:
        super().__init__(settings, context)
        prefix = settings.prefix or context.sink
        lane = context.slot.removeprefix(context.sink)
        self._prefix = prefix + re.sub(r"[^A-Za-z0-9_.-]", "-", lane)
        self._sidecar = settings.path / f".{self._prefix}.position"
        self._format: FileFormat = (
            ParquetFormat(settings.fields, settings.types)
            if settings.format == "parquet"
            else LinesFormat(settings.fields)
        )
        self._lock = -1
        self._file = -1
        self._busy = False
        self._closed = False
        self._state = _State(context.log_id, 0)
        self._turn = asyncio.Lock()
        """Held while a thread uses the files."""
        self._timer: asyncio.TimerHandle | None = None
        self._rotation: asyncio.Task[None] | None = None
        self._failed: TargetUnavailable | None = None
        """Why the file could not be completed after `rotate_time`."""

    async def open(self) -> Position | None:
        """Open the folder, and cut off lines left by an interrupted batch."""
        if self.settings.format == "parquet":
            try:
                import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: F401
            except ImportError as error:
                raise TargetUnavailable(f"{error}; {extra_hint('parquet')}", True) from error
        held: Position | None = await self._run(self._open)
        self._set_timer()
        return held

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return a problem if the sample cannot be written as a line or a row."""
        if sample is not None:
            try:
                self._format.row(sample)
            except RecordError as error:
                return [Problem("fields", str(error))]
        return ()

    async def write(self, batch: Batch) -> None:
        """Append the rows, sync them, and replace the position file."""
        if self._failed is not None:
            raise self._failed
        rows = make_each(batch, self._format.row)
        first = batch.records[0].offset if batch.records else batch.position.offset
        await self._run(lambda: self._write(rows, first, batch.position))
        self._set_timer()

    async def close(self) -> None:
        """Close the files. If a write is still running in its thread, that thread closes them."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._rotation is not None:
            await asyncio.wait({self._rotation}, timeout=_ROTATION)
            self._rotation.cancel()
        if not self._busy:
            self._release()

    # rotation after rotate_time --------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Complete the open file after `rotate_time`, even if no further message arrives."""
        if self._timer is not None:
            self._timer.cancel()
        if self._file >= 0 and self.settings.rotate_time:
            left = self._state.began + self.settings.rotate_time - time.time()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._rotate)

    def _rotate(self) -> None:
        self._rotation = asyncio.get_running_loop().create_task(self._complete_old())

    async def _complete_old(self) -> None:
        try:
            if not self._busy:  # otherwise a write is running, and sets the timer again
                await self._run(self._complete_if_old)
        except TargetUnavailable as error:
            self._failed = error

    # files; these methods run in a thread --------------------------------------------------------------------------

    async def _run(self, work: Any) -> Any:
        async with self._turn:
            return await self._run_now(work)

    async def _run_now(self, work: Any) -> Any:
        self._busy = True

        def call() -> Any:
            try:
                return work()
            finally:
                self._busy = False
                if self._closed:
                    self._release()

        try:
            return await asyncio.to_thread(call)
        except OSError as error:
            reason = f"{self.settings.path}: {error.strerror or error}"
            raise TargetUnavailable(reason, error.errno in _OPERATOR) from error

    def _release(self) -> None:
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)
        self._file = self._lock = -1

    def _open(self) -> Position | None:
        folder = self.settings.path
        folder.mkdir(parents=True, exist_ok=True)
        lock = folder / f".{self._prefix}.lock"
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_lock(self._lock):
            raise TargetUnavailable(f"{folder} is in use by another process")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        held = self._read_state()
        self._state = _State(self.context.log_id, 0) if held is None else held
        for path in folder.glob(f"{self._prefix}-*{OPEN}"):
            known = held is not None and path.name == self._name(held) + OPEN
            if not known and path.name.startswith(f"{self._prefix}-{self.context.log_id[:8]}-"):
                path.unlink()  # it was begun by a batch that is not complete
        if held is None:
            return None
        path = folder / (self._name(held) + OPEN)
        if path.exists() and is_complete(folder, self._name(held)):
            path.unlink()  # the process ended right after it had completed the file
        with suppress(FileNotFoundError):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            size = os.fstat(self._file).st_size
            if size < held.size:
                raise TargetUnavailable(f"{path} has {size} bytes instead of {held.size}", True)
            os.ftruncate(self._file, held.size)
        if self._file >= 0 and not self._goes_on(held, path):
            self._complete()
        if held.log_id != self.context.log_id:
            self._state = _State(self.context.log_id, 0)
            return None
        return Position(held.log_id, held.offset)

    def _goes_on(self, held: _State, path: Path) -> bool:
        """Return whether rows can be appended to the open file."""
        if held.log_id != self.context.log_id or held.suffix != self._format.suffix:
            return False
        try:
            return self._format.continues(path)
        except ValueError as error:  # pyarrow's errors
            raise TargetUnavailable(f"{path} is damaged: {error}", True) from error

    def _read_state(self) -> _State | None:
        try:
            return _State(**json.loads(self._sidecar.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise TargetUnavailable(f"{self._sidecar} is damaged", True) from None

    def _name(self, state: _State) -> str:
        return f"{self._prefix}-{state.log_id[:8]}-{state.file:020d}{state.suffix}"

    @property
    def _old(self) -> bool:
        """Whether the open file is older than `rotate_time`."""
        longest = self.settings.rotate_time
        return longest > 0 and time.time() - self._state.began >= longest

    def _complete_if_old(self) -> None:
        if self._old:
            self._complete()

    def _write(self, rows: Sequence[Row], first: int, position: Position) -> None:
        state, settings = self._state, self.settings
        if self._file >= 0 and rows and (state.size >= settings.rotate_size or self._old):
            self._complete()
        if self._file < 0 and rows:
            state = _State(
                self.context.log_id, state.offset, first, 0, time.time(), self._format.suffix
            )
            path = settings.path / (self._name(state) + OPEN)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o640)
            if settings.sync:
                sync_folder(settings.path)
        data = self._format.encode(rows, state.size == 0) if rows else b""
        if data:
            write_all(self._file, data)
            if settings.sync:
                os.fdatasync(self._file)
        new = replace(
            state, log_id=position.log_id, offset=position.offset, size=state.size + len(data)
        )
        write_atomically(self._sidecar, json.dumps(vars(new)).encode(), sync=settings.sync)
        self._state = new

    def _complete(self) -> None:
        """Give the file being written its final form and name."""
        if self._file < 0:
            return
        if self.settings.sync:
            os.fsync(self._file)
        os.close(self._file)
        self._file = -1
        folder, compression = self.settings.path, self.settings.compression
        name = self._name(self._state)
        try:
            complete(folder, name, compression, self.settings.sync)
        except ValueError as error:
            raise TargetUnavailable(f"{folder / name}{OPEN} is damaged: {error}", True) from error
        if self.settings.sync:
            sync_folder(folder)
        if keep := self.settings.keep_files:
            pattern = re.compile(
                re.escape(self._prefix) + r"-[0-9a-f]{8}-\d{20}\.(jsonl(\.gz)?|parquet)"
            )
            done = [one for one in folder.iterdir() if pattern.fullmatch(one.name)]
            done.sort(key=lambda one: one.stat().st_mtime)
            for one in done[:-keep]:
                one.unlink()


__all__ = ["FileDriver", "FileSettings"]
