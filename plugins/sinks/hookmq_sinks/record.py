"""Records, the messages that a driver writes in batches."""

import json
from dataclasses import dataclass
from typing import Any, Final

NOT_DECODED: Final = object()
"""The value of a record until its payload is decoded."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a sink's log: every record below `offset` is stored.

    `log_id` identifies the log. A new log gets a new id, and a position is meaningless in any other log.
    """

    log_id: str
    offset: int


@dataclass(slots=True)
class Record:
    """A message on its way to a target. Drivers must not change records."""

    id: str
    """The record's id, ``SINK:LOG_ID:OFFSET``. The id stays the same if the record is written again."""
    offset: int
    """The position of the message in the sink's log. Offsets increase, but may have gaps."""
    topic: str
    payload: bytes
    """The payload as the publisher sent it."""
    value: Any = None
    """The payload after `decode` and `transform`: bytes, text, or a JSON value."""
    key: str | None = None
    """The sink's `key` with its placeholders filled in, or None. Records with the same key are written in order."""
    qos: int = 0
    retain: bool = False
    client_id: str | None = None
    """The client id of the publisher; None if the broker or a plugin published the message."""
    received_at: float = 0.0
    """When the broker received the message, in epoch seconds."""
    expires_at: float | None = None
    """When the message expires, in epoch seconds; None for never."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    text_payload: bool = False
    """Whether the publisher declared the payload to be UTF-8 text (Payload Format Indicator)."""
    user_properties: tuple[tuple[str, str], ...] = ()
    changed: bool = False
    """Whether `transform` changed the value, so that it no longer equals the payload."""

    @property
    def body(self) -> bytes:
        """The bytes for a target that stores bytes. This is the payload, or the value as JSON if `transform` changed
        it.
        """
        return to_bytes(self.value) if self.changed else self.payload


def to_bytes(value: Any) -> bytes:
    """Return bytes unchanged, text as UTF-8, and any other value as compact JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(
        value, ensure_ascii=False, separators=(",", ":"), default=json_default
    ).encode()


def json_default(value: Any) -> Any:
    """Convert a value that JSON does not support. Pass this function to `json.dumps` as `default`. Bytes become
    base64.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        from base64 import b64encode

        return b64encode(value).decode()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)
