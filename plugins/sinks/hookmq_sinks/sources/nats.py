"""The `nats` source: messages from a JetStream stream through a durable consumer, or from subjects without a stream.

With JetStream, a message is acknowledged once this broker has committed it. With `once`, its sequence number in the
stream is its mark. The message is therefore not published again if the process is killed between the commit and the
acknowledgement.

Without JetStream, NATS stores nothing. Messages that arrive while this source is not running are lost. While the broker
is slow, messages that do not fit into `buffer` are lost too, but they are counted.

The subject ``plant.a`` becomes the topic ``plant/a``. Headers become user properties.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.files import check_regular
from hookmq_toolkit.tls_client import TlsConfig, client_context

from hookmq_sinks.record import Record
from hookmq_sinks.source import Incoming, Source, SourceContext, SourceUnavailable
from hookmq_sinks.source_message import MessageMaker, PublishConfig

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

_SCHEMES: Final = ("nats://", "tls://", "ws://", "wss://")
_WAIT: Final = 5.0
"""Duration of one request for messages, in seconds."""
_LATE: Final = 10.0
"""Seconds to wait for an acknowledgement from the stream."""


@dataclass(frozen=True)
class NatsSourceSettings:
    """The settings of a consumer on a NATS server or cluster."""

    publish: PublishConfig = field(metadata={"help": "how a message of NATS becomes one of MQTT"})
    subjects: tuple[str, ...] = setting(
        (), "subjects, such as plant.>; default with a stream: all subjects of it"
    )
    stream: str = setting("", "the stream; empty: the subjects are read without JetStream")
    durable: str = setting(
        "", "name of the durable consumer; default: hookmq- and the source's name"
    )
    start: Literal["first", "next"] = setting(
        "first", "where a new consumer begins: at the first message, or at the next one"
    )
    batch: int = setting(500, "most messages that are read at a time", minimum=1, maximum=5000)
    ack_wait: Seconds = setting(
        60.0, "time after which the stream sends a message again", minimum=1, maximum=86400
    )
    once: bool = setting(
        True, "whether sequence numbers are stored, so that no message is published twice"
    )
    buffer: Size = setting(
        8 << 20, "without JetStream: most bytes that wait to be published", minimum=1 << 16
    )
    servers: tuple[str, ...] = setting(
        ("nats://127.0.0.1:4222",), "addresses of the servers: nats://HOST:PORT, or tls://HOST:PORT"
    )
    user: str = setting("", "user name")
    password: str = field(default="", repr=False, metadata={"help": "password of the user"})
    token: str = field(default="", repr=False, metadata={"help": "token, instead of a user"})
    credentials: Path | None = setting(None, "file with a JWT and its seed (.creds)")
    tls: TlsConfig | None = setting(None, "files for TLS; addresses with tls:// use TLS without it")
    connect_timeout: Seconds = setting(5.0, "longest time for connecting", minimum=0.1, maximum=600)

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("servers: empty, but at least one is required")
        for one in self.servers:
            if not one.startswith(_SCHEMES):
                raise ConfigError(f"servers: {one!r}: expected nats://HOST:PORT")
            if "@" in one:
                raise ConfigError(
                    "servers: an address contains a user", hint="use `user`, `password` or `token`"
                )
        if self.token and self.user:
            raise ConfigError("user: a token is set too, but only one of them can be used")
        if not self.stream and not self.subjects:
            raise ConfigError("subjects: required without a stream")
        for one in self.subjects:
            if not one or any(c.isspace() for c in one) or not all(one.split(".")):
                raise ConfigError(f"subjects: {one!r} is not a subject")
        for key in ("stream", "durable"):
            if any(c in ".*>/\\" or c.isspace() for c in getattr(self, key)):
                raise ConfigError(
                    f"{key}: {getattr(self, key)!r} contains a character that NATS forbids"
                )
        if self.durable and not self.stream:
            raise ConfigError("durable: needs `stream`")


class NatsSource(Source):
    """Reads a stream or subjects; see the module docstring."""

    Settings: ClassVar[type] = NatsSourceSettings
    extra = "nats"
    settings: NatsSourceSettings

    def __init__(self, settings: NatsSourceSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        self._maker = MessageMaker(settings.publish)
        self._client: Client | None = None
        self._pull: JetStreamContext.PullSubscription | None = None
        self._closed: asyncio.Future[None] | None = None
        self._error = ""
        self._queue: deque[Incoming] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self._counts = {"repeated": 0, "dropped": 0}

    @classmethod
    def local_filters(cls, settings: Any) -> Sequence[str]:
        """Return a filter that matches the topics of all messages."""
        found: Sequence[str] = (
            settings.publish.filters() if settings.once and settings.stream else ()
        )
        return found

    async def open(self) -> None:
        """Connect, and create the consumer if it is missing. A lost connection is not reopened."""
        from nats.aio.client import Client

        closed = self._closed = asyncio.get_running_loop().create_future()

        async def on_closed() -> None:
            if not closed.done():
                closed.set_result(None)
            self._more.set()

        async def on_error(error: Exception) -> None:
            self._error = _reason(error)

        client = self._client = Client()
        try:
            await client.connect(
                list(self.settings.servers),
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=on_error,
                closed_cb=on_closed,
                name=f"hookmq-sources {self.context.source}",
                **self._arguments(),
            )
            if self.settings.stream:
                await self._open_consumer(client)
            else:
                for subject in self.settings.subjects:
                    await client.subscribe(subject, cb=self._take)
                await client.flush()
        except Exception as error:
            raise self._unavailable(error) from error

    async def _open_consumer(self, client: "Client") -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
        from nats.js.errors import NotFoundError

        settings = self.settings
        stream = client.jetstream()
        name = settings.durable or f"hookmq-{self.context.source.replace('.', '_')}"
        try:
            found = await stream.consumer_info(settings.stream, name)
        except NotFoundError as error:
            if "stream not found" in str(error):
                raise SourceUnavailable(f"there is no stream {settings.stream}", True) from error
            new = settings.start == "next"
            subjects = list(settings.subjects)
            await stream.add_consumer(
                settings.stream,
                ConsumerConfig(
                    durable_name=name,
                    ack_policy=AckPolicy.EXPLICIT,
                    deliver_policy=DeliverPolicy.NEW if new else DeliverPolicy.ALL,
                    ack_wait=settings.ack_wait,
                    max_deliver=-1,
                    max_ack_pending=max(1000, settings.batch * 2),
                    filter_subject=subjects[0] if len(subjects) == 1 else None,
                    filter_subjects=subjects if len(subjects) > 1 else None,
                ),
            )
            await self.context.forget(list(self.context.marks))  # numbers of another consumer
        else:
            if found.config.ack_policy != AckPolicy.EXPLICIT:
                raise SourceUnavailable(
                    f"the consumer {name} has no explicit acknowledgements", True
                )
            floor = found.ack_floor.stream_seq if found.ack_floor is not None else 0
            done = [one for one in self.context.marks if one.isdecimal() and int(one) <= floor]
            await self.context.forget(done)
        self._pull = await stream.pull_subscribe_bind(name, settings.stream)

    # reading ---------------------------------------------------------------------------------------------------------

    async def read(self) -> Sequence[Incoming]:
        """Wait for messages."""
        if self._client is None or self._closed is None:
            raise SourceUnavailable("not connected")
        while True:
            if self._pull is not None:
                found = await self._fetch(self._pull, self._closed)
            else:
                found = [
                    self._queue.popleft() for _ in range(min(len(self._queue), self.settings.batch))
                ]
                self._bytes -= sum(one.size for one in found)
            if found:
                return found
            if self._closed.done():
                raise SourceUnavailable(self._error or "the connection ended")
            if self._pull is None:
                self._more.clear()
                await self._more.wait()

    async def _fetch(
        self, pull: "JetStreamContext.PullSubscription", closed: "asyncio.Future[None]"
    ) -> list[Incoming]:
        work = asyncio.ensure_future(pull.fetch(self.settings.batch, timeout=_WAIT))
        try:
            await asyncio.wait((work, closed), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise SourceUnavailable(self._error or "the connection ended")
            found = work.result()
        except TimeoutError:
            return []
        except (SourceUnavailable, asyncio.CancelledError):
            raise
        except Exception as error:
            raise self._unavailable(error) from error
        finally:
            _abandon(work)
        again = [one for one in found if self._number(one) in self.context.marks]
        if again:
            self._counts["repeated"] += len(again)
            await self._confirm(again)
        return [
            self._message(one, self._number(one)) for one in found if one not in again
        ]  # fmt: skip

    def _number(self, message: "Msg") -> str:
        return str(message.metadata.sequence.stream)

    def _message(self, message: "Msg", mark: str = "") -> Incoming:
        headers = tuple((name, str(value)) for name, value in (message.headers or {}).items())
        record = Record(
            mark, int(mark or 0), message.subject.replace(".", "/"), message.data, user_properties=headers,
            received_at=message.metadata.timestamp.timestamp() if mark else 0.0,
        )  # fmt: skip
        return self._maker.incoming(record, message, mark if self.settings.once else "")

    async def _take(self, message: "Msg") -> None:
        found = self._message(message)
        found.handle = None
        if self._bytes + found.size > self.settings.buffer:
            self._counts["dropped"] += 1
            return
        self._bytes += found.size
        self._queue.append(found)
        self._more.set()

    async def acknowledge(self, messages: Sequence[Incoming], codes: Sequence[int]) -> None:
        """Acknowledge the messages. Delete their marks once the stream has confirmed the acknowledgements."""
        if self._pull is not None:
            await self._confirm([one.handle for one in messages])

    async def _confirm(self, messages: Sequence["Msg"]) -> None:
        work = asyncio.gather(*(one.ack_sync(timeout=_LATE) for one in messages))
        assert self._closed is not None
        try:
            await asyncio.wait((work, self._closed), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise SourceUnavailable(self._error or "the connection ended")
            work.result()
        except (SourceUnavailable, asyncio.CancelledError):
            raise
        except TimeoutError as error:
            raise SourceUnavailable("the stream did not confirm an acknowledgement") from error
        except Exception as error:
            raise self._unavailable(error) from error
        finally:
            _abandon(work)
        numbers = [self._number(one) for one in messages]
        await self.context.forget([one for one in numbers if one in self.context.marks])

    async def close(self) -> None:
        """Close the connection."""
        client, self._client, self._pull = self._client, None, None
        if client is not None:
            with suppress(Exception):
                await client.close()

    def metrics(self) -> Mapping[str, float]:
        """Return how many messages arrived again after being published, and how many did not fit into the buffer."""
        return self._counts

    # connecting ------------------------------------------------------------------------------------------------------

    def _arguments(self) -> dict[str, Any]:
        settings = self.settings
        found: dict[str, Any] = {"connect_timeout": settings.connect_timeout}
        if settings.user:
            found |= {"user": settings.user, "password": settings.password}
        if settings.token:
            found["token"] = settings.token
        if settings.credentials is not None:
            check_regular(settings.credentials)
            found["user_credentials"] = str(settings.credentials)
        if settings.tls is not None:
            found["tls"] = client_context(settings.tls)
        elif any(one.startswith(("tls://", "wss://")) for one in settings.servers):
            found["tls"] = ssl.create_default_context()
        return found

    def _unavailable(self, error: BaseException) -> SourceUnavailable:
        if isinstance(error, SourceUnavailable):
            return error
        text = self._error or _reason(error)
        lower = text.lower()
        permanent = "authorization" in lower or "certificate" in lower or "permissions" in lower
        return SourceUnavailable(text, permanent or isinstance(error, FileNotFoundError))


def _abandon(work: "asyncio.Future[Any]") -> None:
    """Cancel a request whose result is no longer needed. Suppress its error, such as a closed connection."""
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    work.cancel()


def _reason(error: BaseException) -> str:
    from nats.js.errors import APIError

    if isinstance(error, APIError):
        return error.description or str(error)
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}"
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__
