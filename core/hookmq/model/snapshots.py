"""Pages and snapshots of the broker's state, for plugins.

A snapshot is immutable. It shows the state at one moment and does not keep its session alive. Times are epoch seconds,
sizes are bytes, intervals are seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from hookmq.model.client import Peer
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.fast_constructor import fast_constructor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing.

    - `items`: the items of this page. A page may be short or even empty although more items follow, because one call
      examines only a limited number.
    - `cursor`: pass it to the next call to continue; empty after the last page. It is opaque and valid until the broker
      restarts.
    """

    items: tuple[T, ...]
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session, online or offline.

    - `identity`: the name under which the client was authenticated, or None.
    - `listener`, `peer`, `version`, `clean_start`, `keep_alive`, `connected_at`: of the current or last connection.
    - `ended_at`: when the last connection ended; None while online.
    - `expiry`: how long the session outlives its connection; infinite if it never expires.
    - `durable`: whether the session outlives its connection, so that its state is stored.
    - `subscriptions`, `inflight`, `queued`: the number of each. `queued` counts QoS 1 and 2 messages.
    - `queued_bytes`: the size of all waiting messages, including those of QoS 0.
    - `will`: the topic of the will, or None.
    - `receive_maximum`: maximum number of QoS 1 and 2 messages in flight to the client; 0 if it has not connected since
      the broker started.
    """

    client_id: str
    username: str | None
    identity: str | None
    listener: str
    peer: Peer
    version: int
    connected: bool
    connected_at: float
    ended_at: float | None
    clean_start: bool
    keep_alive: int
    expiry: float
    durable: bool
    subscriptions: int
    inflight: int
    queued: int
    queued_bytes: int
    will: str | None
    receive_maximum: int


make_session_snapshot = fast_constructor(SessionSnapshot)
"""Construct a `SessionSnapshot` quickly, because a page may have a thousand."""


@dataclass(frozen=True, slots=True)
class SubscriptionSnapshot:
    """A subscription and the client id of its session."""

    client_id: str
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message waiting in a session's queue.

    - `qos`, `retain`, `identifiers`: the values that the client will receive. `message.qos` is the publisher's QoS.
    - `filter`: the subscription for which the message is queued.
    - `size`: the number of bytes that count against the queue's limits.
    """

    message: Message
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    filter: str
    size: int


@dataclass(frozen=True, slots=True)
class InflightMessage:
    """A message sent to a client at QoS 1 or 2 and not yet fully acknowledged.

    - `released`: whether PUBREC has arrived and only PUBCOMP is outstanding.
    - `message`: None if the session is clean and the broker no longer needs the message. The fields below are then False
      and empty.
    - `retain`, `identifiers`: the values that the client received.
    - `filter`: the subscription for which the message was sent.
    """

    packet_id: int
    qos: int
    released: bool
    message: Message | None = None
    retain: bool = False
    identifiers: tuple[int, ...] = ()
    filter: str = ""


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """A shared subscription: `$share/NAME/FILTER` with all its members.

    - `share`: the share name. `topic_filter`: the filter after it.
    - `strategy`: how the member that receives a message is chosen.
    - `members`, `online`: the number of sessions, and the number of those that are online.
    - `queued`, `queued_bytes`: the number and the total size of the messages waiting for any member.
    """

    share: str
    topic_filter: str
    strategy: str
    members: int
    online: int
    queued: int
    queued_bytes: int


@dataclass(frozen=True, slots=True)
class ListenerSnapshot:
    """One of the server's listeners.

    - `type`: ``tcp``, ``tls``, ``ws``, ``wss``, ``unix``, ``http``, ``https`` or a type added by a plugin.
    - `address`: the address with the actual port.
    - `connections`: the number of open transports, including those that have not sent CONNECT yet.
    - `max_connections`: the maximum number of open transports.
    """

    name: str
    type: str
    address: str
    connections: int
    max_connections: int


@dataclass(frozen=True, slots=True)
class HookSnapshot:
    """A plugin's implementation of one hook, and its counters since the broker started.

    - `outcomes`: the number of calls by result, such as ``allow`` or ``error``.
    - `timed`, `seconds`: the number of timed calls and their total duration. Only one call in 64 is timed for hooks
      that are called for every message.
    - `queue`, `dropped`: for an observer, the events waiting and the events lost.
    - `last_error`: the latest failure; empty if there was none.
    """

    name: str
    outcomes: Mapping[str, int]
    timed: int
    seconds: float
    queue: int
    dropped: int
    last_error: str


@dataclass(frozen=True, slots=True)
class PluginSnapshot:
    """A configured plugin.

    - `use`, `version`: its entry point, and the version of its distribution.
    - `listeners`, `filters`: the listeners and topic filters of its entry; None for all.
    - `disabled`: why the plugin is no longer called; empty if it is not disabled.
    - `circuit_open`: whether calls to its observers are suspended after repeated failures.
    """

    id: str
    use: str
    version: str
    listeners: tuple[str, ...] | None
    filters: tuple[str, ...] | None
    disabled: str
    circuit_open: bool
    hooks: tuple[HookSnapshot, ...]
