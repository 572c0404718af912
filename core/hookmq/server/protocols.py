"""Protocols for the parts of the broker that the server uses, so that tests can replace them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from hookmq.model.client import Peer, Scope
from hookmq.model.drain import Disconnectable, Drainer
from hookmq.model.metrics import Metrics
from hookmq.model.reload_report import Reloader
from hookmq.model.runtime import Wire
from hookmq.model.settings import Settings
from hookmq.model.snapshots import ListenerSnapshot
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.cluster import RelayTarget


class ConnectionHandler(Protocol):
    """The broker's side of one transport."""

    @property
    def goodbye(self) -> bool:
        """True if the peer announced that it will send nothing more, so that no bytes remain to be read."""

    @property
    def accepted(self) -> bool:
        """True once the client is accepted. After that, `Scope.connect_bytes` does not limit what the client sends."""

    def feed(self, data: bytes) -> None:
        """Process bytes received from the peer."""

    def closed(self, error: str = "") -> None:
        """Clean up after the transport has closed. The server calls this exactly once, even after `Wire.close`."""

    def pause_writing(self) -> None:
        """Record that the unsent bytes exceed the high-water mark."""

    def resume_writing(self) -> None:
        """Record that the unsent bytes have been sent."""


AcceptConnection = Callable[[Wire, Peer, Scope], ConnectionHandler]
"""Returns the handler for a new transport. It may close or abort the wire before it returns."""


class Broker(Protocol):
    """The operations that `Server` needs from the broker."""

    on_failure: Callable[[str], None] | None
    """Called once with the reason if a commit fails. After that, nothing is acknowledged."""

    listeners: Callable[[], tuple[ListenerSnapshot, ...]]
    """Returns the listeners, for plugins and metrics. The server sets it."""
    relay_target: Callable[[str], RelayTarget | None]
    """Returns a listener by name, for connections that other nodes of a cluster relay. The server sets it."""
    drainer: Drainer | None
    """Drains the server for a plugin. The server sets it."""
    reloader: Reloader | None
    """Starts a reload for a plugin. The server sets it if it has a configuration to reread."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""

    @property
    def metrics(self) -> Metrics:
        """The broker's counters."""

    def accept(
        self, wire: Wire, peer: Peer, scope: Scope, relayed: bool = False
    ) -> ConnectionHandler:
        """Return the handler for a new transport; see `AcceptConnection`. `relayed` is true if another node of a cluster
        relays the connection to this one.
        """

    def report(self, event: str, listener: str, fields: dict[str, object]) -> None:
        """Report an event on a listener to the observers of `on_event`, when no client is known yet."""

    def load(self, done: Callable[[BaseException | None], None]) -> None:
        """Load the stored state, then call `done`. No hook is called."""

    def start(self, done: Callable[[BaseException | None], None]) -> None:
        """Expire sessions and publish wills that came due while the broker was down, then call
        `done`.
        """

    def unready(self) -> str:
        """Return why new clients should use another node of the cluster, or an empty string."""

    def network_clients(self) -> Sequence[Disconnectable]:
        """Return all connections that listeners have accepted, oldest first."""

    def disconnect_clients(
        self, clients: Sequence[Disconnectable], code: ReasonCode, reference: str
    ) -> None:
        """Disconnect `clients` with `code` and the server `reference`. Skip connections that have already ended."""

    def drain(self, reference: str, done: Callable[[], None]) -> None:
        """Disconnect every client, naming `reference` as the server to use instead. Then commit and call `done`."""
