"""Cursors mark the position where a listing continues. Plugins treat them as opaque strings."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final
from zlib import crc32

from hookmq.model.errors import PluginError, StaleCursor, shown

MAX_LIMIT: Final = 1000
"""Maximum number of items that a plugin may request at once."""
_MAX_CURSOR: Final = 1 << 18
"""Longer strings are rejected without parsing. A cursor for the longest topic is only a third as long."""
_MAX_DIGITS: Final = 18

Query = tuple[object, ...]
"""The arguments of a call, without the cursor and the limit."""


def check_limit(plugin: str, call: str, limit: int) -> None:
    """Raise PluginError unless `limit` is a whole number from 1 to 1000."""
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise PluginError(
            plugin, f"{call}(): the limit must be from 1 to {MAX_LIMIT}, not {shown(limit)}"
        )


class Cursors:
    """Makes and reads the cursors of one broker process.

    A cursor contains the call it belongs to, the call's other arguments, the current process, and a position. `token`
    returns a string that identifies the process, because positions are meaningless after a restart. It is called once,
    for the first cursor.
    """

    __slots__ = ("_token", "_unique")

    def __init__(self, token: Callable[[], str]) -> None:
        self._unique = token
        self._token = ""

    def make(self, call: str, query: Query, position: str) -> str:
        """Return the cursor for `position` in the listing of `call` with `query`."""
        if not self._token:
            self._token = self._unique()
        digest = crc32(repr(query).encode())
        body = urlsafe_b64encode(position.encode()).decode().rstrip("=")
        return f"{call}.{self._token}.{digest:08x}.{body}"

    def read(self, plugin: str, call: str, query: Query, cursor: str) -> str:
        """Return the position in `cursor`. Raises PluginError for a cursor that is malformed or belongs to another call
        or other arguments. Raises StaleCursor for a cursor from another process.
        """
        bad = PluginError(plugin, f"{call}(): {shown(cursor)} is not a cursor")
        if not isinstance(cursor, str) or len(cursor) > _MAX_CURSOR or cursor.count(".") != 3:
            raise bad
        kind, token, _, body = cursor.split(".")
        try:
            position = urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
        except ValueError:
            raise bad from None
        if kind != call:
            raise PluginError(plugin, f"{call}(): {shown(cursor)} is of another call")
        if not self._token or token != self._token:
            raise StaleCursor(
                plugin, f"{call}(): the cursor is from before the broker started; begin again"
            )
        if self.make(call, query, position) != cursor:
            raise PluginError(plugin, f"{call}(): the cursor is of a call with other arguments")
        return position


def cursor_number(plugin: str, call: str, text: str) -> int:
    """Return the number in a position, or in a part of one. Raises PluginError if `text` is not a number."""
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        raise PluginError(plugin, f"{call}(): the cursor has no number where one belongs")
    return int(text)
