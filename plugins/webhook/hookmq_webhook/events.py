"""Events: what happened, as it is kept until it arrived. Packed small when it happens; made into JSON when it is sent."""

import marshal
from collections.abc import Mapping
from typing import Any, NamedTuple


class Event(NamedTuple):
    """`type` is a dotted name as ``message.published``, `time` in seconds since 1970. `client` and `topic` are what it is
    about, where it is about one. `data` has values that JSON has; `payload` is a message's, `trace` its ``traceparent``."""

    type: str
    time: float
    client: str | None = None
    topic: str | None = None
    listener: str = ""
    data: Mapping[str, Any] = {}
    payload: bytes | None = None
    trace: str | None = None


def pack(event: Event) -> bytes:
    """The bytes of an event."""
    return marshal.dumps(
        (*event[:5], dict(event.data), event.payload, event.trace),
    )


def unpack(data: bytes) -> Event:
    """The event of `pack`. Raises ValueError for anything else that a checksum let through."""
    try:
        return Event(*marshal.loads(data))
    except (EOFError, TypeError, ValueError) as error:
        raise ValueError(f"not a packed event: {error}") from error
