"""The `file` driver: JSON lines in rotating files, each message exactly once.

A sink's files are in one folder. The name of the file being written ends in ``.open``. A complete file has its final
name and does not change. The folder also contains a small position file, which holds the size of the newest file and
the offset of the next record. The position file is replaced after each batch, once the lines are on disk. If the newest
file is larger than the recorded size, the excess lines belong to an interrupted batch. They are cut off before the
first write.
"""

import asyncio
import errno
import gzip
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.durable_files import replacing, sync_folder, write_all, write_atomically
from hookmq_toolkit.state_folder import try_lock

from hookmq_sinks.driver import (
    Batch,
    Driver,
    DriverContext,
    Position,
    Problem,
    Record,
    RecordError,
    RecordTemplate,
    TargetUnavailable,
    json_default,
    make_each,
    template_setting,
)

OPEN: Final = ".open"
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
        "fields of each line and their templates; default: the payload and all properties of the message",
    )
    rotate_size: Size = setting(64 << 20, "begin a new file after this size", minimum=1024)
    rotate_time: Seconds = setting(3600.0, "begin a new file after this time; 0 means never")
    compression: Literal["none", "gzip"] = setting("none", "how complete files are compressed")
    keep_files: int = setting(0, "number of complete files that are kept; 0 means all")
    sync: bool = setting(
        True, "fsync each batch; false survives the end of the process but no power cut"
    )

    def __post_init__(self) -> None:
        if self.prefix and not _PREFIX.fullmatch(self.prefix):
            raise ConfigError(f"prefix: {self.prefix!r} is not a name; use letters, digits, _ . -")


@dataclass
class _State:
    """The contents of the position file: the first offset in the newest file (`file`), and the size of that file
    (`size`).
    """

    log_id: str
    offset: int
    file: int = -1
    size: int = 0
    began: float = 0.0


class FileDriver(Driver):
    """Writes JSON lines; see the module docstring."""

    Settings: ClassVar[type] = FileSettings
    holds_position = True
    settings: FileSettings

    def __init__(self, settings: FileSettings, context: DriverContext) -> None:
        super().__init__(settings, context)
        prefix = settings.prefix or context.sink
        lane = context.slot.removeprefix(context.sink)
        self._prefix = prefix + re.sub(r"[^A-Za-z0-9_.-]", "-", lane)
        self._sidecar = settings.path / f".{self._prefix}.position"
        self._fields = {
            name: _compile(one, f"fields.{name}") for name, one in settings.fields.items()
        }
        self._lock = -1
        self._file = -1
        self._busy = False
        self._closed = False
        self._state = _State(context.log_id, 0)

    async def open(self) -> Position | None:
        """Open the folder, and cut off lines left by an interrupted batch."""
        held: Position | None = await self._run(self._open)
        return held

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return a problem if the sample cannot be written as a line."""
        if sample is not None:
            try:
                self._line(sample)
            except RecordError as error:
                return [Problem("fields", str(error))]
        return ()

    async def write(self, batch: Batch) -> None:
        """Append the lines, sync them, and replace the position file."""
        lines = make_each(batch, self._line)
        first = batch.records[0].offset if batch.records else batch.position.offset
        await self._run(lambda: self._write(b"".join(lines), first, batch.position))

    async def close(self) -> None:
        """Close the files. If a write is still running in its thread, that thread closes them."""
        self._closed = True
        if not self._busy:
            self._release()

    # lines -----------------------------------------------------------------------------------------------------------

    def _line(self, record: Record) -> bytes:
        made = {name: one(record) for name, one in self._fields.items()} or envelope(record)
        try:
            text = json.dumps(
                made,
                ensure_ascii=False,
                separators=(",", ":"),
                default=json_default,
                allow_nan=False,
            )
            return text.encode() + b"\n"
        except (ValueError, RecursionError) as error:
            raise RecordError(f"not a JSON value: {error}") from None

    # files; these methods run in a thread --------------------------------------------------------------------------

    async def _run(self, work: Any) -> Any:
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
        for path in folder.glob(f"{self._prefix}-*.jsonl{OPEN}"):
            known = held is not None and path.name == self._name(held) + OPEN
            if not known and path.name.startswith(f"{self._prefix}-{self.context.log_id[:8]}-"):
                path.unlink()  # it was begun by a batch that is not complete
        if held is None:
            return None
        path = folder / (self._name(held) + OPEN)
        with suppress(FileNotFoundError):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            size = os.fstat(self._file).st_size
            if size < held.size:
                raise TargetUnavailable(f"{path} has {size} bytes instead of {held.size}", True)
            os.ftruncate(self._file, held.size)
        if held.log_id != self.context.log_id:
            self._complete()
            self._state = _State(self.context.log_id, 0)
            return None
        return Position(held.log_id, held.offset)

    def _read_state(self) -> _State | None:
        try:
            return _State(**json.loads(self._sidecar.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise TargetUnavailable(f"{self._sidecar} is damaged", True) from None

    def _name(self, state: _State) -> str:
        return f"{self._prefix}-{state.log_id[:8]}-{state.file:020d}.jsonl"

    def _write(self, data: bytes, first: int, position: Position) -> None:
        state, settings = self._state, self.settings
        old = settings.rotate_time and time.time() - state.began >= settings.rotate_time
        if self._file >= 0 and data and (state.size >= settings.rotate_size or old):
            self._complete()
        if self._file < 0 and data:
            state = _State(self.context.log_id, state.offset, first, 0, time.time())
            path = settings.path / (self._name(state) + OPEN)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o640)
            if settings.sync:
                sync_folder(settings.path)
        if data:
            write_all(self._file, data)
            if settings.sync:
                os.fdatasync(self._file)
        new = _State(
            position.log_id, position.offset, state.file, state.size + len(data), state.began
        )
        write_atomically(self._sidecar, json.dumps(vars(new)).encode(), sync=settings.sync)
        self._state = new

    def _complete(self) -> None:
        """Rename the file being written to its final name."""
        if self._file < 0:
            return
        if self.settings.sync:
            os.fsync(self._file)
        os.close(self._file)
        self._file = -1
        folder, name = self.settings.path, self._name(self._state)
        if self.settings.compression == "gzip":
            with (
                replacing(folder / f"{name}.gz", mode=0o640, sync=self.settings.sync) as file,
                gzip.open(os.fdopen(os.dup(file), "wb"), "wb") as packed,
                (folder / (name + OPEN)).open("rb") as plain,
            ):
                while part := plain.read(1 << 20):
                    packed.write(part)
            (folder / (name + OPEN)).unlink()
        else:
            os.replace(folder / (name + OPEN), folder / name)
        if self.settings.sync:
            sync_folder(folder)
        if keep := self.settings.keep_files:
            pattern = re.compile(re.escape(self._prefix) + r"-[0-9a-f]{8}-\d{20}\.jsonl(\.gz)?")
            done = [one for one in folder.iterdir() if pattern.fullmatch(one.name)]
            done.sort(key=lambda one: one.stat().st_mtime)
            for one in done[:-keep]:
                one.unlink()


def _compile(template: Any, key: str) -> Any:
    """Return a function that computes a field's value from a record. A template that is not text is used as a
    constant.
    """
    return (
        RecordTemplate(template, key).optional
        if isinstance(template, str)
        else lambda record: template
    )


def envelope(record: Record) -> dict[str, Any]:
    """Return a message's payload and all its properties as a JSON value. Unset properties are omitted."""
    made: dict[str, Any] = {
        "id": record.id, "topic": record.topic, "received_at": record.received_at, "qos": record.qos,
    }  # fmt: skip
    if isinstance(record.value, bytes):
        try:
            made["payload"] = record.value.decode()
        except UnicodeDecodeError:
            made["payload_base64"] = record.value
    else:
        made["payload"] = record.value
    for name in ("key", "client_id", "content_type", "response_topic", "correlation_data"):
        if (value := getattr(record, name)) is not None:
            made[name] = value
    if record.retain:
        made["retain"] = True
    if record.user_properties:
        made["user_properties"] = list(record.user_properties)
    return made


__all__ = ["FileDriver", "FileSettings", "envelope"]
