"""Parse the JSON of a publish request, and choose the status of the response."""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final

from hookmq.mqtt_api import EMPTY, Properties, ProtocolError, validate_topic
from hookmq.plugin import ReasonCode

from hookmq_sinks.record import to_bytes
from hookmq_sinks.source import Incoming

_FIELDS: Final = ("topic", "payload", "payload_encoding", "qos", "retain", "properties")
_LONGEST: Final = 65_535
"""The maximum size of an MQTT string in bytes."""
_STATUS: Final = {
    ReasonCode.NO_MATCHING_SUBSCRIBERS: 202,
    ReasonCode.NOT_AUTHORIZED: 403,
    ReasonCode.BANNED: 403,
    ReasonCode.PACKET_TOO_LARGE: 413,
    ReasonCode.MESSAGE_RATE_TOO_HIGH: 429,
    ReasonCode.TOPIC_NAME_INVALID: 400,
    ReasonCode.PAYLOAD_FORMAT_INVALID: 400,
    ReasonCode.RETAIN_NOT_SUPPORTED: 400,
    ReasonCode.QOS_NOT_SUPPORTED: 400,
}


class BadRequest(Exception):
    """A request is invalid. `field` names the invalid part."""

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field


def status_of(code: int) -> int:
    """Return the HTTP status for a reason code. After 429 or 503, a program can repeat the request."""
    return _STATUS.get(ReasonCode(code), 200 if code < 0x80 else 503)


def parse_json(body: bytes) -> Any:
    """Parse the body of a request. Raises BadRequest."""

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is not JSON")

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def parse_message(found: Any, at: str = "") -> Incoming:
    """Return the message in a JSON object. `at` is the object's path in the body. Raises BadRequest."""
    if not isinstance(found, dict):
        raise BadRequest("expected a JSON object with topic and payload", at.rstrip("."))
    for name in found:
        if name not in _FIELDS:
            raise BadRequest(f"unknown field; known: {', '.join(_FIELDS)}", f"{at}{name}"[:200])
    topic = found.get("topic")
    if not isinstance(topic, str) or not topic:
        raise BadRequest("expected a topic", f"{at}topic")
    try:
        validate_topic(topic)
    except ProtocolError as error:
        raise BadRequest(error.detail, f"{at}topic") from None
    qos = found.get("qos", 0)
    if qos not in (0, 1, 2) or isinstance(qos, bool):
        raise BadRequest("expected 0, 1 or 2", f"{at}qos")
    retain = found.get("retain", False)
    if not isinstance(retain, bool):
        raise BadRequest("expected true or false", f"{at}retain")
    return Incoming(
        topic,
        _payload(found, at),
        int(qos),
        retain,
        _properties(found.get("properties", {}), f"{at}properties"),
        answered=True,
    )


def _payload(found: dict[str, Any], at: str) -> bytes:
    payload, encoding = found.get("payload", ""), found.get("payload_encoding", "plain")
    if encoding == "base64":
        try:
            return b64decode(payload, validate=True)
        except (ValueError, TypeError):
            raise BadRequest("not base64", f"{at}payload") from None
    if encoding != "plain":
        raise BadRequest("expected plain or base64", f"{at}payload_encoding")
    return _bytes(payload, f"{at}payload")


def _bytes(value: Any, field: str) -> bytes:
    try:
        return to_bytes(value)
    except UnicodeEncodeError:
        raise BadRequest("not valid Unicode", field) from None


def _properties(found: Any, at: str) -> Properties:
    if not isinstance(found, dict):
        raise BadRequest("expected a JSON object", at)
    made: dict[str, Any] = {}
    for name, value in found.items():
        if name not in _READ:
            raise BadRequest(f"unknown property; known: {', '.join(_READ)}", f"{at}.{name}"[:200])
        key, read = _READ[name]
        made[key] = read(value, f"{at}.{name}")
    return Properties(**made) if made else EMPTY


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise BadRequest("expected a text", field)
    if "\0" in value or len(_bytes(value, field)) > _LONGEST:
        raise BadRequest("contains U+0000, or is longer than 65535 bytes", field)
    return value


def _topic(value: Any, field: str) -> str:
    try:
        validate_topic(_text(value, field))
    except ProtocolError as error:
        raise BadRequest(error.detail, field) from None
    return str(value)


def _data(value: Any, field: str) -> bytes:
    return _text(value, field).encode()


def _whole(most: int) -> Callable[[Any, str], int]:
    def read(value: Any, field: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise BadRequest(f"expected a whole number from 0 to {most}", field)
        return value

    return read


def _pairs(value: Any, field: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise BadRequest("expected a JSON object of texts", field)
    return tuple(
        (_text(name, field), _text(one, f"{field}.{name}"[:200])) for name, one in value.items()
    )


_READ: Final[Mapping[str, tuple[str, Callable[[Any, str], Any]]]] = {
    "payload_format_indicator": ("payload_format_indicator", _whole(1)),
    "message_expiry_interval": ("message_expiry_interval", _whole(0xFFFFFFFF)),
    "content_type": ("content_type", _text),
    "response_topic": ("response_topic", _topic),
    "correlation_data": ("correlation_data", _data),
    "user_properties": ("user_property", _pairs),
}
