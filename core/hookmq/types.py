"""The values that travel through the broker: messages, subscriptions, wills and who a client is.

All are immutable. Times are epoch seconds (`float`); intervals are seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import is_
from types import MappingProxyType
from typing import Any, NamedTuple

from hookmq.properties import EMPTY, Properties, UserProperty
from hookmq.reason import ReasonCode

NO_CLAIMS: Mapping[str, Any] = MappingProxyType({})


_SCALARS = frozenset({str, int, float, bool, type(None)})


def json_value(value: Any) -> Any:
    """Return `value` as it comes back from JSON: itself if nothing would change. Sets become sorted lists, other objects
    their text."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        kept = {str(name): json_value(one) for name, one in value.items()}
        same = type(value) is dict and all(
            type(name) is str and kept[name] is one for name, one in value.items()
        )
        return value if same else kept
    if isinstance(value, list | tuple):
        items = [json_value(one) for one in value]
        same = type(value) is list and all(map(is_, items, value))
        return value if same else items
    if isinstance(value, set | frozenset):
        return sorted(map(json_value, value), key=repr)
    # Members of enumerations are values of a type of their own.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """An application message on its way through the broker.

    `properties` are those of PUBLISH that travel with the message; topic alias and subscription identifiers are of one
    hop and never stand here. `sender` is the publisher's client id, None for the broker itself. `origin` says how it
    came in: ``client``, ``will``, ``plugin:ID``. `expires_at` is absolute; None never expires [MQTT-3.3.2-5].
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = EMPTY
    sender: str | None = None
    origin: str = "client"
    received_at: float = 0.0
    expires_at: float | None = None

    @property
    def user_property(self) -> UserProperty:
        """The publisher's user properties in their order; empty where there were none."""
        return self.properties.user_property or ()

    def replace(self, **changes: Any) -> "Message":
        """A copy with `changes` made, for transform hooks."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, qos={self.qos}, retain={self.retain}, "
            f"payload=<{len(self.payload)} bytes>, sender={self.sender!r}, origin={self.origin!r})"
        )


@dataclass(slots=True, eq=False)
class _MessageFields:
    """The slots of `Message`, writable."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties
    sender: str | None
    origin: str
    received_at: float
    expires_at: float | None


def make_message(
    topic: str,
    payload: bytes,
    qos: int,
    retain: bool,
    properties: Properties,
    sender: str | None,
    origin: str,
    received_at: float,
    expires_at: float | None,
) -> Message:
    """A `Message`, made in a third of the time: a frozen dataclass sets each field through ``object.__setattr__``. Both
    classes have the same slots, so that one may become the other."""
    fields: Any = _MessageFields(
        topic, payload, qos, retain, properties, sender, origin, received_at, expires_at
    )
    fields.__class__ = Message
    message: Message = fields
    return message


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription of a session. `filter` is the text the client sent, `$share/NAME/` included; `topic_filter` is
    what is matched and `share` the group's name, None for an ordinary subscription."""

    filter: str
    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None
    share: str | None = None

    def replace(self, **changes: Any) -> "Subscription":
        """A copy with `changes` made, for transform hooks. A new `topic_filter` routes otherwise; `filter` stays what
        UNSUBSCRIBE must name."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Will:
    """A will: the message and how long after the connection's end it is published [MQTT-3.1.2-8]."""

    message: Message
    delay: int = 0


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the listener verified of a client's TLS certificate."""

    common_name: str = ""
    subject: str = ""
    sans: tuple[str, ...] = ()
    fingerprint: str = ""
    """SHA-256 of the DER form, lower-case hex without colons."""


class Peer(NamedTuple):
    """The other end of a connection as the listener saw it, after PROXY protocol or X-Forwarded-For."""

    host: str
    port: int = 0
    transport: str = "tcp"
    """``tcp``, ``tls``, ``ws``, ``wss``, ``unix`` or ``memory``."""
    certificate: Certificate | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class Scope:
    """What the core needs to know of a listener: its name, the topics it is confined to and its limits."""

    name: str = "default"
    mount_point: str = ""
    """Put before every topic and filter of its clients, taken off on the way out; empty for none. It should end with a
    slash: the clients of ``a`` reach what is below ``ab/``."""
    versions: frozenset[int] = frozenset({3, 4, 5})
    connect_timeout: float = 10.0
    """Seconds from the connection's start until a whole CONNECT must have come."""
    connect_bytes: int = 65536
    """Bytes a client may send before it is accepted."""
    identity: str = ""
    """``common_name``, ``san`` or ``fingerprint``: the certificate's field that is the client's user name; else ''."""


@dataclass(slots=True, eq=False)
class ClientInfo:
    """A client as hooks see it. Read only, but for `state`: a plugin's scratch space is ``client.state[plugin_id]``.

    It lives as long as the connection and is kept by the session while the client is away.
    """

    client_id: str
    version: int
    username: str | None
    peer: Peer
    scope: Scope
    clean_start: bool = True
    keep_alive: int = 0
    connected_at: float = 0.0
    identity: str | None = None
    """Who the client was found to be; None where nobody asked."""
    claims: Mapping[str, Any] = field(default_factory=lambda: NO_CLAIMS)
    expires_at: float | None = None
    """When the credential ends and the client is disconnected; None for never."""
    expiry_code: ReasonCode = ReasonCode.MAXIMUM_CONNECT_TIME
    """What it is told then."""
    vouched_by: str | None = ""
    """Who vouched for `identity`: ``plugin:ID``, ``listener:NAME`` if the listener took it from the certificate, '' if
    nobody did. None for a session that an earlier version stored, which did not record it."""
    _state: dict[str, Any] | None = None
    _publisher: Any = None
    """What the broker knows it by as the publisher of retained messages."""

    @property
    def listener(self) -> str:
        """The name of the listener the client came by."""
        return self.scope.name

    @property
    def state(self) -> dict[str, Any]:
        """Plugins' scratch space, by plugin id."""
        state = self._state
        if state is None:
            state = self._state = {}
        return state

    def record(self) -> "ClientRecord":
        """Return what the store keeps of this client: every field that `authorize` may look at. Plugins' scratch space
        and the listener's settings are not part of it."""
        scope = self.scope
        return ClientRecord(
            self.client_id, self.version, self.username, self.identity, self.claims, self.vouched_by, self.peer,
            scope.name, scope.mount_point, self.clean_start, self.keep_alive, self.connected_at, self.expires_at,
            self.expiry_code,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"ClientInfo({self.client_id!r}, v{self.version}, {self.listener!r}, {self.peer})"


class ClientRecord(NamedTuple):
    """A client as the store keeps it: who it was found to be and how it came in, so that what happens in its name after
    a restart is authorized as before. Fields are those of `ClientInfo`; `listener` and `mount_point` are of its `Scope`.
    """

    client_id: str
    version: int
    username: str | None = None
    identity: str | None = None
    claims: Mapping[str, Any] = {}
    vouched_by: str | None = ""
    peer: Peer = Peer("")
    listener: str = "default"
    mount_point: str = ""
    clean_start: bool = True
    keep_alive: int = 0
    connected_at: float = 0.0
    expires_at: float | None = None
    expiry_code: ReasonCode = ReasonCode.MAXIMUM_CONNECT_TIME

    def client(self) -> ClientInfo:
        """Return the client as hooks see it."""
        return ClientInfo(
            self.client_id,
            self.version,
            self.username,
            self.peer,
            Scope(self.listener, self.mount_point),
            self.clean_start,
            self.keep_alive,
            self.connected_at,
            self.identity,
            self.claims,
            self.expires_at,
            self.expiry_code,
            self.vouched_by,
        )


class Action(StrEnum):
    """What `authorize` is asked about."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    DELIVER = "deliver"
    WILL = "will"


class DropReason(StrEnum):
    """Why a message went no further. Every dropped message is counted under one of these."""

    DENIED = "denied"
    UNDECIDED = "undecided"
    PLUGIN = "plugin"
    QUEUE_FULL = "queue_full"
    QUEUE_BYTES = "queue_bytes"
    OFFLINE_QOS0 = "offline_qos0"
    EXPIRED = "expired"
    TOO_LARGE = "too_large"
    REVOKED = "revoked"
    SESSION_ENDED = "session_ended"
    CLIENT_LEFT = "client_left"
    REFUSED = "refused"
    """The receiver answered with a reason code of 0x80 or above."""
    RETAIN_LIMIT = "retain_limit"
    RATE_LIMITED = "rate_limited"
    DEPTH = "depth"
    """A plugin answered messages with messages too many times over."""


class Direction(StrEnum):
    """Whether a dropped message was on its way into the broker or out of it."""

    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why and where a message was dropped; `client_id` is the publisher's (in) or the receiver's (out)."""

    reason: DropReason
    direction: Direction
    client_id: str | None
    detail: str = ""


class SessionEvent(StrEnum):
    """What `on_session` tells."""

    CREATED = "created"
    RESUMED = "resumed"
    TAKEN_OVER = "taken_over"
    EXPIRED = "expired"
    ENDED = "ended"


class EndedBy(StrEnum):
    """Who ended a connection."""

    CLIENT = "client"
    SERVER = "server"
    NETWORK = "network"
    TAKEOVER = "takeover"


@dataclass(frozen=True, slots=True)
class DisconnectReason:
    """How a connection ended: the reason code (the client's or ours), by whom, whether a will was (or will be)
    published, and the error in words where there was one."""

    code: ReasonCode
    by: EndedBy
    will: bool = False
    error: str = ""
