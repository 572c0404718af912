"""Print messages for `sub` and `rr`: payload only, topic and payload, JSON, or a format string as in mosquitto_sub."""

import argparse
import json
import re
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from hookmq.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message to print. `properties` holds the MQTT 5 properties as attributes, under paho's names."""

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
    "x": "payload in lower-case hex",
    "X": "payload in upper-case hex",
    "l": "length of the payload in bytes",
    "q": "QoS",
    "r": "1 if retained, else 0",
    "m": "packet id",
    "j": "JSON, with the payload as text",
    "J": "JSON, with the payload as JSON",
    "U": "time in seconds since 1970",
    "I": "time in ISO 8601",
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
    "n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "e": "\x1b", "v": "\v", "\\": "\\",
}  # fmt: skip

_HARMFUL: Final = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Matches control characters, characters that change the text direction, and bytes that are not UTF-8."""


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that control how messages are printed."""
    add = parser.add_argument_group("output").add_argument
    add("-v", "--verbose", action="store_true", help="print the topic before the payload")
    add("-F", "--format", help="json, or text with the %%-fields that `hookmq sub --help` lists")
    add("-N", "--no-newline", action="store_true", help="print no line end after a message")


def template_of(arguments: argparse.Namespace) -> str:
    """Return the format that -F, -v and -N select. Raises ConfigError."""
    if arguments.format == "json":
        template = "%j"
    elif arguments.format is not None:
        template = check(arguments.format)
    else:
        template = "%t %p" if arguments.verbose else "%p"
    return template if arguments.no_newline else template + "\n"


def print_message(message: ReceivedMessage, template: str) -> None:
    """Write `message` to standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(render(message, template, time.time(), sys.stdout.isatty()))
    sys.stdout.buffer.flush()


def harmless(text: str, keep: str = "") -> str:
    """Replace characters that could control a terminal with escapes such as ``\\x1b``, except those in `keep`.
    Decode `text` with ``surrogateescape`` first, so that it can contain bytes that are not UTF-8.
    """
    return _HARMFUL.sub(lambda m: m[0] if m[0] in keep else _escape(ord(m[0])), text)


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # a byte that is not UTF-8
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def check(template: str) -> str:
    """Return `template` with its backslash escapes replaced. Raises ConfigError for an unknown field."""
    for match in _FIELD.finditer(template):
        if match["name"] not in FIELDS:
            known = ", ".join(f"%{name}" for name in FIELDS)
            raise ConfigError(f"-F: unknown field {match[0]!r}", hint=f"known: {known}")
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), template)


def render(message: ReceivedMessage, template: str, now: float, terminal: bool = False) -> bytes:
    """Format `message`, received at `now` (seconds since the epoch), with `template`.

    For a terminal, `harmless` escapes the fields, but payloads keep their tabs and line breaks.
    """
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


def _value(message: ReceivedMessage, name: str, now: float) -> bytes:
    if name == "p":
        return message.payload
    if name == "D":
        return getattr(message.properties, "CorrelationData", b"") or b""
    return _text(message, name, now).encode("utf-8", "replace")


def _text(message: ReceivedMessage, name: str, now: float) -> str:
    payload = message.payload
    simple: dict[str, object] = {
        "%": "%", "t": message.topic, "l": len(payload), "q": message.qos, "r": int(message.retain), "m": message.mid,
    }  # fmt: skip
    if name in simple:
        return str(simple[name])
    if name in "xX":
        return payload.hex() if name == "x" else payload.hex().upper()
    if name in "UI":
        return f"{now:.6f}" if name == "U" else iso(now)
    if name in "jJ":
        return as_json(message, now, parse=name == "J")
    value = getattr(message.properties, _PROPERTIES[name], None)
    if value is None:
        return ""
    if name == "P":
        return " ".join(f"{key}:{text}" for key, text in value)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def as_json(message: ReceivedMessage, now: float, *, parse: bool) -> str:
    """Format `message` as one line of JSON. A payload that is not UTF-8 is written as hex under ``payload_hex``. With
    `parse`, a payload that contains JSON is written as a JSON value."""
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
    # json.dumps does not escape U+007F to U+009F and some others, but some terminals interpret them
    return _HARMFUL.sub(lambda m: f"\\u{ord(m[0]):04x}", json.dumps(record, ensure_ascii=False))


def _properties(message: ReceivedMessage) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for attribute in _PROPERTIES.values():
        value = getattr(message.properties, attribute, None)
        if value is None or value == []:
            continue
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", attribute).lower()
        if attribute == "UserProperty":
            # write a list of pairs, since a name may occur more than once
            result["user-properties"] = [list(pair) for pair in value]
        elif isinstance(value, bytes):
            result[name] = value.decode("utf-8", "backslashreplace")
        else:
            result[name] = value
    return result


def iso(now: float) -> str:
    """Return the local time in ISO format, with its UTC offset and microseconds."""
    local = time.localtime(now)
    fraction = f"{now % 1:.6f}"[1:]
    return time.strftime("%Y-%m-%dT%H:%M:%S", local) + fraction + time.strftime("%z", local)
