"""Logging of the process: the standard library's, as text for people or as one JSON object per line for machines.

Every record has a stable event name (``client.connected``) and fields. Names: what happened to what, dotted. Fields whose
names say that they hold secrets or payloads are dropped here, whoever logs them.
"""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, Final, Literal

Format = Literal["auto", "text", "json"]

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
DROPPED: Final = frozenset({"password", "passwd", "passphrase", "payload", "secret", "token"})
"""Fields that are never written, and likewise those that end in ``_`` and one of these."""

_COLORS: Final = {
    "debug": "\x1b[2m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31m",
}
_PLAIN: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/@+#$%*,[]{}"
)


LONGEST: Final = 1000
"""Characters of a field, and of a line of a traceback, that are written."""
DEEPEST: Final = 100
"""Lines of a traceback that are written, the last ones."""
WAITING: Final = 4 << 20
"""Characters of lines that wait to be written."""
PATIENCE: Final = 2.0
"""Seconds that the end of the process waits for who reads the log."""


def is_dropped(name: str) -> bool:
    """Whether a field of that name is never written."""
    return name.lower().rpartition("_")[2] in DROPPED


class DropSecrets(logging.Filter):
    """Takes the fields out of a record that must not be written, in nested mappings too."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps every record."""
        fields = getattr(record, "fields", None)
        if fields:
            record.fields = _clean(fields)
        return True


def _clean(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _clean(v) for k, v in value.items() if not is_dropped(str(k))}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"  # whatever its name, bytes come from a client
    if isinstance(value, str) and len(value) > LONGEST:
        # Client ids and topics come from strangers, and may have 65,535 bytes.
        return f"{value[:LONGEST]}… ({len(value)} characters)"
    return value


class TextFormatter(logging.Formatter):
    """``TIME LEVEL event key=value``, one line each, tracebacks below."""

    def __init__(self, color: bool = False) -> None:
        super().__init__()
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        """The record as text; what clients sent cannot begin a new line or move the cursor."""
        event, fields = _parts(record)
        level = record.levelname.lower()
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        words = [f"{stamp}.{int(record.msecs):03d}", f"{level:<7}", _quoted(event, free=True)]
        words += [f"{name}={_quoted(_text(value))}" for name, value in fields.items()]
        line = " ".join(words)
        if self._color and level in _COLORS:
            line = f"{_COLORS[level]}{line}\x1b[0m"
        # Indented and quoted: an exception may have a client's text in its message.
        return "\n".join(
            [
                line,
                *(
                    f"    {text}" if text.isprintable() else f"    {json.dumps(text)}"
                    for text in _trace(self, record)
                ),
            ]
        )


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time`` (UTC), ``level``, ``event``, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        event, fields = _parts(record)
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


def _parts(record: logging.LogRecord) -> tuple[str, Mapping[str, Any]]:
    event = getattr(record, "event", None)
    given: Mapping[str, Any] = getattr(record, "fields", None) or {}
    fields = {name: value for name, value in given.items() if value is not None}
    if event is None:  # of a library
        return "log", {"logger": record.name, "message": record.getMessage(), **fields}
    return str(event), fields


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """The lines of the record's traceback."""
    if not record.exc_info:
        return []
    lines = formatter.formatException(record.exc_info).split("\n")
    return [_clean(line) for line in lines[-DEEPEST:]]


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
    """What ``auto`` is for `stream`: text on a terminal."""
    if wanted == "auto":
        return "text" if stream.isatty() else "json"
    return wanted


def colored(stream: IO[str]) -> bool:
    """Return whether text on `stream` may have colors: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class AsideHandler(logging.Handler):
    """Writes lines to `stream` in a thread of its own, many at a time: who reads slowly, or not at all (a full pipe, a
    terminal that was stopped), holds up nobody. At most `WAITING` characters wait; lines that come on top are
    lost, and ``log.lost`` behind those that waited says how many."""

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
        """Format, and leave the rest to the thread. Does not block."""
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
                lines.append(self._told(lost))
            with suppress(OSError, ValueError):  # nobody is there to be told
                self.stream.write("".join(lines))
                self.stream.flush()
            with self._changed:
                self._waiting = sum(map(len, self._lines))
                self._writing = False
                self._changed.notify_all()

    def _told(self, lost: int) -> str:
        fields = {"lines": lost}
        attributes = {"name": "hookmq", "levelno": logging.WARNING, "levelname": "WARNING"}
        record = logging.makeLogRecord(
            {**attributes, "msg": "log.lost", "event": "log.lost", "fields": fields}
        )
        return self.format(record) + "\n"

    def flush(self) -> None:
        """Wait until all is written, `PATIENCE` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._writing), PATIENCE)

    def close(self) -> None:
        """Write what waits, as `flush`, and end the thread."""
        self.flush()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        super().close()


def configure(
    level: str = "info", format: Format = "auto", stream: IO[str] | None = None
) -> logging.Handler:
    """Log what is at least `level` to `stream`, in `format`; by default to stderr, which is written by a thread. Replaces
    what an earlier call set up, so that a reload may call it. Returns the handler in use."""
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
    root.setLevel(logging.WARNING)  # libraries tell only what matters
    logging.getLogger("hookmq").setLevel(LEVELS[level])
    return handler


def write(logger: logging.Logger, level: int, event: str, fields: Mapping[str, object]) -> None:
    """Log `event` with `fields` by `logger`. An exception as the field ``traceback`` becomes the record's `exc_info`."""
    cause = fields.get("traceback")
    if "traceback" in fields:
        fields = {name: value for name, value in fields.items() if name != "traceback"}
    error = cause if isinstance(cause, BaseException) else None
    logger.log(level, event, exc_info=error, extra={"event": event, "fields": fields})


def tell(level: str, event: str, /, **fields: object) -> None:
    """Log `event` with `fields` where no runtime is at hand: what plugins log, before one runs and after."""
    write(logging.getLogger("hookmq"), LEVELS[level], event, fields)
