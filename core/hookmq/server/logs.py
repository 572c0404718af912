"""Logging, built on the standard library: readable text, or one JSON object per line.

Every record has fields and a stable event name, such as ``client.connected``. For all loggers, this module removes fields
whose names suggest a secret or a payload.
"""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from typing import IO, Any, Final, Literal

Format = Literal["auto", "text", "json"]

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
DROPPED: Final = (
    "password", "passwd", "passphrase", "payload", "secret", "token", "api_key", "apikey", "auth_key", "private_key",
    "authorization", "cookie",
)  # fmt: skip
"""Names of fields that are never logged: payloads, and configuration keys that hold secrets. Names that end in ``_``
plus one of these are not logged either."""
_DROPPED_ENDS: Final = tuple(f"_{name}" for name in DROPPED)

_COLORS: Final = {
    "debug": "\x1b[2m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31m",
}
_MORE: Final = "…"
"""Replaces values that are left out because there are too many."""
_PLAIN: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/@+#$%*,[]{}"
)


LONGEST: Final = 1000
"""The maximum number of characters logged from a field or a traceback line."""
DEEPEST: Final = 100
"""The maximum number of lines logged from a traceback. The last lines are kept."""
LARGEST: Final = 65536
"""The maximum number of characters logged from an event's fields. Each value adds `VALUE` to the count."""
VALUE: Final = 16
NESTED: Final = 16
"""The maximum nesting depth of an event's values."""
WAITING: Final = 4 << 20
"""The maximum number of characters waiting to be written."""
PATIENCE: Final = 2.0
"""Seconds to wait for the log's reader when the process ends."""


def is_dropped(name: str) -> bool:
    """Return whether a field with this name must not be logged."""
    return f"_{name}".lower().replace("-", "_").endswith(_DROPPED_ENDS)


class DropSecrets(logging.Filter):
    """Removes fields that must not be logged, including those in nested mappings, and converts the others to JSON
    values.

    If ``str`` fails for an object, its class name is logged instead, so that no value can make a log call fail.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the fields. Always returns True, which keeps the record."""
        fields = getattr(record, "fields", None)
        if fields and not isinstance(fields, _CleanFields):  # each handler has such a filter
            record.fields = _CleanFields(_Cleaner().mapping(fields, 0))
        return True


class _CleanFields(dict[str, Any]):
    """JSON values of bounded size, without anything that must not be logged."""


class _Cleaner:
    """Converts the fields of one event to JSON values."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = LARGEST

    def mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, child in value.items():
            name = self._text(key)
            if is_dropped(name):
                continue
            found[name] = self._value(child, depth + 1)
            if self._left <= 0:
                found[_MORE] = _MORE
                break
        return found

    def _value(self, value: Any, depth: int) -> Any:
        self._left -= VALUE
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if value.bit_length() <= 1024 else f"<{value.bit_length()} bits>"
        if isinstance(value, float):
            return value if isfinite(value) else str(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return f"<{len(value)} bytes>"  # bytes come from clients
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            if depth >= NESTED:
                return _MORE
            try:
                if isinstance(value, Mapping):
                    return self.mapping(value, depth)
                return self._list(value, depth)
            except Exception:
                return f"<{type(value).__name__}>"
        return self._text(value)

    def _list(self, value: Iterable[Any], depth: int) -> list[Any]:
        found: list[Any] = []
        for child in value:
            found.append(self._value(child, depth + 1))
            if self._left <= 0:
                found.append(_MORE)
                break
        return found

    def _text(self, value: Any) -> str:
        try:
            text = cut_text(str(value))
        except Exception:
            text = f"<{type(value).__name__}>"
        self._left -= len(text)
        return text


def cut_text(text: str) -> str:
    """Return `text`, cut to `LONGEST` characters."""
    if len(text) <= LONGEST:
        return text
    # Untrusted clients choose client ids and topics, which may have 65,535 bytes.
    return f"{text[:LONGEST]}… ({len(text)} characters)"


class TextFormatter(logging.Formatter):
    """Formats a record as one line, ``TIME LEVEL event key=value``, followed by any traceback."""

    def __init__(self, color: bool = False) -> None:
        super().__init__()
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text. Text from clients is quoted, so it cannot start a new line or move the cursor."""
        event, fields = record_parts(record)
        level = record.levelname.lower()
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        words = [f"{stamp}.{int(record.msecs):03d}", f"{level:<7}", _quoted(event, free=True)]
        words += [f"{name}={_quoted(_text(value))}" for name, value in fields.items()]
        line = " ".join(words)
        if self._color and level in _COLORS:
            line = f"{_COLORS[level]}{line}\x1b[0m"
        # Indent and quote tracebacks: an exception's message may contain text from a client.
        trace = (text if text.isprintable() else json.dumps(text) for text in _trace(self, record))
        return "\n    ".join([line, *trace])


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line: ``time`` (UTC), ``level``, ``event``, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        event, fields = record_parts(record)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": event,
        }
        for name, value in fields.items():
            entry[name if name not in entry else f"{name}_"] = value
        if record.name != "hookmq":
            entry.setdefault("logger", record.name)
        trace = _trace(self, record)
        if trace:
            entry["traceback"] = "\n".join(trace)
        return json.dumps(entry, default=str, ensure_ascii=False)


def record_parts(record: logging.LogRecord) -> tuple[str, Mapping[str, Any]]:
    """Return the event name and the fields of a record. Fields without a value are left out."""
    event = getattr(record, "event", None)
    given: Mapping[str, Any] = getattr(record, "fields", None) or {}
    fields = {name: value for name, value in given.items() if value is not None}
    if event is None:  # the record comes from a library
        message = cut_text(record.getMessage())
        return "log", {"logger": record.name, "message": message, **fields}
    return str(event), fields


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """Return the lines of the traceback."""
    if not record.exc_info:
        return []
    lines = formatter.formatException(record.exc_info).split("\n")
    return [cut_text(line) for line in lines[-DEEPEST:]]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{_text(child)}" for key, child in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(_text(child) for child in value)
    return str(value)


def _quoted(text: str, free: bool = False) -> str:
    if text and (_PLAIN.issuperset(text) or (free and text.isprintable())):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def chosen_format(wanted: Format, stream: IO[str]) -> Literal["text", "json"]:
    """Return the log format for `stream`. ``auto`` chooses text for a terminal, otherwise json."""
    if wanted == "auto":
        return "text" if stream.isatty() else "json"
    return wanted


def colored(stream: IO[str]) -> bool:
    """Return whether `stream` is a terminal on which colors are allowed (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class AsideHandler(logging.Handler):
    """Writes lines to `stream` in a thread, so that a slow reader (a full pipe, a stopped terminal) does not block.

    At most `WAITING` characters wait. Lines beyond that are lost; ``log.lost`` reports how many.
    """

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self.stream = stream
        self._lines: list[str] = []
        self._waiting = 0
        self._lost = 0
        self._ended = False
        self._changed = threading.Condition()
        self._writing = False
        self._thread = threading.Thread(target=self._write, name="hookmq-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Format the record and queue it for the writer thread. Does not block."""
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if self._waiting + len(line) > WAITING:
                self._lost += 1
                return
            self._lines.append(line)
            self._waiting += len(line)
            self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                while not (self._lines or self._lost or self._ended):
                    self._changed.wait()
                if not self._lines and not self._lost:
                    return
                lines, self._lines = self._lines, []
                lost, self._lost = self._lost, 0
                self._writing = True
            if lost:
                lines.append(self._lost_line(lost))
            with suppress(OSError, ValueError):  # the log has no reader
                self.stream.write("".join(lines))
                self.stream.flush()
            with self._changed:
                self._waiting = sum(map(len, self._lines))
                self._writing = False
                self._changed.notify_all()

    def _lost_line(self, lost: int) -> str:
        record = logging.LogRecord("hookmq", logging.WARNING, "", 0, "log.lost", None, None)
        record.__dict__.update({"event": "log.lost", "fields": {"lines": lost}})
        return self.format(record) + "\n"

    def flush(self) -> None:
        """Wait until everything is written, but for no longer than `PATIENCE` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._writing), PATIENCE)

    def close(self) -> None:
        """Flush, then end the writer thread."""
        self.flush()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        super().close()


def configure(
    level: str = "info", format: Format = "auto", stream: IO[str] | None = None
) -> logging.Handler:
    """Log records at `level` and above to `stream` in `format`, and return the handler.

    By default, a thread writes to stderr. Replaces the handler of an earlier call, so a reload may call it again.
    """
    aside = stream is None
    stream = sys.stderr if stream is None else stream
    handler = AsideHandler(stream) if aside else logging.StreamHandler(stream)
    text = chosen_format(format, stream) == "text"
    handler.setFormatter(TextFormatter(colored(stream)) if text else JsonFormatter())
    handler.addFilter(DropSecrets())
    handler.set_name("hookmq")
    root = logging.getLogger()
    for old in root.handlers[:]:
        if old.get_name() == "hookmq":
            root.removeHandler(old)
            old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # log only warnings and errors from libraries
    logging.getLogger("hookmq").setLevel(LEVELS[level])
    return handler


def write(logger: logging.Logger, level: int, event: str, fields: Mapping[str, object]) -> None:
    """Log `event` with `fields` to `logger`. An exception in the ``traceback`` field becomes `exc_info`."""
    cause = fields.get("traceback")
    if "traceback" in fields:
        fields = {name: value for name, value in fields.items() if name != "traceback"}
    error = cause if isinstance(cause, BaseException) else None
    logger.log(level, event, exc_info=error, extra={"event": event, "fields": fields})


def tell(level: str, event: str, /, **fields: object) -> None:
    """Log `event` with `fields` without a runtime. Plugins use this before the runtime starts and after it stops."""
    write(logging.getLogger("hookmq"), LEVELS[level], event, fields)
