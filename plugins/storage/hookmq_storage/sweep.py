"""Remove the rows of ended sessions and expired messages in slices. Nothing waits for this work."""

import sqlite3
import time
from typing import Final

from hookmq_storage.database import Durability

SLICE: Final = 0.003
"""Target duration of a slice in seconds, so that its commit ends within 5 ms."""
_CHUNK: Final = 128
_VACUUM: Final = 64
"""Number of pages to return to the disk at a time."""
_SPARE: Final = 4096
"""Free pages to keep for reuse, in addition to a quarter of the file."""
FREE: Final = (
    "DELETE FROM message WHERE id = ?"
    " AND NOT EXISTS (SELECT 1 FROM entry WHERE message = message.id AND body IS NULL)"
)


def sweep(db: sqlite3.Connection, durability: Durability, now: float, seconds: float) -> bool:
    """Sweep one slice of ended sessions and expired retained messages. Return whether more work remains.

    The commit need not be durable: after a crash, the same rows are swept again.
    """
    deadline = time.perf_counter() + seconds
    if durability == "group":
        db.execute("PRAGMA synchronous = NORMAL")
    db.execute("BEGIN IMMEDIATE")
    more = _sweep_owner(db) or _sweep_retained(db, now)
    while more and time.perf_counter() < deadline:
        more = _sweep_owner(db) or _sweep_retained(db, now)
    db.execute("COMMIT")
    if durability == "group":
        db.execute("PRAGMA synchronous = FULL")
    return more


def _sweep_owner(db: sqlite3.Connection) -> bool:
    row = db.execute("SELECT id FROM owner WHERE name IS NULL").fetchone()
    if row is None:
        return False
    owner: int = row[0]
    found = db.execute(
        "SELECT seq, message, body IS NULL FROM entry WHERE owner = ? ORDER BY seq LIMIT ?",
        (owner, _CHUNK),
    ).fetchall()
    if found:
        db.execute("DELETE FROM entry WHERE owner = ? AND seq <= ?", (owner, found[-1][0]))
        db.executemany(FREE, [(message,) for _, message, apart in found if apart])
        return True
    for table, key in (("subscription", "filter"), ("received", "packet_id")):
        last = db.execute(
            f"SELECT {key} FROM {table} WHERE owner = ? ORDER BY {key} LIMIT 1 OFFSET ?",
            (owner, _CHUNK),
        ).fetchone()
        if last is not None:
            db.execute(f"DELETE FROM {table} WHERE owner = ? AND {key} <= ?", (owner, last[0]))
            return True
        db.execute(f"DELETE FROM {table} WHERE owner = ?", (owner,))
    db.execute("DELETE FROM owner WHERE id = ?", (owner,))
    return True


def _sweep_retained(db: sqlite3.Connection, now: float) -> bool:
    ids = db.execute(
        "SELECT id FROM retained WHERE expires_at IS NOT NULL AND expires_at <= ? LIMIT ?",
        (now, _CHUNK),
    ).fetchall()
    db.executemany("DELETE FROM retained WHERE id = ?", ids)
    return len(ids) == _CHUNK


def give_back(db: sqlite3.Connection, durability: Durability) -> bool:
    """Return free pages to the disk if there are many. Return True if this function should be called again."""
    free: int = db.execute("PRAGMA freelist_count").fetchone()[0]
    pages: int = db.execute("PRAGMA page_count").fetchone()[0]
    if free <= _SPARE + pages // 4:
        return False
    if durability == "group":
        db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA incremental_vacuum({_VACUUM})").fetchall()
    if durability == "group":
        db.execute("PRAGMA synchronous = FULL")
    return True
