"""Verify every row's checksum, and check that every row it refers to exists."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from struct import error as StructError
from typing import Any, Final
from zlib import crc32

from hookmq_storage.inline import KEY
from hookmq_storage.schema import (
    COLUMNS,
    SENT_CHECK,
    checksum,
    columns_in,
    entry_crc,
    knows_plugin_state,
    knows_publishers,
    message_crc,
    plugin_state_crc,
)  # fmt: skip

Progress = Callable[[str, int, int], None]
"""A callback that receives the table's name, the number of checked rows and the total number of rows."""
STEP: Final = 5000

_HELD: Final = "owner, seq, message, size, qos, retain, identifiers, filter, share_group"
"""The remaining columns of an entry that contains its message. The last ones are NULL, because the body replaces
them."""
_NOTHING: Final = (None,) * 5
_LOST: Final = (
    (
        "publisher",
        "retained messages without their publisher",
        "SELECT count(*) FROM retained WHERE publisher IS NOT NULL AND publisher NOT IN (SELECT id FROM publisher)",
    ),
    (
        "entry",
        "queue entries without a message",
        "SELECT count(*) FROM entry WHERE body IS NULL AND message NOT IN (SELECT id FROM message)",
    ),
    (
        "owner",
        "queue entries without an owner",
        "SELECT count(*) FROM entry WHERE owner NOT IN (SELECT id FROM owner)",
    ),
    (
        "session",
        "sessions without a client id",
        "SELECT count(*) FROM session WHERE owner NOT IN (SELECT id FROM owner WHERE name IS NOT NULL)",
    ),
    # The rows of this table have no checksum. Each name is stored twice instead: in the table and in its index.
    (
        "owner",
        "owners whose name differs from the index",
        "SELECT count(*) FROM owner AS one NOT INDEXED WHERE name IS NOT NULL AND NOT EXISTS (SELECT 1 FROM owner AS two"
        " INDEXED BY sqlite_autoindex_owner_1 WHERE two.name = one.name AND two.id = one.id)",
    ),
)


def row_ok(table: str, row: Sequence[Any]) -> bool:
    """Return whether the checksum of a row of `COLUMNS[table]` is correct."""
    crc = row[-1]
    try:
        if table == "entry":
            if row[10] is None:
                return bool(crc == entry_crc(row[0], row[1:10]))
            return _whole(row[9], crc, row[10], (*row[:3], row[4], row[3], *row[5:9]))
        if table in ("message", "retained"):
            return bool(crc == message_crc(row[:-1]))
        if table == "plugin_state":
            return bool(crc == plugin_state_crc(row))
        return bool(crc == checksum(*row[:-1]))
    except (TypeError, IndexError, StructError):
        return False  # the type of a value has changed


def _whole(sent: int, crc: int, body: bytes, rest: Sequence[Any]) -> bool:
    """Return whether an entry that contains its message is intact. `rest` contains the columns in `_HELD`. Raises
    TypeError like `_right`.
    """
    found = crc32(body, crc32(KEY.pack(*rest[:4])))
    return found + sent * SENT_CHECK == crc and rest[4:] == _NOTHING


def problems(
    db: sqlite3.Connection, thorough: bool = False, progress: Progress | None = None
) -> Iterator[str]:
    """Yield a description of each problem as it is found. With `thorough`, also compare every index with its table."""
    try:
        pragma = "integrity_check" if thorough else "quick_check"
        for (text,) in db.execute(f"PRAGMA {pragma}(20)"):
            if text != "ok":
                yield f"SQLite: {text}"
    except sqlite3.DatabaseError as error:
        yield f"SQLite: {error}"
        return
    publishers = knows_publishers(db)
    missing = set() if publishers else {"publisher"}
    if not knows_plugin_state(db):
        missing.add("plugin_state")
    for table in COLUMNS:
        if table not in missing:
            yield from _rows(db, table, progress, publishers)
    for table, what, question in _LOST:
        if table in missing:
            continue
        try:
            count = db.execute(columns_in(db, question)).fetchone()[0]
            if count:
                yield f"{count} {what}"
        except sqlite3.DatabaseError as error:
            yield f"{table}: {error}"


def _picked(table: str, publishers: bool) -> str:
    """Return a table's columns in the order for `_right`: the payload, the checksum, then the others. Rows in this
    order need not be sliced.
    """
    names = COLUMNS[table].split(", ")[:-1]
    if table == "retained" and not publishers:
        names.remove("publisher")
    if table == "entry":
        return f"sent, crc, body, {_HELD}"
    apart = {"message": "payload", "retained": "payload", "plugin_state": "value"}.get(table)
    if apart is None:
        return ", ".join(("NULL", "crc", *names))
    return ", ".join((apart, "crc", *(name for name in names if name != apart)))


def _right(apart: Any, crc: int, rest: tuple[Any, ...]) -> bool:
    """Return whether a row's checksum is right. This is three times as fast as `row_ok`. Raises TypeError if the type
    of a value has changed.
    """
    found = crc32(ascii(rest).encode())
    if apart is None:
        return found == crc
    return crc32(apart, found) == crc


def _right_entry(sent: int, crc: int, body: bytes | None, rest: tuple[Any, ...]) -> bool:
    """Return whether an entry's checksum is right; see `_right`."""
    if body is not None:
        return _whole(sent, crc, body, rest)
    owner, seq, message, size, qos, *others = rest
    text = ascii((owner, seq, message, qos, size, *others))
    return crc32(text.encode()) + sent * SENT_CHECK == crc


def _rows(
    db: sqlite3.Connection, table: str, progress: Progress | None, publishers: bool
) -> Iterator[str]:
    done = 0
    total = 0
    # An unexpected NULL must not abort the check.
    whole = table not in ("message", "retained", "plugin_state")
    held = table == "entry"
    try:
        if progress is not None:
            total = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        columns = _picked(table, publishers)
        if held:
            columns = columns_in(db, columns)
        for row in db.execute(f"SELECT {columns} FROM {table}"):
            try:
                if held:
                    good = _right_entry(row[0], row[1], row[2], row[3:])
                else:
                    good = _right(row[0], row[1], row[2:]) and (whole or row[0] is not None)
            except (TypeError, StructError):
                good = False
            if not good:
                yield f"{table} {row[3 if held else 2]!r}: wrong checksum"
            done += 1
            if progress is not None and done % STEP == 0:
                progress(table, done, total)
    except sqlite3.DatabaseError as error:
        yield f"{table}: {error}"
    if progress is not None and done:
        progress(table, done, total)
