"""Read queues one page at a time and check each row, using a connection that never waits for a commit."""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import StoreError

from hookmq_storage.database import connect_reading
from hookmq_storage.inline import inline_crc, spread
from hookmq_storage.schema import entry_crc, message_crc

Page = list[tuple[Any, ...]]

PAGE: Final = (
    "SELECT e.owner, e.seq, e.message, e.qos, e.size, e.retain, e.identifiers, e.filter, e.share_group, e.sent, e.crc,"
    " m.topic, m.payload, m.flags, m.properties, m.sender, m.origin, m.received_at, m.expires_at, m.crc, e.body"
    " FROM entry e LEFT JOIN message m ON m.id = CASE WHEN e.body IS NULL THEN e.message END"
)
"""Selects entries and their messages, as rows for `unfold` and `checked`."""
EXPIRED: Final = (
    "SELECT expires_at, id FROM message WHERE expires_at <= ? AND (expires_at, id) >= (?, ?)"
    " ORDER BY expires_at, id LIMIT ?"
)
EXPIRED_ENTRIES: Final = (
    "SELECT e.owner, e.seq, e.size, o.name FROM entry e JOIN owner o ON o.id = e.owner"
    " WHERE e.message = ? AND e.body IS NULL AND (e.owner, e.seq) > (?, ?) AND e.sent = 0 AND o.name IS NOT NULL"
    " ORDER BY e.owner, e.seq LIMIT ?"
)
_LAST: Final = (1 << 63) - 1
Place = tuple[float, int, int, int]
"""An entry's position in the expiry order: expires_at, message, owner, seq."""
Lapsed = tuple[list[tuple[str, int, int, int]], Place | None]


def unfold(row: Sequence[Any]) -> Sequence[Any]:
    """Unpack a `PAGE` row's body, if it has one, into columns. Raises ValueError if the checksum of a body is wrong."""
    body = row[20]
    if body is None:
        return row
    if row[10] != inline_crc(row[0], row[1], row[2], row[4], row[9], body):
        raise ValueError(f"queue entry {row[1]} of owner {row[0]}: wrong checksum")
    whole = spread((*row[:10], body))
    return (*whole[:10], row[10], *whole[10:], row[10], None)


def checked(row: Sequence[Any]) -> Sequence[Any]:
    """Unpack a row like `unfold`, but verify the checksum even if the row has no body."""
    if row[20] is not None:
        return unfold(row)
    if row[10] != entry_crc(row[0], row[1:10]):
        raise ValueError(f"queue entry {row[1]} of owner {row[0]}: wrong checksum")
    if row[19] is None:
        raise ValueError(f"message {row[2]} is missing")
    if row[19] != message_crc((row[2], *row[11:19])):
        raise ValueError(f"message {row[2]}: wrong checksum")
    return row


class Pages:
    """Reads queues on a connection of its own, which never waits for a commit."""

    def __init__(self, folder: Path) -> None:
        self.db = connect_reading(folder)

    def read(self, owner: str, after: int, max_count: int, max_size: int) -> Page:
        """Return `PAGE` rows in order; see `hookmq.storage_api.Store.read`. Raises StoreError for a damaged row."""
        page: Page = []
        size = 0
        found = self.db.execute("SELECT id FROM owner WHERE name = ?", (owner,)).fetchone()
        if found is None:
            return page
        rows = self.db.execute(
            f"{PAGE} WHERE e.owner = ? AND e.seq > ? ORDER BY e.seq LIMIT ?",
            (found[0], after, max(1, max_count)),
        )
        for row in rows:
            size += row[4]
            if page and size > max_size:
                break
            try:
                page.append(tuple(checked(row)))
            except ValueError as error:
                raise StoreError(
                    f"{owner}: {error}; hookmq storage repair saves the readable rows"
                ) from error
        rows.close()
        return page

    def expired(self, now: float, place: Place | None, max_count: int) -> Lapsed:
        """Return expired entries; see `hookmq.storage_api.ExpiringStore.expired`.

        One call examines at most `max_count` messages, so that page requests do not have to wait long.
        """
        at, first, owner, seq = place or (-inf, 0, 0, -_LAST)
        found: list[tuple[str, int, int, int]] = []
        messages = self.db.execute(EXPIRED, (now, at, first, max_count)).fetchall()
        for expires_at, message in messages:
            after = (owner, seq) if (expires_at, message) == (at, first) else (0, -_LAST)
            entries = self.db.execute(
                EXPIRED_ENTRIES, (message, *after, max_count - len(found))
            ).fetchall()
            found += [(name, seq, size, message) for _, seq, size, name in entries]
            if len(found) == max_count:
                return found, (expires_at, message, *entries[-1][:2])
        if len(messages) == max_count:
            return found, (*messages[-1], _LAST, _LAST)
        return found, None

    def close(self) -> None:
        """Close the connection."""
        self.db.close()
