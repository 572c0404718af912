"""A bounded cache whose entries expire, and cache keys that do not reveal the data behind them."""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Keeps up to `size` values, each for its own number of seconds. When the cache is full, it drops the least recently
    used value.

    `now` is the caller's monotonic clock in seconds. A size of 0 keeps nothing. The class is not thread-safe.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self.hits = 0
        """Lookups that found a value."""
        self.misses = 0
        """Lookups that found no value or an expired one."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K, now: float) -> V | None:
        """Return the value of `key`, or None if it is missing or has expired."""
        entry = self._entries.get(key)
        if entry is not None:
            if now < entry[0]:
                self._entries.move_to_end(key)
                self.hits += 1
                return entry[1]
            del self._entries[key]
        self.misses += 1
        return None

    def put(self, key: K, value: V, seconds: float, now: float) -> None:
        """Store `value` for `seconds` from `now`, replacing any older value. If `seconds` is 0 or less, only drop the
        older value.
        """
        if seconds <= 0 or self._size <= 0:
            self._entries.pop(key, None)
            return
        self._entries[key] = (now + seconds, value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def discard(self, matches: Callable[[V], bool]) -> None:
        """Remove every value for which `matches` returns true. This visits all entries."""
        for key in [key for key, (_, value) in self._entries.items() if matches(value)]:
            del self._entries[key]

    def clear(self) -> None:
        """Remove all values."""
        self._entries.clear()


class KeyDigest:
    """Makes cache keys from data that must not remain in memory, such as passwords.

    A key is an HMAC-SHA256 with this object's random secret. A key cannot be used to guess the data, and the keys of two
    objects never match.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(32)

    def __call__(self, *parts: bytes) -> bytes:
        """Return the key of `parts`. Different parts produce different keys, even if their concatenations are equal."""
        lengths = b"".join(len(part).to_bytes(8) for part in parts)
        return hmac.digest(self.secret, lengths + b"".join(parts), hashlib.sha256)
