"""Who was right a moment ago: no hashing for those that come back."""

import hmac
import secrets
from collections import OrderedDict

from hookmq_auth_password.hashes import Hash


class Cache:
    """Remembers right answers for `seconds`, `size` of them at most, the one unused for longest goes first.

    A key is an HMAC over user name, stored hash and password with a secret of this object, so that neither the password
    nor anything it could be guessed from is kept, and a changed hash makes another key.
    """

    def __init__(self, seconds: float, size: int) -> None:
        self.secret = secrets.token_bytes(32)
        self._seconds = seconds
        self._size = size
        self._found: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def key(self, name: str, hash: Hash, password: bytes) -> bytes:
        """The key of one answer."""
        user, stored = name.encode("utf-8", "surrogatepass"), hash.text.encode()
        # The lengths keep two triples from having the same bytes.
        head = len(user).to_bytes(4) + len(stored).to_bytes(4)
        return hmac.digest(self.secret, head + user + stored + password, "sha256")

    def has(self, key: bytes, now: float) -> bool:
        """Whether that was right less than `seconds` ago."""
        entry = self._found.get(key)
        if entry is None:
            return False
        if now >= entry[1]:
            del self._found[key]
            return False
        self._found.move_to_end(key)
        return True

    def add(self, key: bytes, name: str, now: float) -> None:
        """Remember that it was right."""
        if self._seconds <= 0 or self._size <= 0:
            return
        self._found[key] = name, now + self._seconds
        self._found.move_to_end(key)
        if len(self._found) > self._size:
            self._found.popitem(last=False)

    def forget(self, names: set[str]) -> None:
        """Forget what was right for some users."""
        for key in [key for key, (name, _) in self._found.items() if name in names]:
            del self._found[key]

    def clear(self) -> None:
        """Forget everything."""
        self._found.clear()
