"""The plugin's settings: the sinks, their targets, batches and limits."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from hookmq.config_api import bind_values
from hookmq.mqtt_api import parse_share, validate_filter
from hookmq.plugin import ConfigError, Seconds, Size, setting

from hookmq_sinks.decoding import Format, ProtobufConfig
from hookmq_sinks.driver import Driver
from hookmq_sinks.names import NAME
from hookmq_sinks.record import Record
from hookmq_sinks.record_maker import RecordMaker
from hookmq_sinks.record_template import templates_of
from hookmq_sinks.registry import find_driver
from hookmq_sinks.sample import SampleConfig, check_sample, make_sample
from hookmq_sinks.source_config import SourceConfig
from hookmq_sinks.transform import TransformStep

OnFull = Literal["block", "drop_oldest", "drop_new"]


@dataclass(frozen=True)
class BatchConfig:
    """The limits of a batch. A batch is written as soon as it reaches one of them."""

    messages: int = setting(1000, "largest number of messages", minimum=1, maximum=100_000)
    bytes: Size = setting(1 << 20, "largest size of their payloads and topics", minimum=1)
    age: Seconds = setting(0.1, "longest time that a message waits for others", maximum=3600)


@dataclass(frozen=True)
class RetryConfig:
    """When to retry a batch after a failure."""

    first: Seconds = setting(
        0.5, "delay before the second attempt; it doubles each time", minimum=0.01
    )
    longest: Seconds = setting(60.0, "longest delay", minimum=0.01)
    failures: int = setting(
        3, "failures in a row after which the sink pauses as long as the target is down", minimum=1
    )

    def __post_init__(self) -> None:
        if self.longest < self.first:
            raise ConfigError("longest: less than first")


@dataclass(frozen=True)
class SinkConfig:
    """A sink's settings."""

    name: str = field(metadata={"help": "its name and that of its folder: letters, digits, _ . -"})
    topics: tuple[str, ...] = field(
        metadata={"help": "topic filters; a message that matches one of them is written"}
    )
    driver: str = field(metadata={"help": "the kind of target, such as file"})
    target: Any = field(
        default=None,
        metadata={
            "help": "the settings of the driver",
            "chosen_by": ("driver", lambda name: find_driver(name).Settings),
        },
    )
    exclude: tuple[str, ...] = setting((), "topic filters whose messages are left out")
    decode: Format = setting(
        "raw", "how payloads are decoded: raw, text, json, msgpack, cbor, protobuf or sparkplug"
    )
    protobuf: ProtobufConfig | None = setting(None, "the type of payloads, for decode: protobuf")
    transform: tuple[TransformStep, ...] = setting((), "steps that change the decoded payload")
    key: str = setting("", "template of the key; messages with the same key are written in order")
    lanes: int = setting(
        1,
        "batches that are written at the same time; each key is in one of the lanes",
        minimum=1,
        maximum=64,
    )
    sample: SampleConfig | None = setting(
        None, "a message with which `hookmq check` tries all templates"
    )
    batch: BatchConfig = setting(BatchConfig(), "when a batch is written")
    retry: RetryConfig = setting(RetryConfig(), "when a batch is repeated")
    timeout: Seconds = setting(30.0, "longest time for writing a batch", minimum=0.1)
    max_bytes: Size = setting(1 << 30, "largest size of the messages that wait", minimum=1 << 16)
    on_full: OnFull = setting(
        "block",
        "at that size: block refuses messages (0x97), drop_oldest removes the oldest, drop_new does not store new ones",
    )
    dead_letter_bytes: Size = setting(
        64 << 20, "largest size of the dead letters; the oldest are removed", minimum=1 << 16
    )

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"name: {self.name!r} is not a name; use letters, digits, _ . -")
        if not self.topics:
            raise ConfigError(f"topics: the sink {self.name} has no topic filter")
        _check_filters("topics", self.topics)
        _check_filters("exclude", self.exclude)
        if self.lanes > 1 and not self.key:
            raise ConfigError("lanes: more than one lane needs a key", hint='set key: "${topic}"')
        if not isinstance(self.target, self.kind.Settings):
            bound: Any = bind_values(self.kind.Settings, self.target or {})
            object.__setattr__(self, "target", bound)
        for _ in templates_of(self.target, "target."):
            pass  # each is checked
        maker = self.maker()
        if self.sample is not None:
            check_sample(make_sample(self.sample, self.name, self.decode, maker), self.target)

    def maker(self) -> RecordMaker:
        """Return a new RecordMaker for this sink. Raises ConfigError."""
        return RecordMaker(self.name, self.decode, self.transform, self.key, self.protobuf)

    def sample_record(self) -> Record | None:
        """Return the record made from the sample, or None if the sink has no sample."""
        if self.sample is None:
            return None
        return make_sample(self.sample, self.name, self.decode, self.maker())

    @cached_property
    def kind(self) -> type[Driver]:
        """The class of the driver. Raises ConfigError."""
        return find_driver(self.driver)


def _check_filters(key: str, filters: tuple[str, ...]) -> None:
    for one in filters:
        try:
            validate_filter(one)
        except Exception as error:
            raise ConfigError(f"{key}: {one!r} is not a topic filter: {error}") from None
        if parse_share(one)[0] is not None:
            raise ConfigError(f"{key}: {one!r}: a sink cannot use a shared subscription")


@dataclass(frozen=True)
class SinksConfig:
    """The plugin's settings."""

    path: Path = field(metadata={"help": "folder of the sinks; created if missing"})
    sinks: tuple[SinkConfig, ...] = setting((), "the sinks")
    sources: tuple[SourceConfig, ...] = setting((), "the sources, which publish here")
    sync: bool = setting(
        True, "fsync before acknowledging; false survives the end of the process but no power cut"
    )
    min_free: Size = setting(256 << 20, "free disk space below which every sink is full")

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not self.sinks and not self.sources:
            raise ConfigError("sinks: empty, but at least one sink or source is required")
        names = [one.name.lower() for one in self.sinks] + [
            one.name.lower() for one in self.sources
        ]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"sinks: {name} is listed twice")
