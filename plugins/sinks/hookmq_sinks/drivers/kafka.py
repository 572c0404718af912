"""The `kafka` driver: messages in topics of Apache Kafka and compatible clusters.

The producer is idempotent and waits for all in-sync replicas (``acks=all``). Retries within a connection therefore
neither duplicate messages nor change their order. A batch repeated after a failure gets new sequence numbers, so its
messages can appear in the topic twice. Both copies have the same ``hookmq-id`` header, so consumers can recognize them.

A message's user properties become headers. The headers ``mqtt-topic``, ``mqtt-content-type`` and ``mqtt-client-id`` say
where the message comes from. The timestamp is the time when the broker received the message.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from hookmq.plugin import ConfigError, Seconds, Size, setting
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
    from confluent_kafka import KafkaError, Producer

T = TypeVar("T")

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_AGO: Final = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")
_OWN_HEADERS: Final = ("mqtt-", "hookmq-")
_LOGGER: Final = logging.getLogger("hookmq_sinks.kafka")
"""Receives the log of librdkafka, which would otherwise go to standard error. The driver reports errors as reasons."""
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False
_SLICE: Final = 0.1
"""The longest time in seconds until the thread of a write notices that the driver is closed."""
_RETRIES: Final = 5000
"""Milliseconds that a new topic may take to appear."""
_MANAGED: Final = frozenset(
    {
        "bootstrap.servers", "enable.idempotence", "acks", "request.required.acks", "security.protocol",
        "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location",
        "ssl.certificate.location", "ssl.key.location", "compression.type", "compression.codec",
        "message.max.bytes", "message.timeout.ms", "delivery.timeout.ms", "transactional.id", "linger.ms",
        "queue.buffering.max.ms", "enable.ssl.certificate.verification",
        "ssl.endpoint.identification.algorithm", "plugin.library.paths", "partitioner",
    }
)  # fmt: skip
"""Options of librdkafka that other settings control, or that would weaken the sink's guarantees."""


@dataclass(frozen=True)
class SaslConfig:
    """SASL credentials for the cluster."""

    user: str = setting("", "user name")
    password: str = setting("", "password of the user")
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = setting(
        "SCRAM-SHA-512", "how the password is checked"
    )

    def __post_init__(self) -> None:
        if not self.user:
            raise ConfigError("user: missing or empty")


@dataclass(frozen=True)
class KafkaSettings:
    """The settings of a Kafka cluster and its topics."""

    topic: str = template_setting(
        help="the topic; each / becomes a dot: with ${topic}, plant/a is plant.a"
    )
    servers: tuple[str, ...] = setting(
        ("127.0.0.1:9092",), "addresses of some brokers, HOST:PORT; the others are found"
    )
    key: str = template_setting("", "the key of a message; default: the sink's `key`, or none")
    headers: Mapping[str, str] = template_setting({}, "further headers and their templates")
    tombstones: bool = setting(
        False, "an empty payload has no value; a compacted topic then deletes the key"
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        "lz4", "how batches are compressed"
    )
    partitioner: Literal["murmur2_random", "consistent_random", "fnv1a_random"] = setting(
        "murmur2_random", "how a key finds its partition; murmur2_random is that of Java's clients"
    )
    max_message: Size = setting(
        1_000_000, "largest size of a message; the topic's max.message.bytes must allow it",
        minimum=1000, maximum=1_000_000_000,
    )  # fmt: skip
    linger: Seconds = setting(0.005, "time in which messages are collected", maximum=10)
    confirm_timeout: Seconds = setting(
        25.0, "longest time for the confirmation of a message; less than the sink's `timeout`",
        minimum=1, maximum=3600,
    )  # fmt: skip
    connect_timeout: Seconds = setting(5.0, "longest time for connecting", minimum=0.1, maximum=600)
    sasl: SaslConfig | None = setting(None, "the user; default: none")
    tls: TlsConfig | None = setting(None, "files for TLS; {} is TLS with the system's authorities")
    options: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "further options of librdkafka, by name"}
    )

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("servers: empty, but at least one is required")
        for one in self.servers:
            if "@" in one:
                raise ConfigError("servers: an address contains a user", hint="use `sasl`")
            if not _SERVER.fullmatch(one):
                raise ConfigError(f"servers: {one!r}: expected HOST:PORT")
        for name in self.headers:
            if not name or name.startswith(_OWN_HEADERS):
                raise ConfigError(f"headers: {name!r} is a name of the driver's own headers")
        for name in self.options:
            if name in _MANAGED or name.startswith("test."):
                raise ConfigError(f"options: {name} cannot be set here")
        found = RecordTemplate(self.topic, "topic")
        if found.constant:
            try:
                topic_name(self.topic)
            except RecordError as error:
                raise ConfigError(f"topic: {error}") from None


class Message(NamedTuple):
    """The Kafka message for a record."""

    topic: str
    value: bytes | None
    key: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes]]


class KafkaDriver(Driver):
    """Produces to Kafka; see the module docstring."""

    Settings: ClassVar[type] = KafkaSettings
    extra = "kafka"
    settings: KafkaSettings

    def __init__(self, settings: KafkaSettings, context: DriverContext) -> None:
        super().__init__(settings, context)
        self._topic = RecordTemplate(settings.topic, "topic")
        self._key = RecordTemplate(settings.key, "key") if settings.key else None
        self._headers = [
            (name, RecordTemplate(text, f"headers.{name}"))
            for name, text in settings.headers.items()
        ]
        self._producer: Producer | None = None
        self._closed = False
        self._error: KafkaError | None = None

    async def open(self) -> Position | None:
        """Connect to the cluster and read its list of brokers. librdkafka reconnects by itself."""
        from confluent_kafka import KafkaException, Producer

        def connect() -> None:
            if self.settings.tls is not None:
                client_context(self.settings.tls)  # librdkafka does not name the file
            producer = Producer(self._options(), logger=_LOGGER)
            if self._closed:
                return
            self._producer = producer
            try:
                producer.list_topics("", self.settings.connect_timeout)
            finally:
                producer.poll(0)

        try:
            await asyncio.to_thread(connect)
        except KafkaException as error:
            raise self._unavailable(error.args[0]) from error
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            raise TargetUnavailable(f"{name}{error.strerror or error}", True) from error
        return None

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return a problem if the sample's topic does not exist, or if the sample is too large."""
        from confluent_kafka import KafkaException

        producer = self._producer
        assert producer is not None
        try:
            if sample is not None:
                message = self._message(sample)
                name = message.topic
                size = len(message.value or b"") + len(message.key or b"")
                if size > self.settings.max_message:
                    return [Problem("max_message", f"the sample has {size} bytes")]
            elif self._topic.constant:
                name = topic_name(self.settings.topic)
            else:
                return ()
        except RecordError as error:
            return [Problem("topic", str(error))]
        try:
            # Asking for one topic would create it.
            found = await asyncio.to_thread(
                lambda: producer.list_topics(timeout=self.settings.connect_timeout)
            )
        except KafkaException as error:
            raise self._unavailable(error.args[0]) from error
        if name not in found.topics:
            hint = "create it, unless the cluster creates topics by itself"
            return [
                Problem(
                    "topic", f"the topic {name} does not exist, or the user may not see it", hint
                )
            ]
        return ()

    async def write(self, batch: Batch) -> None:
        """Produce all messages in order, and wait for the delivery report of each."""
        messages = make_each(batch, self._message)
        producer = self._producer
        assert producer is not None
        self._error = None
        errors = await asyncio.to_thread(self._produce, producer, messages)
        reasons: dict[int, str] = {}
        for index, error in errors.items():
            reasons[index] = self._reason_of(error, messages[index].topic)
        if reasons:
            raise Rejected(reasons, stored=True)

    async def close(self) -> None:
        """Discard unsent messages, and close the connections."""
        self._closed = True
        producer, self._producer = self._producer, None
        if producer is not None:
            # Drop the last reference in the thread, because destroying a producer waits for its own threads.
            discard = partial(_discard, [producer])
            del producer
            await asyncio.to_thread(discard)

    # messages --------------------------------------------------------------------------------------------------------

    def _message(self, record: Record) -> Message:
        key = self._key.fill(record) if self._key is not None else record.key
        body = record.body
        headers = [
            (name, value.encode())
            for name, value in record.user_properties
            if name and not name.lower().startswith(_OWN_HEADERS)
        ]
        headers += [(name, template.fill(record).encode()) for name, template in self._headers]
        headers += [("hookmq-id", record.id.encode()), ("mqtt-topic", record.topic.encode())]
        if record.content_type:
            headers.append(("mqtt-content-type", record.content_type.encode()))
        if record.client_id is not None:
            headers.append(("mqtt-client-id", record.client_id.encode()))
        return Message(
            topic_name(self._topic.fill(record)),
            None if not body and self.settings.tombstones else body,
            None if key is None else key.encode(),
            int(record.received_at * 1000),
            headers,
        )

    # producing; these methods run in a thread ------------------------------------------------------------------------

    def _produce(self, producer: "Producer", messages: list[Message]) -> dict[int, "KafkaError"]:
        """Produce messages. Return the errors of messages that were not stored, by index."""
        from confluent_kafka import KafkaError

        errors = self._produce_some(producer, dict(enumerate(messages)))
        # The broker refuses a whole request because of one message. Produce each message again, alone.
        shared = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, 18, 32)
        for index in sorted(errors):
            if errors[index].code() in shared and len(messages) > 1:
                del errors[index]
                errors |= self._produce_some(producer, {index: messages[index]})
        return errors

    def _produce_some(
        self, producer: "Producer", messages: Mapping[int, Message]
    ) -> dict[int, "KafkaError"]:
        from confluent_kafka import KafkaException

        errors: dict[int, KafkaError] = {}
        waiting = set(messages)

        def report(index: int, error: "KafkaError | None", message: object) -> None:
            waiting.discard(index)
            if error is not None:
                errors[index] = error

        for index, one in messages.items():
            try:
                self._queue(producer, one, partial(report, index))
            except KafkaException as error:
                report(index, error.args[0], None)
        while waiting and not self._closed:
            producer.flush(_SLICE)
        if waiting:
            raise TargetUnavailable("the driver was closed")
        return errors

    def _queue(self, producer: "Producer", message: Message, report: Callable[..., None]) -> None:
        """Put a message into the producer's queue, and wait while the queue is full."""
        while not self._closed:
            try:
                producer.produce(
                    message.topic, message.value, message.key, timestamp=message.timestamp,
                    headers=list(message.headers), on_delivery=report,
                )  # fmt: skip
                producer.poll(0)
                return
            except BufferError:
                producer.poll(_SLICE)

    # errors ----------------------------------------------------------------------------------------------------------

    def _on_error(self, error: "KafkaError") -> None:
        """Remember a connection error, unless an earlier one names the cause more clearly."""
        if self._error is None or _weight(error) >= _weight(self._error):
            self._error = error

    def _reason_of(self, error: "KafkaError", topic: str) -> str:
        """Return why the cluster can never accept a message. Raises TargetUnavailable if it may accept the message
        later."""
        from confluent_kafka import KafkaError

        code = error.code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return f"the message is too large for max_message or the topic {topic}"
        if code in (KafkaError.INVALID_RECORD, KafkaError.TOPIC_EXCEPTION, 18, 32):
            return f"{topic}: {error.str()}"
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            if not self._topic.constant:
                return f"the topic {topic} does not exist"
            raise TargetUnavailable(f"the topic {topic} does not exist", True)
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise TargetUnavailable(f"the user may not write to {topic}", True)
        raise self._unavailable(error)

    def _unavailable(self, error: "KafkaError") -> TargetUnavailable:
        from confluent_kafka import KafkaError

        passing = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT)
        if error.code() in passing and self._error is not None:
            error = self._error
        permanent = error.code() in (
            KafkaError._AUTHENTICATION,
            KafkaError._SSL,
            KafkaError._INVALID_ARG,
            KafkaError._UNSUPPORTED_FEATURE,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.UNSUPPORTED_SASL_MECHANISM,
            76,  # the broker does not know the compression
        )
        return TargetUnavailable(_AGO.sub("", error.str()), permanent)

    def _options(self) -> dict[str, Any]:
        settings = self.settings
        tls, sasl = settings.tls, settings.sasl
        found: dict[str, Any] = {
            "client.id": f"hookmq-sinks {self.context.slot}",
            "topic.metadata.propagation.max.ms": _RETRIES,
            "log.connection.close": "false",
            **settings.options,
            "bootstrap.servers": ",".join(settings.servers),
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": settings.compression,
            "partitioner": settings.partitioner,
            "message.max.bytes": settings.max_message,
            "message.timeout.ms": int(settings.confirm_timeout * 1000),
            "linger.ms": settings.linger * 1000,
            "security.protocol": f"{'sasl_' if sasl else ''}{'plaintext' if tls is None else 'ssl'}",
            "error_cb": self._on_error,
        }
        if sasl is not None:
            found["sasl.mechanisms"] = sasl.mechanism
            found |= {"sasl.username": sasl.user, "sasl.password": sasl.password}
        if tls is not None:
            files = {
                "ssl.ca.location": tls.ca_file,
                "ssl.certificate.location": tls.cert_file,
                "ssl.key.location": tls.key_file or tls.cert_file,
            }
            found |= {name: str(path) for name, path in files.items() if path is not None}
        return found


def topic_name(text: str) -> str:
    """Convert text to the name of a Kafka topic. Raises RecordError if that is not possible."""
    name = text.replace("/", ".")
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise RecordError(f"not a topic of Kafka: {name[:300]!r}")
    return name


def _weight(error: "KafkaError") -> int:
    """Rank a connection error by how clearly it names the cause. A higher number is clearer."""
    from confluent_kafka import KafkaError

    if error.code() in (KafkaError._SSL, KafkaError._AUTHENTICATION) or "failed" in error.str():
        return 2
    return 0 if error.code() == KafkaError._ALL_BROKERS_DOWN else 1


def _discard(holder: "list[Producer]") -> None:
    """Discard a producer's unsent messages, and release the producer."""
    holder.pop().purge(in_queue=True, in_flight=True, blocking=False)


__all__ = ["KafkaDriver", "KafkaSettings", "SaslConfig", "topic_name"]
