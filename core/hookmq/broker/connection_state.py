"""The state of one client's connection: its phase, limits and everything that is waiting. The module
`connection` implements the behavior.
"""

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from hookmq.broker.publish.authorize import Decisions
from hookmq.broker.state import BrokerState
from hookmq.broker.timers import Deadline
from hookmq.hooks.chain import Chains
from hookmq.hooks.rate_limit import DeliveryLimit, RateLimiter
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.events import Action, DisconnectReason
from hookmq.model.runtime import Cancel, Wire
from hookmq.mqtt.framing import legal_headers
from hookmq.mqtt.packet_limits import LARGEST_PACKET
from hookmq.mqtt.packets import Packet
from hookmq.mqtt.properties import Properties
from hookmq.routing.route import CachedPublish
from hookmq.session.inflight import Acknowledgement
from hookmq.session.session import ConnectionView, Session
from hookmq.session.topic_aliases import TopicAliases

if TYPE_CHECKING:
    from hookmq.broker.client_relay import ClientRelay


class Phase(IntEnum):
    """The phase of a connection."""

    NEW = 0
    DECIDING = 1
    CHALLENGED = 2
    OPEN = 3
    CLOSED = 4
    RELAYED = 5
    """Another node of the cluster has the client's session: bytes pass through; see `client_relay`."""


NO_MEMO: Final[dict[bytes | str, CachedPublish]] = {}
"""The value of `ConnectionState.memo` for every connection without cached publishes. Most connections publish
nothing."""


class ConnectionState(ConnectionView):
    """The state of one client's connection. Its only subclass is `ClientConnection`.

    It has many fields on purpose. Compiled code reads a class's attributes by position, and every additional object
    per connection costs memory for each idle client.
    """

    __slots__ = (
        "answers", "assigned_id", "authentication_data", "bridge", "carried", "client", "connect",
        "credential_due", "decision", "decisions", "delivery_wait", "due", "excess", "generation", "gone", "goodbye",
        "held", "held_bytes", "hold_due", "inbound_aliases", "keep_alive", "legal", "limits", "max_expiry", "memo",
        "offered", "opening", "parked", "partial", "peer", "phase", "rate_limiter", "re_authenticating",
        "re_authentication", "reading", "receive_maximum", "relay", "rest", "rest_at", "scope", "sections", "seen",
        "session", "shortcuts", "size", "state", "unacknowledged", "version", "waiting", "wanted",
    )  # fmt: skip

    def __init__(self, state: BrokerState, wire: Wire, peer: Peer, scope: Scope) -> None:
        # Long on purpose: it documents every field.
        self.state = state
        self.wire = wire
        self.traffic = state.metrics.other_traffic
        self.peer = peer
        self.scope = scope
        self.shortcuts = state.shortcuts
        """Whether packets may take the fast path. False if the connection is traced."""
        self.use_chains(state.chains(scope.name))
        self.phase = Phase.NEW
        self.version = 0
        self.client: ClientInfo | None = None
        self.session: Session | None = None
        self.max_packet_size = LARGEST_PACKET
        self.problem_information = True
        self.goodbye = False
        """Whether the client sent DISCONNECT: nothing may follow it [MQTT-3.14.4-1] [MQTT311-3.14.4-2]."""
        self.in_process = False
        self.reading = True
        """Whether bytes from the client are read; see `stop_reading`."""
        self.keep_alive = 0.0
        self.seen = state.runtime.now()
        self.due: Deadline
        """The deadline that ends the connection if CONNECT, the plugins' decision or the next packet is late."""
        self.rate_limiter: RateLimiter | None = None
        """The limit on publishes and subscriptions; None for no limit."""
        self.delivery_limit: DeliveryLimit | None = None
        """The limit on deliveries; None for no limit."""
        self.delivery_wait: Cancel | None = None
        """Cancels the wait for `delivery_limit`; None if nothing is waiting for it."""
        self.size = 0
        """The Remaining Length of the current packet."""
        self.limits = state.limits
        self.offered = state.settings.broker
        """The limits that CONNACK announced. They hold for the connection, even after a reload."""
        self.legal = legal_headers(0, True)
        self.generation = 0
        self.connect: Packet | None = None
        self.assigned_id = False
        self.bridge = False
        """Whether the client is a 3.x bridge: its subscriptions are no-local and keep RETAIN."""
        self.partial: bytearray | None = None
        self.wanted = 0
        """The size of the partial packet; 0 until its header is complete."""
        self.rest: bytes | None = None
        self.rest_at = 0
        """The position in `rest` at which the next packet starts. `rest` holds received bytes for a later turn."""
        self.relay: ClientRelay | None = None
        """Keeps or passes on the client's bytes, if they may have to go to another node of the cluster. If it does so
        now, `rest` is empty instead of None."""
        self.memo: dict[bytes | str, CachedPublish] = NO_MEMO
        """The cached publishes of topics that may take the fast path. A key is the topic: bytes, or text for a
        plugin client."""
        self.decisions: Decisions | None = None
        self.decision: Cancel | None = None
        """Cancels the decision that the connection is waiting for."""
        self.authentication_data: bytes | None = None
        """The last data of an authentication exchange, for CONNACK."""
        self.re_authenticating = False
        self.re_authentication: Cancel | None = None
        self.credential_due: Deadline | None = None
        self.waiting = False
        self.held: deque[tuple[int, bytes]] | None = None
        self.held_bytes = 0
        self.parked: set[int] | None = None
        """Packet ids of the client's QoS 2 publishes that are waiting for room in a journal; None if none has ever
        waited.
        """
        self.hold_due: Deadline | None = None
        self.writable = True
        self.excess = 0
        """The number of bytes that the client sent while it was not reading its own messages."""
        self.answers: deque[Acknowledgement] | None = None
        self.unacknowledged = 0
        """The number of QoS 1 publishes from the client for which no PUBACK has been sent yet."""
        self.receive_maximum = 65535
        self.opening = False
        """Whether the session's messages are waiting until CONNACK has been sent."""
        self.carried = 0
        """The number of QoS 2 publishes that an earlier connection left unfinished. They do not count towards
        Receive Maximum."""
        self.max_expiry = 0.0
        """The longest session expiry granted to this client, in seconds."""
        self.inbound_aliases: dict[int, str] | None = None
        self.sections: dict[bytes, Properties] | None = None
        """Decoded property sections of PUBLISH packets, by their bytes."""
        self.aliases: TopicAliases | None = None
        self.alias_maximum = 0
        self.gone: DisconnectReason | None = None
        """How the transport ended. It is set if packets that arrived earlier still await a decision."""

    @property
    def accepted(self) -> bool:
        """Whether the client was accepted, by this node or by the one that it is relayed to."""
        return self.phase is Phase.OPEN or (self.relay is not None and self.relay.answered)

    def use_chains(self, chains: Chains) -> None:
        """Replace the connection's hook chains with `chains`."""
        if not self.shortcuts and self.state.wrap_chains is not None:
            chains = self.state.wrap_chains(self, chains)
        self.chains = chains
        self.delivers = bool(chains.on_deliver or chains.authorize[Action.DELIVER])
        """Whether a plugin decides on each delivery to this client."""

    def rechain(self) -> None:
        """Look up the listener's hook chains again."""
        chains = self.state.chains(self.scope.name)
        if chains is not self.chains:
            self.use_chains(chains)

    def forget_decisions(self) -> None:
        """Forget all remembered decisions, so that plugins are asked again."""
        if self.memo:
            self.state.remembered -= len(self.memo)
            self.memo.clear()  # Clear the dict in place: `_read` holds a reference to it for this turn.
            self.memo = NO_MEMO
        if self.decisions is not None:
            self.state.remembered -= self.decisions.forget()
            self.decisions = None
        self.sections = None  # a reload may check what the fast path took unchecked

    def wait(self, cancel: Cancel | None) -> None:
        """Hold packets until `go_on` is called. `cancel` cancels the decision if the client disconnects."""
        self.waiting = True
        self.decision = cancel

    def let_go(self) -> None:
        """Cancel everything that is waiting, and release the connection's resources. Called when the
        connection has ended.
        """
        if self.hold_due is not None:
            self.hold_due.cancel()
            self.hold_due = None
        if self.credential_due is not None:
            self.credential_due.cancel()
            self.credential_due = None
        for stop in (self.decision, self.re_authentication):
            if stop is not None:
                stop()
        self.decision = self.re_authentication = None
        if self.delivery_wait is not None:
            self.delivery_wait()
            self.delivery_wait = None
            if self.session is not None:
                self.session.paused -= 1
        relay, self.relay = self.relay, None
        if relay is not None:
            relay.end()
        self.rate_limiter = self.delivery_limit = None
        self.waiting = False
        self.held = None
        self.partial = None
        self.rest = None
        self.forget_decisions()
        self.answers = None
        if self.parked is not None:
            self.state.parking.leave(self)
        session = self.session
        if self.opening and session is not None:
            self.opening = False
            session.paused -= 1
            # A will is stored once the connection is accepted [MQTT-3.1.2-7]. This one never was.
            session.will = None
