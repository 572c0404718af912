"""Make records from messages: decode the payload, transform it and fill in the key."""

from hookmq.mqtt_api import EMPTY, Properties
from hookmq.plugin import Message

from hookmq_sinks.decoding import ProtobufConfig, find_decoder
from hookmq_sinks.record import Record
from hookmq_sinks.record_template import RecordTemplate
from hookmq_sinks.transform import TransformStep, compile_steps


class RecordMaker:
    """Makes the records of the sink named `sink`. Raises ConfigError if the decoder or the key is invalid."""

    def __init__(
        self,
        sink: str,
        decode: str = "raw",
        steps: tuple[TransformStep, ...] = (),
        key: str = "",
        protobuf: ProtobufConfig | None = None,
    ) -> None:
        self._sink = sink
        self._decode = None if decode == "raw" else find_decoder(decode, protobuf)
        self._transform = compile_steps(steps)
        self._key = RecordTemplate(key, "key") if key else None

    @property
    def plain(self) -> bool:
        """Whether the value of each record is its payload, and no record has a key."""
        return self._decode is None and self._transform is None and self._key is None

    def id_of(self, log_id: str, offset: int) -> str:
        """Return the id of the record at `offset`."""
        return f"{self._sink}:{log_id}:{offset}"

    def bare(self, message: Message, log_id: str, offset: int) -> Record:
        """Return a message's record, still without its value and key."""
        record = Record(
            self.id_of(log_id, offset),
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
        if message.properties is not EMPTY:
            self.add_properties(record, message.properties)
        return record

    @staticmethod
    def add_properties(record: Record, properties: Properties) -> None:
        """Copy a message's properties to its record."""
        record.content_type = properties.content_type
        record.response_topic = properties.response_topic
        record.correlation_data = properties.correlation_data
        record.text_payload = properties.payload_format_indicator == 1
        record.user_properties = tuple(properties.user_property or ())

    def complete(self, record: Record) -> None:
        """Fill in a record's value and key. Raises RecordError if the payload is invalid, or if a value needed for the
        key is missing.
        """
        record.value = record.payload if self._decode is None else self._decode(record.payload)
        if self._transform is not None:
            self._transform(record)
        if self._key is not None:
            record.key = self._key.fill(record)
