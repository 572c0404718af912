"""The `rabbitmq` driver: messages for RabbitMQ exchanges, over AMQP 0.9.1.

RabbitMQ confirms a message once the queues have it. If both queue and message are persistent, the message is then on
disk. The driver publishes a batch in order and waits for all confirmations. If one does not arrive, the batch is
repeated, so a message can be in a queue twice. Both copies have the same ``message_id`` property, so consumers can
ignore ids that they have already seen.

With `mandatory`, RabbitMQ returns a message that is not routed to any queue. The driver then rejects its record.

A message's user properties become headers. The headers ``mqtt-topic`` and ``mqtt-client-id`` say where the message
comes from.
"""

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from urllib.parse import urlsplit

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
    from aio_pika.abc import AbstractConnection
    from aiormq.abc import AbstractChannel
    from pamqp.commands import Basic


class Message(NamedTuple):
    """A message with its exchange and routing key."""

    exchange: str
    routing_key: str
    body: bytes
    properties: "Basic.Properties"


_WINDOW: Final = 2000
"""The maximum number of unconfirmed messages."""
_PATIENCE: Final = 2.0
"""If no confirmation arrives for this many seconds, the driver asks whether RabbitMQ blocks publishers."""
_SHORT: Final = 255
"""The maximum size of a short string in AMQP, such as a routing key, in bytes."""
_FRAME_MAX: Final = 131_072
"""The maximum frame size that RabbitMQ accepts by default. All properties of a message must fit into one."""
_OTHERS: Final = 2048
"""Space reserved for a message's properties other than headers."""
_SIZE: Final = re.compile(r"message size \d+ (?:is )?larger than (?:configured )?max size (\d+)")
_PASSING: Final = ("is down", "timeout", "connection limit", "is stopping")
"""Words in refusals that are temporary."""


@dataclass(frozen=True)
class RabbitMqSettings:
    """The settings of a RabbitMQ server."""

    url: str = setting(
        "amqp://127.0.0.1:5672", "the server: amqp://HOST:PORT, or amqps://HOST:PORT for TLS"
    )
    virtual_host: str = setting("/", "the virtual host")
    exchange: str = template_setting(
        "amq.topic", "the exchange; it must exist. Empty: the routing key is the name of a queue"
    )
    routing_key: str = template_setting("${topic}", "the routing key")
    separator: str = setting(
        ".", "what each / of a routing key becomes: plant/a is plant.a; set / to keep it"
    )
    headers: Mapping[str, Any] = template_setting(
        {}, "more headers and their templates; a header is left out if its template has no value"
    )
    user_properties: bool = setting(True, "whether the user properties of a message become headers")
    content_type: str = template_setting("", "the content type; default: that of the message")
    persistent: bool = setting(True, "whether durable queues keep the messages on disk")
    mandatory: bool = setting(
        True, "reject messages that no queue takes; false loses them without a word"
    )
    user: str = setting("guest", "user name")
    password: str = setting("guest", "password")
    tls: TlsConfig | None = setting(None, "files for TLS, with amqps://")
    connect_timeout: Seconds = setting(5.0, "longest time for connecting", minimum=0.1, maximum=600)

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self.tls is not None and not self.url.startswith("amqps://"):
            raise ConfigError("tls: needs amqps:// in url")
        if not self.virtual_host:
            raise ConfigError("virtual_host: empty; the first one is /")
        if not self.routing_key and not self.exchange:
            raise ConfigError("routing_key: required without an exchange, as the name of a queue")
        for name, text in self.headers.items():
            if not isinstance(text, str):
                raise ConfigError(f"headers.{name}: expected a template, found {text!r}")
            if not _is_header(name):
                raise ConfigError(f"headers.{name}: cannot be the name of a header")


class RabbitMqDriver(Driver):
    """Publishes messages; see the module docstring."""

    Settings: ClassVar[type] = RabbitMqSettings
    extra = "rabbitmq"
    settings: RabbitMqSettings

    def __init__(self, settings: RabbitMqSettings, context: DriverContext) -> None:
        super().__init__(settings, context)
        self._exchange = RecordTemplate(settings.exchange, "exchange")
        self._routing_key = RecordTemplate(settings.routing_key, "routing_key")
        self._content_type = (
            RecordTemplate(settings.content_type, "content_type") if settings.content_type else None
        )
        self._headers = {
            name: RecordTemplate(text, f"headers.{name}") for name, text in settings.headers.items()
        }
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._frame_max = _FRAME_MAX

    async def open(self) -> Position | None:
        """Connect, and open a channel with publisher confirms."""
        import aio_pika

        for name in ("aio_pika", "aiormq"):
            # The engine logs the reasons. Without a handler, Python would print them a second time.
            library = logging.getLogger(name)
            if not library.handlers:
                library.addHandler(logging.NullHandler())
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
                    name=f"hookmq-sinks {self.context.sink}",
                )
                self._channel = await self._open_channel()
        except Exception as error:
            raise _unavailable(error) from error
        self._frame_max = self._channel.connection.connection_tune.frame_max or _FRAME_MAX
        return None

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return a problem if the sample's exchange does not exist. For the default exchange, check the sample's queue
        instead.
        """
        from aiormq.exceptions import ChannelLockedResource, ChannelNotFoundEntity

        try:
            if sample is not None:
                message = self._message(sample)
                exchange, key = message.exchange, message.routing_key
            elif self._exchange.constant:
                exchange, key = self._exchange.text, ""
            else:
                return ()
        except RecordError as error:
            return [Problem("", str(error))]
        try:
            channel = await self._open_channel()
            try:
                if exchange:
                    await channel.exchange_declare(exchange, passive=True)
                elif key:
                    await channel.queue_declare(key, passive=True)
            except ChannelLockedResource:
                pass  # an exclusive queue of another connection, which exists
            except ChannelNotFoundEntity:
                host = self.settings.virtual_host
                if exchange:
                    text = f"there is no exchange {exchange} in the virtual host {host}"
                    return [Problem("exchange", text, "create it; sinks create no exchange")]
                text = f"there is no queue {key} in the virtual host {host}"
                return [Problem("routing_key", text, "create it; sinks create no queue")]
            if not channel.is_closed:
                await channel.close()
        except Exception as error:
            raise _unavailable(error) from error
        return ()

    async def write(self, batch: Batch) -> None:
        """Publish all messages in order, and wait until each is confirmed."""
        messages = make_each(batch, self._message)
        reasons: dict[int, str] = {}
        for at in range(0, len(messages), _WINDOW):
            for index, reason in enumerate(await self._publish(messages[at : at + _WINDOW])):
                if reason:
                    reasons[at + index] = reason
        if reasons:
            raise Rejected(reasons, stored=True)

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                await connection.close()

    # messages --------------------------------------------------------------------------------------------------------

    def _message(self, record: Record) -> Message:
        from pamqp.commands import Basic

        routing_key = self._routing_key.fill(record).replace("/", self.settings.separator)
        content_type = record.content_type
        if self._content_type is not None:
            content_type = self._content_type.fill(record)
        properties = Basic.Properties(
            content_type=_short(content_type, "content type") if content_type else None,
            headers=self._headers_of(record),
            delivery_mode=2 if self.settings.persistent else 1,
            message_id=_short(record.id, "id"),
            timestamp=datetime.fromtimestamp(int(record.received_at), UTC),
            app_id="hookmq",
        )
        exchange = self._exchange.fill(record)
        try:
            Basic.Publish(exchange=exchange, routing_key=_short(routing_key, "routing key"))
        except ValueError as error:
            raise RecordError(f"AMQP does not take the exchange {exchange!r}: {error}") from None
        return Message(exchange, routing_key, record.body, properties)

    def _headers_of(self, record: Record) -> dict[str, Any]:
        headers: dict[str, Any] = {}
        if self.settings.user_properties:
            headers = {name: value for name, value in record.user_properties if _is_header(name)}
        headers["mqtt-topic"] = record.topic
        if record.client_id is not None:
            headers["mqtt-client-id"] = record.client_id
        for name, template in self._headers.items():
            value = template.optional(record)
            if value is not None:
                headers[name] = _header_value(value)
        # RabbitMQ closes the connection after a frame that is too large.
        size = sum(len(name.encode()) + _size(value) for name, value in headers.items())
        if size > self._frame_max - _OTHERS:
            raise RecordError(
                f"the headers have {size} bytes, but RabbitMQ takes at most {self._frame_max - _OTHERS}"
            )
        return headers

    # publishing ------------------------------------------------------------------------------------------------------

    async def _open_channel(self) -> "AbstractChannel":
        assert self._connection is not None
        transport = self._connection.transport
        if transport is None:
            raise TargetUnavailable("the connection ended")
        return await transport.connection.channel(publisher_confirms=True, on_return_raises=True)

    async def _publish(self, messages: Sequence[Message]) -> list[str]:
        """Publish messages. For each message, return why RabbitMQ returned it, or '' if a queue has it."""
        assert self._channel is not None
        channel = self._channel
        # Tasks start in this order, and the channel's lock lets them write in the order in which they ask for it.
        tasks = [asyncio.ensure_future(self._publish_one(channel, one)) for one in messages]
        waiting: set[asyncio.Future[str]] = set(tasks)
        try:
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, timeout=_PATIENCE, return_when=asyncio.FIRST_EXCEPTION
                )
                for one in done:
                    if one.cancelled() or one.exception() is not None:
                        raise await self._failed(messages, one)
                if waiting and not done:
                    await self._check_blocked(channel)
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [one.result() for one in tasks]

    async def _publish_one(self, channel: "AbstractChannel", message: Message) -> str:
        from aiormq.exceptions import PublishError

        try:
            await channel.basic_publish(
                message.body,
                exchange=message.exchange,
                routing_key=message.routing_key,
                properties=message.properties,
                mandatory=self.settings.mandatory,
            )
        except PublishError as error:
            why = str(error.args[0]).replace("_", " ").lower()
            return f"{why}: the exchange {message.exchange or '(default)'} has no queue for {message.routing_key}"
        return ""

    async def _failed(
        self, messages: Sequence[Message], task: "asyncio.Future[str]"
    ) -> TargetUnavailable | Rejected:
        """Return the error for a batch in which a message was neither confirmed nor returned."""
        from aiormq.exceptions import ChannelPreconditionFailed

        if task.cancelled():
            return TargetUnavailable("the connection ended")
        error = task.exception()
        assert error is not None
        found = _SIZE.search(str(error))
        if isinstance(error, ChannelPreconditionFailed) and found:
            limit = int(found[1])
            large = {
                index: f"{len(one.body)} bytes, but RabbitMQ takes at most {limit}"
                for index, one in enumerate(messages)
                if len(one.body) > limit
            }
            if large:
                # RabbitMQ has closed the channel. The messages before this one are written again.
                try:
                    self._channel = await self._open_channel()
                except Exception as again:
                    return _unavailable(again)
                return Rejected(large)
        return _unavailable(error)

    async def _check_blocked(self, channel: "AbstractChannel") -> None:
        if channel.is_closed:
            raise TargetUnavailable("the connection ended")
        try:
            async with asyncio.timeout(0):
                await channel.connection.ready()
        except TimeoutError:
            raise TargetUnavailable(
                "RabbitMQ blocks publishers, because it lacks memory or disk space"
            ) from None


def _check_url(url: str) -> None:
    if not url.startswith(("amqp://", "amqps://")):
        raise ConfigError("url: expected amqp://HOST:PORT or amqps://HOST:PORT")
    if "@" in url:
        raise ConfigError("url: contains a user", hint="use `user` and `password`")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"url: {error}") from None
    if not parts.hostname or port == 0:
        raise ConfigError("url: expected amqp://HOST:PORT or amqps://HOST:PORT")
    if parts.path or parts.query or parts.fragment:
        raise ConfigError("url: ends after the port", hint="use `virtual_host`")


def _tls_context(tls: TlsConfig | None) -> ssl.SSLContext:
    return client_context(tls) if tls is not None else ssl.create_default_context()


def _short(text: str, what: str) -> str:
    size = len(text.encode())
    if size > _SHORT:
        raise RecordError(f"the {what} has {size} bytes, but AMQP takes at most {_SHORT}")
    return text


def _is_header(name: str) -> bool:
    """Return whether a header may have this name. RabbitMQ acts on some headers: CC and BCC send a message to
    additional queues.
    """
    lower = name.lower()
    acted_on = lower in ("cc", "bcc") or lower.startswith("x-")
    return 0 < len(name.encode()) <= 128 and not acted_on


def _header_value(value: Any) -> Any:
    """Convert a value for use in a header. Booleans and integers keep their types, and all others become text.

    This includes floats, because the client library would send them in single precision.
    """
    if isinstance(value, bool) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63):
        return value
    if isinstance(value, str):
        return value
    return to_bytes(value).decode(errors="replace")


def _size(value: Any) -> int:
    """Return the encoded size of a header value in bytes, including its type and the lengths of its name and value."""
    return 16 if isinstance(value, int) else len(value.encode()) + 6


def _unavailable(error: BaseException) -> TargetUnavailable:
    """Return the error for the engine. The error is permanent if an operator must act."""
    from aiormq.exceptions import (
        AuthenticationError,
        ChannelAccessRefused,
        ChannelNotFoundEntity,
        ChannelPreconditionFailed,
        ConnectionClosed,
        ConnectionNotAllowed,
        DeliveryError,
        ProbableAuthenticationError,
    )
    from pamqp.commands import Connection

    if isinstance(error, TargetUnavailable):
        return error
    for one in error.args:
        # aiormq wraps the refusal of a virtual host in an error of its own.
        if isinstance(one, Connection.Close):
            error = ConnectionClosed(one.reply_code, one.reply_text)
            break
    if isinstance(error, TimeoutError):
        return TargetUnavailable("no answer in time")
    if isinstance(error, DeliveryError):
        return TargetUnavailable("RabbitMQ refused a message: a queue is full, or has failed")
    text = _reason(error)
    refused = isinstance(
        error,
        AuthenticationError
        | ChannelAccessRefused
        | ChannelNotFoundEntity
        | ChannelPreconditionFailed
        | ConnectionNotAllowed
        | ProbableAuthenticationError,
    ) or (isinstance(error, ConnectionClosed) and error.args[0] in (402, 403, 530))
    refused = refused or isinstance(error, ValueError)  # the client library refuses a name
    certificate = "certificate" in text.lower() or isinstance(error, FileNotFoundError)
    passing = any(one in text for one in _PASSING)
    return TargetUnavailable(text, (refused and not passing) or certificate)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        # asyncio replaces the system's error message with "Connect call failed".
        known = "Connect call failed" not in error.strerror
        return f"{name}{error.strerror if known else os.strerror(error.errno)}"
    words = [str(one) for one in error.args if not isinstance(one, int)]
    return " ".join(" ".join(words).split()) or type(error).__name__
