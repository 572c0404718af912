"""A session: the state that the broker keeps for a client during and between its connections.

This is plain state without a clock or I/O. The queue holds messages waiting for the client: QoS 1 and 2 in order, QoS 0
only if configured or while the client is online but slow. The head of a durable session's queue is in memory. The rest
(`stored`) remains in the store and is read in pages.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from hookmq.model.client import ClientInfo
from hookmq.model.message import Message, Will
from hookmq.model.metrics import ListenerTraffic
from hookmq.model.runtime import Timer, Wire
from hookmq.model.subscription import Subscription
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.inflight import Delivery, Outgoing
from hookmq.session.serial_index import Numbered
from hookmq.session.topic_aliases import TopicAliases
from hookmq.storage.records import session_owner

if TYPE_CHECKING:
    from hookmq.hooks.chain import Chains
    from hookmq.hooks.rate_limit import DeliveryLimit


class ConnectionView:
    """A session's connection as seen by lower layers: the base class of `broker.connection.ClientConnection`.

    It is not a Protocol, because mypyc compiles native attribute access only for classes.
    """

    __slots__ = (
        "alias_maximum", "aliases", "chains", "delivers", "delivery_limit", "in_process", "max_packet_size",
        "problem_information", "traffic", "wire", "writable",
    )  # fmt: skip

    wire: Wire
    traffic: ListenerTraffic
    """The traffic of the connection's listener."""
    chains: "Chains"
    """The hook chains that decide on the client."""
    in_process: bool
    """Whether this is a plugin client, which gets deliveries (`arrive`) instead of bytes."""
    max_packet_size: int
    problem_information: bool
    delivers: bool
    writable: bool
    aliases: TopicAliases | None
    alias_maximum: int
    delivery_limit: "DeliveryLimit | None"

    def may_send(self) -> bool:
        """Return whether `delivery_limit` allows another message now. If not, pause the session until it does."""
        raise NotImplementedError

    def disconnect(self, code: ReasonCode, reason: str = "", reference: str = "") -> None:
        """Send the reason to an MQTT 5 client and close the connection."""
        raise NotImplementedError

    def arrive(self, delivery: Delivery, dup: bool) -> None:
        """Take a message, if the client is `in_process`. `dup` is true for a retransmission."""
        raise NotImplementedError

    def arrive_plain(
        self,
        sender: ClientInfo,
        topic: str,
        payload: bytes,
        message_qos: int,
        properties: Properties,
        qos: int,
        number: int,
        message: Message | None,
    ) -> None:
        """Take a message from `sender`, if the client is `in_process`. The broker keeps no `Delivery` for the message.
        `message` is the `Message` object if it has already been created.
        """
        raise NotImplementedError

    def rechain(self) -> None:
        """Look up the hook chains again."""
        raise NotImplementedError

    def forget_decisions(self) -> None:
        """Clear the connection's cached authorization decisions."""
        raise NotImplementedError


IDLE: Final = 0
"""Online and writable, with nothing to flush: packets may be appended to `out`."""
PENDING: Final = 1
"""Like IDLE, but also in the broker's list of sessions to flush this turn."""
QUEUEING: Final = 2
"""Offline, slow, or with QoS 0 messages waiting: messages go through the queue."""
UNENCODED: Final = 1
"""The encoding version of a plugin client that gets messages without encoding them."""


class Session(Numbered):
    """A client's session. `generation` increases with each connection and when the session ends. Code that remembers an
    older generation must not change the session."""

    __slots__ = (
        "_owner", "backlog", "client", "client_id", "connection", "drained", "drained_in", "durable",
        "encoding_version", "ended_at", "expiry", "expiry_due", "filter_bytes", "firing", "generation", "groups",
        "inflight", "last_packet_id", "last_seq", "lingering", "loaded_seq", "loading", "max_subscriptions", "on_page",
        "out", "own_bytes", "paused", "queue", "queue_messages", "queue_qos0", "queued", "queued_bytes", "received",
        "recorded", "resend", "resumes", "revoked", "shared_bytes", "shared_queued", "state", "stored", "subscriptions",
        "takeovers", "unsent", "will", "will_at", "will_due", "window",
    )  # fmt: skip

    def __init__(self, client: ClientInfo) -> None:
        super().__init__()
        self.client_id = client.client_id
        self.client = client
        self._owner = ""
        self.connection: ConnectionView | None = None
        self.generation = 0
        self.expiry = 0.0
        self.durable = False
        """Whether the session outlives its connection, so that its state must be stored."""
        self.recorded = False
        """Whether the store has a record of the session, because it is durable or has a will."""
        self.ended_at: float | None = None
        """Epoch seconds at which the last connection ended; None while online."""
        self.expiry_due: Timer | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.max_subscriptions = 0
        self.own_bytes = 0
        self.filter_bytes = 0
        """Bytes of the client id, user name, will and filters, as counted in `BrokerState.session_bytes`."""
        self.groups: dict[Any, None] = {}
        """The shared subscriptions that the session is a member of."""
        self.shared_queued = 0
        self.shared_bytes = 0
        """Messages and bytes queued in shared subscriptions that count against this session
        (`SharedSubscription.payer`)."""
        self.inflight: dict[int, Delivery] = {}
        self.resend: deque[Delivery] | None = None
        """Messages in flight that have not yet been sent on this connection."""
        self.window = 0
        """Maximum number of QoS 1 and 2 messages in flight on this connection [MQTT-3.3.4-9]."""
        self.last_packet_id = 0
        self.received: set[int] | None = None
        """Inbound QoS 2 packet ids between PUBLISH and PUBREL."""
        self.queue: deque[Delivery] | None = None
        self.queue_qos0: deque[Delivery] | None = None
        self.queue_messages = 0
        """Maximum number of queued messages."""
        self.queued = 0
        self.queued_bytes = 0
        """Messages (QoS 1 and 2) and bytes (all) in the queue, including those in the store."""
        self.stored = 0
        """Number of queue entries that are only in the store. They follow the entries in memory."""
        self.last_seq = 0
        self.loaded_seq = 0
        self.loading = False
        self.on_page: Callable[[Any, Session], None] | None = None
        """Called with the broker's state and this session once the page being read has arrived, or once the session has
        ended."""
        self.backlog: dict[str, Iterator[tuple[Outgoing, Subscription] | None]] | None = None
        """Retained messages still to be sent, by subscription filter. They are read when there is room."""
        self.paused = 0
        """Number of subscriptions that are being authorized again. Their messages wait for the decision."""
        self.revoked: set[str] | None = None
        """Filters of revoked subscriptions whose messages are still in the store."""
        self.will: Will | None = None
        self.will_at: float | None = None
        self.will_due: Timer | None = None
        self.firing: Will | None = None
        """The will that is being published. It stays recorded until plugins have decided and its message is
        recorded."""
        self.lingering = False
        """Whether the session has ended, and its record is kept only for the will in `firing`."""
        self.takeovers: deque[float] | None = None
        self.out: list[bytes] = []
        """This turn's packets, to be sent in one write."""
        self.unsent = 0
        """Bytes in `out` that belong to this session only. Shared packets are counted in `WriteScheduler.shared`."""
        self.drained_in = 0
        self.drained = 0
        """Bytes taken from the session's queues in turn `drained_in`."""
        self.resumes = False
        """Whether sending from the queue will continue in the next turn."""
        self.state = QUEUEING
        self.encoding_version = 0
        """How messages are encoded: 3 or 5 for bytes shared by sessions of that version, `UNENCODED` for a plugin
        client, 0 for this session only."""

    @property
    def owner(self) -> str:
        """The session's queue owner in the store. It is computed on first use, because most sessions are never stored."""
        if not self._owner:
            self._owner = session_owner(self.client_id)
        return self._owner
