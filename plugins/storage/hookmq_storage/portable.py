"""Export and import a store as text, with one JSON object per line, for use with another version, store or program.

    {"kind": "hookmq-storage", "version": 3}
    {"kind": "session", "client_id": …}  {"kind": "subscription", …}  {"kind": "received", …}
    {"kind": "publisher", "id": 3, …}    {"kind": "retained", "publisher": 3, …}
    {"kind": "plugin_state", "space": "s/PLUGIN", "key": "count", …}
    {"kind": "message", "id": 7, …}      {"kind": "entry", "owner": "c/client", "message": 7, …}
    {"kind": "end", "lines": 8}

Payloads, plugin values and MQTT 5 property sections are base64. A message precedes its entries, a session precedes its
subscriptions and entries, and a publisher precedes its retained messages. The last line gives the number of lines
before it, so that a truncated export is detected.
"""

import base64
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from hookmq.plugin import StoreError

from hookmq_storage import batch
from hookmq_storage.batch import Operation
from hookmq_storage.check import row_ok
from hookmq_storage.client import ADDED, complete
from hookmq_storage.engine import Engine
from hookmq_storage.fields import References
from hookmq_storage.inline import parts_of, spread
from hookmq_storage.schema import COLUMNS, columns_in, knows_plugin_state, knows_publishers

VERSION: Final = 3
"""Older versions can also be imported. Version 1 lacks some client fields, version 2 lacks plugin state."""
_BATCH: Final = 10_000
_SESSION: Final = ("version", "expiry", "connected_at", "ended_at", "will_at")
_CLIENT: Final = (
    "username", "identity", "claims", "listener", "mount_point", "host", "limits", *ADDED,
)  # fmt: skip
PUBLISHER: Final = tuple(name for name in _CLIENT if name not in ("limits", "revoked"))
"""The fields of a publisher other than id, client id and version."""
_MESSAGE: Final = (
    "topic", "payload", "flags", "properties", "sender", "origin", "received_at", "expires_at",
)  # fmt: skip
_SUBSCRIPTION: Final = ("filter", "topic_filter", "options", "identifier", "share")
_ENTRY: Final = tuple(
    "seq message qos size retain identifiers filter share_group sent".split()  # noqa: SIM905
)
_STATE: Final = ("space", "key", "value", "due")
_BYTES: Final = frozenset({"payload", "properties"})

_KEYS: Final = {
    "session": ("owner",),
    "subscription": ("owner", "filter"),
    "received": ("owner", "packet_id"),
    "message": ("id",),
    "entry": ("owner", "seq"),
    "publisher": ("id",),
    "retained": ("id",),
    "plugin_state": ("id",),
}

Row = tuple[Any, ...]
Step = Callable[[str, int, int], None]


def rows(db: sqlite3.Connection, table: str, bad: Callable[[str], None]) -> Iterator[Row]:
    """Yield a table's readable rows that have the right checksum, and report the others to `bad`.

    If a damaged page stops the forward scan, scan the remaining rows backwards.
    """
    keys = _KEYS[table]
    width = len(keys)
    columns = f"{', '.join(keys)}, {COLUMNS[table]}"
    if table == "entry":
        try:
            columns = columns_in(db, columns)
        except sqlite3.DatabaseError as error:
            bad(f"{table}: {error}")
            return
    if table == "plugin_state":
        try:
            if not knows_plugin_state(db):
                return
        except sqlite3.DatabaseError as error:
            bad(f"{table}: {error}")
            return
    publishers = True
    if table in ("publisher", "retained"):
        try:
            publishers = knows_publishers(db)
        except sqlite3.DatabaseError as error:
            bad(f"{table}: {error}")
            return
        if not publishers:
            if table == "publisher":
                return
            columns = columns.replace(" publisher,", "")
    last: Row = ()
    for direction in ("ASC", "DESC"):
        order = ", ".join(f"{key} {direction}" for key in keys)
        try:
            for row in db.execute(f"SELECT {columns} FROM {table} NOT INDEXED ORDER BY {order}"):
                if direction == "ASC":
                    last = row[:width]
                elif row[:width] <= last:
                    return
                if row_ok(table, row[width:]):
                    row = row[width:]
                    yield row if publishers else (*row[:-1], None, row[-1])
                else:
                    bad(f"{table} {row[0]!r}: wrong checksum")
            return
        except (sqlite3.DatabaseError, TypeError) as error:
            bad(f"{table}: {error}")


def _text(names: Iterable[str], values: Row) -> dict[str, Any]:
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in zip(names, values, strict=True)
    }


def lines(
    db: sqlite3.Connection, bad: Callable[[str], None], step: Step | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a database's contents as objects, one for each line of an export. Unreadable rows and rows with dangling
    references are omitted and reported to `bad`.
    """

    def counted(table: str) -> Iterator[Row]:
        total = 0
        if step is not None:
            try:
                total = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            except sqlite3.DatabaseError:
                pass
        done = 0
        for row in rows(db, table, bad):
            yield row
            done += 1
            if step is not None and done % 5000 == 0:
                step(table, done, total)
        if step is not None and done:
            step(table, done, total)

    count = 0
    for line in _all(db, bad, counted):
        yield line
        count += 1
    yield {"kind": "end", "lines": count}


def _all(
    db: sqlite3.Connection, bad: Callable[[str], None], counted: Callable[[str], Iterator[Row]]
) -> Iterator[dict[str, Any]]:
    yield {"kind": "hookmq-storage", "version": VERSION}
    names = _names(db, bad)
    sessions: set[int] = set()
    left: dict[str, int] = {}
    """For each owner with an unreadable session, the number of rows."""
    for row in counted("session"):
        owner = names.get(row[0])
        if owner is None:
            bad(f"session {row[0]}: its client id is missing")
            continue
        sessions.add(row[0])
        line = {"kind": "session", "client_id": owner[2:], **_text(_SESSION, row[1:6])}
        line |= complete(json.loads(row[6]))
        line["will"] = None if row[7] is None else {"delay": row[7], **_text(_MESSAGE, row[8:16])}
        yield line
    for row in counted("subscription"):
        if row[0] in sessions:
            client_id = names[row[0]][2:]
            yield {"kind": "subscription", "client_id": client_id, **_text(_SUBSCRIPTION, row[1:6])}
        elif row[0] in names:
            left[names[row[0]]] = left.get(names[row[0]], 0) + 1
    for row in counted("received"):
        if row[0] in sessions:
            yield {"kind": "received", "client_id": names[row[0]][2:], "packet_id": row[1]}
        elif row[0] in names:
            left[names[row[0]]] = left.get(names[row[0]], 0) + 1
    publishers: set[int] = set()
    for row in counted("publisher"):
        publishers.add(row[0])
        line = {"kind": "publisher", "id": row[0], "client_id": row[1], "version": row[2]}
        yield line | json.loads(row[3])
    for row in counted("retained"):
        if row[8] is not None and row[8] not in publishers:
            # Without its publisher, nobody could decide whether the message may still be sent.
            bad(f"retained {row[0]!r}: its publisher is missing")
            continue
        yield {"kind": "retained", **_text(_MESSAGE, row[:8]), "publisher": row[8]}
    for row in counted("plugin_state"):
        yield {"kind": "plugin_state", **_text(_STATE, row[:4])}
    messages: set[int] = set()
    for row in counted("message"):
        messages.add(row[0])
        yield {"kind": "message", "id": row[0], **_text(_MESSAGE, row[1:9])}
    for row in rows(db, "entry", lambda text: None):
        if row[10] is not None and row[2] not in messages:
            messages.add(row[2])
            _, message = parts_of(row[10])
            yield {"kind": "message", "id": row[2], **_text(_MESSAGE, message)}
    for row in counted("entry"):
        if row[10] is not None:
            row = spread(row)
        name = names.get(row[0])
        if name is None:
            continue  # the owner has ended
        if name.startswith("c/") and row[0] not in sessions:
            left[name] = left.get(name, 0) + 1
            continue
        if row[2] not in messages:
            bad(f"entry {row[1]} of {name}: its message is missing")
            continue
        yield {"kind": "entry", "owner": name, **_text(_ENTRY, row[1:10])}
    for name, rows_left in left.items():
        bad(f"{rows_left} subscriptions, ids and queue entries of {name}: its session is lost")


def _names(db: sqlite3.Connection, bad: Callable[[str], None]) -> dict[int, str]:
    """Return the owners' names by id. A name has no checksum, but is stored twice: in the table and in its index.

    If the two copies differ, neither is used. If one copy is unreadable, the other is used.
    """
    found: list[dict[int, str]] = []
    for how in ("NOT INDEXED", "INDEXED BY sqlite_autoindex_owner_1"):
        found.append({})
        for order in ("ASC", "DESC"):
            try:
                for id, name in db.execute(
                    f"SELECT id, name FROM owner {how} WHERE name IS NOT NULL"
                    f" ORDER BY {'id' if how == 'NOT INDEXED' else 'name'} {order}"
                ):
                    if type(id) is int and type(name) is str:
                        found[-1][id] = name
                break
            except sqlite3.DatabaseError as error:
                if order == "ASC":
                    bad(f"owner: {error}")
    table, index = found
    names = index | table
    for id in table.keys() & index.keys():
        if table[id] != index[id]:
            bad(f"owner {id}: its name is {table[id]!r} or {index[id]!r}")
            del names[id]
    return names


def _message(line: dict[str, Any]) -> Row:
    return tuple(
        base64.b64decode(line[name], validate=True)
        if name in _BYTES and line[name] is not None
        else line[name]
        for name in _MESSAGE
    )


def _session(line: dict[str, Any]) -> Operation:
    kept = {name: line[name] for name in _CLIENT}
    will = line["will"]
    return (
        batch.PUT_SESSION,
        line["client_id"],
        *(line[name] for name in _SESSION),
        json.dumps(kept, separators=(",", ":")),
        *((None,) * 9 if will is None else (will["delay"], *_message(will))),
    )


def _entry(line: dict[str, Any]) -> Operation:
    seq, message, qos, size, retain, numbers, filter, group, sent = (line[name] for name in _ENTRY)
    return (
        batch.ENQUEUE,
        line["owner"],
        seq,
        message,
        qos,
        size,
        retain,
        tuple(map(int, numbers.split())) if numbers else (),
        filter or "",
        sent & 0xFFFF,
        sent > 0xFFFF,
        group or "",
    )


_READ: Final[dict[str, Callable[[dict[str, Any]], Operation]]] = {
    "session": _session,
    "subscription": lambda one: (
        batch.PUT_SUBSCRIPTION,
        one["client_id"],
        *(one[name] for name in _SUBSCRIPTION),
    ),
    "received": lambda one: (batch.PUT_RECEIVED, one["client_id"], one["packet_id"]),
    "publisher": lambda one: (
        batch.PUT_PUBLISHER,
        one["id"],
        one["client_id"],
        one["version"],
        json.dumps({name: one[name] for name in PUBLISHER}, separators=(",", ":")),
    ),
    "retained": lambda one: (batch.PUT_RETAINED, *_message(one), one["publisher"]),
    "plugin_state": lambda one: (
        batch.PUT_STATE,
        one["space"],
        one["key"],
        base64.b64decode(one["value"], validate=True),
        one["due"],
    ),
    "message": lambda one: (batch.PUT_MESSAGE, one["id"], *_message(one)),
    "entry": _entry,
}


def operations(source: Iterable[str | bytes], known: References) -> Iterator[Operation]:
    """Yield an operation for each line of an export, after `known` has checked the line. Raises StoreError for an
    invalid line, or if the end line is missing."""
    number, version, ended = 0, VERSION, False
    for number, text in enumerate(source, 1):
        if ended:
            raise StoreError(f"line {number}: the export has already ended")
        try:
            line = json.loads(text)
            kind = line["kind"]
            if number == 1:
                version = line.get("version")
                if (
                    kind != "hookmq-storage"
                    or type(version) is not int
                    or not 0 < version <= VERSION
                ):
                    raise StoreError(
                        f"line 1: not an export of hookmq storage with a version up to {VERSION}"
                    )
                continue
            if kind == "end":
                if line["lines"] != number - 1:
                    raise StoreError(f"line {number}: expected {line['lines']} lines before it")
                ended = True
                continue
            if version == 1 and kind == "session":
                line = complete(line)
            if version == 1 and kind == "retained":
                line = {**line, "publisher": None}
            known.check(kind, line)
            operation = _READ[kind](line)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"line {number}: not a line of an export: {error!r}") from error
        yield operation
    if not ended:
        raise StoreError(f"the export is cut off after line {number}")


def trusted(source: Iterable[dict[str, Any]]) -> Iterator[Operation]:
    """Yield an operation for each object from `lines`. The checksums of the underlying rows have already been
    verified.
    """
    for line in source:
        read = _READ.get(line["kind"])
        if read is not None:
            yield read(line)


def put(engine: Engine, source: Iterable[Operation]) -> int:
    """Commit operations in batches. Return the number of operations."""
    count = 0
    waiting: dict[int, Operation] = {}
    pending: list[Operation] = []
    for operation in source:
        count += 1
        if operation[0] == batch.PUT_MESSAGE:
            # Store all messages before any entries: a batch drops messages that have no entries.
            waiting[operation[1]] = operation
            if len(waiting) >= _BATCH:
                _store_messages(engine, waiting)
            continue
        if operation[0] == batch.ENQUEUE and waiting:
            _store_messages(engine, waiting)
        pending.append(operation)
        if len(pending) >= _BATCH:
            engine.commit(pending)
            pending = []
    if waiting:
        _store_messages(engine, waiting)
    engine.commit(pending)
    engine.drop_unused()
    return count


def check_rows(engine: Engine, known: References) -> None:
    """Raise StoreError if there are fewer rows than lines, because then two lines describe the same object."""
    for table, count in known.counts().items():
        found: int = engine.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        if found != count:
            raise StoreError(f"{count - found} lines of kind {table} are duplicates")


def _store_messages(engine: Engine, messages: dict[int, Operation]) -> None:
    """Store messages whose entries follow later."""
    engine.put_messages(messages.values())
    messages.clear()
