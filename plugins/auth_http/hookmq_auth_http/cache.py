"""What the service answered, for a while: bounded, and without the password in memory."""

import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """Up to `size` answers by the bytes of their request, of which only an HMAC with a key of this process is kept."""

    def __init__(self, size: int, now: Callable[[], float]) -> None:
        self._size = size
        self._now = now
        self._secret = os.urandom(32)
        self._known: OrderedDict[bytes, tuple[float, T]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._known)

    def key(self, request: bytes) -> bytes:
        """What a request is known by."""
        return hmac.digest(self._secret, request, hashlib.sha256)

    def get(self, key: bytes) -> T | None:
        """The answer, if it still holds."""
        found = self._known.get(key)
        if found is not None:
            if self._now() < found[0]:
                self._known.move_to_end(key)
                self.hits += 1
                return found[1]
            del self._known[key]
        self.misses += 1
        return None

    def put(self, key: bytes, answer: T, seconds: float) -> None:
        """Keep an answer for so long; the one not used for longest goes where there is no room."""
        if seconds <= 0 or self._size <= 0:
            return
        self._known[key] = (self._now() + seconds, answer)
        self._known.move_to_end(key)
        if len(self._known) > self._size:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
