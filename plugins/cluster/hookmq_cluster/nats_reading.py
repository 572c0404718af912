"""Reading a page of the stream.

Any server with the stream answers direct requests, which are cheap. It may lag, but it has a prefix of the stream: what
it sends has no gaps. An empty answer says nothing, so the leader is asked then. With several filters, different servers
may answer. Their answers are only used up to a sequence that the leader had before all of them.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from hookmq.plugin import Runtime

from hookmq_cluster.engine import Stored, Unavailable
from hookmq_cluster.nats_client import NatsClient
from hookmq_cluster.nats_messages import NOT_FOUND, api_message, direct_message
from hookmq_cluster.nats_protocol import status
from hookmq_cluster.nats_requests import Request, call_api, error_of

PAGE: Final = 500
"""Messages in one page, for each filter."""
PAGE_SIZE: Final = 2_000_000
"""Bytes in one page, for each filter. A page has at least one message."""

Page = Callable[[list[Stored] | Unavailable], None]


class _Part:
    """The page of one filter. It is empty if the leader has no more messages."""

    def __init__(
        self,
        client: NatsClient,
        runtime: Runtime,
        stream: str,
        filter_: str,
        after: int,
        done: Page,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._stream = stream
        self._next = {"seq": after + 1, "next_by_subj": filter_}
        self._found: list[Stored] = []
        self._done = done
        request = {**self._next, "batch": PAGE, "max_bytes": PAGE_SIZE}
        Request(
            client,
            runtime,
            f"$JS.API.DIRECT.GET.{stream}",
            json.dumps(request).encode(),
            self._receive,
            lambda reason: done(Unavailable(reason)),
            self._found.clear,
        )

    def _receive(self, header: bytes, data: bytes) -> Callable[[], None] | None:
        code = status(header)
        if code == 204 or code == 404:
            return partial(self._done, self._found) if self._found else self._ask_leader
        try:
            self._found.append(direct_message(header, data))
        except ValueError:
            return partial(self._done, Unavailable(f"reading failed: {header[:100]!r}"))
        return None

    def _ask_leader(self) -> None:
        call_api(
            self._client, self._runtime, f"STREAM.MSG.GET.{self._stream}", self._next, self._leader
        )

    def _leader(self, answer: dict[str, Any] | Unavailable) -> None:
        if isinstance(answer, Unavailable):
            self._done(answer)
            return
        code, text = error_of(answer)
        try:
            if code == NOT_FOUND:
                self._done([])
            elif code:
                self._done(Unavailable(text))
            else:
                self._done([api_message(answer)])
        except ValueError:
            self._done(Unavailable("reading failed: malformed answer"))


class Reading:
    """Reads one page. `seen` is a sequence that the stream has for certain."""

    def __init__(
        self,
        client: NatsClient,
        runtime: Runtime,
        stream: str,
        filters: Sequence[str],
        after: int,
        seen: int,
        done: Page,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._stream = stream
        self._filters = tuple(filters)
        self._after = after
        self._seen = seen
        self._done = done
        self._waiting = len(self._filters)
        self._pages: list[list[Stored]] = []
        self._limit = 0
        """The last sequence up to which all answers are complete."""
        if not filters:
            done([])
        elif len(filters) == 1:
            _Part(client, runtime, stream, filters[0], after, self._only)
        else:
            self._ask_last(self._begin)

    def _only(self, page: list[Stored] | Unavailable) -> None:
        if isinstance(page, Unavailable) or page:
            self._done(page)
        else:
            # Nothing more, says a leader. It must not be one that lost its majority without knowing it.
            self._ask_last(lambda _last: self._done([]))

    def _ask_last(self, then: Callable[[int], None]) -> None:
        def answered(answer: dict[str, Any] | Unavailable) -> None:
            if isinstance(answer, Unavailable):
                self._done(answer)
                return
            code, text = error_of(answer)
            last = (answer.get("state") or {}).get("last_seq")
            if code or not isinstance(last, int):
                self._done(Unavailable(text or "malformed answer"))
            else:
                then(last)

        def stale(answer: dict[str, Any]) -> str:
            last = (answer.get("state") or {}).get("last_seq")
            if isinstance(last, int) and last < self._seen:
                return f"the server has {last} messages of at least {self._seen}"
            return ""

        call_api(
            self._client,
            self._runtime,
            f"STREAM.INFO.{self._stream}",
            None,
            answered,
            stale=stale,
        )

    def _begin(self, last: int) -> None:
        self._limit = last
        for one in self._filters:
            _Part(self._client, self._runtime, self._stream, one, self._after, self._part)

    def _part(self, page: list[Stored] | Unavailable) -> None:
        if self._waiting < 0:
            return
        if isinstance(page, Unavailable):
            self._waiting = -1
            self._done(page)
            return
        self._waiting -= 1
        self._pages.append(page)
        if page:
            # This may be the end for a follower that lags. Only an empty page comes from the leader.
            self._limit = min(self._limit, page[-1].sequence)
        if not self._waiting:
            found = {one.sequence: one for page in self._pages for one in page}
            self._done([found[each] for each in sorted(found) if each <= self._limit])
