"""Users and the table of them."""

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hookmq.plugin import Accept

from hookmq_auth_password.hashes import Argon2, Hash, read

MAX_NAME: Final = 65535
"""Longest user name that MQTT can carry, in bytes."""
NO_CLAIMS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class User:
    """One user. Without a `hash` there is no password that would be right."""

    name: str
    hash: Hash | None = None
    groups: tuple[str, ...] = ()
    claims: Mapping[str, Any] = field(default_factory=lambda: NO_CLAIMS)
    enabled: bool = True
    mark: str = field(default="", compare=False)
    """Stays as long as the password does; says nothing about it."""

    def accept(self) -> Accept:
        """What the broker is told of who comes in as this user."""
        return Accept(self.name, {"groups": list(self.groups), **self.claims})


@dataclass(frozen=True, slots=True)
class Admitted:
    """As whom a client came in."""

    name: str
    mark: str
    groups: tuple[str, ...]
    claims: Mapping[str, Any]


def admitted(user: User) -> Admitted:
    """What is kept of a user with the client that came in as it; no hash."""
    return Admitted(user.name, user.mark, user.groups, user.claims)


def bad_name(name: str) -> str:
    """Why no client can have that user name, or none should; '' for a good one."""
    if not name:
        return "a user needs a name"
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME:
        return "this name is longer than 65535 bytes"
    if any(
        ord(char) < 32 or 127 <= ord(char) < 160 or 0xD800 <= ord(char) < 0xE000 for char in name
    ):
        return "a name holds no control characters"
    return ""


class Users:
    """A table of users by name, as they are written: no letter is made another one, "é" as one code point and as two are
    two users."""

    __slots__ = ("_argon2", "_by_name", "_decoys", "schemes")

    def __init__(self, users: Iterable[User] = (), argon2: Argon2 | None = None) -> None:
        self._by_name = {user.name: _marked(user) for user in users}
        self._argon2 = argon2 or Argon2()
        self._decoys = self._hashes()
        self.schemes = Counter(_scheme(user.hash) for user in self._by_name.values())
        """How many users have which kind of hash."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[User]:
        return iter(self._by_name.values())

    def get(self, name: str) -> User | None:
        """The user of that name, disabled ones included."""
        return self._by_name.get(name)

    def decoy(self, key: bytes, name: str) -> Hash:
        """A hash to verify in vain for a user that does not exist. It costs what those of the file cost, and for one name
        always the same: with hashes of several kinds in a file, names that exist and names that do not look alike."""
        if not self._decoys:
            self._decoys = self._hashes()
        digest = hmac.digest(key, name.encode("utf-8", "surrogatepass"), "sha256")
        return self._decoys[int.from_bytes(digest[:8]) % len(self._decoys)]

    def follow(self, before: "Users") -> None:
        """Keep the marks of users whose hash is as it was."""
        for name, user in self._by_name.items():
            old = before._by_name.get(name)
            if old is not None and old.hash == user.hash and old.mark != user.mark:
                self._by_name[name] = replace(user, mark=old.mark)

    def rehash(self, name: str, old: Hash, new: Hash) -> bool:
        """Another hash of the same password. False where the user is another one by now."""
        user = self._by_name.get(name)
        if user is None or user.hash != old:
            return False
        self._by_name[name] = replace(user, hash=new)
        self._decoys = []
        self.schemes[_scheme(old)] -= 1
        self.schemes[_scheme(new)] += 1
        return True

    def _hashes(self) -> list[Hash]:
        hashes = [user.hash for user in self._by_name.values() if user.hash is not None]
        return hashes or [_nobody(self._argon2)]


class Change(NamedTuple):
    """A new table, and the names of who is not in it any more and of who is another one."""

    users: Users
    gone: set[str]
    changed: set[str]
    new: int
    mode: int


def compare(before: Users, users: Users, mode: int) -> Change:
    """The step from one table to the next. Takes its time with large ones: for a thread."""
    users.follow(before)
    gone = {user.name for user in before if users.get(user.name) is None}
    changed = {
        user.name for user in before if user.name not in gone and users.get(user.name) != user
    }
    return Change(users, gone, changed, len(users) - len(before) + len(gone), mode)


def _scheme(hash: Hash | None) -> str:
    return "none" if hash is None else hash.scheme


def _marked(user: User) -> User:
    if user.mark or user.hash is None:
        return user
    return replace(user, mark=hashlib.sha256(user.hash.text.encode()).hexdigest()[:16])


def _nobody(argon2: Argon2) -> Hash:
    """A hash of no password, of the cost of new ones."""
    cost = f"m={argon2.memory >> 10},t={argon2.passes},p={argon2.lanes}"
    return read(f"$argon2id$v=19${cost}${'A' * 22}${'A' * 43}", "yaml")
