"""How `sub` and `rr` print a message: plain, with its topic, as JSON, or by a format as mosquitto_sub's ``-F``."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hookmq.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Received:
    """What is printed of a message. `properties` has MQTT 5's as attributes, by their names in camel case."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    mid: int = 0
    properties: object = None


_FIELD = re.compile(r"%(?P<pad>[-0]?)(?P<width>\d*)(?:\.(?P<max>\d+))?(?P<name>.)", re.DOTALL)
FIELDS: Final = {
    "%": "a percent sign",
    "t": "topic",
    "p": "payload",
    "x": "payload in hex",
    "X": "payload in HEX",
    "l": "payload's length",
    "q": "QoS",
    "r": "1 when retained, else 0",
    "m": "packet id",
    "j": "JSON, the payload as text",
    "J": "JSON, the payload as JSON",
    "U": "time, seconds since 1970",
    "I": "time, ISO 8601",
    "C": "content type",
    "R": "response topic",
    "D": "correlation data",
    "E": "message expiry interval",
    "F": "payload format indicator",
    "S": "subscription identifiers",
    "P": "user properties",
    "A": "topic alias",
}
_PROPERTIES: Final = {
    "C": "ContentType", "R": "ResponseTopic", "D": "CorrelationData", "E": "MessageExpiryInterval",
    "F": "PayloadFormatIndicator", "S": "SubscriptionIdentifier", "P": "UserProperty", "A": "TopicAlias",
}  # fmt: skip
_ESCAPES: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "0": "\0",
    "a": "\a",
    "e": "\x1b",
    "v": "\v",
    "\\": "\\",
}


_HARMFUL: Final = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What drives a terminal or reorders what it shows, and bytes that are no UTF-8."""


def harmless(text: str, keep: str = "") -> str:
    """Return `text` with an escape such as ``\\x1b`` for whatever drives a terminal, but for the characters of `keep`.
    Bytes that are no UTF-8 come as ``surrogateescape`` makes them."""
    return _HARMFUL.sub(lambda m: m[0] if m[0] in keep else _escape(ord(m[0])), text)


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # the byte that was no UTF-8
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def check(template: str) -> str:
    """`template` with its backslash escapes read. Raises ConfigError for a field that does not exist."""
    for match in _FIELD.finditer(template):
        if match["name"] not in FIELDS:
            known = ", ".join(f"%{name}" for name in FIELDS)
            raise ConfigError(f"-F: unknown field {match[0]!r}", hint=f"known: {known}")
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), template)


def render(message: Received, template: str, now: float, terminal: bool = False) -> bytes:
    """Return `message` by `template`, received at `now`, epoch seconds. Fields stay the bytes they are, unless they go to
    a terminal: then nothing in them can drive it. A payload keeps its tabs and line ends."""
    out = bytearray()
    position = 0
    for match in _FIELD.finditer(template):
        out += template[position : match.start()].encode("utf-8", "surrogateescape")
        name = match["name"]
        value = _value(message, name, now)
        if terminal:
            text = value.decode("utf-8", "surrogateescape")
            value = harmless(text, "\t\n" if name == "p" else "").encode()
        if match["max"] is not None:
            value = value[: int(match["max"])]
        width = int(match["width"] or 0)
        fill = b"0" if match["pad"] == "0" else b" "
        out += value.ljust(width) if match["pad"] == "-" else value.rjust(width, fill)
        position = match.end()
    out += template[position:].encode("utf-8", "surrogateescape")
    return bytes(out)


def _value(message: Received, name: str, now: float) -> bytes:
    if name == "p":
        return message.payload
    if name == "D":
        return getattr(message.properties, "CorrelationData", b"") or b""
    return _text(message, name, now).encode("utf-8", "replace")


def _text(message: Received, name: str, now: float) -> str:
    simple: dict[str, Callable[[], str]] = {
        "%": lambda: "%",
        "t": lambda: message.topic,
        "x": lambda: message.payload.hex(),
        "X": lambda: message.payload.hex().upper(),
        "l": lambda: str(len(message.payload)),
        "q": lambda: str(message.qos),
        "r": lambda: str(int(message.retain)),
        "m": lambda: str(message.mid),
        "U": lambda: f"{now:.6f}",
        "I": lambda: iso(now),
        "j": lambda: as_json(message, now, parse=False),
        "J": lambda: as_json(message, now, parse=True),
    }
    if name in simple:
        return simple[name]()
    value = getattr(message.properties, _PROPERTIES[name], None)
    if value is None:
        return ""
    if name == "P":
        return " ".join(f"{key}:{text}" for key, text in value)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def as_json(message: Received, now: float, *, parse: bool) -> str:
    """`message` as one line of JSON. Bytes that are no UTF-8 become hex under ``payload_hex``."""
    record: dict[str, Any] = {
        "tst": iso(now),
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.qos:
        record["mid"] = message.mid
    properties = _properties(message)
    if properties:
        record["properties"] = properties
    try:
        text = message.payload.decode()
    except UnicodeDecodeError:
        record["payload_hex"] = message.payload.hex()
    else:
        record["payload"] = text
        if parse:
            try:
                record["payload"] = json.loads(text)
            except ValueError:
                pass
    # JSON leaves U+007F to U+009F and others as they are, and some terminals obey them
    return _HARMFUL.sub(lambda m: f"\\u{ord(m[0]):04x}", json.dumps(record, ensure_ascii=False))


def _properties(message: Received) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for attribute in _PROPERTIES.values():
        value = getattr(message.properties, attribute, None)
        if value is None or value == []:
            continue
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", attribute).lower()
        if attribute == "UserProperty":
            # pairs, for a name may come more than once
            result["user-properties"] = [list(pair) for pair in value]
        elif isinstance(value, bytes):
            result[name] = value.decode("utf-8", "backslashreplace")
        else:
            result[name] = value
    return result


def iso(now: float) -> str:
    """Local time with its offset, to the microsecond."""
    fraction = f"{now % 1:.6f}"[1:]
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now)) + fraction + time.strftime(
        "%z", time.localtime(now)
    )  # fmt: skip
