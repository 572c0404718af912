"""A session: what the broker remembers of a client between and during its connections.

Plain state, without clock or I/O. Its queue holds what waits for the client: QoS 0 only while the client is connected
and slow (or as configured), QoS 1 and 2 in order. The head of a durable session's queue is in memory, the rest stays in
the store (`stored`) and is read a page at a time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from hookmq.aliases import Aliases
from hookmq.qos import Delivery, Outgoing
from hookmq.reason import ReasonCode
from hookmq.runtime import Wire
from hookmq.store import session_owner
from hookmq.types import ClientInfo, Subscription, Will

if TYPE_CHECKING:
    from hookmq.hooks.meter import Pace


class ConnectionView:
    """A session's connection, as the rooms below it use it: the base of `broker.channel.Channel`, which sets and does all
    this. A class and no protocol, since compiled code finds an attribute of a class by its place."""

    __slots__ = (
        "alias_maximum", "aliases", "delivers", "max_packet_size", "pace", "problem_information", "wire", "writable",
    )  # fmt: skip

    wire: Wire
    max_packet_size: int
    problem_information: bool
    delivers: bool
    writable: bool
    aliases: Aliases | None
    alias_maximum: int
    pace: "Pace | None"

    def may_send(self) -> bool:
        """Whether `pace` lets one message more leave now; else the session is paused until it does."""
        raise NotImplementedError

    def disconnect(self, code: ReasonCode, reason: str = "") -> None:
        """Tell the client why (MQTT 5) and close."""
        raise NotImplementedError

    def rechain(self) -> None:
        """Look its hook chains up again."""
        raise NotImplementedError

    def forget_decisions(self) -> None:
        """Ask again before anything that was remembered as allowed or denied."""
        raise NotImplementedError


class Due(Protocol):
    """Something set for later."""

    def cancel(self) -> None:
        """Make sure that it does not happen."""


CLEAN: Final = 0
"""Connected, writable, nothing to flush: messages may be appended to `out`."""
DIRTY: Final = 1
"""As CLEAN, and in the broker's list of sessions to flush this turn."""
BEHIND: Final = 2
"""Away, slow or with QoS 0 messages waiting: messages go through the queue."""


class Session:
    """One client's session. `epoch` rises with every connection: whoever carries an older one may no longer act for it
    (takeover by generation)."""

    __slots__ = (
        "_owner", "backlog", "client", "client_id", "connection", "durable", "ended_at", "epoch", "expiry",
        "expiry_due", "filter_bytes", "firing", "groups", "inflight", "kind", "last_packet_id", "last_seq", "lingering",
        "loaded_seq", "max_subscriptions", "on_page", "out", "own_bytes", "paused", "pumped", "pumped_in", "queue",
        "queue_messages", "queue_qos0", "queued", "queued_bytes", "reading", "received", "recorded", "resend",
        "resumes", "revoked", "shared_bytes", "shared_queued", "state", "stored", "subscriptions", "takeovers",
        "unsent", "will", "will_at", "will_due", "window",
    )  # fmt: skip

    def __init__(self, client: ClientInfo) -> None:
        self.client_id = client.client_id
        self.client = client
        self._owner = ""
        self.connection: ConnectionView | None = None
        self.epoch = 0
        self.expiry = 0.0
        self.durable = False
        """Whether it outlives its connection, so that its state goes through the store."""
        self.recorded = False
        """Whether the store has a record of it: if it is durable, or has a will."""
        self.ended_at: float | None = None
        """Epoch second at which its last connection ended; None while one is up."""
        self.expiry_due: Due | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.max_subscriptions = 0
        self.own_bytes = 0
        self.filter_bytes = 0
        """Bytes of its client id, user name and will, and of its topic filters, as counted in `Core.session_bytes`."""
        self.groups: dict[Any, None] = {}
        """Shared subscriptions it is a member of."""
        self.shared_queued = 0
        self.shared_bytes = 0
        """Messages and bytes that wait in groups that count against it (`Group.payer`)."""
        self.inflight: dict[int, Delivery] = {}
        self.resend: deque[Delivery] | None = None
        """Of those in flight, what this connection has not been sent yet."""
        self.window = 0
        """QoS 1 and 2 messages that may be in flight on this connection [MQTT-3.3.4-9]."""
        self.last_packet_id = 0
        self.received: set[int] | None = None
        """Inbound QoS 2 packet ids between PUBLISH and PUBREL."""
        self.queue: deque[Delivery] | None = None
        self.queue_qos0: deque[Delivery] | None = None
        self.queue_messages = 0
        """How many messages may wait."""
        self.queued = 0
        self.queued_bytes = 0
        """Messages (of QoS 1 and 2) and bytes (of all) waiting, the stored ones included."""
        self.stored = 0
        """Entries of the queue that are in the store only; all come after those in memory."""
        self.last_seq = 0
        self.loaded_seq = 0
        self.reading = False
        self.on_page: Callable[[Any, Session], None] | None = None
        """What goes on, with the broker's core, when the page that is being read has come."""
        self.backlog: dict[str, Iterator[tuple[Outgoing, Subscription] | None]] | None = None
        """Retained messages that subscriptions, by filter, still have to be sent, drawn as there is room."""
        self.paused = 0
        """Subscriptions whose right is being asked about again: until that is decided its messages wait."""
        self.revoked: set[str] | None = None
        """Filters that were taken away while messages for them were still in the store."""
        self.will: Will | None = None
        self.will_at: float | None = None
        self.will_due: Due | None = None
        self.firing: Will | None = None
        """The will that is being published: it stays on record until a plugin has decided and its message is."""
        self.lingering = False
        """Whether the session has ended, and its record is left for the will in `firing` alone."""
        self.takeovers: deque[float] | None = None
        self.out: list[bytes] = []
        """Packets of this turn, for one write."""
        self.unsent = 0
        """Bytes of `out` that were made for this session; shared packets are counted in `Core.shared`."""
        self.pumped_in = 0
        self.pumped = 0
        """Bytes taken from its queues in turn `pumped_in`."""
        self.resumes = False
        """Whether more of what waits is sent in the next turn."""
        self.state = BEHIND
        self.kind = 0
        """How its messages may be encoded: 3 or 5 for bytes shared with others of that version, 0 for its own."""

    @property
    def owner(self) -> str:
        """Its name as a queue owner in the store; made when first asked for, and most sessions are never stored."""
        if not self._owner:
            self._owner = session_owner(self.client_id)
        return self._owner
