"""The table of banned clients.

A full table refuses new bans rather than removing old ones. A client therefore cannot lift its own ban by connecting
from many addresses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

Key = tuple[str, str, str]
"""(kind, name, user): ``("ip", "192.0.2.1", "")``, ``("user", "alice", "")`` or ``("client", client id, user name)``. A
client id is banned together with its user, so another user's client with the same id is not banned. If the user name in
CONNECT is not the identity, the keys are ``("identity", identity, "")`` and ``("identity_client", client id,
identity)``. A ban that another plugin requests is for a client id of any user: ``("client_id", client id, "")``."""
OF_CLIENTS: Final = frozenset({"client", "identity_client", "client_id"})
"""The kinds of keys in which the name is a client id."""
EVERY: Final = 1.0
"""Seconds between two searches of a full table for expired bans."""


@dataclass(frozen=True, slots=True)
class Banned:
    """A ban. `until` is a time on the runtime's monotonic clock, in seconds."""

    id: int
    key: Key
    until: float
    why: str


class Bans:
    """The table of bans."""

    __slots__ = ("_by_key", "_expired_at", "_next", "added", "most", "refused")

    def __init__(self, most: int) -> None:
        self.most = most
        self.added = 0
        self.refused = 0
        """Number of bans not added because the table was full."""
        self._by_key: dict[Key, Banned] = {}
        self._next = 0
        self._expired_at = -inf

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, key: Key, until: float, why: str, now: float) -> Banned | None:
        """Add a ban and return it, or None if the table is full. An existing, longer ban is kept and returned."""
        known = self.find(key, now)
        if known is not None and known.until >= until:
            return known
        if known is None and len(self._by_key) >= self.most:
            if now - self._expired_at >= EVERY:
                self.expire(now)
            if len(self._by_key) >= self.most:
                self.refused += 1
                return None
        self._next += 1
        ban = self._by_key[key] = Banned(self._next, key, until, why)
        self.added += 1
        return ban

    def find(self, key: Key, now: float) -> Banned | None:
        """Return the ban for `key`, or None if there is none or it has expired."""
        ban = self._by_key.get(key)
        if ban is not None and ban.until <= now:
            del self._by_key[key]
            return None
        return ban

    def expire(self, now: float) -> None:
        """Remove the bans that have expired."""
        self._expired_at = now
        for key in [key for key, ban in self._by_key.items() if ban.until <= now]:
            del self._by_key[key]

    def lift(self, id: int, now: float) -> Banned | None:
        """Lift the ban with this number and return it, or return None if there is no such ban."""
        for key, ban in self._by_key.items():
            if ban.id == id:
                del self._by_key[key]
                return ban if ban.until > now else None
        return None

    def lift_key(self, key: Key) -> None:
        """Lift the ban of a key, if there is one."""
        self._by_key.pop(key, None)

    def lift_client(self, name: str, now: float) -> list[Banned]:
        """Lift every ban on the client id `name`, whatever the user. Return the lifted bans that had not expired."""
        found = [
            ban for ban in self._by_key.values() if ban.key[0] in OF_CLIENTS and ban.key[1] == name
        ]
        for ban in found:
            del self._by_key[ban.key]
        return [ban for ban in found if ban.until > now]

    def all(self, now: float) -> Iterator[Banned]:
        """Return the unexpired bans, in any order."""
        return (ban for ban in list(self._by_key.values()) if ban.until > now)
