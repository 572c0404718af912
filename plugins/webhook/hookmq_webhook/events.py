"""Represent events, and pack them for storage. They are converted to JSON when they are sent."""

import marshal
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_FORMAT: Final = 1
_MARSHAL: Final = 4
"""A marshal version that all supported Python versions can read and write, so that waiting events survive an upgrade."""
_BEGINS: Final = frozenset({b")\x09", b"\xa9\x09"})
"""The first bytes of a packed 9-tuple, with and without marshal's reference flag.

They are checked before unpacking, because marshal allocates memory for any length that it reads.
"""


class Event(NamedTuple):
    """One event.

    `type` is a dotted name such as ``message.published``, and `time` is in seconds since 1970. `client` and `topic` are
    the client id and the topic that the event concerns, or None. `data` contains JSON values. `payload` is the message
    payload, and `trace` the message's ``traceparent``; both are None for events without a message.
    """

    type: str
    time: float
    client: str | None = None
    topic: str | None = None
    listener: str = ""
    data: Mapping[str, Any] = {}
    payload: bytes | None = None
    trace: str | None = None


def pack(event: Event) -> bytes:
    """Pack an event into bytes. Raises ValueError if `data` contains anything but JSON values."""
    return marshal.dumps(
        (_FORMAT, *event[:5], dict(event.data), event.payload, event.trace), _MARSHAL
    )


def unpack(data: bytes) -> Event:
    """Return the event that `pack` encoded. Raises ValueError for other bytes."""
    if data[:2] not in _BEGINS:
        raise ValueError("not a packed event: wrong first bytes")
    try:
        form, *fields = marshal.loads(data)
        if form != _FORMAT:
            raise ValueError(f"unknown format {form}")
        event = Event(*fields)
    except (EOFError, TypeError, ValueError, MemoryError) as error:
        raise ValueError(f"not a packed event: {error}") from error
    if not isinstance(event.type, str) or not isinstance(event.data, dict):
        raise ValueError("not a packed event: fields of wrong types")
    return event
