"""Receive requests: verify them, read their events, and handle each event once."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from hookmq_webhook_receiver.events import MAX_BODY, Received, read
from hookmq_webhook_receiver.keys import Key, parse_key
from hookmq_webhook_receiver.signature import TOLERANCE, VerificationError, verify_with


class TooLarge(ValueError):
    """The body is larger than the limit."""


class Busy(Exception):
    """Another request with the same event is being handled. Respond with 503; the plugin then resends the request."""


class SeenIds(Protocol):
    """A store for the ids of the events that a receiver has handled."""

    def __contains__(self, id: object, /) -> bool:
        """Return whether the event with this id was handled."""

    def add(self, id: str, /) -> None:
        """Remember the id of a handled event."""


class RecentIds:
    """Remembers the last `limit` ids, in memory. After a restart, an event may be handled again."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, id: object) -> bool:
        return id in self._ids

    def add(self, id: str) -> None:
        """Remember `id`, and forget the oldest id if there are too many."""
        self._ids[id] = None
        self._ids.move_to_end(id)
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)

    def __len__(self) -> int:
        return len(self._ids)


class Receiver:
    """Verifies requests and reads their events. Threads and tasks can share a receiver.

    `secrets` are shared secrets (``whsec_``) and public keys (``whpk_``); one valid signature is enough. An empty list
    is refused, because a receiver without a secret would accept requests from anyone. `seen` remembers the handled
    events, by default in memory. To remember them after a restart, pass a set-like object that uses your database.
    Raises ValueError for an invalid secret.
    """

    def __init__(
        self,
        secrets: str | Iterable[str],
        *,
        tolerance: float = TOLERANCE,
        max_body: int = MAX_BODY,
        seen: SeenIds | None = None,
    ) -> None:
        given = [secrets] if isinstance(secrets, str) else list(secrets)
        if not given:
            raise ValueError("no secrets")
        self.max_body = max_body
        self._keys: list[Key] = [parse_key(one) for one in given]
        self._tolerance = tolerance
        self._seen: SeenIds = RecentIds() if seen is None else seen
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def read(self, headers: Mapping[str, str], body: bytes) -> list[Received]:
        """Return the events of a request. The body may be compressed.

        Raises VerificationError if the signature is wrong or the request is too old. Raises ValueError if the body does
        not contain events or is larger than `max_body` bytes.
        """
        if len(body) > self.max_body:
            raise TooLarge(f"more than {self.max_body} bytes")
        verify_with(headers, body, self._keys, self._tolerance)
        return read(headers, body, self.max_body)

    @contextmanager
    def once(self, event: Received) -> Iterator[bool]:
        """Return a context manager that yields True if `event` is new, and False if it was handled before.

        The event counts as handled when the block ends without an exception. Entering the block raises Busy if another
        block is handling the event.
        """
        id = f"{event.source} {event.id}"  # CloudEvents: an id is unique within its source
        with self._lock:
            if id in self._seen:
                new = False
            elif id in self._running:
                raise Busy(event.id)
            else:
                new = True
                self._running.add(id)
        if not new:
            yield False
            return
        try:
            yield True
            with self._lock:
                self._seen.add(id)
        finally:
            with self._lock:
                self._running.discard(id)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status for an exception that `Receiver` raised, or None for any other exception."""
    if isinstance(error, VerificationError):
        return 401
    if isinstance(error, Busy):
        return 503
    if isinstance(error, TooLarge):
        return 413
    return 400 if isinstance(error, ValueError) else None
