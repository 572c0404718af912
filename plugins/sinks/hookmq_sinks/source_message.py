"""Make a source's messages from templates for topic, payload, QoS, RETAIN flag and user properties.

A source makes a `Record` from each entry that it receives. The record's `topic` is the name of the stream, subject or
queue. Its user properties are the fields, headers or columns. The templates are the same as for sinks.

A topic never has wildcards. A value that a template puts into a topic is one level: it must not be empty or contain
``/``. Only ``${topic}``, and a template that is a single placeholder, can produce several levels. A topic that begins
with ``$`` is refused unless `dollar_topics` allows it. An entry that cannot become a message has a `problem`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hookmq.mqtt_api import EMPTY, Properties, ProtocolError, validate_topic
from hookmq.plugin import ConfigError, setting
from hookmq_toolkit.templates import Template

from hookmq_sinks.decoding import Format, find_decoder
from hookmq_sinks.record import Record, to_bytes
from hookmq_sinks.record_template import RecordError, RecordTemplate, template_setting
from hookmq_sinks.sample import SampleConfig, encode_sample
from hookmq_sinks.source import Incoming

_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_QOS: Final = {"0": 0, "1": 1, "2": 2}
_ALLOW: Final = "set dollar_topics: true to allow it"
_DECODED: Final = ("json", "msgpack", "cbor")


@dataclass(frozen=True)
class PublishConfig:
    """How to turn an entry from the origin into a message."""

    topic: str = template_setting(help="the topic, such as orders/${property.region}")
    payload: str = template_setting(
        "", "the payload, such as ${payload.data}; default: the payload of the origin"
    )
    qos: Any = template_setting(1, "0, 1 or 2, or a template such as ${property.qos}")
    retain: Any = template_setting(False, "true or false, or a template")
    content_type: str = template_setting("", "the content type; default: that of the origin")
    properties: Mapping[str, Any] = template_setting(
        {}, "user properties and their templates; one without a value is left out"
    )
    pass_properties: bool = setting(
        False, "whether all fields, headers or columns become user properties"
    )
    decode: Format = setting(
        "raw", "how payloads are decoded for ${payload.a}: raw, text, json, msgpack or cbor"
    )
    dollar_topics: bool = setting(False, "whether topics may begin with $")
    sample: SampleConfig | None = setting(
        None, "an entry of the origin with which `hookmq check` tries the templates"
    )

    def __post_init__(self) -> None:
        if self.decode in ("protobuf", "sparkplug"):
            raise ConfigError(f"decode: {self.decode} cannot be used by a source")
        if not self.topic:
            raise ConfigError("topic: empty")
        topic = RecordTemplate(self.topic, "topic")
        if topic.constant:
            try:
                check_topic(self.topic, self.dollar_topics)
            except RecordError as error:
                raise ConfigError(f"topic: {error}") from None
        else:
            fixed: str = Template(self.topic).fill(lambda _: "")
            if "+" in fixed or "#" in fixed:
                raise ConfigError(f"topic: {self.topic!r} contains a wildcard")
            dollar = self.topic.startswith("$") and not self.topic.startswith("${")
            if dollar and not self.dollar_topics:
                raise ConfigError(f"topic: {self.topic!r} begins with $", hint=_ALLOW)
        if self.dollar_topics and self.topic.startswith("${"):
            raise ConfigError(
                "dollar_topics: the topic must begin with a fixed text",
                hint="such as $site/${property.name}",
            )
        _check_value("qos", self.qos, _QOS, "0, 1 or 2")
        _check_value("retain", self.retain, _FLAGS, "true or false")
        for name, text in self.properties.items():
            if not isinstance(text, str):
                raise ConfigError(f"properties.{name}: expected a template, found {text!r}")
        maker = MessageMaker(self)
        if self.sample is not None:
            try:
                maker.make(sample_record(self.sample, self.decode))
            except RecordError as error:
                raise ConfigError(f"sample: {error}") from None

    def filters(self) -> Sequence[str]:
        """Return a filter that matches all topics that the template can produce."""
        parts = self.topic.split("/") if "${" in self.topic else [self.topic]
        if Template(self.topic).only is not None:
            return ["#"]
        levels: list[str] = []
        for one in parts:
            if "${topic}" in one or ("${" in one and "}" not in one):
                return ["/".join([*levels, "#"])]
            levels.append("+" if "${" in one else one)
        return ["/".join(levels)]


def _check_value(key: str, value: Any, known: Mapping[str, Any], expected: str) -> None:
    text = _word(value)
    template = RecordTemplate(text, key)
    if template.constant and text not in known:
        raise ConfigError(f"{key}: expected {expected}, found {value!r}")


def _word(value: Any) -> str:
    return value.lower() if isinstance(value, str) and "${" not in value else (
        value if isinstance(value, str) else json.dumps(value)
    )  # fmt: skip


def check_topic(topic: str, dollar: bool) -> None:
    """Raise RecordError if a source must not publish to `topic`."""
    try:
        validate_topic(topic)
    except ProtocolError as error:
        raise RecordError(f"the topic {topic[:100]!r} cannot be used: {error.detail}") from None
    if topic.startswith("$") and not dollar:
        raise RecordError(f"the topic {topic[:100]!r} begins with $, which dollar_topics forbids")


def sample_record(sample: SampleConfig, decode: str) -> Record:
    """Return the record of a sample. Raises RecordError."""
    return Record(
        "sample", 0, sample.topic, encode_sample(sample.payload, decode if decode in _DECODED else "raw"),
        content_type=sample.content_type or None, user_properties=tuple(sample.user_properties.items()),
    )  # fmt: skip


class MessageMaker:
    """Makes messages from records, as configured by a `PublishConfig`. Raises ConfigError for a mistake in that
    configuration.
    """

    def __init__(self, config: PublishConfig) -> None:
        self._config = config
        self._topic = RecordTemplate(config.topic, "topic")
        single = Template(config.topic).only is not None
        self._levels = [] if single else [
            RecordTemplate(f"${{{name}}}") for name in self._topic.names if name != "topic"
        ]  # fmt: skip
        self._decode = None if config.decode == "raw" else find_decoder(config.decode)
        self._payload = RecordTemplate(config.payload, "payload") if config.payload else None
        self._qos = self._choice("qos", config.qos, _QOS)
        self._retain = self._choice("retain", config.retain, _FLAGS)
        self._content_type = (
            RecordTemplate(config.content_type, "content_type") if config.content_type else None
        )
        self._properties = [
            (name, RecordTemplate(text, f"properties.{name}"))
            for name, text in config.properties.items()
        ]

    @staticmethod
    def _choice(key: str, value: Any, known: Mapping[str, Any]) -> Callable[[Record], Any]:
        template = RecordTemplate(_word(value), key)
        if template.constant:
            constant = known[template.text]
            return lambda record: constant

        def find(record: Record) -> Any:
            text = template.fill(record)
            if text not in known:
                raise RecordError(f"{key}: {text[:100]!r} is not one of {', '.join(known)}")
            return known[text]

        return find

    def incoming(self, record: Record, handle: Any = None, mark: str = "") -> Incoming:
        """Convert a record to a message, or to one with a `problem` if that fails. `mark` is the key of its mark."""
        try:
            found = self.make(record)
        except RecordError as error:
            found = Incoming(
                record.topic, record.payload, problem=str(error),
                properties=_user_properties(record.user_properties, None),
            )  # fmt: skip
        found.handle = handle
        if mark and not found.problem:
            found.mark = (mark, "1")
        return found

    def make(self, record: Record) -> Incoming:
        """Convert a record to a message. Raises RecordError if that is not possible."""
        record.value = record.payload if self._decode is None else self._decode(record.payload)
        config = self._config
        topic = self._fill_topic(record)
        check_topic(topic, config.dollar_topics)
        payload = record.payload if self._payload is None else to_bytes(self._payload.value(record))
        pairs = list(record.user_properties) if config.pass_properties else []
        for name, template in self._properties:
            if template.optional(record) is not None:
                pairs.append((name, template.fill(record)))
        content_type = record.content_type
        if self._content_type is not None:
            content_type = self._content_type.fill(record)
        return Incoming(
            topic,
            payload,
            self._qos(record),
            self._retain(record),
            _user_properties(pairs, content_type),
        )

    def _fill_topic(self, record: Record) -> str:
        for one in self._levels:
            value = one.fill(record)
            if not value or "/" in value:
                raise RecordError(
                    f"{one.text} is {value[:100]!r}, which is not one level of a topic"
                )
        return self._topic.fill(record)


def _user_properties(pairs: Sequence[tuple[str, str]], content_type: str | None) -> Properties:
    if not pairs and not content_type:
        return EMPTY
    return Properties(user_property=tuple(pairs) or None, content_type=content_type)
