"""A file of rules: read whole, or not at all."""

import gc
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, NamedTuple

from hookmq.files import FileStamp, file_stamp, open_regular, shown_path
from hookmq.plugin import ConfigError

from hookmq_acl_file import rules_mosquitto, rules_yaml
from hookmq_acl_file.index import Index

Format = Literal["yaml", "mosquitto"]
MAX_BYTES: Final = 64 << 20
LARGE: Final = 10_000
"""Rules from which on care is taken that the broker does not stand still for them."""


class Loaded(NamedTuple):
    """The rules of a file, which state of it they are, and a digest of its text."""

    rules: Index
    stamp: FileStamp
    digest: bytes


def stamp_of(path: Path) -> FileStamp:
    """The state of the file now. Raises ConfigError."""
    try:
        return file_stamp(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def load(path: Path, format: Format) -> Loaded:
    """Read, check and compile. Raises ConfigError, with line and column where there is one to name, for whatever is wrong
    with the file, and where it changes meanwhile."""
    before = stamp_of(path)
    text = read_text(path)
    read = rules_yaml.read if format == "yaml" else rules_mosquitto.read
    # Everything that is made now stays: looking for garbage in it again and again takes longer than making it, and
    # stops the broker meanwhile.
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
        raise ConfigError("it changed while it was read", source=str(path))
    return Loaded(index, before, sha256(text.encode()).digest())


def read_text(path: Path) -> str:
    """The text of a file of rules. One that ends within a line was cut short: ``home/roo`` was to be ``home/room1``."""
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
        hint = "end it with a line break"
        raise ConfigError(
            "the last line does not end: cut short?",
            source=source,
            line=line,
            column=column,
            hint=hint,
        )
    return text


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot be read: {error.strerror}", source=shown_path(path))
