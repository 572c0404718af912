"""The `nats` driver: messages for a NATS JetStream stream, or for NATS subscribers that are online.

With JetStream, the stream confirms every message, which has the header ``Nats-Msg-Id``. The stream ignores an id that
it has seen within its duplicate window. Messages repeated after a failure are therefore not duplicated, provided that
the sink repeats them within that window. Without JetStream, only subscribers that are online get a message.

A message's user properties become headers. The headers ``Mqtt-Topic``, ``Mqtt-Content-Type`` and ``Mqtt-Client-Id`` say
where the message comes from.
"""

import asyncio
import json
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from hookmq.plugin import ConfigError, Seconds, setting
from hookmq_toolkit.files import check_regular
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
)

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext


class Refusal(NamedTuple):
    """Why a stream did not store a message: an HTTP-like status, JetStream's error code, and a description."""

    status: int
    code: int
    reason: str


Message = tuple[str, bytes, dict[str, str]]
"""Subject, payload and headers."""

_SCHEMES: Final = ("nats://", "tls://", "ws://", "wss://")
_WINDOW: Final = 4000
"""The maximum number of unconfirmed messages."""
_PASSING: Final = frozenset({10008, 10077, 10164})
"""JetStream error codes for temporary problems, although the status is 400: no leader, stream full, busy."""
_WRONG_STREAM: Final = 10060


@dataclass(frozen=True)
class NatsSettings:
    """The settings of a NATS server or cluster."""

    servers: tuple[str, ...] = setting(
        ("nats://127.0.0.1:4222",), "addresses of the servers: nats://HOST:PORT, or tls://HOST:PORT"
    )
    subject: str = template_setting(
        "${topic}", "the subject; each / becomes a dot: plant/a is plant.a"
    )
    jetstream: bool = setting(
        True, "wait until a stream has stored each message; false reaches online subscribers only"
    )
    stream: str = setting("", "the stream that must store the messages; default: any stream")
    user: str = setting("", "user name")
    password: str = setting("", "password of the user")
    token: str = setting("", "token, instead of a user")
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
        if self.stream and not self.jetstream:
            raise ConfigError("stream: needs `jetstream: true`")


class NatsDriver(Driver):
    """Publishes to NATS; see the module docstring."""

    Settings: ClassVar[type] = NatsSettings
    extra = "nats"
    settings: NatsSettings

    def __init__(self, settings: NatsSettings, context: DriverContext) -> None:
        super().__init__(settings, context)
        self._subject = RecordTemplate(settings.subject, "subject")
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._inbox = ""
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Refusal | None]] = {}
        self._closed: asyncio.Future[None] | None = None
        self._error = ""

    async def open(self) -> Position | None:
        """Connect to one of the servers. A lost connection is not reopened. Instead, the engine creates a new driver
        object.
        """
        from nats.aio.client import Client

        closed = self._closed = asyncio.get_running_loop().create_future()

        async def on_closed() -> None:
            if not closed.done():
                closed.set_result(None)

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
                name=f"hookmq-sinks {self.context.sink}",
                **self._arguments(),
            )
            if self.settings.jetstream:
                self._stream = client.jetstream()
                self._inbox = client.new_inbox()
                await client.subscribe(f"{self._inbox}.*", cb=self._on_reply)
        except Exception as error:
            raise self._unavailable(error) from error
        return None

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return a problem if no stream accepts the sample's subject, or if its payload is too large."""
        from nats.js.errors import NotFoundError

        client = self._client
        assert client is not None
        try:
            if self._stream is not None and self.settings.stream:
                await self._stream.stream_info(self.settings.stream)
            if sample is None:
                return ()
            subject, payload, _ = self._message(sample)
            if len(payload) > client.max_payload:
                return [Problem("", self._too_large(payload))]
            if self._stream is not None:
                found = await self._stream.find_stream_name_by_subject(subject)
                if self.settings.stream not in ("", found):
                    return [
                        Problem(
                            "subject",
                            f"{subject} is stored by the stream {found}, not {self.settings.stream}",
                        )
                    ]
        except RecordError as error:
            return [Problem("subject", str(error))]
        except NotFoundError:
            if sample is None or self.settings.stream:
                return [Problem("stream", f"there is no stream {self.settings.stream}")]
            return [
                Problem("subject", f"no stream stores {subject}", "create a stream with it, or set jetstream: false")
            ]  # fmt: skip
        except Exception as error:
            raise self._unavailable(error) from error
        return ()

    async def write(self, batch: Batch) -> None:
        """Publish all messages in order, and wait until each is confirmed."""
        client, closed = self._client, self._closed
        assert client is not None
        assert closed is not None
        messages = make_each(batch, self._message)
        large = {
            index: self._too_large(payload)
            for index, (_, payload, _) in enumerate(messages)
            if len(payload) > client.max_payload
        }
        if large:
            raise Rejected(large)
        work = asyncio.ensure_future(
            self._publish(client, messages)
            if self._stream is not None
            else self._send(client, messages)
        )
        try:
            await asyncio.wait((work, closed), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise TargetUnavailable(self._error or "the connection ended")
            work.result()
        except (TargetUnavailable, Rejected, asyncio.CancelledError):
            raise
        except Exception as error:
            raise self._unavailable(error) from error
        finally:
            if not work.done():
                work.cancel()

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                await client.close()

    # messages --------------------------------------------------------------------------------------------------------

    def _message(self, record: Record) -> Message:
        subject = self._subject.fill(record).replace("/", ".")
        for bad in (" ", "*", ">", "\t", "\r", "\n"):
            if bad in subject:
                raise RecordError(f"a subject of NATS cannot contain {bad!r}: {subject!r}")
        if (
            not subject
            or subject.startswith((".", "$"))
            or subject.endswith(".")
            or ".." in subject
        ):
            raise RecordError(f"not a subject of NATS: {subject!r}")
        headers = {
            _header(name): _value(value)
            for name, value in record.user_properties
            if _header(name) and not name.lower().startswith("nats-")
        }
        headers["Mqtt-Topic"] = _value(record.topic)
        if record.content_type:
            headers["Mqtt-Content-Type"] = _value(record.content_type)
        if record.client_id is not None:
            headers["Mqtt-Client-Id"] = _value(record.client_id)
        if self.settings.jetstream:
            headers["Nats-Msg-Id"] = record.id
        return subject, record.body, headers

    def _too_large(self, payload: bytes) -> str:
        assert self._client is not None
        return f"{len(payload)} bytes, but the server takes at most {self._client.max_payload}"

    # publishing ------------------------------------------------------------------------------------------------------

    async def _send(self, client: "Client", messages: list[Message]) -> None:
        for subject, payload, headers in messages:
            await client.publish(subject, payload, headers=headers)
        await client.flush()

    async def _publish(self, client: "Client", messages: list[Message]) -> None:
        # publish_async of nats-py never completes if the stream refuses a message.
        expected = {"Nats-Expected-Stream": self.settings.stream} if self.settings.stream else {}
        loop = asyncio.get_running_loop()
        confirmed: list[asyncio.Future[Refusal | None]] = []
        for at in range(0, len(messages), _WINDOW):
            window: list[asyncio.Future[Refusal | None]] = []
            for subject, payload, headers in messages[at : at + _WINDOW]:
                self._number += 1
                future = self._waiting[self._number] = loop.create_future()
                window.append(future)
                reply = f"{self._inbox}.{self._number}"
                await client.publish(subject, payload, reply=reply, headers={**headers, **expected})
            await client.flush()
            await asyncio.wait(window)
            confirmed += window
        reasons: dict[int, str] = {}
        for index, one in enumerate(confirmed):
            refusal = one.result()
            if refusal is not None:
                reasons[index] = self._reason_of(refusal, messages[index][0])
        if reasons:
            raise Rejected(reasons, stored=True)

    async def _on_reply(self, message: Any) -> None:
        """Record whether a stream stored or refused a message."""
        future = self._waiting.pop(int(message.subject.rpartition(".")[2]), None)
        if future is None or future.done():
            return
        if message.headers and message.headers.get("Status") == "503":
            future.set_result(Refusal(503, 0, ""))
            return
        error = json.loads(message.data).get("error")
        future.set_result(
            error
            and Refusal(
                error["code"], error.get("err_code", 0), error.get("description", "refused")
            )
        )

    def _reason_of(self, refusal: Refusal, subject: str) -> str:
        """Return why the stream can never accept a message. Raises TargetUnavailable if it may accept the message
        later."""
        if refusal.status == 503 and not refusal.code:
            raise TargetUnavailable(f"no stream stores {subject}", True)
        if refusal.code == _WRONG_STREAM:
            raise TargetUnavailable(f"{subject} is not stored by {self.settings.stream}", True)
        if refusal.status == 400 and refusal.code not in _PASSING:
            return refusal.reason
        raise TargetUnavailable(refusal.reason)

    # errors ----------------------------------------------------------------------------------------------------------

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

    def _unavailable(self, error: BaseException) -> TargetUnavailable:
        text = self._error or _reason(error)
        lower = text.lower()
        permanent = "authorization" in lower or "certificate" in lower or "permissions" in lower
        return TargetUnavailable(text, permanent or isinstance(error, FileNotFoundError))


def _reason(error: BaseException) -> str:
    from nats.js.errors import APIError

    if isinstance(error, APIError):
        return error.description or str(error)
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}"
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__


def _header(name: str) -> str:
    """Convert a user property's name to a header name. Return '' if that is not possible."""
    if name and all("!" <= one <= "~" and one != ":" for one in name):
        return name
    return ""


def _value(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ").strip()
