"""A sink's sample: a message used to check the sink's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hookmq.plugin import ConfigError, setting

from hookmq_sinks.record import Record, to_bytes
from hookmq_sinks.record_maker import RecordMaker
from hookmq_sinks.record_template import RecordError, templates_of

_TIME: Final = 1_767_225_600.0
"""The arrival time of samples: 2026-01-01T00:00:00Z."""


@dataclass(frozen=True)
class SampleConfig:
    """A sample message, in the form that publishers send, for checking the configuration."""

    topic: str = field(metadata={"help": "its topic"})
    payload: Any = setting("", "its payload: a text, or a value that is encoded as `decode` says")
    client_id: str = setting("sample", "client id of its publisher")
    content_type: str = setting("", "its content type")
    user_properties: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "its user properties"}
    )


def make_sample(sample: SampleConfig, sink: str, decode: str, maker: RecordMaker) -> Record:
    """Return the record of a sample. Raises ConfigError if it cannot be encoded or decoded."""
    record = Record(
        f"{sink}:sample:0", 0, sample.topic, b"", client_id=sample.client_id, content_type=sample.content_type or None,
        user_properties=tuple(sample.user_properties.items()), received_at=_TIME,
    )  # fmt: skip
    try:
        record.payload = encode_sample(sample.payload, decode)
        maker.complete(record)
    except RecordError as error:
        raise ConfigError(f"sample: {error}") from None
    return record


def encode_sample(payload: Any, decode: str) -> bytes:
    """Encode a sample's payload in the form that publishers send. Raises RecordError if that is not possible."""
    if isinstance(payload, str):
        return payload.encode()
    if decode == "msgpack":
        import msgpack  # type: ignore[import-untyped]

        return bytes(msgpack.packb(payload))
    if decode == "cbor":
        import cbor2

        return bytes(cbor2.dumps(payload))
    if decode != "json":
        raise RecordError(f"its payload must be a text if decode is {decode}")
    return to_bytes(payload)


def check_sample(record: Record, settings: Any) -> None:
    """Raise ConfigError if the sample lacks a value for one of the driver's templates."""
    for key, template in templates_of(settings):
        try:
            template.optional(record)
        except RecordError as error:
            raise ConfigError(f"sample: target.{key}: {error}") from None
        for name in template.names:
            if template.lookup(name)(record) is None:
                raise ConfigError(
                    f"sample: target.{key}: the sample has no value for ${{{name}}}",
                    hint="change the template, or add the value to the sample",
                )
