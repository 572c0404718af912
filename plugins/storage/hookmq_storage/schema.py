"""The tables, and how a database of an older version becomes one of this.

Numbers that rows are looked up by are declared integers; the other columns have no declared type, so that a value comes
back as it was put: a float stays a float, infinity included. Every row ends in `crc`, the CRC-32 of the others (see
`checksum`): a bit that flips on the disk is found, not delivered.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from hookmq_storage.client import complete

APPLICATION_ID: Final = 0x484D5151
"""``HMQQ``, in the header of every database of ours."""
VERSION: Final = 4

MESSAGE_EXPIRES: Final = (
    "CREATE INDEX message_expires ON message (expires_at, id) WHERE expires_at IS NOT NULL"
)
ENTRY_MESSAGE: Final = "CREATE INDEX entry_message ON entry (message) WHERE body IS NULL"
PUBLISHERS: Final = (
    # The clients that published what is retained, each once: `retained.publisher`, NULL if no client did.
    "CREATE TABLE publisher (id INTEGER PRIMARY KEY, client_id, version, data, crc)"
)
TABLES: Final = (
    # One row. `number` is the newest commit, `at` the wall clock then; `inode` tells the file from a copy of it.
    "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), identity, inode, number, next_message, at)",
    # Whoever has a queue: c/CLIENT_ID or g/SHARE/FILTER. A name of NULL has ended and is swept away in slices.
    "CREATE TABLE owner (id INTEGER PRIMARY KEY, name UNIQUE)",
    "CREATE INDEX owner_ended ON owner (id) WHERE name IS NULL",
    "CREATE TABLE session (owner INTEGER PRIMARY KEY, version, expiry, connected_at, ended_at, will_at, data, will_delay,"
    " will_topic, will_payload, will_flags, will_properties, will_sender, will_origin, will_received_at,"
    " will_expires_at, crc)",
    "CREATE TABLE subscription (owner INTEGER, filter, topic_filter, options, identifier, share, crc,"
    " PRIMARY KEY (owner, filter)) WITHOUT ROWID",
    "CREATE TABLE received (owner INTEGER, packet_id INTEGER, crc, PRIMARY KEY (owner, packet_id)) WITHOUT ROWID",
    # A message once, however many entries point to it; none whose only entry has it itself. `flags` are QoS + 4 for
    # retain.
    "CREATE TABLE message (id INTEGER PRIMARY KEY, topic, payload, flags, properties, sender, origin, received_at,"
    " expires_at, crc)",
    MESSAGE_EXPIRES,
    # `sent` is the packet id, + 65536 once PUBREC came; 0 for what waits. It changes, so `crc` knows nothing of it.
    # `body` is the message and the rest of the entry in one (see hookmq_storage.inline): then `message` is but its id,
    # and qos, retain, identifiers, filter and share_group are NULL.
    "CREATE TABLE entry (owner INTEGER, seq INTEGER, message INTEGER, qos, size, retain, identifiers, filter,"
    " share_group, sent, crc, body, PRIMARY KEY (owner, seq)) WITHOUT ROWID",
    ENTRY_MESSAGE,
    "CREATE TABLE retained (id INTEGER PRIMARY KEY, topic UNIQUE, payload, flags, properties, sender, origin,"
    " received_at, expires_at, crc, publisher)",
    PUBLISHERS,
    "CREATE INDEX retained_expires ON retained (expires_at) WHERE expires_at IS NOT NULL",
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
}
"""The columns of each table with a `crc`, in the order of the row that `checksum` is of."""

SENT_CHECK: Final = 2654435761
"""An entry's `crc` is that of its constant columns plus `sent` times this: `sent` changes without reading the row."""

Migration = Callable[[sqlite3.Connection], object]


def _inline(db: sqlite3.Connection) -> None:
    """Entries of before stay as they are."""
    db.execute("ALTER TABLE entry ADD COLUMN body")
    db.execute("DROP INDEX entry_message")
    db.execute(ENTRY_MESSAGE)


def _clients_and_publishers(db: sqlite3.Connection) -> None:
    _clients(db)
    _publishers(db)


def _publishers(db: sqlite3.Connection) -> None:
    """Retained messages point to who published them; nobody knows that of those from before."""
    db.execute(PUBLISHERS)
    db.execute("ALTER TABLE retained ADD COLUMN publisher")
    columns = COLUMNS["retained"]
    for (id,) in db.execute("SELECT id FROM retained").fetchall():
        *row, _, crc = db.execute(f"SELECT {columns} FROM retained WHERE id = ?", (id,)).fetchone()
        if crc == message_crc(row):
            found = message_crc((*row, None))
            db.execute("UPDATE retained SET crc = ? WHERE id = ?", (found, id))


def _clients(db: sqlite3.Connection) -> None:
    """Sessions record the whole client. What was not stored is unknown from now on. A row that is damaged stays as it
    is: it is found when it is loaded."""
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
}
"""By version, what makes a database of it one of the next. Each runs inside one transaction with all that follow."""


def columns_in(db: sqlite3.Connection, columns: str) -> str:
    """`columns` of the table `entry` for a query, whatever the version of the database is."""
    if db.execute("SELECT 1 FROM pragma_table_info('entry') WHERE name = 'body'").fetchone():
        return columns
    return columns.replace("body", "NULL")


def knows_publishers(db: sqlite3.Connection) -> bool:
    """Whether the database is of a version that has publishers of retained messages."""
    found = db.execute("SELECT 1 FROM pragma_table_info('retained') WHERE name = 'publisher'")
    return found.fetchone() is not None


def checksum(*columns: Any) -> int:
    """The CRC-32 of a row's columns. `ascii`, unlike `repr`, is the same in every version of Python."""
    return crc32(ascii(columns).encode())


def checksum_payload(payload: bytes, *columns: Any) -> int:
    """As `checksum`, of a row with a payload, without making text of that."""
    return crc32(payload, crc32(ascii(columns).encode()))


def create(db: sqlite3.Connection, identity: str, inode: int, now: float) -> None:
    """Make the tables in an empty database, in the caller's transaction."""
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
    """Make a database of version `found` one of `version`, all or nothing."""
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
    """The `crc` of an entry: `row` is seq, message, qos, size, retain, identifiers, filter, group, sent."""
    sent: int = row[8]
    return checksum(owner, *row[:8]) + sent * SENT_CHECK


def message_crc(row: Sequence[Any]) -> int:
    """The `crc` of a message: id or topic first, as in `COLUMNS`; the payload is the first `bytes` in it."""
    at = 2 if type(row[0]) is int else 1
    return checksum_payload(row[at], *row[:at], *row[at + 1 :])
