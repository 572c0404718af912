"""The `rabbitmq` source: messages from RabbitMQ queues, over AMQP 0.9.1.

A message is acknowledged once this broker has committed it. RabbitMQ sends at most `prefetch` unacknowledged messages,
and sends them again if the connection is lost. AMQP numbers deliveries separately for each connection, so a message can
arrive twice after a crash. Publishers can set the property ``message_id``, which is available as ``${id}``.

The routing key ``plant.a`` becomes the topic ``plant/a``. Headers become user properties.
"""

import asyncio
import logging
import os
import re
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from hookmq.plugin import ConfigError, Seconds, setting
from hookmq_toolkit.tls_client import TlsConfig, client_context

from hookmq_sinks.record import Record
from hookmq_sinks.source import Incoming, Source, SourceContext, SourceUnavailable
from hookmq_sinks.source_message import MessageMaker, PublishConfig

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection
    from aiormq.abc import AbstractChannel

_MOST: Final = 1000
"""The maximum number of messages that `read` returns."""
_OPERATOR: Final = (
    "NOT_FOUND",
    "ACCESS_REFUSED",
    "ACCESS-REFUSED",
    "NOT_ALLOWED",
    "PRECONDITION_FAILED",
)
"""Words in refusals that require an operator to act."""
_NUMBER: Final = re.compile(r"^\d+, '?|'$")


@dataclass(frozen=True)
class RabbitMqSourceSettings:
    """The settings of a RabbitMQ server and its queues."""

    queues: tuple[str, ...] = field(metadata={"help": "names of the queues, which must exist"})
    publish: PublishConfig = field(metadata={"help": "how a message of AMQP becomes one of MQTT"})
    url: str = setting(
        "amqp://127.0.0.1:5672", "the server: amqp://HOST:PORT, or amqps://HOST:PORT for TLS"
    )
    virtual_host: str = setting("/", "the virtual host")
    separator: str = setting(".", "what becomes / in ${topic}: the routing key plant.a is plant/a")
    prefetch: int = setting(
        500, "most messages that are not acknowledged", minimum=1, maximum=65535
    )
    user: str = setting("guest", "user name")
    password: str = field(default="guest", repr=False, metadata={"help": "password"})
    tls: TlsConfig | None = setting(None, "files for TLS, with amqps://")
    connect_timeout: Seconds = setting(5.0, "longest time for connecting", minimum=0.1, maximum=600)

    def __post_init__(self) -> None:
        if not self.queues or not all(self.queues):
            raise ConfigError("queues: at least one name is required, and no name is empty")
        if len(set(self.queues)) < len(self.queues):
            raise ConfigError("queues: a name is listed twice")
        parts = urlsplit(self.url)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ConfigError("url: expected amqp://HOST:PORT")
        if "@" in parts.netloc:
            raise ConfigError("url: contains a user", hint="use `user` and `password`")
        if parts.path.strip("/") or parts.query:
            raise ConfigError("url: expected no path", hint="use `virtual_host`")
        try:
            int(parts.port or 0)
        except ValueError:
            raise ConfigError("url: the port is not a number from 0 to 65535") from None
        if self.tls is not None and parts.scheme != "amqps":
            raise ConfigError("tls: needs amqps:// in url")
        if not self.virtual_host:
            raise ConfigError("virtual_host: empty; the first one is /")


class RabbitMqSource(Source):
    """Consumes queues; see the module docstring."""

    Settings: ClassVar[type] = RabbitMqSourceSettings
    extra = "rabbitmq"
    settings: RabbitMqSourceSettings

    def __init__(self, settings: RabbitMqSourceSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        self._maker = MessageMaker(settings.publish)
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._queue: deque[Incoming] = deque()
        self._more = asyncio.Event()
        self._ended = ""
        self._counts = {"redelivered": 0}

    async def open(self) -> None:
        """Connect, and start consuming the queues."""
        import aio_pika

        for name in ("aio_pika", "aiormq"):
            library = logging.getLogger(name)
            if not library.handlers:
                library.addHandler(logging.NullHandler())  # the engine logs the reasons
        settings = self.settings
        parts = urlsplit(settings.url)
        secure = parts.scheme == "amqps"
        try:
            context = await asyncio.to_thread(_tls_context, settings.tls) if secure else None
            async with asyncio.timeout(settings.connect_timeout):
                self._connection = await aio_pika.connect(
                    host=parts.hostname or "localhost",
                    port=parts.port or (5671 if secure else 5672),
                    login=settings.user,
                    password=settings.password,
                    virtualhost=settings.virtual_host,
                    ssl=secure,
                    ssl_context=context,
                    name=f"hookmq-sources {self.context.source}",
                )
                transport = self._connection.transport
                assert transport is not None
                channel = self._channel = await transport.connection.channel(
                    publisher_confirms=False
                )
                channel.closing.add_done_callback(self._on_closed)
                # The limit is that of the channel: all its queues together.
                await channel.basic_qos(prefetch_count=settings.prefetch, global_=True)
                for queue in settings.queues:
                    await channel.queue_declare(queue, passive=True)
                for queue in settings.queues:
                    await channel.basic_consume(queue, self._take)
        except TimeoutError:
            raise SourceUnavailable("no answer in time") from None
        except Exception as error:
            raise _unavailable(error) from error

    def _on_closed(self, future: "asyncio.Future[Any]") -> None:
        error = None if future.cancelled() else future.exception()
        self._ended = "the connection ended" if error is None else _reason(error)
        self._more.set()

    async def _take(self, delivered: Any) -> None:
        header = delivered.header.properties
        self._counts["redelivered"] += bool(delivered.redelivered)
        topic = delivered.routing_key
        if self.settings.separator:
            topic = topic.replace(self.settings.separator, "/")
        record = Record(
            header.message_id or "", delivered.delivery_tag, topic, bytes(delivered.body),
            content_type=header.content_type or None,
            user_properties=tuple((str(name), _text(value)) for name, value in (header.headers or {}).items()),
        )  # fmt: skip
        self._queue.append(self._maker.incoming(record, delivered.delivery_tag))
        self._more.set()

    async def read(self) -> Sequence[Incoming]:
        """Wait for messages."""
        while True:
            if self._channel is None or self._ended:
                # RabbitMQ sends them again.
                self._queue.clear()
                raise SourceUnavailable(self._ended or "not connected")
            if self._queue:
                return [self._queue.popleft() for _ in range(min(len(self._queue), _MOST))]
            self._more.clear()
            await self._more.wait()

    async def acknowledge(self, messages: Sequence[Incoming], codes: Sequence[int]) -> None:
        """Acknowledge the last message, which also acknowledges all earlier ones."""
        channel = self._channel
        if channel is None or self._ended:
            raise SourceUnavailable(self._ended or "not connected")
        try:
            await channel.basic_ack(messages[-1].handle, multiple=True)
        except Exception as error:
            raise _unavailable(error) from error

    async def close(self) -> None:
        """Close the connection."""
        connection, channel = self._connection, self._channel
        self._connection = self._channel = None
        if channel is not None and not channel.is_closed:
            with suppress(Exception):
                await channel.close()  # after the acknowledgements that are on their way
        if connection is not None:
            with suppress(Exception):
                await connection.close()

    def metrics(self) -> Mapping[str, float]:
        """Return how many messages RabbitMQ sent more than once."""
        return self._counts


def _tls_context(tls: TlsConfig | None) -> ssl.SSLContext:
    return ssl.create_default_context() if tls is None else client_context(tls)


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else str(value)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno and not error.strerror:
        return os.strerror(error.errno)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = (
        " ".join(str(one) for one in error.args if one is not None)
        if len(error.args) > 1
        else str(error)
    )
    return " ".join(_NUMBER.sub("", text).split())[:300] or type(error).__name__


def _unavailable(error: BaseException) -> SourceUnavailable:
    from aiormq.exceptions import ProbableAuthenticationError

    if isinstance(error, SourceUnavailable):
        return error
    text = _reason(error)
    if isinstance(error, ProbableAuthenticationError) or "Connection.Close" in text:
        return SourceUnavailable("the server refused the user or the virtual host", True)
    permanent = any(one in text for one in _OPERATOR) or isinstance(
        error, FileNotFoundError | ssl.SSLCertVerificationError
    )
    return SourceUnavailable(text, permanent)
