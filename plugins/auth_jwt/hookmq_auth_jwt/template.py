"""``${...}`` in settings, and the way to a claim."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from hookmq.plugin import ConfigError

CLIENT_ID: Final = "clientid"
USERNAME: Final = "username"
_CLAIM: Final = "claims."
_PIECE: Final = re.compile(r"\$\{([^{}]*)\}")

MISSING: Final = object()
"""What `find` returns where there is no such claim."""


def find(claims: Mapping[str, Any], path: str) -> Any:
    """The claim `path`: the one of that name, else the one that its dots lead to. Names may hold dots themselves
    (``resource_access.my.app.roles``, ``https://example.com/roles``): longer names are tried first."""
    found = claims.get(path, MISSING)
    if found is not MISSING:
        return found
    end = path.rfind(".")
    while end > 0:
        inner = claims.get(path[:end], MISSING)
        if isinstance(inner, Mapping):
            found = find(inner, path[end + 1 :])
            if found is not MISSING:
                return found
        end = path.rfind(".", 0, end)
    return MISSING


class Template:
    """Text with ``${clientid}``, ``${username}`` (as the client gave them) and, where `claims` may be named, ``${claim}``
    or ``${claims.NAME}``. Raises ConfigError for what cannot be read."""

    __slots__ = ("_pieces", "text")

    def __init__(self, text: str, key: str, claims: bool = False) -> None:
        self.text = text
        # literal, name, literal, name, ..., literal
        self._pieces = _PIECE.split(text)
        if any("${" in literal for literal in self._pieces[::2]):
            raise ConfigError(f"{key}: a '${{' in {text!r} is not closed")
        for name in self._pieces[1::2]:
            if not name or (name not in (CLIENT_ID, USERNAME) and not claims):
                raise ConfigError(
                    f"{key}: ${{{name}}} is not known", hint="${clientid} or ${username}"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """What it is made of."""
        return tuple(self._pieces[1::2])

    def fill(self, client_id: str, username: str | None, claims: Mapping[str, Any]) -> str | None:
        """The text; None where something in it is missing, or is no text or whole number."""
        if len(self._pieces) == 1:
            return self.text
        return self._fill(lambda name: _value(name, client_id, username, claims))

    def _fill(self, value: Callable[[str], str | None]) -> str | None:
        filled = []
        for index, piece in enumerate(self._pieces):
            text = piece if index % 2 == 0 else value(piece)
            if text is None:
                return None
            filled.append(text)
        return "".join(filled)


def _value(
    name: str, client_id: str, username: str | None, claims: Mapping[str, Any]
) -> str | None:
    if name == CLIENT_ID:
        return client_id
    if name == USERNAME:
        return username
    found = find(claims, name)
    if found is MISSING and name.startswith(_CLAIM):
        found = find(claims, name[len(_CLAIM) :])
    if type(found) is int:
        return str(found)
    return found if isinstance(found, str) else None
