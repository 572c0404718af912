"""Who is shut out, and until when.

Bans are not what is forgotten when memory is short: a full table takes no more, so that nobody washes out his own ban by
coming from many addresses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

Key = tuple[str, str, str]
"""(kind, name, user): ``("ip", "192.0.2.1", "")``, ``("user", "alice", "")`` or ``("client", client id, user name)``. A
client id is banned for the user that bore it: another user's client of the same id is not. Where the user name that it
gave is not who it is, ``("identity", identity, "")`` and ``("identity_client", client id, identity)``."""
EVERY: Final = 1.0
"""Seconds between two searches of a full table for bans that are over."""


@dataclass(frozen=True, slots=True)
class Banned:
    """One ban; `until` is in the runtime's monotonic seconds."""

    id: int
    key: Key
    until: float
    why: str


class Bans:
    """All bans."""

    __slots__ = ("_by_key", "_expired_at", "_next", "added", "most", "refused")

    def __init__(self, most: int) -> None:
        self.most = most
        self.added = 0
        self.refused = 0
        """Bans that found no room."""
        self._by_key: dict[Key, Banned] = {}
        self._next = 0
        self._expired_at = -inf

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, key: Key, until: float, why: str, now: float) -> Banned | None:
        """Ban; None where there is no room. A ban that lasts longer stays."""
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
        """The ban of `key`, if it holds."""
        ban = self._by_key.get(key)
        if ban is not None and ban.until <= now:
            del self._by_key[key]
            return None
        return ban

    def expire(self, now: float) -> None:
        """Forget what is over."""
        self._expired_at = now
        for key in [key for key, ban in self._by_key.items() if ban.until <= now]:
            del self._by_key[key]

    def lift(self, id: int, now: float) -> Banned | None:
        """End a ban; None if there is none of that number."""
        for key, ban in self._by_key.items():
            if ban.id == id:
                del self._by_key[key]
                return ban if ban.until > now else None
        return None

    def all(self, now: float) -> Iterator[Banned]:
        """Every ban that holds, in no order that may be relied on."""
        return (ban for ban in list(self._by_key.values()) if ban.until > now)
