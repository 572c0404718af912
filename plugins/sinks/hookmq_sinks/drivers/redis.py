"""The `redis` driver: writes streams, lists, keys and hashes in Redis or Valkey, or publishes to channels.

A batch is one transaction (MULTI). It contains the commands, and the position in the hash ``hookmq:positions``. The
transaction is executed only if the position is still the one that this driver knows (WATCH). Each message is therefore
stored once, and two processes never write for the same sink. Redis's setting `appendfsync` determines how durable the
data is.

Redis does not roll back. If a command fails, for example because its key has another type, the transaction's other
commands are still executed. The driver rejects only the failed command's record.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from hookmq.plugin import ConfigError, Seconds, setting
from hookmq_toolkit.tls_client import TlsConfig, client_context

from hookmq_sinks.driver import (
    Batch,
    Driver,
    DriverContext,
    Position,
    Problem,
    Record,
    RecordError,
    RecordTemplate,
    Rejected,
    TargetUnavailable,
    make_each,
    template_setting,
    to_bytes,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

Command = list[bytes | str]
Into = Literal["stream", "list", "key", "hash", "channel"]

POSITIONS: Final = "hookmq:positions"
_TYPES: Final = {"stream": "stream", "list": "list", "key": "string", "hash": "hash"}
_OPERATOR: Final = ("NOPERM", "WRONGPASS", "invalid DB index", "DB index is out of range")
"""Errors that require an operator to act."""


@dataclass(frozen=True)
class RedisSettings:
    """The settings of a Redis or Valkey server."""

    url: str = setting(
        "redis://127.0.0.1:6379/0", "the server: redis://HOST:PORT/DB, rediss:// for TLS, unix://PATH"
    )  # fmt: skip
    into: Into = setting(
        "stream",
        "what a message becomes: an entry of a stream or list, a key, a hash, or a message of a channel",
    )
    key: str = template_setting("${topic}", "name of the stream, list, key, hash or channel")
    value: str = template_setting(
        "", "value in a list, key or channel; default: the payload, or the transformed value"
    )
    fields: Mapping[str, Any] = template_setting(
        {}, "fields of a stream's entry or hash; default for a stream: id, topic, payload"
    )
    max_length: int = setting(
        0, "about how many entries a stream keeps, or how many a list keeps; 0 means all", minimum=0
    )
    expire: Seconds = setting(0.0, "lifetime of a key or hash; 0 means without end")
    user: str = setting("", "user name")
    password: str = setting("", "password")
    tls: TlsConfig | None = setting(None, "files for TLS, with rediss://")
    connect_timeout: Seconds = setting(5.0, "longest time for connecting", minimum=0.1, maximum=600)

    def __post_init__(self) -> None:
        if not self.url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigError("url: expected redis://HOST:PORT/DB")
        if "@" in self.url:
            raise ConfigError("url: contains a user", hint="use `user` and `password`")
        if self.tls is not None and not self.url.startswith("rediss://"):
            raise ConfigError("tls: needs rediss:// in url")
        if self.into == "hash" and not self.fields:
            raise ConfigError("fields: required with `into: hash`")
        if self.fields and self.into not in ("stream", "hash"):
            raise ConfigError(f"fields: cannot be used with `into: {self.into}`")
        if self.value and self.into in ("stream", "hash"):
            raise ConfigError(
                f"value: cannot be used with `into: {self.into}`", hint="use `fields`"
            )
        if self.max_length and self.into not in ("stream", "list"):
            raise ConfigError(f"max_length: cannot be used with `into: {self.into}`")
        if self.expire and self.into not in ("key", "hash"):
            raise ConfigError(f"expire: cannot be used with `into: {self.into}`")


class RedisDriver(Driver):
    """Executes one command for each record; see the module docstring."""

    Settings: ClassVar[type] = RedisSettings
    extra = "redis"
    holds_position = True
    settings: RedisSettings

    def __init__(self, settings: RedisSettings, context: DriverContext) -> None:
        super().__init__(settings, context)
        self._key = RecordTemplate(settings.key, "key")
        self._value = RecordTemplate(settings.value, "value") if settings.value else None
        self._fields = {
            name: RecordTemplate(text, f"fields.{name}") for name, text in settings.fields.items()
        }
        makers: dict[str, Callable[[Record], list[Command]]] = {
            "stream": self._stream_entry,
            "list": self._list_entry,
            "key": self._set_key,
            "hash": self._set_hash,
            "channel": self._publish,
        }
        self._make = makers[settings.into]
        self._client: Redis | None = None
        self._held: Position | None = None

    async def open(self) -> Position | None:
        """Connect, and read the position."""
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        settings = self.settings
        arguments: dict[str, Any] = {
            "socket_connect_timeout": settings.connect_timeout,
            "single_connection_client": True,
            "retry": Retry(NoBackoff(), 0),
        }
        if settings.user:
            arguments["username"] = settings.user
        if settings.password:
            arguments["password"] = settings.password
        if settings.tls is not None:
            await asyncio.to_thread(
                client_context, settings.tls
            )  # reports a missing file by its name
            arguments |= {
                "ssl_ca_certs": _path(settings.tls.ca_file),
                "ssl_certfile": _path(settings.tls.cert_file),
                "ssl_keyfile": _path(settings.tls.key_file),
            }
        try:
            name = f"hookmq-sinks-{self.context.sink}"
            client = self._client = Redis.from_url(settings.url, client_name=name, **arguments)
            found = await client.hget(POSITIONS, self.context.slot)
        except Exception as error:
            raise _unavailable(error) from error
        self._held = _decode(found)
        return self._held

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return a problem if the sample's key already exists with another type."""
        client = self._client
        assert client is not None
        if sample is None:
            return ()
        try:
            key = self._key.fill(sample)
            self._make(sample)
        except RecordError as error:
            return [Problem("key", str(error))]
        try:
            found: Any = await client.type(key)
            kind = found.decode()
        except Exception as error:
            raise _unavailable(error) from error
        wanted = _TYPES.get(self.settings.into, "none")
        if wanted != "none" and kind not in ("none", wanted):
            return [Problem("key", f"{key} is a {kind}, but `into` needs a {wanted}")]
        return ()

    async def write(self, batch: Batch) -> None:
        """Execute the commands and store the position in one transaction."""
        client = self._client
        assert client is not None
        made = make_each(batch, self._make)
        try:
            results = await self._execute(client, made, batch.position)
        except TargetUnavailable:
            raise
        except Exception as error:
            raise _unavailable(error) from error
        self._held = batch.position
        reasons: dict[int, str] = {}
        at = 0
        for index, commands in enumerate(made):
            for one in results[at : at + len(commands)]:
                if isinstance(one, Exception):
                    reasons[index] = str(one)
            at += len(commands)
        if reasons:
            raise Rejected(reasons, stored=True)

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                await client.aclose()

    async def _execute(
        self, client: "Redis", made: list[list[Command]], position: Position
    ) -> list[Any]:
        from redis.exceptions import WatchError

        async with client.pipeline(transaction=True) as pipe:
            # Another process that writes another slot also changes this hash, so the field is compared as well.
            while True:
                try:
                    await pipe.watch(POSITIONS)
                    held = _decode(await pipe.hget(POSITIONS, self.context.slot))
                    if held != self._held:
                        raise TargetUnavailable(
                            f"another process has moved the position of {self.context.slot}"
                        )
                    pipe.multi()  # type: ignore[no-untyped-call]
                    for commands in made:
                        for one in commands:
                            pipe.execute_command(*one)
                    pipe.hset(POSITIONS, self.context.slot, f"{position.log_id} {position.offset}")
                    return list(await pipe.execute(raise_on_error=False))
                except WatchError:
                    continue

    # commands --------------------------------------------------------------------------------------------------------

    def _stream_entry(self, record: Record) -> list[Command]:
        limit: Command = []
        if self.settings.max_length:
            limit = ["MAXLEN", "~", str(self.settings.max_length)]
        fields = self._filled(record) or [
            "id",
            record.id,
            "topic",
            record.topic,
            "payload",
            record.body,
        ]
        return [["XADD", self._key.fill(record), *limit, "*", *fields]]

    def _list_entry(self, record: Record) -> list[Command]:
        key = self._key.fill(record)
        commands: list[Command] = [["RPUSH", key, self._body(record)]]
        if self.settings.max_length:
            commands.append(["LTRIM", key, str(-self.settings.max_length), "-1"])
        return commands

    def _set_key(self, record: Record) -> list[Command]:
        return [["SET", self._key.fill(record), self._body(record), *self._lifetime("PX")]]

    def _set_hash(self, record: Record) -> list[Command]:
        key = self._key.fill(record)
        fields = self._filled(record)
        if not fields:
            raise RecordError("no value for any of the fields")
        commands: list[Command] = [["HSET", key, *fields]]
        if self.settings.expire:
            commands.append(["PEXPIRE", key, *self._lifetime()])
        return commands

    def _publish(self, record: Record) -> list[Command]:
        return [["PUBLISH", self._key.fill(record), self._body(record)]]

    def _body(self, record: Record) -> bytes:
        return record.body if self._value is None else to_bytes(self._value.value(record))

    def _filled(self, record: Record) -> Command:
        filled: Command = []
        for name, template in self._fields.items():
            value = template.optional(record)
            if value is not None:
                filled += (name, to_bytes(value))
        return filled

    def _lifetime(self, *words: str) -> Command:
        return (
            [*words, str(max(1, round(self.settings.expire * 1000)))]
            if self.settings.expire
            else []
        )


def _path(path: Any) -> str | None:
    return None if path is None else str(path)


def _decode(found: Any) -> Position | None:
    if found is None:
        return None
    log_id, _, offset = found.decode().partition(" ")
    if not offset.isdecimal():
        raise TargetUnavailable(
            f"{POSITIONS} contains {found[:60]!r}, which is not a position", True
        )
    return Position(log_id, int(offset))


def _unavailable(error: Exception) -> TargetUnavailable:
    from redis.exceptions import AuthenticationError, NoPermissionError

    if isinstance(error, TargetUnavailable):
        return error
    text = " ".join(str(error).split()) or type(error).__name__
    if "HELLO" in text or "NOAUTH" in text:
        return TargetUnavailable("the server requires a password", True)
    permanent = isinstance(error, AuthenticationError | NoPermissionError)
    return TargetUnavailable(text, permanent or any(one in text for one in _OPERATOR))
