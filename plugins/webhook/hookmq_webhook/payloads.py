"""Show payloads as JSON: as the value that they contain, as text or as base64."""

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from hookmq_webhook.events import Event

PayloadAs = Literal["auto", "json", "text", "base64", "none"]
JSON: Final = "application/json"
DEPTH: Final = 64
"""Maximum nesting of arrays and objects. Deeper payloads are sent as text, because JSON parsers have limits."""
_DIGITS: Final = 300
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ALONE: Final = re.compile(r"[\ud800-\udfff]")


class Shown(NamedTuple):
    """A payload as JSON: a value, a string, or a base64 string."""

    format: Literal["json", "text", "base64", "omitted"]
    json: bytes


NOTHING: Final = Shown("omitted", b"")


def show(payload: bytes, wanted: PayloadAs, data: Mapping[str, Any]) -> Shown:
    """Return a payload in the form `wanted`.

    A payload that is not valid JSON becomes text, and a payload that is not UTF-8 becomes base64. ``auto`` selects JSON
    if the content type is JSON. Without a content type, it selects JSON for objects and arrays.
    """
    if wanted == "none":
        return NOTHING
    if wanted == "base64":
        return _base64(payload)
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return _base64(payload)
    maybe = wanted == "json" or (wanted == "auto" and _may_be_json(text, data))
    if maybe and is_json(text):
        return Shown("json", payload.strip(b" \t\r\n"))
    return Shown("text", dump(text))


def payload_value(event: Event) -> Any:
    """Return the payload of an event: its JSON value, or its text if it is not JSON.

    Returns None if it is neither, or if the event has no payload. The content type does not matter.
    """
    try:
        text = (event.payload or b"").decode()
    except UnicodeDecodeError:
        return None
    if event.payload is not None and is_json(text):
        return json.loads(text)
    return None if event.payload is None else text


def is_json(text: str) -> bool:
    """Return whether `text` is JSON that all receivers can parse.

    Rejects NaN, numbers that do not fit into a double, lone surrogates, and more than `DEPTH` levels.
    """
    if text.count("[") + text.count("{") > DEPTH and _depth(text) > DEPTH:
        return False
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return False
    if _SURROGATE.search(text):
        return not _ALONE.search(json.dumps(value, ensure_ascii=False))
    return True


def reads_as_json(payload: bytes) -> bool:
    """Return whether `payload` is JSON in UTF-8; see `is_json`."""
    try:
        return is_json(payload.decode())
    except UnicodeDecodeError:
        return False


def _may_be_json(text: str, data: Mapping[str, Any]) -> bool:
    kind = data.get("content_type")
    if kind:
        return is_json_type(kind)
    return text.lstrip(" \t\r\n")[:1] in ("{", "[")


def is_json_type(kind: str) -> bool:
    """Return whether a content type is that of JSON."""
    essence = kind.partition(";")[0].strip().lower()
    return essence == JSON or essence.endswith("+json")


def _depth(text: str) -> int:
    """Return how deeply arrays and objects are nested. Ignores brackets in strings."""
    deepest = depth = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', text, re.DOTALL):
        mark = found[0]
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("beyond a double")
    return value


def _int(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError("beyond a double")
    return int(text)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_float, parse_int=_int)


def _base64(payload: bytes) -> Shown:
    return Shown("base64", b'"%b"' % base64.b64encode(payload))


_write: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def dump(value: object) -> bytes:
    """Return a value as JSON in UTF-8. Lone surrogates become question marks."""
    return _write(value).encode("utf-8", "replace")
