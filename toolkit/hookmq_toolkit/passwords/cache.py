"""A cache of recently accepted passwords, so that a reconnecting client needs no hashing."""

from hookmq_toolkit.passwords.hashes import Hash
from hookmq_toolkit.ttl_cache import KeyDigest, TtlCache


class Cache:
    """Passwords accepted in the last `seconds`. At most `size` are kept; the least recently used is removed first.

    A key is a digest of the user name, stored hash and password. The cache therefore contains nothing that helps anyone
    guess a password, and a changed hash results in a different key.
    """

    def __init__(self, seconds: float, size: int) -> None:
        self._seconds = seconds
        self._digest = KeyDigest()
        self._names: TtlCache[bytes, str] = TtlCache(size)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def secret(self) -> bytes:
        """The random secret with which keys are made."""
        return self._digest.secret

    def key(self, name: str, hash: Hash, password: bytes) -> bytes:
        """Return the cache key for a password."""
        return self._digest(name.encode("utf-8", "surrogatepass"), hash.text.encode(), password)

    def has(self, key: bytes, now: float) -> bool:
        """Return whether the password was accepted less than `seconds` ago."""
        return self._names.get(key, now) is not None

    def add(self, key: bytes, name: str, now: float) -> None:
        """Add an accepted password."""
        self._names.put(key, name, self._seconds, now)

    def forget(self, names: set[str]) -> None:
        """Remove the passwords of these users."""
        self._names.discard(names.__contains__)

    def clear(self) -> None:
        """Remove all passwords."""
        self._names.clear()
