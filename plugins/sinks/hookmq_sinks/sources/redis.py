"""The `redis` source: entries of Redis or Valkey streams, read by a group of consumers.

An entry is acknowledged (XACK) once this broker has committed its message. After a restart, the source first reads
entries again that an earlier process read but did not acknowledge. It claims entries that another consumer of the group
has held for `claim_after` (XAUTOCLAIM).

With `once`, an entry's id is the mark of its message. If the process is killed between the commit and the
acknowledgement, the entry is later acknowledged without being published again. This does not help if another consumer
claims the entry.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from urllib.parse import quote, unquote

from hookmq.plugin import ConfigError, Seconds, setting
from hookmq_toolkit.tls_client import TlsConfig, client_context

from hookmq_sinks.record import Record
from hookmq_sinks.source import Incoming, Source, SourceContext, SourceUnavailable
from hookmq_sinks.source_message import MessageMaker, PublishConfig

if TYPE_CHECKING:
    from redis.asyncio import Redis

Entry = tuple[str, str]
"""The name of a stream, and the id of an entry."""

_WAIT: Final = 5.0
"""Seconds that Redis waits for an entry before it replies."""
_LATE: Final = 10.0
"""Seconds to wait for a reply from Redis."""


@dataclass(frozen=True)
class RedisSourceSettings:
    """The `redis` source's settings."""

    streams: tuple[str, ...] = field(metadata={"help": "names of the streams"})
    publish: PublishConfig = field(metadata={"help": "how an entry becomes a message"})
    url: str = setting(
        "redis://127.0.0.1:6379/0", "the server: redis://HOST:PORT/DB, rediss:// for TLS, unix://PATH"
    )  # fmt: skip
    group: str = setting("hookmq", "the group of consumers; created if it is missing")
    consumer: str = setting("", "this consumer's name in the group; default: the source's name")
    start: Literal["first", "next"] = setting(
        "first", "where a new group begins: at the first entry, or at the next one"
    )
    payload_field: str = setting(
        "payload", "field with the payload; empty: the payload is a JSON object of all fields"
    )
    batch: int = setting(500, "most entries that are read at a time", minimum=1, maximum=5000)
    claim_after: Seconds = setting(
        60.0, "time after which entries of other consumers are claimed; 0 means never"
    )
    once: bool = setting(True, "whether ids are stored, so that no entry is published twice")
    user: str = setting("", "user name")
    password: str = field(default="", repr=False, metadata={"help": "password"})
    tls: TlsConfig | None = setting(None, "files for TLS, with rediss://")
    connect_timeout: Seconds = setting(5.0, "longest time for connecting", minimum=0.1, maximum=600)

    def __post_init__(self) -> None:
        if not self.streams or not all(self.streams):
            raise ConfigError("streams: at least one name is required, and no name is empty")
        if len(set(self.streams)) < len(self.streams):
            raise ConfigError("streams: a name is listed twice")
        if not self.group:
            raise ConfigError("group: empty")
        if not self.url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigError("url: expected redis://HOST:PORT/DB")
        if "@" in self.url:
            raise ConfigError("url: contains a user", hint="use `user` and `password`")
        if self.tls is not None and not self.url.startswith("rediss://"):
            raise ConfigError("tls: needs rediss:// in url")


class RedisSource(Source):
    """Reads streams; see the module docstring."""

    Settings: ClassVar[type] = RedisSourceSettings
    extra = "redis"
    settings: RedisSourceSettings

    def __init__(self, settings: RedisSourceSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        self._maker = MessageMaker(settings.publish)
        self._consumer = settings.consumer or context.source
        self._client: Redis | None = None
        self._backlog: dict[str, str] = {}
        """The streams whose entries this consumer may still hold, with the id after which to read them."""
        self._claim_at = 0.0
        self._waiting: list[Incoming] = []
        self._counts = {"claimed": 0, "repeated": 0, "deleted": 0}

    @classmethod
    def local_filters(cls, settings: Any) -> Sequence[str]:
        """Return a filter that matches the topics of all messages."""
        found: Sequence[str] = settings.publish.filters() if settings.once else ()
        return found

    async def open(self) -> None:
        """Connect, create the groups, and acknowledge entries that this broker has already committed."""
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        settings = self.settings
        arguments: dict[str, Any] = {
            "socket_connect_timeout": settings.connect_timeout,
            "socket_timeout": _WAIT + _LATE,
            "single_connection_client": True,
            "retry": Retry(NoBackoff(), 0),
        }
        if settings.user:
            arguments["username"] = settings.user
        if settings.password:
            arguments["password"] = settings.password
        if settings.tls is not None:
            try:
                await asyncio.to_thread(client_context, settings.tls)
            except OSError as error:
                raise SourceUnavailable(f"{error.filename}: {error.strerror}", True) from error
            for key, path in (
                ("ssl_ca_certs", settings.tls.ca_file),
                ("ssl_certfile", settings.tls.cert_file),
                ("ssl_keyfile", settings.tls.key_file),
            ):
                if path is not None:
                    arguments[key] = str(path)
        try:
            name = f"hookmq-sources-{self.context.source}"
            self._client = Redis.from_url(settings.url, client_name=name, **arguments)
            for stream in settings.streams:
                await self._create_group(self._client, stream)
            await self._acknowledge_marks(self._client)
        except Exception as error:
            raise _unavailable(error) from error
        self._backlog = dict.fromkeys(settings.streams, "0")
        self._claim_at = 0.0

    async def _create_group(self, client: "Redis", stream: str) -> None:
        from redis.exceptions import ResponseError

        start = "0" if self.settings.start == "first" else "$"
        try:
            await client.xgroup_create(stream, self.settings.group, start, mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        else:
            self.context.log(
                "info", "sources.group_created", stream=stream, group=self.settings.group
            )

    async def _acknowledge_marks(self, client: "Redis") -> None:
        marks = [one for one in self.context.marks if " " in one]
        if marks:
            pairs = [one.rpartition(" ") for one in marks]
            await self._confirm(client, [(unquote(stream), id) for stream, _, id in pairs])
            await self.context.forget(marks)
            self._counts["repeated"] += len(marks)

    async def _confirm(self, client: "Redis", entries: Sequence[Entry]) -> None:
        streams: dict[str, list[str]] = {}
        for stream, id in entries:
            streams.setdefault(stream, []).append(id)
        for stream, ids in streams.items():
            await client.xack(stream, self.settings.group, *ids)

    async def read(self) -> Sequence[Incoming]:
        """Return the entries that this consumer already holds, then claimed ones, then new ones."""
        client = self._client
        if client is None:
            raise SourceUnavailable("not connected")
        try:
            while True:
                found = await self._read_backlog(client)
                if not found:
                    found = await self._claim(client)
                if not found:
                    found = await self._read_new(client)
                if found:
                    return found
        except (SourceUnavailable, asyncio.CancelledError):
            raise
        except Exception as error:
            raise _unavailable(error) from error

    async def _read_backlog(self, client: "Redis") -> list[Incoming]:
        while self._backlog:
            found = await self._read_group(client, self._backlog, None)
            messages: list[Incoming] = []
            ended = set(self._backlog)
            for stream, entries in found:
                if entries:
                    ended.discard(stream)
                    self._backlog[stream] = entries[-1][0].decode()
                    messages += await self._messages(client, stream, entries)
            for stream in ended:
                del self._backlog[stream]
            if messages:
                return messages
        return []

    async def _claim(self, client: "Redis") -> list[Incoming]:
        after = self.settings.claim_after
        now = asyncio.get_running_loop().time()
        if not after or now < self._claim_at:
            return []
        messages: list[Incoming] = []
        for stream in self.settings.streams:
            reply: Any = await client.execute_command(  # type: ignore[no-untyped-call]
                "XAUTOCLAIM", stream, self.settings.group, self._consumer, int(after * 1000), "0-0",
                "COUNT", self.settings.batch,
            )  # fmt: skip
            entries = reply[1]
            self._counts["claimed"] += len(entries)
            messages += await self._messages(client, stream, entries)
        if not messages:
            self._claim_at = now + min(_WAIT, after)
        return messages

    async def _read_new(self, client: "Redis") -> list[Incoming]:
        found = await self._read_group(client, dict.fromkeys(self.settings.streams, ">"), _WAIT)
        messages: list[Incoming] = []
        for stream, entries in found:
            messages += await self._messages(client, stream, entries)
        return messages

    async def _read_group(
        self, client: "Redis", after: Mapping[str, str], wait: float | None
    ) -> list[tuple[str, list[Any]]]:
        block = [] if wait is None else ["BLOCK", str(int(wait * 1000))]
        reply: Any = await client.execute_command(  # type: ignore[no-untyped-call]
            "XREADGROUP", "GROUP", self.settings.group, self._consumer, "COUNT", self.settings.batch,
            *block, "STREAMS", *after, *after.values(),
        )  # fmt: skip
        pairs = reply.items() if isinstance(reply, dict) else reply or []
        return [(stream.decode(), _entries(entries)) for stream, entries in pairs]

    # messages --------------------------------------------------------------------------------------------------------

    async def _messages(
        self, client: "Redis", stream: str, entries: Sequence[Any]
    ) -> list[Incoming]:
        messages: list[Incoming] = []
        gone: list[Entry] = []
        for raw, fields in entries:
            id = raw.decode()
            if not fields:  # deleted since, for example by MAXLEN
                gone.append((stream, id))
                continue
            messages.append(self._message(stream, id, fields))
        if gone:
            self._counts["deleted"] += len(gone)
            await self._confirm(client, gone)
        return messages

    def _message(self, stream: str, id: str, fields: Any) -> Incoming:
        pairs = list(fields.items()) if isinstance(fields, dict) else _pairs(fields)
        named = [(name.decode("utf-8", "replace"), value) for name, value in pairs]
        wanted = self.settings.payload_field
        payload: bytes | None = None
        if wanted:
            payload = next((value for name, value in named if name == wanted), None)
        else:
            made = {name: value.decode("utf-8", "replace") for name, value in named}
            payload = json.dumps(made, ensure_ascii=False).encode()
        milliseconds = id.partition("-")[0]
        record = Record(
            id, 0, stream, payload or b"", received_at=int(milliseconds) / 1000 if milliseconds.isdecimal() else 0.0,
            user_properties=tuple((name, value.decode("utf-8", "replace")) for name, value in named if name != wanted),
        )  # fmt: skip
        if payload is None:
            return Incoming(
                stream, b"", problem=f"the entry {id} has no field {wanted!r}", handle=(stream, id)
            )
        mark = f"{quote(stream, safe='')} {id}" if self.settings.once else ""
        return self._maker.incoming(record, (stream, id), mark)

    async def acknowledge(self, messages: Sequence[Incoming], codes: Sequence[int]) -> None:
        """Acknowledge the entries, then delete their marks."""
        client = self._client
        if client is None:
            raise SourceUnavailable("not connected")
        try:
            await self._confirm(client, [one.handle for one in messages])
        except Exception as error:
            raise _unavailable(error) from error
        marks = self.context.marks
        await self.context.forget(
            [one.mark[0] for one in messages if one.mark is not None and one.mark[0] in marks]
        )

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                await client.aclose()

    def metrics(self) -> Mapping[str, float]:
        """Return how many entries were claimed, read again after being published, or deleted before they were read."""
        return self._counts


def _pairs(fields: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(fields[::2], fields[1::2], strict=True))


def _entries(found: Any) -> list[Any]:
    """Return the entries of a stream. With RESP3, the library nests them one level deeper."""
    if (
        found
        and isinstance(found[0], list)
        and (not found[0] or isinstance(found[0][0], list | tuple))
    ):
        return [one for part in found for one in part]
    return list(found)


def _unavailable(error: Exception) -> SourceUnavailable:
    from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

    if isinstance(error, SourceUnavailable):
        return error
    text = " ".join(str(error).split()) or type(error).__name__
    if "HELLO" in text or "NOAUTH" in text:
        return SourceUnavailable("the server requires a password", True)
    wrong = isinstance(error, ResponseError) and text.startswith(
        ("WRONGTYPE", "DB index", "invalid DB")
    )
    return SourceUnavailable(
        text, wrong or isinstance(error, AuthenticationError | NoPermissionError)
    )
