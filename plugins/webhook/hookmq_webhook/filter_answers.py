"""Parse the filtering service's response to a message.

A response has status 204, or status 200 and a JSON object: ``{"result": "allow"}``, ``deny``, ``drop`` or ``replace``. A
replacement marks each member that it sets: ``"topic_set": true, "topic": "..."``. A member without its ``_set``, or the
reverse, is an error, so that nothing is replaced or retained by accident. All keys must be known. Any other response is
unusable.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from hookmq.mqtt_api import validate_topic
from hookmq.plugin import Deny, Drop, Message, Properties, ProtocolError, ReasonCode

Verdict = Message | Drop | Deny | None
MAX_REASON: Final = 1024
"""Maximum length of a reason in bytes."""
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "allow": frozenset({"result"}),
    "drop": frozenset({"result"}),
    "deny": frozenset({"result", "code", "reason", "disconnect"}),
}
_SETS: Final = ("topic", "payload", "qos", "retain", "properties")


class Unusable(Exception):
    """The response cannot be used. The error message never quotes values from the response."""


def read_answer(status: int, body: bytes, message: Message) -> Verdict:
    """Return the verdict on `message`, or None to pass it on unchanged. Raises Unusable."""
    if status == 204:
        return None
    if status != 200:
        raise Unusable(f"status {status}")
    try:
        found = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise Unusable("the answer is not JSON") from None
    if not isinstance(found, dict):
        raise Unusable("the answer is not a JSON object")
    result = found.get("result")
    if result == "replace":
        return _replaced(found, message)
    if not isinstance(result, str) or result not in _KEYS:
        raise Unusable("result: expected allow, deny, drop or replace")
    _known(found, _KEYS[result])
    if result == "deny":
        return _deny(found)
    return Drop() if result == "drop" else None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("duplicate key")
    return made


def _known(found: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in sorted(found.keys() - known):
        raise Unusable(f"the answer has an unknown key {name[:40]!r}")


def _deny(found: Mapping[str, Any]) -> Deny:
    code = found.get("code", ReasonCode.NOT_AUTHORIZED)
    reason = found.get("reason")
    disconnect = found.get("disconnect", False)
    if reason is not None and not (isinstance(reason, str) and _fits(reason, MAX_REASON)):
        raise Unusable(f"reason: expected a text of at most {MAX_REASON} bytes")
    if type(code) is not int and not isinstance(code, ReasonCode):
        raise Unusable("code: expected a number")
    if not isinstance(disconnect, bool):
        raise Unusable("disconnect: expected true or false")
    try:
        return Deny(ReasonCode(code), reason, disconnect)
    except ValueError:
        raise Unusable("code: expected a reason code of 128 or above") from None


def _replaced(found: Mapping[str, Any], message: Message) -> Message:
    known = {"result", "payload_base64", *_SETS, *(f"{name}_set" for name in _SETS)}
    _known(found, frozenset(known))
    changes: dict[str, Any] = {}
    for name in _SETS:
        chosen = found.get(f"{name}_set", False)
        if not isinstance(chosen, bool):
            raise Unusable(f"{name}_set: expected true or false")
        given = name in found or (name == "payload" and "payload_base64" in found)
        if chosen != given:
            raise Unusable(f"{name} and {name}_set must be used together")
        if chosen:
            changes[name] = _READ[name](found, message)
    if not changes:
        raise Unusable("the replacement sets nothing")
    if "payload" in changes and "payload_format_indicator" not in found.get("properties", {}):
        kept = changes.get("properties", message.properties)
        changes["properties"] = _as_it_is(changes["payload"], kept)
    return message.replace(**changes)


def _as_it_is(payload: bytes, properties: Properties) -> Properties:
    """Return `properties`, without the payload format indicator if it wrongly claims that `payload` is UTF-8."""
    if properties.payload_format_indicator == 1:
        try:
            payload.decode()
        except UnicodeDecodeError:
            return properties.replace(payload_format_indicator=None)
    return properties


def _topic(found: Mapping[str, Any], message: Message) -> str:
    topic = found["topic"]
    if not isinstance(topic, str):
        raise Unusable("topic: expected a string")
    try:
        validate_topic(topic)
    except (ProtocolError, UnicodeEncodeError):
        raise Unusable("topic: not a valid topic") from None
    return topic


def _payload(found: Mapping[str, Any], message: Message) -> bytes:
    if "payload_base64" in found:
        if "payload" in found:
            raise Unusable("expected payload or payload_base64, not both")
        text = found["payload_base64"]
        try:
            return base64.b64decode(text.encode("ascii"), validate=True)
        except (AttributeError, UnicodeEncodeError, binascii.Error):
            raise Unusable("payload_base64: not valid base64") from None
    payload = found["payload"]
    try:
        if isinstance(payload, str):
            return payload.encode()
        return json.dumps(
            payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        ).encode()
    except ValueError:
        raise Unusable("payload: not valid JSON") from None


def _qos(found: Mapping[str, Any], message: Message) -> int:
    qos = found["qos"]
    if type(qos) is not int or not 0 <= qos <= message.qos:
        raise Unusable("qos: can be lowered, but not raised")
    return qos


def _retain(found: Mapping[str, Any], message: Message) -> bool:
    retain = found["retain"]
    if not isinstance(retain, bool):
        raise Unusable("retain: expected true or false")
    return retain


def _properties(found: Mapping[str, Any], message: Message) -> Properties:
    """Return the message's properties with the given changes. A null value removes a property."""
    given = found["properties"]
    if not isinstance(given, dict):
        raise Unusable("properties: expected an object")
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _PROPERTIES:
            raise Unusable(f"properties: {name[:40]!r} cannot be set")
        member = "user_property" if name == "user_properties" else name
        changes[member] = None if value is None else _PROPERTIES[name](value)
    return message.properties.replace(**changes)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not _fits(value, 65535):
        raise Unusable("properties: expected a text of at most 65535 bytes")
    return value


def _response_topic(value: Any) -> str:
    text = _text(value)
    try:
        validate_topic(text)
    except ProtocolError:
        raise Unusable("properties: response_topic is not a valid topic") from None
    return text


def _binary(value: Any) -> bytes:
    try:
        found = base64.b64decode(_text(value).encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise Unusable("properties: correlation_data is not valid base64") from None
    return found


def _indicator(value: Any) -> int:
    if type(value) is not int or value not in (0, 1):
        raise Unusable("properties: expected 0 or 1 as payload_format_indicator")
    return value


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in value
    ):
        raise Unusable("properties: expected a list of [name, value] as user_properties")
    return tuple((_text(name), _text(text)) for name, text in value)


def _fits(text: str, size: int) -> bool:
    try:
        return len(text.encode()) <= size and "\0" not in text
    except UnicodeEncodeError:
        return False


_READ: Final[Mapping[str, Callable[[Mapping[str, Any], Message], Any]]] = {
    "topic": _topic,
    "payload": _payload,
    "qos": _qos,
    "retain": _retain,
    "properties": _properties,
}
_PROPERTIES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "content_type": _text,
    "payload_format_indicator": _indicator,
    "response_topic": _response_topic,
    "correlation_data": _binary,
    "user_properties": _pairs,
}
