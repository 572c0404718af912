"""Traces of what the broker does with some clients or messages, event by event. See `BrokerHandle.trace`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

MAX_SECONDS: Final = 3600.0
"""The longest duration of a trace, in seconds."""
MAX_RATE: Final = 10_000
"""The highest number of events per second."""


class TraceKind(StrEnum):
    """What a trace event reports. `TraceEvent` lists the fields of each kind."""

    RECEIVED = "received"
    SENT = "sent"
    HOOK = "hook"
    ROUTE = "route"
    DROP = "drop"
    EVENT = "event"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """Which clients and messages to trace, and for how long. An empty string selects everything, but at least one of
    the strings must not be empty.

    - `client_id`, `username`: the client id or user name of the clients to trace.
    - `address`: a prefix of the addresses of the clients to trace.
    - `filter`: only events about topics that this topic filter matches.
    - `plugin`: only calls to the plugin with this plugin id.
    - `seconds`: the duration, at most an hour.
    - `rate`: the maximum number of events per second, at most 10,000. Further events are skipped and counted.
    - `payloads`: whether events contain the first 512 bytes of each payload.

    Values outside these limits raise ValueError.
    """

    client_id: str = ""
    username: str = ""
    address: str = ""
    filter: str = ""
    plugin: str = ""
    seconds: float = 60.0
    rate: int = 200
    payloads: bool = False

    def __post_init__(self) -> None:
        if not (self.selects_clients or self.filter or self.plugin):
            raise ValueError("a client id, user name, address, filter or plugin is required")
        if not 0 < self.seconds <= MAX_SECONDS:
            raise ValueError(f"seconds is {self.seconds!r}: expected at most {MAX_SECONDS:g}")
        if not 0 < self.rate <= MAX_RATE:
            raise ValueError(f"rate is {self.rate!r}: expected 1 to {MAX_RATE}")

    @property
    def selects_clients(self) -> bool:
        """Whether the trace selects clients and reports their packets."""
        return bool(self.client_id or self.username or self.address)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event in a trace.

    - `time`: epoch seconds.
    - `client_id`: the client that the event is about, or None.
    - `topic`: the topic or filter that the event is about, including the mount point, or None. It is cut off after
      1,024 characters.
    - `name` and `fields`: depend on `kind`. Values are JSON values, except ``payload``, which is bytes.

    =========== ============================== ===================================================================
    kind        name                           fields
    =========== ============================== ===================================================================
    RECEIVED    type of the client's packet    the packet's header and properties, and ``bytes``
    SENT        type of the broker's packet    the same
    HOOK        name of the hook               ``plugin``, ``verdict``, ``microseconds``, ``action``, ``rule``, ...
    ROUTE       ``published``                  ``matched``, ``recipients``, ``groups``, ``journals``, ``qos``, ...
    DROP        the reason                     ``direction``, ``detail``, ``sender``
    EVENT       a hook such as ``on_session``  ``code``, ``rule``, ``reason``, ...; ``closed`` ends a connection
    SKIPPED     ``rate``                       ``events``: how many events were skipped
    =========== ============================== ===================================================================

    Events never contain passwords, authentication data, claims or the values of user properties.
    """

    time: float
    kind: TraceKind
    name: str
    client_id: str | None
    topic: str | None
    fields: Mapping[str, object]


class Trace(Protocol):
    """A running trace. Iterate over its events with ``async for``; the iteration ends when the trace does. While one
    reader waits for an event, another one gets a RuntimeError.

    Connections that are already open when the trace starts are added over the next turns, 200 per turn. At most 10,000
    events can wait to be read. Further events are skipped.
    """

    @property
    def request(self) -> TraceRequest:
        """The clients and messages to trace, and the limits."""

    @property
    def ended(self) -> str:
        """Why the trace has ended; empty while it runs."""

    @property
    def skipped(self) -> int:
        """The number of events that were skipped."""

    def stop(self, reason: str = "stopped") -> None:
        """End the trace. Waiting events can still be read."""

    def __aiter__(self) -> "Trace": ...

    async def __anext__(self) -> TraceEvent: ...
