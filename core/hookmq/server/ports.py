"""What the shell needs of the broker, as protocols, so that a listener can be tried against a fake."""

from collections.abc import Callable
from typing import Protocol

from hookmq.metrics import Metrics
from hookmq.runtime import Wire
from hookmq.settings import Settings
from hookmq.types import Peer, Scope


class Connection(Protocol):
    """The broker's side of one transport."""

    @property
    def goodbye(self) -> bool:
        """Whether the peer said that it sends nothing more: no byte is to come that would have to be read away."""

    @property
    def accepted(self) -> bool:
        """Whether the client was let in: from then on `Scope.connect_bytes` does not bound what it sends."""

    def feed(self, data: bytes) -> None:
        """Bytes from the peer."""

    def closed(self, error: str = "") -> None:
        """The transport ended; called exactly once, also after our own `Wire.close`."""

    def pause_writing(self) -> None:
        """More is unsent than the high-water mark."""

    def resume_writing(self) -> None:
        """What was unsent went out."""


Accept = Callable[[Wire, Peer, Scope], Connection]
"""A transport is there; the answer is who handles it. May close or abort the wire before it returns."""


class Broker(Protocol):
    """What `Node` starts, feeds and drains."""

    on_failure: Callable[[str], None] | None
    """Told once, with the reason, when a commit failed: nothing is acknowledged any more."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""

    @property
    def metrics(self) -> Metrics:
        """The broker's counters."""

    def accept(self, wire: Wire, peer: Peer, scope: Scope) -> Connection:
        """See `Accept`."""

    def start(self, done: Callable[[BaseException | None], None]) -> None:
        """Load what is stored, then tell `done`."""

    def drain(self, reference: str, done: Callable[[], None]) -> None:
        """Disconnect every client, naming `reference` as the server to use, commit, then tell `done`."""
