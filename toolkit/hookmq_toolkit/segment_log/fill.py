"""Report when a log is filling up, is full, or has space again."""

from collections.abc import Callable
from typing import Final

FILLING: Final = 0.8
"""Warn when this share of a log's bounds is used."""
ROOM: Final = 0.7
"""Report free space again below this share. It is lower than `FILLING`, so that reports do not flap near the limit."""


class Fill:
    """Calls `say` once for each change, with ``"filling"``, ``"full"`` or ``"has_room"``, and with the share in use (1.0
    is full).
    """

    __slots__ = ("_said", "_say")

    def __init__(self, say: Callable[[str, float], None]) -> None:
        self._say = say
        self._said = ""

    def look(self, share: float) -> None:
        """Report any change that this `share` causes. Call this whenever the share may have changed."""
        if share >= 1.0:
            word = "full"
        elif share >= FILLING:
            word = self._said or "filling"
        elif share >= ROOM:
            word = self._said
        else:
            word = ""
        if word != self._said:
            self._said = word
            self._say(word or "has_room", share)


__all__ = ["FILLING", "ROOM", "Fill"]
