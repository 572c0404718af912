"""Make records of messages: decode the payload and fill the key."""

from hookmq.mqtt_api import EMPTY
from hookmq.plugin import Message

from hookmq_sinks.config import SampleConfig, SinkConfig
from hookmq_sinks.decoding import find_decoder
from hookmq_sinks.record import Record, to_bytes
from hookmq_sinks.record_template import RecordError, RecordTemplate


class RecordMaker:
    """Makes the records of a sink."""

    def __init__(self, config: SinkConfig) -> None:
        self.config = config
        self._decode = find_decoder(config.decode)
        self._raw = config.decode == "raw"
        self._key = RecordTemplate(config.key, "key") if config.key else None

    def bare(self, message: Message, name: str, offset: int) -> Record:
        """Return the record of a message, without value and key. `name` is the log's id."""
        record = Record(
            f"{self.config.name}:{name}:{offset}",
            offset,
            message.topic,
            message.payload,
            message.payload,
            None,
            message.qos,
            message.retain,
            message.sender,
            message.received_at,
            message.expires_at,
        )
        properties = message.properties
        if properties is not EMPTY:
            record.content_type = properties.content_type
            record.response_topic = properties.response_topic
            record.correlation_data = properties.correlation_data
            record.text_payload = properties.payload_format_indicator == 1
            record.user_properties = tuple(properties.user_property or ())
        return record

    def complete(self, record: Record) -> None:
        """Add value and key to a record. Raises RecordError if the payload or the key does not allow it."""
        if not self._raw:
            record.value = self._decode(record.payload)
        if self._key is not None:
            record.key = self._key.fill(record)


def sample_record(config: SinkConfig) -> Record | None:
    """Return the record of the sink's sample, or None if it has none. Raises RecordError if it cannot be decoded."""
    sample = config.sample
    if sample is None:
        return None
    record = Record(
        f"{config.name}:sample:0", 0, sample.topic, sample_payload(sample, config.decode), client_id=sample.client_id,
        content_type=sample.content_type or None, user_properties=tuple(sample.user_properties.items()),
        received_at=1_767_225_600.0,
    )  # fmt: skip
    record.value = record.payload
    RecordMaker(config).complete(record)
    return record


def sample_payload(sample: SampleConfig, decode: str) -> bytes:
    """Return the sample's payload as publishers send it. Raises RecordError if it cannot be encoded."""
    if isinstance(sample.payload, str):
        return sample.payload.encode()
    if decode == "msgpack":
        import msgpack

        return bytes(msgpack.packb(sample.payload))
    if decode == "cbor":
        import cbor2

        return bytes(cbor2.dumps(sample.payload))
    if decode == "raw":
        raise RecordError("sample.payload must be a text if decode is raw")
    return to_bytes(sample.payload)
