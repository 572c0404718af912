"""For receivers: the events of a request, whatever its envelope, and which of them are new. Needs no broker."""

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
    """An event as it came. `sequence` counts from 0 within `source` and `epoch`; `id` is the same at every attempt.
    `data` is a value of JSON, text, or bytes; `extra` has the other attributes, as ``qos`` where data is the payload."""

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
    """Return the body, decompressed if the headers say that it is gzip. `verify` takes it before and after that.
    Raises ValueError for what is not gzip or has more than `limit` bytes."""
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
        raise ValueError(f"not gzip as a whole, or more than {limit} bytes")
    return made


def read(headers: Mapping[str, str], body: bytes) -> list[Received]:
    """Return the events of a request that `hookmq_webhook.verify` found genuine. A body that is still gzip is
    inflated, except with ``ce-*`` headers. Raises ValueError if there are none, and for ``ce-*`` headers on a signed
    request: no signature covers them, so that anybody may have put them there."""
    lower = {name.lower(): value for name, value in headers.items()}
    kind = lower.get("content-type", "").partition(";")[0].strip().lower()
    if any(name.startswith("ce-") for name in lower):
        if SIGNATURE in lower:
            raise ValueError("ce-* headers on a signed request: the signature does not cover them")
        return [_binary(lower, kind, body)]
    if body[:2] == b"\x1f\x8b":
        body = inflate(headers, body)
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("not an event: nested too deep") from None
    several = found if isinstance(found, list) else [found]
    if not all(isinstance(one, dict) for one in several):
        raise ValueError("not an event")
    return [_one(one) for one in several]


def _one(found: dict[str, Any]) -> Received:
    data = found.get("data")
    if "data_base64" in found:
        text = found["data_base64"]
        if not isinstance(text, str):
            raise ValueError("not an event: data_base64 is no text")
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
            raise ValueError("data nested too deep") from None
    elif kind.startswith("text/"):
        try:
            data = body.decode()
        except UnicodeDecodeError:
            pass  # of another charset: bytes, as it came
    return _made(found, data)


def _made(found: Mapping[str, Any], data: Any) -> Received:
    for name in ("id", "type", "source", "epoch", "time"):
        if not isinstance(found.get(name, ""), str):
            raise ValueError(f"not an event: its {name} is no text")
    if not isinstance(found.get("sequence", ""), str | int):
        raise ValueError("not an event: its sequence is no number")
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
        raise ValueError(f"not an event: it has no {error}") from None


class _Stretch:
    """What came of one source and epoch: all from `since` to `highest`, but what is in `gaps`."""

    def __init__(self, first: int) -> None:
        self.since = self.highest = first
        self.gaps: dict[int, None] = {}


class Ledger:
    """Which events came: tells the new ones from those that were sent again, and what is missing.

    Events of different keys may overtake each other, so what is missing may still come. Of more than `window` such events
    the oldest count as lost; should they come after all they are new, as is everything of which nothing is known. Nothing
    new is ever taken for a repetition. It holds at most `window` numbers for each of the last `sources` sources and
    epochs. It lives in memory: a receiver that must know after a restart keeps ids in its database.
    """

    def __init__(self, window: int = 10_000, sources: int = 100) -> None:
        self.lost = 0
        """Events that did not come, and are not expected any more."""
        self._window = window
        self._sources = sources
        self._known: OrderedDict[tuple[str, str], _Stretch] = OrderedDict()

    def take(self, event: Received) -> bool:
        """Note that it came. False: it had come before."""
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
        """(source, epoch, sequence) of what may still come."""
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
