"""Remember the `message-id`s of recently stored messages. This module uses no clock and no I/O."""

from collections import deque


class Duplicates:
    """Remembers up to `limit` keys for `window` seconds. Each key takes about 300 bytes of memory."""

    def __init__(self, window: float, limit: int) -> None:
        self.forgotten = 0
        """Number of keys that were forgotten before `window` had passed, because there were more than `limit`."""
        self._window = window
        self._limit = limit
        self._known: set[str] = set()
        self._oldest: deque[tuple[float, int, str]] = deque()
        """(time, offset, key), in the order of `add`."""

    def __len__(self) -> int:
        return len(self._known)

    def has(self, key: str, now: float) -> bool:
        """Return whether a key was added in the last `window` seconds. All times are in epoch seconds."""
        self._forget(now)
        return key in self._known

    def add(self, key: str, time: float, offset: int) -> None:
        """Remember a new key and the offset of its message."""
        if key in self._known:
            return
        self._known.add(key)
        self._oldest.append((time, offset, key))
        if len(self._known) > self._limit:
            self._known.discard(self._oldest.popleft()[2])
            self.forgotten += 1

    def floor(self, now: float) -> int | None:
        """Return the offset of the oldest message whose key is still remembered, or None."""
        self._forget(now)
        return self._oldest[0][1] if self._oldest else None

    def _forget(self, now: float) -> None:
        oldest, before = self._oldest, now - self._window
        while oldest and oldest[0][0] <= before:
            self._known.discard(oldest.popleft()[2])
