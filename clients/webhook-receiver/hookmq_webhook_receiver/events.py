"""Read events from requests, in any envelope of the plugin."""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from hookmq_webhook_receiver.signature import SIGNATURE

MAX_BODY: Final = 16 << 20
"""Maximum size of a body by default, in bytes."""
_OURS: Final = frozenset(
    {
        "specversion", "id", "source", "type", "subject", "time", "sequence", "epoch", "traceparent", "datacontenttype",
        "dataschema", "partitionkey", "data", "data_base64",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Received:
    """A received event.

    `id` stays the same when an event is resent. `sequence` counts from 0 within a `source` and `epoch`. `data` is a JSON
    value, a string, or bytes. `dataschema` is the URI of its schema. Events with the same `partitionkey` arrive in order.
    `extra` contains all other attributes, such as ``qos`` if the data is the payload.
    """

    id: str
    type: str
    source: str
    epoch: str
    sequence: int
    time: str
    data: Any
    subject: str | None = None
    traceparent: str | None = None
    dataschema: str | None = None
    partitionkey: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def inflate(headers: Mapping[str, str], body: bytes, limit: int = MAX_BODY) -> bytes:
    """Return the body, decompressed if the headers declare gzip. `verify` accepts both forms.

    Raises ValueError if the body is not valid gzip, or is larger than `limit` bytes when decompressed.
    """
    kind = next(
        (value for name, value in headers.items() if name.lower() == "content-encoding"), ""
    )
    if kind.strip().lower() != "gzip":
        return body
    inflater = zlib.decompressobj(31)
    try:
        made = inflater.decompress(body, limit)
    except zlib.error as error:
        raise ValueError(f"not gzip: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise ValueError(f"not valid gzip, or more than {limit} bytes")
    return made


def read(headers: Mapping[str, str], body: bytes, limit: int = MAX_BODY) -> list[Received]:
    """Return the events of a request that `hookmq_webhook_receiver.verify` has accepted.

    A body that is still compressed with gzip is decompressed to at most `limit` bytes, unless the request has ``ce-*``
    headers. Raises ValueError if the body does not contain events, or if a signed request has ``ce-*`` headers. Anyone
    may have added these headers, because signatures do not cover them.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    kind = lower.get("content-type", "").partition(";")[0].strip().lower()
    if any(name.startswith("ce-") for name in lower):
        if SIGNATURE in lower:
            raise ValueError("ce-* headers on a signed request, which signatures do not cover")
        return [_binary(lower, kind, body)]
    if body[:2] == b"\x1f\x8b":
        body = inflate(headers, body, limit)
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("not an event: nested too deeply") from None
    several = found if isinstance(found, list) else [found]
    if not all(isinstance(one, dict) for one in several):
        raise ValueError("not an event")
    return [_one(one) for one in several]


def _one(found: dict[str, Any]) -> Received:
    data = found.get("data")
    if "data_base64" in found:
        text = found["data_base64"]
        if not isinstance(text, str):
            raise ValueError("not an event: data_base64 is not a string")
        data = base64.b64decode(text, validate=True)
    return _made(found, data)


def _binary(headers: Mapping[str, str], kind: str, body: bytes) -> Received:
    found: dict[str, Any] = {
        name[3:]: unquote(value, errors="strict")
        for name, value in headers.items()
        if name.startswith("ce-")
    }
    data: Any = body or None
    if body and (kind == "application/json" or kind.endswith("+json")):
        try:
            data = json.loads(body)
        except RecursionError:
            raise ValueError("not an event: data is nested too deeply") from None
    elif kind.startswith("text/"):
        try:
            data = body.decode()
        except UnicodeDecodeError:
            pass  # the text uses another charset, so keep the bytes
    return _made(found, data)


def _made(found: Mapping[str, Any], data: Any) -> Received:
    for name in ("id", "type", "source", "epoch", "time"):
        if not isinstance(found.get(name, ""), str):
            raise ValueError(f"not an event: {name} is not a string")
    if not isinstance(found.get("sequence", ""), str | int):
        raise ValueError("not an event: sequence is not a number")
    try:
        return Received(
            id=found["id"],
            type=found["type"],
            source=found["source"],
            epoch=found["epoch"],
            sequence=int(found["sequence"]),
            time=found["time"],
            data=data,
            subject=found.get("subject"),
            traceparent=found.get("traceparent"),
            dataschema=found.get("dataschema"),
            partitionkey=found.get("partitionkey"),
            extra={name: value for name, value in found.items() if name not in _OURS},
        )
    except KeyError as error:
        raise ValueError(f"not an event: {error} is missing") from None
