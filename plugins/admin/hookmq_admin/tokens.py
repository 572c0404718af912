"""Tokens, which control access to the API. Only their hashes are stored, in the plugin state."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from hashlib import sha256
from hmac import compare_digest
from secrets import token_hex, token_urlsafe
from typing import Final

from hookmq.plugin import PluginState

PREFIX: Final = "hmq"
"""Prefix of every token, so that secret scanners recognize it."""
KEYS: Final = "token/"
MAX_TOKENS: Final = 1000
_ID: Final = re.compile("[0-9a-f]{8}")
_TEXT: Final = re.compile(rf"{PREFIX}_[0-9a-f]{{8}}_[\w-]{{43}}", re.ASCII)
_NOBODY: Final = sha256(b"nobody").hexdigest()


class Role(IntEnum):
    """What a token may do. Each role includes the roles before it."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        """The role's name in requests and responses."""
        return self.name.lower()


ROLES: Final = tuple(role.label for role in Role)


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret.

    The token's messages are published under the name `identity`. `hash` is the SHA-256 of the token's whole text. A
    slow hash is not needed, because the secret has 256 random bits. `expires_at` is in epoch seconds, or None.
    """

    id: str
    name: str
    role: str
    identity: str
    created_at: float
    created_by: str
    expires_at: float | None
    hash: str

    @property
    def rank(self) -> Role:
        """The token's role."""
        return Role[self.role.upper()]

    def valid(self, now: float) -> bool:
        """Return whether the token has not expired."""
        return self.expires_at is None or now < self.expires_at


class Tokens:
    """All tokens, stored in the plugin state. They are never copied. During a reload, two instances of the plugin serve
    requests, and both must refuse a token that either one revokes.
    """

    def __init__(self, state: PluginState) -> None:
        self._state = state

    def __len__(self) -> int:
        return sum(1 for _ in self._values())

    def __iter__(self) -> Iterator[Token]:
        tokens = (Token(**json.loads(value)) for value in self._values())
        return iter(sorted(tokens, key=lambda token: (token.created_at, token.id)))

    def _values(self) -> Iterator[bytes]:
        cursor, more = "", True
        while more:
            page = self._state.items(KEYS, cursor, 1000)
            yield from (value for _, value in page.items)
            cursor, more = page.cursor, bool(page.cursor)

    def get(self, id: str) -> Token | None:
        """Return the token with this id, or None."""
        value = self._state.get(KEYS + id) if _ID.fullmatch(id) else None
        return None if value is None else Token(**json.loads(value))

    def find(self, text: str, now: float) -> Token | None:
        """Return the valid token with this text, or None. This takes equally long no matter how much of the text is
        right.
        """
        parts = text.split("_", 2)
        token = self.get(parts[1]) if len(parts) == 3 and parts[0] == PREFIX else None
        given = sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        right = compare_digest(given, token.hash if token is not None else _NOBODY)
        return token if right and token is not None and token.valid(now) else None

    def named(self, name: str) -> bool:
        """Return whether a token has this name."""
        return any(token.name == name for token in self)

    def admins(self, now: float) -> list[Token]:
        """Return the valid tokens with the admin role."""
        return [token for token in self if token.rank is Role.ADMIN and token.valid(now)]

    def unused_name(self, name: str) -> str:
        """Return `name`, or `name` with a number appended if a token already has that name."""
        number, found = 1, name
        while self.named(found):
            number += 1
            found = f"{name}-{number}"
        return found

    def draw(
        self, name: str, role: str, now: float, by: str, expires_at: float | None, identity: str
    ) -> tuple[Token, str]:
        """Return a new token and its text. The text is never stored. The token is not valid until it is passed to
        `add`.
        """
        id = token_hex(4)
        while self.get(id) is not None:
            id = token_hex(4)
        text = f"{PREFIX}_{id}_{token_urlsafe(32)}"
        digest = sha256(text.encode()).hexdigest()
        return Token(id, name, role, identity or f"admin:{name}", now, by, expires_at, digest), text

    async def add(self, token: Token) -> None:
        """Store a token. It becomes valid at once, and this method returns after the commit."""
        await self._state.put(KEYS + token.id, json.dumps(asdict(token)).encode())

    async def revoke(self, id: str) -> None:
        """Delete a token. It is refused at once, and this method returns after the commit."""
        await self._state.delete(KEYS + id)


def is_token(text: str) -> bool:
    """Return whether `text` has the format of a token, valid or not."""
    return _TEXT.fullmatch(text) is not None


def without_hash(token: Token) -> Token:
    """Return the token in a form that may be shown."""
    return replace(token, hash="")
