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
    """Another request with the same event is being handled. Answer 503; the plugin sends the request again."""


class SeenIds(Protocol):
    """Where a receiver remembers the ids of the events that it has handled."""

    def __contains__(self, id: object, /) -> bool:
        """Return whether the event with this id was handled."""

    def add(self, id: str, /) -> None:
        """Remember the id of an event that was handled."""


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
    """Verifies requests and reads their events. Threads and tasks can share it.

    `secrets` are shared secrets (``whsec_``) and public keys (``whpk_``); one valid signature is enough. An empty list is
    refused: a receiver without a secret believes everyone. `seen` remembers the handled events, by default in memory.
    Pass a set-like object that uses your database to remember them after a restart. Raises ValueError for an invalid
    secret.
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
        """Return the events of a request. The body may be compressed or not.

        Raises VerificationError if the signature is wrong or the request too old, and ValueError if the body does not
        contain events or is larger than `max_body` bytes.
        """
        if len(body) > self.max_body:
            raise TooLarge(f"more than {self.max_body} bytes")
        verify_with(headers, body, self._keys, self._tolerance)
        return read(headers, body, self.max_body)

    @contextmanager
    def once(self, event: Received) -> Iterator[bool]:
        """Enter with True if `event` is new, and with False if it was handled before.

        The event counts as handled when the block ends without an exception. Raises Busy if another block is handling the
        event.
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
    """Return the status to answer after an exception of `Receiver`, or None for any other exception."""
    if isinstance(error, VerificationError):
        return 401
    if isinstance(error, Busy):
        return 503
    if isinstance(error, TooLarge):
        return 413
    return 400 if isinstance(error, ValueError) else None
