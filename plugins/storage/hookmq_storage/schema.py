"""The database's tables, and the migrations from older versions.

Columns used in lookups are declared as integers. The other columns have no declared type, so values are read back
exactly as they were written: a float stays a float, even infinity. A row's `crc` column is the CRC-32 of its other
columns (see `checksum`), which reveals bits flipped on disk.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from hookmq_storage.client import complete

APPLICATION_ID: Final = 0x484D5151
"""``HMQQ``, in the header of every HookMQ database."""
VERSION: Final = 5

MESSAGE_EXPIRES: Final = (
    "CREATE INDEX message_expires ON message (expires_at, id) WHERE expires_at IS NOT NULL"
)
ENTRY_MESSAGE: Final = "CREATE INDEX entry_message ON entry (message) WHERE body IS NULL"
PUBLISHERS: Final = (
    # Each publisher of retained messages once. `retained.publisher` refers to it; NULL means no client published it.
    "CREATE TABLE publisher (id INTEGER PRIMARY KEY, client_id, version, data, crc)"
)
PLUGIN_STATE: Final = (
    # Spaces: s/PLUGIN for values, t/PLUGIN for timers. `due` is NULL for values.
    "CREATE TABLE plugin_state (id INTEGER PRIMARY KEY, space, key, value, due, crc, UNIQUE (space, key))"
)
TABLES: Final = (
    # A single row. `number` is the newest commit, `at` its wall clock time. `inode` tells the file from a copy.
    "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), identity, inode, number, next_message, at)",
    # Queue owners: c/CLIENT_ID or g/SHARE/FILTER. An owner whose name is NULL has ended and is swept in slices.
    "CREATE TABLE owner (id INTEGER PRIMARY KEY, name UNIQUE)",
    "CREATE INDEX owner_ended ON owner (id) WHERE name IS NULL",
    "CREATE TABLE session (owner INTEGER PRIMARY KEY, version, expiry, connected_at, ended_at, will_at, data, will_delay,"
    " will_topic, will_payload, will_flags, will_properties, will_sender, will_origin, will_received_at,"
    " will_expires_at, crc)",
    "CREATE TABLE subscription (owner INTEGER, filter, topic_filter, options, identifier, share, crc,"
    " PRIMARY KEY (owner, filter)) WITHOUT ROWID",
    "CREATE TABLE received (owner INTEGER, packet_id INTEGER, crc, PRIMARY KEY (owner, packet_id)) WITHOUT ROWID",
    # Each message has one row, however many entries refer to it. A message may instead be inside its only entry.
    # `flags` is the QoS, plus 4 for retain.
    "CREATE TABLE message (id INTEGER PRIMARY KEY, topic, payload, flags, properties, sender, origin, received_at,"
    " expires_at, crc)",
    MESSAGE_EXPIRES,
    # `sent` is the packet id, plus 65536 after PUBREC; 0 for a waiting entry. It changes, so `crc` handles it separately.
    # `body` contains the message and the rest of the entry (see hookmq_storage.inline). `message` is then only the
    # id of the message, and qos, retain, identifiers, filter and share_group are NULL.
    "CREATE TABLE entry (owner INTEGER, seq INTEGER, message INTEGER, qos, size, retain, identifiers, filter,"
    " share_group, sent, crc, body, PRIMARY KEY (owner, seq)) WITHOUT ROWID",
    ENTRY_MESSAGE,
    "CREATE TABLE retained (id INTEGER PRIMARY KEY, topic UNIQUE, payload, flags, properties, sender, origin,"
    " received_at, expires_at, crc, publisher)",
    PUBLISHERS,
    "CREATE INDEX retained_expires ON retained (expires_at) WHERE expires_at IS NOT NULL",
    PLUGIN_STATE,
)

COLUMNS: Final[Mapping[str, str]] = {
    "session": "owner, version, expiry, connected_at, ended_at, will_at, data, will_delay, will_topic, will_payload,"
    " will_flags, will_properties, will_sender, will_origin, will_received_at, will_expires_at, crc",
    "subscription": "owner, filter, topic_filter, options, identifier, share, crc",
    "received": "owner, packet_id, crc",
    "message": "id, topic, payload, flags, properties, sender, origin, received_at, expires_at, crc",
    "entry": "owner, seq, message, qos, size, retain, identifiers, filter, share_group, sent, body, crc",
    "publisher": "id, client_id, version, data, crc",
    "retained": "topic, payload, flags, properties, sender, origin, received_at, expires_at, publisher, crc",
    "plugin_state": "space, key, value, due, crc",
}
"""The columns of each table that has a `crc`, in the order for `checksum`."""

SENT_CHECK: Final = 2654435761
"""An entry's `crc` is the checksum of its constant columns plus `sent` times this number. `sent` can therefore change
without reading the row."""

Migration = Callable[[sqlite3.Connection], object]


def _inline(db: sqlite3.Connection) -> None:
    """Add the `body` column. Existing entries stay unchanged."""
    db.execute("ALTER TABLE entry ADD COLUMN body")
    db.execute("DROP INDEX entry_message")
    db.execute(ENTRY_MESSAGE)


def _clients_and_publishers(db: sqlite3.Connection) -> None:
    _clients(db)
    _publishers(db)


def _publishers(db: sqlite3.Connection) -> None:
    """Link retained messages to their publishers. The publishers of existing messages are unknown."""
    db.execute(PUBLISHERS)
    db.execute("ALTER TABLE retained ADD COLUMN publisher")
    columns = COLUMNS["retained"]
    for (id,) in db.execute("SELECT id FROM retained").fetchall():
        *row, _, crc = db.execute(f"SELECT {columns} FROM retained WHERE id = ?", (id,)).fetchone()
        if crc == message_crc(row):
            found = message_crc((*row, None))
            db.execute("UPDATE retained SET crc = ? WHERE id = ?", (found, id))


def _clients(db: sqlite3.Connection) -> None:
    """Add the missing client fields to each session. Values that were never stored are unknown.

    A damaged row stays unchanged, and the damage is reported when the row is loaded.
    """
    columns = COLUMNS["session"]
    at = columns.split(", ").index("data")
    for owner, *_ in db.execute("SELECT owner FROM session").fetchall():
        row = list(
            db.execute(f"SELECT {columns} FROM session WHERE owner = ?", (owner,)).fetchone()
        )
        if row[-1] != checksum(*row[:-1]):
            continue
        row[at] = json.dumps(complete(json.loads(row[at])), separators=(",", ":"))
        db.execute(
            "UPDATE session SET data = ?, crc = ? WHERE owner = ?",
            (row[at], checksum(*row[:-1]), owner),
        )


MIGRATIONS: Final[Mapping[int, Migration]] = {
    1: lambda db: db.execute(MESSAGE_EXPIRES),
    2: _inline,
    3: _clients_and_publishers,
    4: lambda db: db.execute(PLUGIN_STATE),
}
"""The migration from each version to the next. All steps of a migration run in one transaction."""


def columns_in(db: sqlite3.Connection, columns: str) -> str:
    """Adapt the `columns` of the `entry` table to the database's version, and return them for use in a query."""
    if db.execute("SELECT 1 FROM pragma_table_info('entry') WHERE name = 'body'").fetchone():
        return columns
    return columns.replace("body", "NULL")


def knows_publishers(db: sqlite3.Connection) -> bool:
    """Return whether this version of the database stores the publishers of retained messages."""
    found = db.execute("SELECT 1 FROM pragma_table_info('retained') WHERE name = 'publisher'")
    return found.fetchone() is not None


def knows_plugin_state(db: sqlite3.Connection) -> bool:
    """Return whether this version of the database stores plugin state."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version > 4


def checksum(*columns: Any) -> int:
    """Return the CRC-32 of a row's columns. It is based on `ascii`, whose output is the same in every Python version,
    unlike that of `repr`.
    """
    return crc32(ascii(columns).encode())


def checksum_payload(payload: bytes, *columns: Any) -> int:
    """Return the CRC-32 of a row with a payload, without converting the payload to text."""
    return crc32(payload, crc32(ascii(columns).encode()))


def create(db: sqlite3.Connection, identity: str, inode: int, now: float) -> None:
    """Create the tables in an empty database, as part of the caller's transaction."""
    for statement in TABLES:
        db.execute(statement)
    db.execute("INSERT INTO state VALUES (1, ?, ?, 0, 1, ?)", (identity, inode, now))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def migrate(
    db: sqlite3.Connection,
    found: int,
    migrations: Mapping[int, Migration] = MIGRATIONS,
    version: int = VERSION,
) -> None:
    """Migrate a database from version `found` to `version`, all or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for number in range(found, version):
            migrations[number](db)
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def entry_crc(owner: int, row: Sequence[Any]) -> int:
    """Return an entry's `crc`. `row` contains seq, message, qos, size, retain, identifiers, filter, group and sent."""
    sent: int = row[8]
    return checksum(owner, *row[:8]) + sent * SENT_CHECK


def plugin_state_crc(row: Sequence[Any]) -> int:
    """Return the `crc` for a row of plugin state, which begins with space, key, value and due."""
    return checksum_payload(row[2], row[0], row[1], row[3])


def message_crc(row: Sequence[Any]) -> int:
    """Return a message's `crc`. `row` begins with the message's id or topic, as in `COLUMNS`. Its first `bytes` value
    is the payload.
    """
    at = 2 if type(row[0]) is int else 1
    return checksum_payload(row[at], *row[:at], *row[at + 1 :])
