"""The audit log: every change that was made or refused. It is kept in the plugin state."""

import json
from collections.abc import Awaitable
from typing import Any, Final

from hookmq.plugin import PluginState

KEYS: Final = "audit/"
MAX_TEXT: Final = 512
"""Maximum length of a string in an entry. Longer strings are truncated."""


class AuditLog:
    """A log to which entries are only added. Once it has `most` entries, each new entry deletes the oldest."""

    def __init__(self, state: PluginState, most: int) -> None:
        self._state = state
        self._most = most
        self._first = self._next = 0
        cursor, more = "", True
        numbers: list[int] = []
        while more:
            page = state.items(KEYS, cursor, 1000)
            numbers += [int(key.removeprefix(KEYS), 16) for key, _ in page.items]
            cursor, more = page.cursor, bool(page.cursor)
        if numbers:
            self._first, self._next = numbers[0], numbers[-1] + 1

    def add(self, entry: dict[str, Any]) -> Awaitable[None]:
        """Add an entry. The awaitable completes after the commit; you need not await it."""
        self._catch_up()
        kept = self._state.put(_key(self._next), json.dumps(_cut(entry)).encode())
        self._next += 1
        while self._next - self._first > self._most:
            self._state.delete(_key(self._first))
            self._first += 1
        return kept

    def entries(self, before: int | None, limit: int) -> tuple[list[dict[str, Any]], int | None]:
        """Return the newest entries with a number below `before`, newest first, and the `before` of the next page.
        That is None after the oldest entry."""
        self._catch_up()
        found: list[dict[str, Any]] = []
        number = self._next if before is None else min(before, self._next)
        while number > self._first and len(found) < limit:
            number -= 1
            value = self._state.get(_key(number))
            if value is not None:
                found.append({"number": number, **json.loads(value)})
        return found, number if number > self._first else None

    def _catch_up(self) -> None:
        """Skip the entries of another instance of the plugin, which finishes its requests after a reload."""
        while self._state.get(_key(self._next)) is not None:
            self._next += 1


def _key(number: int) -> str:
    return f"{KEYS}{number:016x}"


def _cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cut(one) for name, one in value.items()}
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return value[: MAX_TEXT - 1] + "…"
    return value
