"""The records in a commit. Each one describes a single change to durable state."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from hookmq.model.client import ClientRecord
from hookmq.model.message import Message, Will
from hookmq.model.subscription import Subscription


class CommitId(NamedTuple):
    """A commit id: the store's identity, and the commit's number in that store, starting at 1."""

    store: str
    number: int


def session_owner(client_id: str) -> str:
    """Return the queue owner for a client's own messages."""
    return "c/" + client_id


def group_owner(share: str, topic_filter: str) -> str:
    """Return the queue owner for a shared subscription's messages. Owners are unique because share names contain no
    slash."""
    return f"g/{share}/{topic_filter}"


MAX_STATE_KEY: Final = 1024
"""The longest key of a plugin's state or timer, in bytes of UTF-8."""


def state_space(plugin: str) -> str:
    """Return the space of the plugin's key-value state."""
    return "s/" + plugin


def timer_space(plugin: str) -> str:
    """Return the space of the plugin's timers."""
    return "t/" + plugin


class SessionRecord(NamedTuple):
    """A session without its subscriptions and messages.

    `ended_at` is in epoch seconds, or None while online. `expiry` is in seconds from `ended_at`. After a restart, the
    client's will and other actions on its behalf are authorized as `client`.
    """

    client: ClientRecord
    expiry: float
    limits: Mapping[str, int] = {}
    ended_at: float | None = None
    will: Will | None = None
    will_at: float | None = None
    """Epoch seconds at which the will is due; None while online."""
    revoked: tuple[str, ...] = ()
    """Filters of revoked subscriptions that still had queued messages. These messages must not be sent."""

    @property
    def client_id(self) -> str:
        """The record's key."""
        return self.client.client_id


class PutSession(NamedTuple):
    """Create or replace a session's record."""

    session: SessionRecord


class DropSession(NamedTuple):
    """Delete a session with its record, subscriptions, queue and received packet ids."""

    client_id: str


class PutSubscription(NamedTuple):
    """Create or replace one subscription. The key is its `filter`."""

    client_id: str
    subscription: Subscription


class DropSubscription(NamedTuple):
    """Delete one subscription."""

    client_id: str
    filter: str


class PutMessage(NamedTuple):
    """Store a message for the queue entries with its `id`. The store deletes it after the batch that removes the last
    of these entries.

    This record precedes the first `Enqueue` with the id. Within a batch, some entries may be removed before others are
    added.
    """

    id: int
    message: Message


class Enqueue(NamedTuple):
    """Add an entry to the queue of `owner`. `seq` increases within each owner's queue. `message_ref` is the id of a
    `PutMessage`.

    `packet_id` is 0 until the message is sent. `released` is True after PUBREC, when only PUBREL may be sent
    [MQTT-4.3.3-6].
    """

    owner: str
    seq: int
    message_ref: int
    qos: int
    size: int
    retain: bool = False
    identifiers: tuple[int, ...] = ()
    filter: str = ""
    packet_id: int = 0
    released: bool = False
    group: str = ""
    """The shared subscription that the entry came from and may return to; '' for none."""


class SetPacket(NamedTuple):
    """Mark a queue entry as sent with `packet_id`, or as released by PUBREC."""

    owner: str
    seq: int
    packet_id: int
    released: bool


class Dequeue(NamedTuple):
    """Delete a queue entry that was acknowledged, dropped, expired or moved."""

    owner: str
    seq: int


class PutReceived(NamedTuple):
    """Store an inbound QoS 2 packet id, in the same batch as its message [MQTT-4.3.3-10]."""

    client_id: str
    packet_id: int


class DropReceived(NamedTuple):
    """Free an inbound QoS 2 packet id after PUBREL."""

    client_id: str
    packet_id: int


class PutPublisher(NamedTuple):
    """Store a client that published retained messages. The messages refer to its `id` and follow this record."""

    id: int
    client: ClientRecord


class DropPublisher(NamedTuple):
    """Delete a publisher without retained messages."""

    id: int


class PutRetained(NamedTuple):
    """Replace a topic's retained message. `publisher` is the id of a `PutPublisher`, or 0 if no client published the
    message.
    """

    message: Message
    publisher: int = 0


class DropRetained(NamedTuple):
    """Delete a topic's retained message."""

    topic: str


class PutState(NamedTuple):
    """Create or replace one key of a plugin: a value in its `state_space`, or a timer in its `timer_space`."""

    space: str
    key: str
    value: bytes
    due: float | None = None
    """When the timer is due, in epoch seconds; None for a value."""


class DropState(NamedTuple):
    """Delete one key of a plugin."""

    space: str
    key: str


class QueueSummary(NamedTuple):
    """The part of a queue that `load` leaves in the store: entries not yet sent."""

    owner: str
    entries: int
    size: int
    last_seq: int


Record = (
    PutSession | DropSession | PutSubscription | DropSubscription | PutMessage | Enqueue | SetPacket | Dequeue
    | PutReceived | DropReceived | PutPublisher | DropPublisher | PutRetained | DropRetained | PutState | DropState
)  # fmt: skip
"""A change of state for a store to commit."""
Loaded = Record | QueueSummary
"""What a store returns from `load`."""
Queued = tuple[Enqueue, Message]
"""A queue entry and its message."""
