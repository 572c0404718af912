"""Load a rule file, either completely or not at all."""

import gc
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, NamedTuple

from hookmq.plugin import ConfigError
from hookmq_toolkit.files import FileStamp, file_stamp, open_regular, shown_path

from hookmq_acl_file import rules_mosquitto, rules_yaml
from hookmq_acl_file.index import Index

Format = Literal["yaml", "mosquitto"]
MAX_BYTES: Final = 64 << 20
LARGE: Final = 10_000
"""Files with more rules than this count as large.

The garbage collector ignores their rules, and the rules are freed in small steps, so that the event loop does not stall.
"""


class Loaded(NamedTuple):
    """A file's rules, its state when it was read, and a digest of its text."""

    rules: Index
    stamp: FileStamp
    digest: bytes


def stamp_of(path: Path) -> FileStamp:
    """Return the current state of the file. Raises ConfigError if the file is missing or unreadable."""
    try:
        return file_stamp(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def load(path: Path, format: Format) -> Loaded:
    """Read, check and compile a rule file. This call blocks.

    Raises ConfigError for any mistake in the file, with the line and column if known, and if the file changes while it
    is being read.
    """
    before = stamp_of(path)
    text = read_text(path)
    read = rules_yaml.read if format == "yaml" else rules_mosquitto.read
    # None of the new objects is garbage. Collecting garbage repeatedly would take longer than creating the objects, and
    # would stall the broker.
    collecting = gc.isenabled()
    gc.disable()
    try:
        index = read(text, str(path), path.name)
        if index.rules > LARGE:
            gc.freeze()
    finally:
        if collecting:
            gc.enable()
    if stamp_of(path) != before:
        raise ConfigError("the file changed during the read", source=str(path))
    return Loaded(index, before, sha256(text.encode()).digest())


def read_text(path: Path) -> str:
    """Return the text of a rule file. Raises ConfigError if the file cannot be read.

    The last line must end with a line break. If it does not, the file may be truncated: ``home/roo`` may have been
    ``home/room1``.
    """
    source = str(path)
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", source=source)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise ConfigError("not UTF-8 text", source=source, line=line, column=column) from None
    if not text.strip():
        raise ConfigError("the file is empty", source=source, line=1, column=1)
    if not text.endswith("\n"):
        line = text.count("\n") + 1
        column = len(text) - text.rfind("\n")
        hint = "end the file with a line break"
        raise ConfigError(
            "the last line has no line break; the file may be truncated",
            source=source,
            line=line,
            column=column,
            hint=hint,
        )
    return text


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read the file: {error.strerror}", source=shown_path(path))
