"""Events: what happened, as it is kept until it arrived. Packed small when it happens; made into JSON when it is sent."""

import marshal
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_FORMAT: Final = 1
_MARSHAL: Final = 4
"""The version of marshal that every Python of ours writes and reads: what waits outlives an upgrade."""
_BEGINS: Final = frozenset({b")\x09", b"\xa9\x09"})
"""What a tuple of nine begins with, whether or not marshal thinks that it may be referred to. Looked at first:
marshal makes room for whatever number stands there."""


class Event(NamedTuple):
    """`type` is a dotted name as ``message.published``, `time` in seconds since 1970. `client` and `topic` are what it
    is about, where it is about one. `data` has values that JSON has; `payload` is a message's, `trace` its
    ``traceparent``."""

    type: str
    time: float
    client: str | None = None
    topic: str | None = None
    listener: str = ""
    data: Mapping[str, Any] = {}
    payload: bytes | None = None
    trace: str | None = None


def pack(event: Event) -> bytes:
    """The bytes of an event. Raises ValueError for `data` that JSON does not have."""
    return marshal.dumps(
        (_FORMAT, *event[:5], dict(event.data), event.payload, event.trace), _MARSHAL
    )


def unpack(data: bytes) -> Event:
    """The event of `pack`. Raises ValueError for anything else that a checksum let through."""
    if data[:2] not in _BEGINS:
        raise ValueError("not a packed event: it does not begin as one")
    try:
        form, *fields = marshal.loads(data)
        if form != _FORMAT:
            raise ValueError(f"of format {form}")
        event = Event(*fields)
    except (EOFError, TypeError, ValueError, MemoryError) as error:
        raise ValueError(f"not a packed event: {error}") from error
    if not isinstance(event.type, str) or not isinstance(event.data, dict):
        raise ValueError("not a packed event: fields of other types")
    return event
