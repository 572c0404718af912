"""How full a log is, said before and when it matters."""

from collections.abc import Callable
from typing import Final

FILLING: Final = 0.8
"""The share of its bounds from which a log is worth a warning."""
ROOM: Final = 0.7
"""The share below which all is well again: below `FILLING`, or a log at the brink would be told of all the time."""


class Fill:
    """Tells `say`, once each, that a log is ``"filling"``, ``"full"`` and ``"has_room"`` again, and how full it is: 1.0
    is full. `look` is called with the share whenever that may have changed."""

    __slots__ = ("_said", "_say")

    def __init__(self, say: Callable[[str, float], None]) -> None:
        self._say = say
        self._said = ""

    def look(self, share: float) -> None:
        """Say what is new about `share`."""
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
