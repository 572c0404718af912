"""A service that describes a plugin's streams: messages that it keeps for consumers outside the broker.

A plugin offers a `StreamOwner` in `Plugin.offered_services` under the name `SERVICE`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

SERVICE: Final = "streams"
"""The name of the service in `Plugin.offered_services`."""


@dataclass(frozen=True, slots=True)
class StreamConsumer:
    """A consumer of a stream.

    - `lag`: the number of messages that it has not committed.
    - `committed_at`: the time of its last commit in epoch seconds, or None.
    - `lag_seconds`: the approximate age in seconds of its oldest uncommitted message; 0 if there is none. None if the
      plugin does not know it.
    - `declared`: whether messages are kept until it has committed them. None if the plugin has no such setting.
    - `dead_letters`: the number of messages that it could not process and wrote to a separate table, according to its
      own reports. None if it has reported nothing.
    """

    name: str
    lag: int
    committed_at: float | None = None
    lag_seconds: float | None = None
    declared: bool | None = None
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream's state.

    - `kind`: a ``log`` keeps messages for a certain time or up to a certain size, a ``queue`` until they are delivered.
    - `messages`, `bytes`: the number of messages in the stream, and their approximate size.
    - `oldest`: the approximate age of the oldest message in seconds, or None.
    - `error`: why the stream or its consumers cannot be read; empty if they can.
    - `max_bytes`: the size at which the stream is full, or None.
    - `full`: whether the stream is refusing messages, or has refused some within the last minute.
    - `refused`: the number of messages refused since the broker started, because the stream was full; `dropped`: the
      number removed since then before a consumer had committed them.
    - `partitions`: the number of messages in each partition.
    """

    name: str
    kind: Literal["log", "queue"]
    messages: int
    bytes: int
    oldest: float | None = None
    consumers: tuple[StreamConsumer, ...] = ()
    error: str = ""
    max_bytes: int | None = None
    full: bool = False
    refused: int = 0
    dropped: int = 0
    partitions: tuple[int, ...] = ()


@runtime_checkable
class StreamOwner(Protocol):
    """A plugin with streams. Await the method only on the event loop."""

    async def list_streams(self) -> Sequence[StreamStatus]:
        """Return the plugin's streams, in the order of its configuration. This does not block the event loop."""
