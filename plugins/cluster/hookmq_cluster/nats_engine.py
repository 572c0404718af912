"""The engine on NATS JetStream.

What a sentence of `hookmq_cluster.engine` means here:

- A commit is an atomic batch, with one fence for all of its messages. It is stored once a majority of the servers has it
  on disk, if they run with ``sync_interval: always``.
- An exact read asks the leader of the stream. A leader that lost its majority without knowing it can still answer for
  some seconds, but no commit succeeds there. So only a condition in a commit proves that a read is current.
- `connected` only says that a server answers. Without a majority, it still does, and commits are unavailable.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from hookmq.plugin import Runtime

from hookmq_cluster.engine import Appended, Entry, Refused, Stored, Unavailable
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_client import NatsClient
from hookmq_cluster.nats_commits import Commits
from hookmq_cluster.nats_connection import NatsOptions
from hookmq_cluster.nats_following import Following
from hookmq_cluster.nats_messages import NOT_FOUND, api_message, direct_message
from hookmq_cluster.nats_protocol import publish, status
from hookmq_cluster.nats_reading import Reading
from hookmq_cluster.nats_requests import Request, call_api, error_of
from hookmq_cluster.nats_stream import (
    HEADERS,
    NO_ACCOUNT,
    NOT_CLUSTERED,
    SMALLEST,
    STREAM_NOT_FOUND,
    check_replicas,
    check_server,
    check_stream,
    no_copies,
    stream_config,
)

LARGEST: Final = 8 << 20
"""Largest entry in bytes, whatever the servers accept."""
OPEN: Final = 30.0
"""Seconds until `open` gives up."""
FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 2.0
"""Seconds between two attempts to use the stream, from the first to the longest pause."""


class NatsEngine:
    """An `Engine`. Call `open` first, and nothing else before it has returned.

    `stream` is the name of the stream, and `subjects` the wildcard subject with all of its messages. For
    `reread`, see `NatsClient`.
    """

    def __init__(
        self,
        options: NatsOptions,
        stream: str,
        subjects: str,
        runtime: Runtime,
        replicas: int = 3,
        allow_single_replica: bool = False,
        reread: Callable[[], NatsOptions] | None = None,
    ) -> None:
        self.max_entry = 0
        self.max_batch = 1000
        self._stream = stream
        self._subjects = subjects
        self._runtime = runtime
        self._replicas = replicas
        self._allow_single = allow_single_replica
        self._seen_last = 0
        self._client = NatsClient(options, runtime, self._check, reread)
        self._commits = Commits(self._client, runtime, replicas > 1, self._seen)
        self._followings: list[Following] = []
        self._dropped = 0
        self._client.on_connection(self._reconnected)

    async def open(self, seconds: float = OPEN, create: bool = True) -> dict[str, Any] | None:
        """Connect, and make or check the stream. Return JetStream's information about it.

        Without `create`, a missing stream is not made: return None, and the engine cannot be used. Raises EngineError if
        it cannot be used within `seconds`, which may be infinite, or at once if it is useless to wait.
        """
        until = self._runtime.now() + seconds
        await self._client.open(seconds)
        try:
            info = self._client.info
            self.max_entry = min(int(info["max_payload"]) - HEADERS, LARGEST)
            self._commits.max_entry = self.max_entry
            check_replicas(info, self._replicas, self._allow_single)
            return await self._prepare(until, create)
        except BaseException:
            self._client.close()
            raise

    # hookmq_cluster.engine.Engine --------------------------------------------------------------------------------

    def commit(
        self,
        entries: Sequence[Entry],
        done: Callable[[Appended | Refused | Unavailable], None],
        key: str = "",
    ) -> None:
        """Append `entries`; see `Engine.commit`. Raises ValueError for a commit that is not possible: too large, or with
        conditions or replacements that refer to its own entries."""
        self._commits.commit(entries, done, key)

    def last(
        self,
        subject: str,
        done: Callable[[Stored | None | Unavailable], None],
        exact: bool = False,
    ) -> None:
        """Read the last message of a subject; see `Engine.last`."""
        if exact:
            wanted = {"last_by_subj": subject}
            call_api(
                self._client, self._runtime, f"STREAM.MSG.GET.{self._stream}", wanted,
                partial(self._last_exact, done),
            )  # fmt: skip
        else:
            Request(
                self._client,
                self._runtime,
                f"$JS.API.DIRECT.GET.{self._stream}.{subject}",
                b"",
                partial(self._last_direct, done),
                lambda reason: done(Unavailable(reason)),
            )

    def read(
        self, filters: Sequence[str], after: int, done: Callable[[list[Stored] | Unavailable], None]
    ) -> None:
        """Read a page; see `Engine.read`. A page may have messages that were deleted a moment ago."""

        def page_done(page: list[Stored] | Unavailable) -> None:
            if not isinstance(page, Unavailable) and page:
                self._seen(page[-1].sequence)
            done(page)

        Reading(
            self._client, self._runtime, self._stream, filters, after, self._seen_last, page_done
        )

    def follow(
        self, filters: Sequence[str], after: int, receive: Callable[[Stored], None]
    ) -> Callable[[], None]:
        """Follow subjects; see `Engine.follow`. Messages that are deleted before they arrive are left out."""
        following = Following(
            self._client, self._runtime, self._stream, filters, after, receive, self._seen
        )
        self._followings.append(following)

        def end() -> None:
            following.end()
            if following in self._followings:
                self._followings.remove(following)

        return end

    def trim(self, subject: str, before: int, done: Callable[[Unavailable | None], None]) -> None:
        """Delete the oldest messages of a subject; see `Engine.trim`."""
        if before <= 1:
            self._runtime.call_soon(partial(done, None))
            return

        def purged(answer: dict[str, Any] | Unavailable) -> None:
            if isinstance(answer, Unavailable):
                done(answer)
                return
            code, text = error_of(answer)
            done(Unavailable(text or f"error {code}") if code else None)

        wanted = {"filter": subject, "seq": before}
        call_api(self._client, self._runtime, f"STREAM.PURGE.{self._stream}", wanted, purged)

    def send(self, subject: str, data: bytes) -> None:
        """Send a message that is not stored; see `Engine.send`. It is dropped if too much waits to be sent."""
        if not self._client.full():
            self._client.write(publish(subject, data))
            return
        self._dropped += 1
        if self._dropped & (self._dropped - 1) == 0:
            self._runtime.log("warning", "cluster.messages_dropped", total=self._dropped)

    def listen(self, subject: str, receive: Callable[[str, bytes], None]) -> Callable[[], None]:
        """Receive messages that are not stored; see `Engine.listen`."""
        number = self._client.subscribe(
            subject, lambda name, _answer, _header, data: receive(name, data)
        )
        return lambda: self._client.unsubscribe(number)

    def connected(self) -> bool:
        """Return whether a server answers."""
        return self._client.connected()

    def on_connection(self, call: Callable[[bool], None]) -> None:
        """Call `call` when the connection is lost or back; see `Engine.on_connection`."""
        self._client.on_connection(call)

    def close(self, done: Callable[[], None]) -> None:
        """Wait for the results of all commits, then close the connection."""

        def idle() -> None:
            for following in self._followings:
                following.end()
            self._followings.clear()
            self._client.close()
            done()

        self._commits.when_idle(idle)

    # parts -------------------------------------------------------------------------------------------------------

    def _seen(self, sequence: int) -> None:
        if sequence > self._seen_last:
            self._seen_last = sequence

    def _check(self, info: dict[str, Any]) -> str:
        """Return why a server cannot be used. All must accept messages that are as large."""
        return check_server(info, self.max_entry or SMALLEST)

    def _reconnected(self, connected: bool) -> None:
        for following in list(self._followings):
            following.reconnected(connected)

    def _last_exact(
        self,
        done: Callable[[Stored | None | Unavailable], None],
        answer: dict[str, Any] | Unavailable,
    ) -> None:
        if isinstance(answer, Unavailable):
            done(answer)
            return
        code, text = error_of(answer)
        if code == NOT_FOUND:
            done(None)
            return
        try:
            found = api_message(answer)
        except ValueError:
            done(Unavailable(text or "malformed answer"))
            return
        self._seen(found.sequence)
        done(found)

    def _last_direct(
        self, done: Callable[[Stored | None | Unavailable], None], header: bytes, data: bytes
    ) -> Callable[[], None]:
        if status(header) == 404:
            return partial(done, None)
        try:
            found = direct_message(header, data)
        except ValueError:
            return partial(done, Unavailable(f"reading failed: {header[:100]!r}"))
        self._seen(found.sequence)
        return partial(done, found)

    async def _call(self, subject: str, fields: dict[str, Any] | None) -> dict[str, Any]:
        """Call JetStream's API. Raises _NotYet if nothing answers."""
        answered: asyncio.Future[dict[str, Any] | Unavailable]
        answered = asyncio.get_running_loop().create_future()

        def done(answer: dict[str, Any] | Unavailable) -> None:
            if not answered.done():
                answered.set_result(answer)

        request = call_api(self._client, self._runtime, subject, fields, done)
        try:
            answer = await answered
        finally:
            request.cancel()
        if isinstance(answer, Unavailable):
            raise _NotYet(f"JetStream does not answer: {answer.reason}")
        return answer

    async def _prepare(self, until: float, create: bool) -> dict[str, Any] | None:
        """Make or check the stream. Servers that have just started need some seconds to elect leaders."""
        pause, logged = FIRST_PAUSE, ""
        while True:
            try:
                return await self._prepare_once(create)
            except _NotYet as problem:
                reason = str(problem)
            if self._runtime.now() >= until or "Permissions Violation" in reason:
                raise EngineError(reason)
            if reason != logged:
                logged = reason
                self._runtime.log("warning", "cluster.stream_awaited", reason=reason)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _prepare_once(self, create: bool) -> dict[str, Any] | None:
        found = await self._call(f"STREAM.INFO.{self._stream}", None)
        code, text = error_of(found)
        if code == STREAM_NOT_FOUND:
            if not create:
                return None
            config = stream_config(self._stream, self._subjects, self._replicas)
            found = await self._call(f"STREAM.CREATE.{self._stream}", config)
            code, text = error_of(found)
            if code == NOT_CLUSTERED:
                raise no_copies(self._replicas)
            if not code:
                self._runtime.log(
                    "warning", "cluster.stream_created", stream=self._stream, replicas=self._replicas
                )  # fmt: skip
        if code == NO_ACCOUNT:
            raise EngineError("JetStream is not enabled for the account of this user")
        if code:
            raise _NotYet(f"the stream {self._stream} cannot be used: {text or code}")
        check_stream(found.get("config") or {}, self._stream, self._subjects, self._replicas)
        self._seen(int((found.get("state") or {}).get("last_seq") or 0))
        return found


class _NotYet(Exception):
    """Something that can be temporary."""
