"""The audit log of every change that was made or refused. It is stored in the plugin state."""

import json
from bisect import bisect_left
from collections.abc import Awaitable
from heapq import merge
from itertools import repeat
from typing import Any, Final

from hookmq.plugin import PluginState

MADE: Final = "audit/"
REFUSED: Final = "audit-refused/"
MAX_TEXT: Final = 512
"""Maximum length of a string in an entry. Longer strings are truncated."""


class AuditLog:
    """An append-only log. It keeps the latest `most` changes, and separately the latest `most` refusals, so that
    refused requests do not displace changes.
    """

    def __init__(self, state: PluginState, most: int) -> None:
        self._state = state
        self._most = most
        self._numbers: dict[str, list[int]] = {}
        for keys in (MADE, REFUSED):
            cursor, more = "", True
            numbers = self._numbers[keys] = []
            while more:
                page = state.items(keys, cursor, 1000)
                numbers += [int(key.removeprefix(keys), 16) for key, _ in page.items]
                cursor, more = page.cursor, bool(page.cursor)
        self._next = max(
            (numbers[-1] + 1 for numbers in self._numbers.values() if numbers), default=0
        )

    def add(self, entry: dict[str, Any]) -> Awaitable[None]:
        """Add an entry. The awaitable completes after the commit; you need not await it."""
        self._catch_up()
        keys = REFUSED if 400 <= entry.get("status", 200) < 500 else MADE
        kept = self._state.put(_key(keys, self._next), json.dumps(_cut(entry)).encode())
        numbers = self._numbers[keys]
        numbers.append(self._next)
        self._next += 1
        while len(numbers) > self._most:
            self._state.delete(_key(keys, numbers.pop(0)))
        return kept

    def entries(self, before: int | None, limit: int) -> tuple[list[dict[str, Any]], int | None]:
        """Return up to `limit` entries numbered below `before`, newest first. Also return the `before` for the next
        page, or None if no older entries remain.
        """
        self._catch_up()
        kinds = [(_before(numbers, before), keys) for keys, numbers in self._numbers.items()]
        newest = merge(
            *(zip(reversed(numbers), repeat(keys)) for numbers, keys in kinds), reverse=True
        )
        found: list[dict[str, Any]] = []
        for number, keys in newest:
            if len(found) == limit:
                return found, found[-1]["number"]
            value = self._state.get(_key(keys, number))
            if value is not None:
                found.append({"number": number, **json.loads(value)})
        return found, None

    def _catch_up(self) -> None:
        """Take in entries written by a previous instance of the plugin. After a reload, that instance may still be
        finishing its requests.
        """
        while True:
            known = [
                keys
                for keys in self._numbers
                if self._state.get(_key(keys, self._next)) is not None
            ]
            if not known:
                return
            self._numbers[known[0]].append(self._next)
            self._next += 1


def _before(numbers: list[int], before: int | None) -> list[int]:
    """Return the sorted `numbers` below `before`."""
    return numbers if before is None else numbers[: bisect_left(numbers, before)]


def _key(keys: str, number: int) -> str:
    return f"{keys}{number:016x}"


def recorded(value: Any, hidden: bool, secret: bool) -> Any:
    """Return an argument's value as the audit log shows it. For a `secret`, it says only that a value was given. For a
    `hidden` or long value, it gives only the length.
    """
    if secret:
        return "***"
    if isinstance(value, list | dict):
        return f"<{len(value)} items>" if hidden or len(json.dumps(value)) > MAX_TEXT else value
    return f"<{len(value)} characters>" if hidden else value


def _cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cut(one) for name, one in value.items()}
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return value[: MAX_TEXT - 1] + "…"
    return value
