"""Encode events as CloudEvents 1.0 (structured, binary or batch) or in a plain envelope.

On every attempt, the same events are encoded with the same body and ids, even after a restart. Values from clients
cannot break the headers or the JSON. A payload that is valid JSON is copied byte for byte. Any other payload is encoded
as text or base64.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal

from hookmq_webhook.bodies import Body
from hookmq_webhook.catalog import CATALOG, SCHEMAS
from hookmq_webhook.events import Event
from hookmq_webhook.payloads import (
    JSON,
    NOTHING,
    PayloadAs,
    Shown,
    dump,
    is_json_type,
    payload_value,
    reads_as_json,
    show,
)
from hookmq_webhook.queues import Numbered

Mode = Literal["structured", "binary", "batch", "plain"]
"""Envelope of a request.

``structured`` and ``binary`` contain one event, and ``batch`` a list of events. ``plain`` may contain either.
"""
Content = Literal["event", "payload"]

MAX_HEADER: Final = 4096
"""Maximum length of a ``ce-`` header in characters. Longer values are omitted, because servers refuse them."""
_MEDIA: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+( *;[ -~]*)?")
_TEXTUAL: Final = re.compile(r"[^ -~]|[\"%]| ")


@dataclass(frozen=True)
class Envelope:
    """How to encode events.

    `epoch` is the scope in which event numbers are unique: the outbox id, or a random id chosen at
    each startup. `keep` selects fields of the data; None selects all. With `several`, the ``plain``
    mode always sends a list. If an event is larger than `max_event` bytes, its payload is omitted
    and, if necessary, its user properties too.
    """

    source: str
    epoch: str
    mode: Mode = "structured"
    several: bool = False
    payload: PayloadAs = "auto"
    content: Content = "event"
    keep: Callable[[str], bool] | None = None
    max_event: int = 1 << 20
    prefix: str = "hookmq."
    body: Body | None = None
    """Custom body that replaces the plain envelope, or None."""
    key: Literal["client", "topic", "all", "none"] = "client"
    """The scope within which events arrive in order. It determines ``partitionkey``."""
    dataschema: str = ""
    """URI of the schema of payloads that are sent as the data, or '' for none."""


def encode(envelope: Envelope, events: Sequence[Numbered]) -> tuple[dict[str, str], bytes]:
    """Return the headers, including Content-Type, and the body of a request.

    Raises ValueError for several events if the mode allows only one.
    """
    mode = envelope.mode
    if mode == "batch":
        parts = [_structured(envelope, one)[0] for one in events]
        return {"Content-Type": "application/cloudevents-batch+json"}, _array(parts)
    if mode == "plain" and envelope.several:
        return {"Content-Type": JSON}, _array([_plain(envelope, one) for one in events])
    if len(events) != 1:
        raise ValueError(f"{len(events)} events in one request of the envelope {mode}")
    [one] = events
    headers: dict[str, str]
    if mode == "plain":
        headers, body = {"Content-Type": JSON}, _plain(envelope, one)
    elif mode == "structured":
        body, _ = _structured(envelope, one)
        headers = {"Content-Type": "application/cloudevents+json"}
    else:
        headers, body = _binary(envelope, one)
    if one.event.trace is not None:
        headers["traceparent"] = one.event.trace
    return headers, body


def event_id(epoch: str, number: int) -> str:
    """Return the id of an event. It is unique and never changes."""
    return f"{epoch}-{number}"


def request_id(epoch: str, events: Sequence[Numbered]) -> str:
    """Return the id of a request. A request with one event has the event's id."""
    if len(events) == 1:
        return event_id(epoch, events[0].number)
    digest = hashlib.blake2b(digest_size=8)
    for one in events:
        digest.update(one.number.to_bytes(8, "big"))
    return f"{epoch}-{events[0].number}-{digest.hexdigest()}"


def rfc3339(time: float) -> str:
    """Format a time in seconds since 1970 as ``2026-01-31T12:00:00.000000Z``."""
    if 0 <= time < _LAST:
        share, whole = math.modf(time)
        micros = round(share * 1e6)
        if micros < 1_000_000:
            return f"{_second(int(whole))}.{micros:06d}Z"
    try:
        when = datetime.fromtimestamp(time, UTC)
    except (OverflowError, ValueError, OSError):
        when = datetime.max.replace(tzinfo=UTC)
    return when.isoformat(timespec="microseconds")[:-6] + "Z"


_LAST: Final = 253_402_300_800
"""The year 10000, in seconds since 1970."""


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """Format a whole second without a time zone. Events of the same second follow each other."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]


def percent(text: str) -> str:
    """Percent-encode `text` for a header, in printable ASCII (CloudEvents HTTP binding, 3.1.3.2)."""
    return _TEXTUAL.sub(
        lambda m: "".join(f"%{b:02X}" for b in m[0].encode("utf-8", "replace")), text
    )


# attributes -------------------------------------------------------------------------------------------------------------


def _attributes(envelope: Envelope, one: Numbered) -> dict[str, Any]:
    event = one.event
    made: dict[str, Any] = {
        "specversion": "1.0",
        "id": event_id(envelope.epoch, one.number),
        "source": envelope.source,
        "type": envelope.prefix + event.type,
        "time": rfc3339(event.time),
        "sequence": f"{one.number:020d}",
        "epoch": envelope.epoch,
    }
    subject = event.topic or event.client
    if subject:
        made["subject"] = subject
    if event.trace is not None:
        made["traceparent"] = event.trace
    key = {"client": event.client, "topic": event.topic, "all": envelope.source}.get(envelope.key)
    if key:
        made["partitionkey"] = key
    dataschema = _dataschema(envelope, event)
    if dataschema:
        made["dataschema"] = dataschema
    return made


def _dataschema(envelope: Envelope, event: Event) -> str:
    """Return the URI of the data's schema, or '' if there is none.

    An event that omits some of its fields has no schema, because it would not match the schema of its type.
    """
    if _is_payload(envelope, event):
        return envelope.dataschema
    if envelope.keep is not None or event.type not in CATALOG:
        return ""
    return f"{SCHEMAS}{event.type}"


def _structured(envelope: Envelope, one: Numbered) -> tuple[bytes, str]:
    made = _attributes(envelope, one)
    if not _is_payload(envelope, one.event):
        made["datacontenttype"] = JSON
        return _joined(made, {"data": data_of(envelope, one.event)}), JSON
    shown, kind = _alone(envelope, one.event)
    made |= _extensions(envelope, one.event)
    raw: dict[str, bytes] = {}
    if shown.format != "omitted":
        made["datacontenttype"] = kind
        raw["data_base64" if shown.format == "base64" else "data"] = shown.json
    return _joined(made, raw), kind


def _binary(envelope: Envelope, one: Numbered) -> tuple[dict[str, str], bytes]:
    made = _attributes(envelope, one)
    headers: dict[str, str] = {}
    if _is_payload(envelope, one.event):
        shown, kind = _alone(envelope, one.event)
        made |= _extensions(envelope, one.event)
        body = b"" if shown.format == "omitted" else one.event.payload or b""
        if shown.format != "omitted":
            headers["Content-Type"] = kind
    else:
        body = data_of(envelope, one.event)
        headers["Content-Type"] = JSON
    for name, value in made.items():
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        written = percent(text)
        if written and len(written) <= MAX_HEADER:
            headers[f"ce-{name}"] = written
    return headers, body


def _plain(envelope: Envelope, one: Numbered) -> bytes:
    if envelope.body is None:
        return _joined(_plain_attributes(envelope, one), {"data": data_of(envelope, one.event)})
    data = json.loads(data_of(envelope, one.event))
    values = {**data, **_plain_attributes(envelope, one)}
    return envelope.body.render(values, lambda: payload_value(one.event))


def _plain_attributes(envelope: Envelope, one: Numbered) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": event_id(envelope.epoch, one.number),
        "source": envelope.source,
        "type": one.event.type,
        "time": rfc3339(one.event.time),
        "sequence": one.number,
        "epoch": envelope.epoch,
    }
    if one.event.trace is not None:
        made["traceparent"] = one.event.trace
    return made


# data -------------------------------------------------------------------------------------------------------------------


def data_of(envelope: Envelope, event: Event) -> bytes:
    """Return an event's data as a JSON object."""
    fields = fields_of(event)
    raw: dict[str, bytes] = {}
    payload = event.payload
    if payload is not None:
        wanted = _wanted(envelope)
        shown = _shown(envelope, event, payload)
        made = _object(envelope, event, fields, shown, wanted)
        if len(made) > envelope.max_event and shown is not NOTHING:
            made = _object(envelope, event, fields, NOTHING, wanted)
        if len(made) > envelope.max_event and "user_properties" in fields:
            fields.pop("user_properties")
            made = _object(envelope, event, fields, NOTHING, wanted, "user_properties")
        return made
    return _joined(_kept(envelope, fields), raw)


def _object(
    envelope: Envelope,
    event: Event,
    fields: Mapping[str, Any],
    shown: Shown,
    wanted: bool,
    *missing: str,
) -> bytes:
    made = dict(fields)
    made["payload_size"] = len(event.payload or b"")
    made["payload_format"] = shown.format
    raw = {}
    if shown is not NOTHING:
        raw["payload_base64" if shown.format == "base64" else "payload"] = shown.json
    elif wanted:
        missing = ("payload", *missing)
    if missing:
        made["left_out"] = missing
    return _joined(_kept(envelope, made), raw)


def _shown(envelope: Envelope, event: Event, payload: bytes) -> Shown:
    """Return the payload as JSON, or `NOTHING` if it does not fit into `max_event`.

    A payload larger than `max_event` is not parsed, to spare the event loop. Its encoded form could fit only
    if the payload is JSON surrounded by whitespace.
    """
    if not _wanted(envelope) or len(payload) > envelope.max_event:
        return NOTHING
    shown = show(payload, envelope.payload, event.data)
    return NOTHING if len(shown.json) > envelope.max_event else shown


def _wanted(envelope: Envelope) -> bool:
    return envelope.payload != "none" and (envelope.keep is None or envelope.keep("payload"))


def fields_of(event: Event) -> dict[str, Any]:
    """Return an event's client id, topic, listener and data as one set of fields, without the payload fields."""
    made: dict[str, Any] = {}
    if event.client is not None:
        made["client_id"] = event.client
    if event.topic is not None:
        made["topic"] = event.topic
    if event.listener:
        made["listener"] = event.listener
    made |= event.data
    if event.payload is not None:  # the times of a message
        for name in ("received_at", "expires_at"):
            if name in made:
                made[name] = rfc3339(made[name])
    return made


def _kept(envelope: Envelope, fields: dict[str, Any]) -> dict[str, Any]:
    keep = envelope.keep
    return fields if keep is None else {name: value for name, value in fields.items() if keep(name)}


def _is_payload(envelope: Envelope, event: Event) -> bool:
    """Return whether the payload itself is sent as the data."""
    return envelope.content == "payload" and event.payload is not None


def _alone(envelope: Envelope, event: Event) -> tuple[Shown, str]:
    """Return the payload to send as the data, and its content type."""
    payload = event.payload or b""
    shown = _shown(envelope, event, payload)
    if shown is NOTHING:
        return shown, ""
    given = event.data.get("content_type", "")
    kind: str = given if len(given) <= 256 and _MEDIA.fullmatch(given) else ""
    if shown.format == "json":
        return shown, kind if is_json_type(kind) else JSON
    if shown.format == "text":
        return shown, kind if kind and not is_json_type(kind) else "text/plain; charset=utf-8"
    if is_json_type(kind) and not reads_as_json(payload):
        kind = ""  # a receiver that relies on the content type would fail
    return shown, kind or "application/octet-stream"


def _extensions(envelope: Envelope, event: Event) -> dict[str, Any]:
    """Return an event's fields as CloudEvents attributes, for an event whose data is the payload.

    Underscores are removed from the names, because CloudEvents does not allow them.
    """
    fields = {**fields_of(event), "payload_size": len(event.payload or b"")}
    return {
        name.replace("_", ""): value
        for name, value in _kept(envelope, fields).items()
        if isinstance(value, str | int) and value != "" and name != "content_type"
    }


# JSON -------------------------------------------------------------------------------------------------------------------


def _joined(members: Mapping[str, Any], raw: Mapping[str, bytes]) -> bytes:
    """Return a JSON object that combines `members` and `raw`. The values of `raw` are already JSON."""
    if not raw:
        return dump(members)
    parts = [dump(members)[1:-1]] if members else []
    parts += [b'"%b":%b' % (name.encode(), value) for name, value in raw.items()]
    return b"{%b}" % b",".join(parts)


def _array(parts: Sequence[bytes]) -> bytes:
    return b"[%b]" % b",".join(parts)
