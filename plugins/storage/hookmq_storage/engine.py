"""The database's writer, which handles commits, checkpoints and marks. `pages` reads queues, and `sweep` removes
leftover rows.

In a running broker, the engine has a process of its own (`hookmq_storage.writer`). In tests with a virtual clock, it
runs in the broker's process.
"""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from hookmq.plugin import StoreError

from hookmq_storage.batch import Operation, Plan, entry_row, put_message, reduce
from hookmq_storage.database import USUAL, Durability, Limits, State
from hookmq_storage.folder import DATABASE, Mark, open_mark, write_mark
from hookmq_storage.inline import KEY, LARGEST, Heads, body_of, inline_crc, spread
from hookmq_storage.schema import (
    COLUMNS,
    SENT_CHECK,
    checksum,
    checksum_payload,
    entry_crc,
    message_crc,
    plugin_state_crc,
)
from hookmq_storage.sweep import FREE, SLICE, give_back, sweep

OWNERS_KNOWN: Final = 100_000
"""Number of owner ids to cache, about 15 MB."""


def _insert(table: str, columns: str) -> str:
    marks = ", ".join("?" for _ in columns.split(","))
    return f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})"


_PUT: Final = {table: _insert(table, columns) for table, columns in COLUMNS.items()}
INLINE: Final = "owner, seq, message, size, sent, crc, body"
"""The columns of an entry that contains its message."""
_PUT_INLINE: Final = _insert("entry", INLINE)
HELD: Final = (
    "SELECT e.owner, e.seq, e.message, e.qos, e.size, e.retain, e.identifiers, e.filter, e.share_group, e.sent, e.body,"
    " e.crc FROM entry e WHERE e.body IS NOT NULL AND e.message IN (SELECT value FROM json_each(?))"
)
"""The query for the entries that contain one of the given messages. It scans the whole table."""


Rows = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]


def queue_rows(plan: Plan, owner_of: Callable[[str], int], heads: Heads) -> Rows:
    """Return the rows that a plan adds to queues, in three lists: messages, entries, and entries that contain their
    message. The last list is for `_PUT_INLINE`.
    """
    messages = list(plan.messages.values())
    entries: list[tuple[Any, ...]] = []
    inline: list[tuple[Any, ...]] = []
    add, key = inline.append, KEY.pack
    for name, queue in plan.entries.items():
        if not queue:
            continue
        owner = owner_of(name)
        # Messages queued for a shared subscription may later move to the queues of its members.
        alone = name.startswith("c/")
        for row in queue.values():
            if type(row) is tuple:
                _, _, seq, message, size, sent, released, payload, received_at, expires_at, *_ = row
                # Expiring messages need a row of their own, because an index on the message table finds them.
                held = alone and expires_at is None and len(payload) <= LARGEST
                head = heads[row[10:]] if held else None
                if head is not None and type(received_at) is float:
                    body = body_of(head, received_at, payload)
                    crc = crc32(body, crc32(key(owner, seq, message, size)))
                    if sent:
                        if released:
                            sent += 65536
                        crc += sent * SENT_CHECK
                    add((owner, seq, message, size, sent, crc, body))
                    continue
                messages.append(put_message(row))
                row = entry_row(row)
            entries.append((owner, *row, None, entry_crc(owner, row)))
    rows = [(*row[1:], checksum_payload(row[3], row[1], row[2], *row[4:])) for row in messages]
    return rows, entries, inline


def _identity(path: str) -> tuple[tuple[int, int] | None, int]:
    """Return the device and inode of the file at `path`, and its size in bytes. Return None and 0 if it is not
    accessible.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None, 0
    return (found.st_dev, found.st_ino), found.st_size


class Engine:
    """The database's only writer. `db` is its connection, and `state` is the state that was stored when it was opened."""

    def __init__(
        self,
        folder: Path,
        db: sqlite3.Connection,
        state: State,
        durability: Durability,
        limits: Limits = USUAL,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.db = db
        self.identity = state.identity
        self.number = state.number
        self.next_message = state.next_message
        self.durability = durability
        self.limits = limits
        self._now = now
        self._owners: dict[str, int] = {}
        self._heads = Heads()
        self._mark = open_mark(folder)
        self._marked = state.number
        self._marked_at = 0.0
        self._path = str(folder / DATABASE)
        self._wal = f"{self._path}-wal"
        self._files = _identity(self._path)[0], _identity(self._wal)[0]
        self.log_bytes = 0
        """The log's size in bytes after the newest commit."""
        self.ended = bool(db.execute("SELECT 1 FROM owner WHERE name IS NULL").fetchone())
        """Whether ended sessions or expired messages are left to sweep."""
        self._loose: list[int] = []
        """Ids of messages that lost an entry in the current commit."""

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit(self, operations: Iterable[Operation]) -> int:
        """Commit a batch, all or nothing, and return the commit's number.

        Raises sqlite3.Error if the commit fails, or StoreError if the files were replaced. After that, it is unknown
        what is on disk, and only `abandon` may be called.
        """
        db = self.db
        # If only journals stored something, a single statement is the whole transaction.
        empty = isinstance(operations, list) and not operations
        if not empty:
            plan = reduce(operations)
            db.execute("BEGIN IMMEDIATE")
            self._apply(plan)
            self.next_message = max(self.next_message, plan.next_message)
        self.number += 1
        alone = db.execute(
            "UPDATE state SET number = ?1, next_message = ?2, at = ?3 WHERE number = ?1 - 1 AND identity = ?4",
            (self.number, self.next_message, self._now(), self.identity),
        )
        if alone.rowcount != 1:
            # The lock was removed and another process wrote. The broker's state no longer matches the database.
            if not empty:
                db.execute("ROLLBACK")
            raise StoreError("another process wrote to it; two brokers cannot share a folder")
        if not empty:
            db.execute("COMMIT")
        self._still_there()
        if self.durability == "group":
            self.mark()
        return self.number

    def put_messages(self, operations: Iterable[Operation]) -> None:
        """Store messages whose entries will follow in later commits, as in an import. Call `drop_unused` at the end."""
        self.db.execute("BEGIN IMMEDIATE")
        rows = [
            (*row[1:], checksum_payload(row[3], row[1], row[2], *row[4:])) for row in operations
        ]
        self.db.executemany(_PUT["message"], rows)
        if rows:
            self.next_message = max(self.next_message, *(row[0] + 1 for row in rows))
        self.db.execute("COMMIT")

    def drop_unused(self) -> None:
        """Delete messages that no entry refers to."""
        self.db.execute(
            "DELETE FROM message WHERE id NOT IN (SELECT message FROM entry WHERE body IS NULL)"
        )

    def _still_there(self) -> None:
        """Raise StoreError if the files or their folder were removed or replaced. Anything written to the open files
        would then be missing at the next startup.
        """
        log, self.log_bytes = _identity(self._wal)
        found = _identity(self._path)[0], log
        if found != self._files:
            if self._files[1] is None and None not in found and found[0] == self._files[0]:
                self._files = found  # SQLite creates the log on demand
                return
            raise StoreError("it was removed, replaced or made inaccessible while the broker ran")

    def _apply(self, plan: Plan) -> None:
        db = self.db
        if plan.foreign:
            self._share(plan.foreign)
        for name in plan.dropped:
            self._end(name)
        loose = self._loose
        for name, seqs in plan.dequeued.items():
            owner = self._find(name)
            if owner is not None:
                self._dequeue(owner, sorted(seqs))
        for name, filters in plan.subscriptions_gone.items():
            owner = self._find(name)
            if owner is not None:
                statement = "DELETE FROM subscription WHERE owner = ? AND filter = ?"
                db.executemany(statement, zip(repeat(owner), filters))
        for name, numbers in plan.received_gone.items():
            owner = self._find(name)
            if owner is not None:
                statement = "DELETE FROM received WHERE owner = ? AND packet_id = ?"
                db.executemany(statement, zip(repeat(owner), numbers))
        if plan.entries:
            messages, entries, inline = queue_rows(plan, self._owner, self._heads)
            if messages:
                db.executemany(_PUT["message"], messages)
            if entries:
                db.executemany(_PUT["entry"], entries)
            if inline:
                db.executemany(_PUT_INLINE, inline)
        for name, sent in plan.sent.items():
            owner = self._find(name)
            if owner is not None:
                db.executemany(
                    f"UPDATE entry SET crc = crc + (?3 - sent) * {SENT_CHECK}, sent = ?3 WHERE owner = ?1 AND seq = ?2",
                    [(owner, seq, number) for seq, number in sent.items()],
                )
        if plan.sessions or plan.subscriptions or plan.received:
            self._put_sessions(plan)
        if plan.publishers:
            self._put_publishers(plan)
        if plan.retained:
            self._put_retained(plan)
        if plan.plugin_state:
            self._put_plugin_state(plan)
        if loose:
            db.executemany(FREE, zip(loose))
            loose.clear()

    def _share(self, ids: set[int]) -> None:
        """Move messages that get a second entry to rows of their own."""
        db = self.db
        found = "SELECT 1 FROM message WHERE id = ?"
        missing = [id for id in ids if db.execute(found, (id,)).fetchone() is None]
        if not missing:
            return
        for row in db.execute(HELD, (json.dumps(missing),)).fetchall():
            if row[11] != inline_crc(row[0], row[1], row[2], row[4], row[9], row[10]):
                raise StoreError(f"queue entry {row[1]} of owner {row[0]}: wrong checksum")
            whole = spread(row)
            message = (row[2], *whole[10:])
            db.execute(_PUT["message"], (*message, message_crc(message)))
            db.execute(_PUT["entry"], (*whole[:10], None, entry_crc(row[0], whole[1:10])))

    def _put_sessions(self, plan: Plan) -> None:
        db = self.db
        rows = []
        for name, operation in plan.sessions.items():
            row = (self._owner(name), *operation[2:])
            rows.append((*row, checksum(*row)))
        db.executemany(_PUT["session"], rows)
        rows = []
        for name, subscriptions in plan.subscriptions.items():
            if subscriptions:
                owner = self._owner(name)
                for operation in subscriptions.values():
                    row = (owner, *operation[2:])
                    rows.append((*row, checksum(*row)))
        db.executemany(_PUT["subscription"], rows)
        rows = []
        for name, numbers in plan.received.items():
            if numbers:
                owner = self._owner(name)
                rows += [(owner, number, checksum(owner, number)) for number in numbers]
        db.executemany(_PUT["received"], rows)

    def _put_publishers(self, plan: Plan) -> None:
        gone = [(id,) for id, operation in plan.publishers.items() if operation is None]
        if gone:
            self.db.executemany("DELETE FROM publisher WHERE id = ?", gone)
        rows = ((*row[1:], checksum(*row[1:])) for row in plan.publishers.values() if row)
        self.db.executemany(_PUT["publisher"], rows)

    def _put_retained(self, plan: Plan) -> None:
        gone = [(topic,) for topic, operation in plan.retained.items() if operation is None]
        if gone:
            self.db.executemany("DELETE FROM retained WHERE topic = ?", gone)
        rows = (
            (*row[1:], checksum_payload(row[2], row[1], *row[3:]))
            for row in plan.retained.values()
            if row is not None
        )
        self.db.executemany(_PUT["retained"], rows)

    def _put_plugin_state(self, plan: Plan) -> None:
        gone = [key for key, operation in plan.plugin_state.items() if operation is None]
        if gone:
            self.db.executemany("DELETE FROM plugin_state WHERE space = ? AND key = ?", gone)
        rows = (
            (*row[1:], plugin_state_crc(row[1:]))
            for row in plan.plugin_state.values()
            if row is not None
        )
        self.db.executemany(_PUT["plugin_state"], rows)

    def _dequeue(self, owner: int, seqs: list[int]) -> None:
        db = self.db
        if len(seqs) > 1 and seqs[-1] - seqs[0] == len(seqs) - 1:
            # Clients acknowledge a queue in order, so most batches remove one range: two statements are enough.
            where, args = "owner = ? AND seq BETWEEN ? AND ?", (owner, seqs[0], seqs[-1])
            found = db.execute(f"SELECT message FROM entry WHERE {where} AND body IS NULL", args)
            self._loose += [message for (message,) in found]
            db.execute(f"DELETE FROM entry WHERE {where}", args)
            return
        for seq in seqs:
            pair = (owner, seq)
            row = db.execute(
                "SELECT message, body IS NULL FROM entry WHERE owner = ? AND seq = ?", pair
            ).fetchone()
            if row is not None:
                if row[1]:
                    self._loose.append(row[0])
                db.execute("DELETE FROM entry WHERE owner = ? AND seq = ?", pair)

    def _end(self, name: str) -> None:
        """Mark an owner as ended. This updates a single row, however large the owner's queue is. `sweep` removes the
        rest.
        """
        owner = self._find(name)
        if owner is not None:
            self.db.execute("UPDATE owner SET name = NULL WHERE id = ?", (owner,))
            self.db.execute("DELETE FROM session WHERE owner = ?", (owner,))
            self._owners.pop(name, None)
            self.ended = True

    def _find(self, name: str) -> int | None:
        owner = self._owners.get(name)
        if owner is None:
            row = self.db.execute("SELECT id FROM owner WHERE name = ?", (name,)).fetchone()
            if row is None:
                return None
            owner = self._remember(name, row[0])
        return owner

    def _owner(self, name: str) -> int:
        owner = self._find(name)
        if owner is None:
            cursor = self.db.execute("INSERT INTO owner (name) VALUES (?)", (name,))
            assert cursor.lastrowid is not None
            owner = self._remember(name, cursor.lastrowid)
        return owner

    def _remember(self, name: str, owner: int) -> int:
        if len(self._owners) >= OWNERS_KNOWN:
            self._owners.clear()
        self._owners[name] = owner
        return owner

    # --- background work ----------------------------------------------------------------------------------------------

    def sweep(self, seconds: float = SLICE) -> bool:
        """Sweep for one time slice. Return whether work remains."""
        self.ended = sweep(self.db, self.durability, self._now(), seconds)
        return self.ended

    def give_back(self) -> bool:
        """Return free pages to the disk if there are many. Return whether this method should be called again."""
        return give_back(self.db, self.durability)

    def mark(self, at_once: bool = False) -> None:
        """Record the newest commit in the mark file, at most once a second. Call this only after the commit is on
        disk.
        """
        now = time.monotonic()
        if self._marked != self.number and (at_once or now - self._marked_at >= 1.0):
            write_mark(self._mark, Mark(self.identity, self.number))
            self._marked, self._marked_at = self.number, now

    def wal_size(self) -> int:
        """Return the log's size in bytes. A checkpoint is due once it exceeds `limits.wal`."""
        try:
            return os.stat(self._wal).st_size
        except FileNotFoundError:
            return 0

    def checkpoint(self, mode: str = "PASSIVE") -> bool:
        """Move the log into the database. Return whether all of it was moved."""
        _, log, done = self.db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        whole: bool = log == done
        if whole:
            self.mark()
        return whole

    def size(self) -> int:
        """Return the size of the database in bytes, excluding its log."""
        pages: int = self.db.execute("PRAGMA page_count").fetchone()[0]
        page: int = self.db.execute("PRAGMA page_size").fetchone()[0]
        return pages * page

    def close(self) -> None:
        """Move the whole log into the database, and close the connection."""
        if self.checkpoint("TRUNCATE"):
            self.mark(at_once=True)
        self.abandon()

    def abandon(self) -> None:
        """Close the connection after a failure, without a checkpoint."""
        os.close(self._mark)
        self.db.close()
