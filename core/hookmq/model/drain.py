"""Drain a broker without stopping it, so that its clients reconnect elsewhere. See `BrokerHandle.drain`."""

from dataclasses import dataclass
from typing import Final, Protocol

from hookmq.mqtt.reason_codes import ReasonCode

MAX_SECONDS: Final = 3600.0
"""The longest time over which clients are disconnected."""
MAX_REFERENCE: Final = 1024
"""Maximum number of characters in a server reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """How to disconnect the clients.

    - `seconds`: how long to spread the disconnections over, at most an hour.
    - `reference`: the server that clients should use instead; if empty, ``broker.server_reference``.
    - `moved`: whether clients should use that server from now on, including for later connections. Needs a reference.

    Values outside these limits raise ValueError.
    """

    seconds: float = 10.0
    reference: str = ""
    moved: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= MAX_SECONDS:
            raise ValueError(f"seconds is {self.seconds!r}: expected at most {MAX_SECONDS:g}")
        if len(self.reference) > MAX_REFERENCE or not self.reference.isprintable():
            raise ValueError(
                f"reference: expected at most {MAX_REFERENCE} characters, without control characters"
            )

    def code(self, reference: str) -> ReasonCode:
        """Return the reason code for a DISCONNECT that contains `reference`, which may be empty."""
        if not reference:
            return ReasonCode.SERVER_SHUTTING_DOWN
        return ReasonCode.SERVER_MOVED if self.moved else ReasonCode.USE_ANOTHER_SERVER


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """Whether the broker is draining, how many clients it has yet to disconnect, and how many connections are open.

    `connections` counts the connections of the MQTT listeners, including those that are closing.
    """

    draining: bool
    waiting: int
    connections: int


class Disconnectable(Protocol):
    """A client's connection."""

    def disconnect(self, code: ReasonCode, reason: str = "", reference: str = "") -> None:
        """Send DISCONNECT if the client uses MQTT 5, then close the connection. Does nothing if it has already ended."""


class Drainer(Protocol):
    """Drains a server. Call its methods on the event loop."""

    def begin(self, request: DrainRequest) -> None:
        """Start draining. Raises RuntimeError if the server is not ready or is already draining, and ValueError if
        `request` needs a reference but has none.
        """

    def cancel(self) -> bool:
        """Accept connections again. Return False if the server is not draining."""

    def status(self) -> DrainStatus:
        """Return how far the drain has progressed."""
