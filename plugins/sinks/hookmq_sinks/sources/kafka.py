"""The `kafka` source: topics of Apache Kafka and compatible clusters, read by a group of consumers.

Offsets are committed to the group once this broker has committed the messages. With `once`, the offset is also the
message's mark, stored in the same commit as the message. After a crash, a partition continues after its mark. Messages
are therefore published once, as long as their partition stays assigned to this source. If the group assigns it to
another broker after a crash, that broker publishes the last messages again.

Messages in a partition stay in order. Kafka's topic ``plant.a`` becomes ``plant/a``. Headers become user properties.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from hookmq.plugin import ConfigError, Seconds, setting
from hookmq_toolkit.tls_client import TlsConfig, client_context

from hookmq_sinks.drivers.kafka import SaslConfig
from hookmq_sinks.record import Record
from hookmq_sinks.source import Incoming, Source, SourceContext, SourceUnavailable
from hookmq_sinks.source_message import MessageMaker, PublishConfig

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

_SERVER: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_AGO: Final = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")
_SLICE: Final = 0.1
"""The longest time in seconds until the thread of a read notices that the source is closed."""
_PATIENCE: Final = 86_400_000
"""Milliseconds that may pass between two reads, for example while the broker accepts no messages."""
_LOGGER: Final = logging.getLogger("hookmq_sinks.kafka_source")
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False
_MANAGED: Final = frozenset(
    {
        "bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset",
        "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location",
        "ssl.certificate.location", "ssl.key.location", "enable.ssl.certificate.verification",
        "ssl.endpoint.identification.algorithm", "plugin.library.paths", "max.poll.interval.ms", "isolation.level",
        "queued.max.messages.kbytes", "enable.partition.eof",
    }
)  # fmt: skip
"""Options of librdkafka that other settings control, or that would weaken the source's guarantees."""


@dataclass(frozen=True)
class KafkaSourceSettings:
    """The `kafka` source's settings."""

    topics: tuple[str, ...] = field(metadata={"help": "the topics of Kafka"})
    publish: PublishConfig = field(metadata={"help": "how a message of Kafka becomes one of MQTT"})
    servers: tuple[str, ...] = setting(
        ("127.0.0.1:9092",), "addresses of some brokers, HOST:PORT; the others are found"
    )
    group: str = setting("", "the group of consumers; default: hookmq- and the source's name")
    start: Literal["first", "next"] = setting(
        "first", "where a new group begins: at the first message, or at the next one"
    )
    batch: int = setting(500, "most messages that are read at a time", minimum=1, maximum=5000)
    once: bool = setting(
        True, "whether offsets are stored here, so that no message is published twice"
    )
    read_committed: bool = setting(True, "whether messages of aborted transactions are left out")
    session_timeout: Seconds = setting(
        45.0,
        "silence after which the group gives the partitions to others",
        minimum=1,
        maximum=1800,
    )
    connect_timeout: Seconds = setting(5.0, "longest time for connecting", minimum=0.1, maximum=600)
    sasl: SaslConfig | None = setting(None, "the user; default: none")
    tls: TlsConfig | None = setting(None, "files for TLS; {} is TLS with the system's authorities")
    options: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "further options of librdkafka, by name"}
    )

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("topics: empty, but at least one is required")
        for one in self.topics:
            if not _TOPIC.fullmatch(one):
                raise ConfigError(f"topics: {one!r} is not a topic of Kafka")
        if len(set(self.topics)) < len(self.topics):
            raise ConfigError("topics: a name is listed twice")
        if not self.servers:
            raise ConfigError("servers: empty, but at least one is required")
        for one in self.servers:
            if "@" in one:
                raise ConfigError("servers: an address contains a user", hint="use `sasl`")
            if not _SERVER.fullmatch(one):
                raise ConfigError(f"servers: {one!r}: expected HOST:PORT")
        for name in self.options:
            if name in _MANAGED or name.startswith("test."):
                raise ConfigError(f"options: {name} cannot be set here")


class KafkaSource(Source):
    """Consumes topics; see the module docstring. librdkafka's methods block, so they run in a thread."""

    Settings: ClassVar[type] = KafkaSourceSettings
    extra = "kafka"
    settings: KafkaSourceSettings

    def __init__(self, settings: KafkaSourceSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        self._maker = MessageMaker(settings.publish)
        self._consumer: Consumer | None = None
        self._closed = False
        self._work: asyncio.Future[Any] | None = None
        self._error: KafkaError | None = None
        self._counts = {"assignments": 0, "repeated": 0}

    @classmethod
    def local_filters(cls, settings: Any) -> Sequence[str]:
        """Return a filter that matches the topics of all messages."""
        found: Sequence[str] = settings.publish.filters() if settings.once else ()
        return found

    async def _run(self, work: Any, *arguments: Any) -> Any:
        """Run a function in a thread. Only one function runs at a time, even if a call is cancelled."""
        self._work = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
        return await asyncio.shield(self._work)

    async def open(self) -> None:
        """Connect to the cluster, and join the group. librdkafka reconnects by itself."""
        from confluent_kafka import KafkaException

        try:
            await self._run(self._connect)
        except KafkaException as error:
            raise self._unavailable(error.args[0]) from error
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            raise SourceUnavailable(f"{name}{error.strerror or error}", True) from error

    def _connect(self) -> None:
        from confluent_kafka import Consumer

        if self.settings.tls is not None:
            client_context(self.settings.tls)  # librdkafka does not name the file
        consumer = Consumer(self._options(), logger=_LOGGER)
        self._consumer = consumer
        found = consumer.list_topics(timeout=self.settings.connect_timeout)
        missing = [one for one in self.settings.topics if one not in found.topics]
        if missing:
            raise SourceUnavailable(
                f"the topic {missing[0]} does not exist, or the user may not see it", True
            )
        consumer.subscribe(list(self.settings.topics), on_assign=self._on_assign)

    def _on_assign(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        """Continue after the marks if they are ahead of the group's offsets."""
        self._counts["assignments"] += 1
        if not self.settings.once:
            return
        timeout = self.settings.connect_timeout
        for one in consumer.committed(partitions, timeout=timeout):
            mark = self.context.marks.get(_key(one.topic, one.partition))
            if mark is None or one.offset > int(mark):
                continue
            target = next(
                found
                for found in partitions
                if (found.topic, found.partition) == (one.topic, one.partition)
            )
            low, high = consumer.get_watermark_offsets(target, timeout=timeout)
            if low <= int(mark) < high:
                target.offset = int(mark) + 1
                self._counts["repeated"] += 1
            else:
                self.context.log(
                    "warning", "sources.mark_ignored", topic=one.topic, partition=one.partition, mark=int(mark),
                    first=low, end=high,
                )  # fmt: skip
        consumer.assign(partitions)

    # reading ---------------------------------------------------------------------------------------------------------

    async def read(self) -> Sequence[Incoming]:
        """Wait for messages."""
        from confluent_kafka import KafkaException

        consumer = self._consumer
        if consumer is None:
            raise SourceUnavailable("not connected")
        try:
            while True:
                found: list[Message] = await self._run(
                    consumer.consume, self.settings.batch, _SLICE
                )
                for one in found:
                    error = one.error()
                    if error is not None:
                        raise self._unavailable(error)
                if found:
                    return [self._message(one) for one in found]
                if self._error is not None:
                    raise self._unavailable(self._error)
        except KafkaException as error:
            raise self._unavailable(error.args[0]) from error
        except RuntimeError as error:
            raise SourceUnavailable(str(error)) from error

    def _message(self, message: "Message") -> Incoming:
        topic, key = message.topic() or "", message.key()
        headers = tuple(
            (str(name), "" if value is None else _text(value))
            for name, value in list(message.headers() or ())
        )
        record = Record(
            f"{topic}/{message.partition()}/{message.offset()}", message.offset() or 0, topic.replace(".", "/"),
            message.value() or b"", key=None if key is None else _text(key), received_at=message.timestamp()[1] / 1000,
            user_properties=headers,
        )  # fmt: skip
        found = self._maker.incoming(record, (topic, message.partition(), message.offset()))
        if self.settings.once and not found.problem:
            found.mark = (_key(topic, message.partition()), str(message.offset()))
        return found

    async def acknowledge(self, messages: Sequence[Incoming], codes: Sequence[int]) -> None:
        """For each partition, commit the offset after its last message."""
        from confluent_kafka import KafkaException, TopicPartition

        consumer = self._consumer
        if consumer is None:
            raise SourceUnavailable("not connected")
        ends = {(one.handle[0], one.handle[1]): one.handle[2] + 1 for one in messages}
        offsets = [TopicPartition(topic, part, end) for (topic, part), end in ends.items()]
        try:
            await self._run(lambda: consumer.commit(offsets=offsets, asynchronous=False))
        except KafkaException as error:
            raise self._unavailable(error.args[0]) from error

    async def close(self) -> None:
        """Leave the group, and close the connections."""
        self._closed = True
        if self._work is not None and not self._work.done():
            await asyncio.wait([self._work])
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await asyncio.to_thread(consumer.close)

    def metrics(self) -> Mapping[str, float]:
        """Return how often partitions were assigned, and how many of them continued after a mark."""
        return self._counts

    # settings and errors ---------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        settings = self.settings

        def on_error(error: "KafkaError") -> None:
            from confluent_kafka import KafkaError

            if error.code() == KafkaError._ALL_BROKERS_DOWN or error.fatal():
                self._error = error

        found: dict[str, Any] = {
            "client.id": f"hookmq-sources-{self.context.source}",
            "session.timeout.ms": int(settings.session_timeout * 1000),
            **settings.options,
            "bootstrap.servers": ",".join(settings.servers),
            "group.id": settings.group or f"hookmq-{self.context.source}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest" if settings.start == "first" else "latest",
            "isolation.level": "read_committed" if settings.read_committed else "read_uncommitted",
            "max.poll.interval.ms": max(_PATIENCE, int(settings.session_timeout * 1000)),
            "queued.max.messages.kbytes": 16384,
            "error_cb": on_error,
        }
        secure, user = settings.tls is not None, settings.sasl
        found["security.protocol"] = ("sasl_" if user else "") + ("ssl" if secure else "plaintext")
        if user is not None:
            found |= {
                "sasl.mechanism": user.mechanism,
                "sasl.username": user.user,
                "sasl.password": user.password,
            }
        if settings.tls is not None:
            for key, path in (
                ("ssl.ca.location", settings.tls.ca_file),
                ("ssl.certificate.location", settings.tls.cert_file),
                ("ssl.key.location", settings.tls.key_file),
            ):
                if path is not None:
                    found[key] = str(path)
        return found

    def _unavailable(self, error: "KafkaError") -> SourceUnavailable:
        from confluent_kafka import KafkaError

        permanent = error.fatal() or error.code() in (
            KafkaError._AUTHENTICATION, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL, KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
        )  # fmt: skip
        return SourceUnavailable(_AGO.sub("", error.str()), permanent)


def _key(topic: str, partition: int | None) -> str:
    return f"{topic}/{partition}"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
