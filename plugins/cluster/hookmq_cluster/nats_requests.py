"""Requests to JetStream that can be repeated: reading, deleting, and looking after streams and consumers."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from hookmq.plugin import Runtime, Timer

from hookmq_cluster.batch_publish import NO_RESPONDERS
from hookmq_cluster.engine import Unavailable
from hookmq_cluster.nats_client import NatsClient
from hookmq_cluster.nats_protocol import status

TIMEOUT: Final = 5.0
"""Seconds until a request counts as not answered."""
REPEAT: Final = 0.1
"""Seconds until a request is repeated to which no server listened."""
UNANSWERED: Final = (1.0, 2.0)
"""Seconds until a request without an answer is repeated: first, and after that. A server may have died, or the stream has
no leader yet."""
TEMPORARY: Final = (10006, 10008, 10009, 10118)
"""JetStream's errors while it elects leaders: not active, not available, not the leader, stream offline."""


class Request:
    """One request. It is sent again after a reconnection, and as long as no server listens or answers, until its time is
    over.

    `begin` is called before each attempt. `answer` is called for each answer. For the last one, it returns what to call
    in the end. `failed` is called instead if the time is over.
    """

    def __init__(
        self,
        client: NatsClient,
        runtime: Runtime,
        subject: str,
        data: bytes,
        answer: Callable[[bytes, bytes], Callable[[], None] | None],
        failed: Callable[[str], None],
        begin: Callable[[], None] = lambda: None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._subject = subject
        self._data = data
        self._answer = answer
        self._failed = failed
        self._begin = begin
        self._reply = ""
        self._ended = False
        self._reason = ""
        self._repeat: Timer | None = None
        self._unanswered = 0
        self._timer = runtime.call_later(timeout, self._late)
        self._send()

    def again(self, reason: str) -> None:
        """Send the request again soon. `reason` is reported if there is no time for that."""
        self._client.forget(self._reply)
        self._later(reason)

    def cancel(self) -> None:
        """Call nothing any more."""
        self._ended = True
        self._timer.cancel()
        if self._repeat is not None:
            self._repeat.cancel()
        if self._reply:
            self._client.forget(self._reply)

    def _send(self) -> None:
        self._repeat = None
        if not self._client.connected():
            self._later("not connected")
            return
        self._begin()
        self._reply = self._client.request(self._subject, self._data, self._receive)
        wait = UNANSWERED[min(self._unanswered, len(UNANSWERED) - 1)]
        self._repeat = self._runtime.call_later(wait, self._silent)

    def _later(self, reason: str) -> None:
        self._reason = reason
        self._repeat = self._runtime.call_later(REPEAT, self._send)

    def _silent(self) -> None:
        self._unanswered += 1
        if self._client.denies(self._subject):
            self._late()
            return
        self._client.forget(self._reply)
        self._send()

    def _receive(self, header: bytes, data: bytes | None) -> None:
        if self._repeat is not None:
            self._repeat.cancel()
            self._repeat = None
        if data is None:
            if not self._ended:
                self._later("the connection was lost")
        elif status(header) == NO_RESPONDERS:
            self.again("JetStream has no leader")
        else:
            end = self._answer(header, data)
            if end is not None:
                self.cancel()
                end()

    def _late(self) -> None:
        self.cancel()
        self._failed(self._reason or self._client.silence())


def call_api(
    client: NatsClient,
    runtime: Runtime,
    subject: str,
    fields: dict[str, Any] | None,
    done: Callable[[dict[str, Any] | Unavailable], None],
    timeout: float = TIMEOUT,
    stale: Callable[[dict[str, Any]], str] = lambda _answer: "",
) -> Request:
    """Call JetStream's API. `done` gets the fields of the answer, also of those with an ``error``.

    The call is repeated while JetStream elects leaders. `stale` returns why an answer comes from a server that lags,
    or ''.
    """

    def answer(_header: bytes, data: bytes) -> Callable[[], None] | None:
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if isinstance(found, dict):
            code, text = error_of(found)
            late = text or f"error {code}" if code in TEMPORARY else stale(found)
            if late:
                request.again(late)
                return None
            return partial(done, found)
        return partial(done, Unavailable("an answer that is not one of JetStream"))

    data = json.dumps(fields).encode() if fields is not None else b""
    request = Request(
        client,
        runtime,
        f"$JS.API.{subject}",
        data,
        answer,
        lambda reason: done(Unavailable(reason)),
        timeout=timeout,
    )
    return request


def error_of(answer: dict[str, Any]) -> tuple[int, str]:
    """Return code and text of the error in an answer, or (0, '')."""
    error = answer.get("error")
    if not isinstance(error, dict):
        return 0, ""
    code = error.get("err_code") or error.get("code")
    return (code if isinstance(code, int) else -1), str(error.get("description") or "")[:200]
