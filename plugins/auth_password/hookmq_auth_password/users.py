"""A user, and the table of all users."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hookmq.plugin import Accept
from hookmq_toolkit.passwords.decoys import choose_decoy, nobody
from hookmq_toolkit.passwords.hashes import Argon2, Hash

MAX_NAME: Final = 65535
"""Longest user name that MQTT can carry, in bytes."""
NO_CLAIMS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class User:
    """A user. Without a `hash`, no password is accepted."""

    name: str
    hash: Hash | None = None
    groups: tuple[str, ...] = ()
    claims: Mapping[str, Any] = field(default_factory=lambda: NO_CLAIMS)
    enabled: bool = True
    mark: str = field(default="", compare=False)
    """A value that changes only when the password does, and reveals nothing about it."""

    def accept(self) -> Accept:
        """Return the verdict that accepts a client as this user."""
        return Accept(self.name, {"groups": list(self.groups), **self.claims})


@dataclass(frozen=True, slots=True)
class Admitted:
    """The user that a client signed in as."""

    name: str
    mark: str
    groups: tuple[str, ...]
    claims: Mapping[str, Any]


def admitted(user: User) -> Admitted:
    """Return the facts about a user that are stored with each of the user's clients. They do not include the hash."""
    return Admitted(user.name, user.mark, user.groups, user.claims)


def bad_name(name: str) -> str:
    """Return why a user name is invalid, or '' if it is valid."""
    if not name:
        return "the user name is empty"
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME:
        return "the user name is longer than 65535 bytes"
    if any(
        ord(char) < 32 or 127 <= ord(char) < 160 or 0xD800 <= ord(char) < 0xE000 for char in name
    ):
        return "the user name contains control characters"
    return ""


class Users:
    """Users by name. Names are not normalized: "é" as one code point and "é" as two are different users."""

    __slots__ = ("_argon2", "_by_name", "_decoys", "schemes")

    def __init__(self, users: Iterable[User] = (), argon2: Argon2 | None = None) -> None:
        self._by_name = {user.name: _marked(user) for user in users}
        self._argon2 = argon2 or Argon2()
        self._decoys = self._hashes()
        self.schemes = Counter(_scheme(user.hash) for user in self._by_name.values())
        """Number of users by hash scheme."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[User]:
        return iter(self._by_name.values())

    def get(self, name: str) -> User | None:
        """Return the user with that name, or None. Disabled users are included."""
        return self._by_name.get(name)

    def decoy(self, key: bytes, name: str) -> Hash:
        """Return a hash to verify for a user that does not exist.

        Verifying it costs as much as verifying the hashes in the file, and the same name always gets the same hash. How
        long a login takes therefore does not reveal whether a name exists, even if the file has several kinds of
        hashes.
        """
        if not self._decoys:
            self._decoys = self._hashes()
        return choose_decoy(self._decoys, key, name)

    def follow(self, before: "Users") -> None:
        """Keep the marks of users whose hash has not changed. `before` is the previous table."""
        for name, user in self._by_name.items():
            old = before._by_name.get(name)
            if old is not None and old.hash == user.hash and old.mark != user.mark:
                self._by_name[name] = replace(user, mark=old.mark)

    def rehash(self, name: str, old: Hash, new: Hash) -> bool:
        """Replace a user's hash with another hash of the same password. Return False if the current hash is no longer
        `old`.
        """
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
        return hashes or [nobody(self._argon2)]


class Change(NamedTuple):
    """The result of loading a file: the new table and the file's mode. It also names the removed and the changed users,
    and counts the new ones.
    """

    users: Users
    gone: set[str]
    changed: set[str]
    new: int
    mode: int


def compare(before: Users, users: Users, mode: int) -> Change:
    """Return how one table differs from the next. Comparing large tables is slow, so call this in a thread."""
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
