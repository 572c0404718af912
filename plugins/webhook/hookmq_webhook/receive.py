"""Help receivers read events from requests in any envelope, and detect repeated events. This module does not need a
broker.
"""

import base64
import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from hookmq_webhook.signature import SIGNATURE

_OURS: Final = frozenset(
    {
        "specversion", "id", "source", "type", "subject", "time", "sequence", "epoch", "traceparent", "datacontenttype",
        "data", "data_base64",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Received:
    """A received event.

    `id` is the same at every attempt. `sequence` counts from 0 within a `source` and `epoch`. `data` is a JSON value, a
    string, or bytes. `extra` contains all other attributes, such as ``qos`` if the data is the payload.
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
    extra: Mapping[str, Any] = field(default_factory=dict)


def inflate(headers: Mapping[str, str], body: bytes, limit: int = 16 << 20) -> bytes:
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


def read(headers: Mapping[str, str], body: bytes) -> list[Received]:
    """Return the events of a request that `hookmq_webhook.verify` has accepted.

    A body that is still compressed with gzip is decompressed, unless the request has ``ce-*`` headers. Raises ValueError
    if the body does not contain events, or if a signed request has ``ce-*`` headers. Signatures do not cover these
    headers, so anyone may have added them.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    kind = lower.get("content-type", "").partition(";")[0].strip().lower()
    if any(name.startswith("ce-") for name in lower):
        if SIGNATURE in lower:
            raise ValueError("ce-* headers on a signed request, which signatures do not cover")
        return [_binary(lower, kind, body)]
    if body[:2] == b"\x1f\x8b":
        body = inflate(headers, body)
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
            extra={name: value for name, value in found.items() if name not in _OURS},
        )
    except KeyError as error:
        raise ValueError(f"not an event: {error} is missing") from None


class _Stretch:
    """The received events of one source and epoch: all events from `since` to `highest`, except `gaps`."""

    def __init__(self, first: int) -> None:
        self.since = self.highest = first
        self.gaps: dict[int, None] = {}


class Ledger:
    """Distinguishes new events from repeated events, and lists missing events.

    Events with different keys may overtake each other, so a missing event may still arrive. If more
    than `window` events are missing, the oldest count as lost. If a lost event arrives later, it
    counts as new. A new event is never mistaken for a repeated event.

    The ledger holds at most `window` numbers for each of the last `sources` pairs of source and
    epoch. It does not survive a restart. To detect repeated events after a restart, store their ids
    in a database.
    """

    def __init__(self, window: int = 10_000, sources: int = 100) -> None:
        self.lost = 0
        """Number of missing events that are no longer expected."""
        self._window = window
        self._sources = sources
        self._known: OrderedDict[tuple[str, str], _Stretch] = OrderedDict()

    def take(self, event: Received) -> bool:
        """Record `event`. Return True if it is new, or False if it has arrived before."""
        key = (event.source, event.epoch)
        number = event.sequence
        stretch = self._known.get(key)
        if stretch is None:
            self._known[key] = _Stretch(number)
            if len(self._known) > self._sources:
                self._known.popitem(last=False)
            return True
        self._known.move_to_end(key)
        if number > stretch.highest:
            self._beyond(stretch, number)
            return True
        if number in stretch.gaps:
            del stretch.gaps[number]
            return True
        return number < stretch.since

    def missing(self) -> list[tuple[str, str, int]]:
        """Return the source, epoch and sequence of each missing event that may still arrive."""
        return [(*key, n) for key, stretch in self._known.items() for n in stretch.gaps]

    def _beyond(self, stretch: _Stretch, number: int) -> None:
        following = stretch.highest + 1
        stretch.highest = number
        first = max(following, number - self._window)
        if first > following:
            self.lost += first - following
            stretch.since = first
        stretch.gaps.update(dict.fromkeys(range(first, number)))
        while len(stretch.gaps) > self._window:
            oldest = next(iter(stretch.gaps))
            del stretch.gaps[oldest]
            self.lost += 1
            stretch.since = max(stretch.since, oldest + 1)
