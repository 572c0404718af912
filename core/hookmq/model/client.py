"""What the broker knows about a client: its address, certificate, listener and identity."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import is_
from types import MappingProxyType
from typing import Any, NamedTuple

from hookmq.mqtt.reason_codes import ReasonCode

NO_CLAIMS: Mapping[str, Any] = MappingProxyType({})


_SCALARS = frozenset({str, int, float, bool, type(None)})


def json_value(value: Any) -> Any:
    """Return `value` as it would be after a round trip through JSON, or `value` itself if nothing changes. Sets become
    sorted lists; other objects become strings."""
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
    # Enum members are strings or numbers of another type.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Fields of a client's verified TLS certificate."""

    common_name: str = ""
    subject: str = ""
    sans: tuple[str, ...] = ()
    fingerprint: str = ""
    """SHA-256 of the DER form: lower-case hex without colons."""


class Peer(NamedTuple):
    """The client's network address and certificate, after applying the PROXY protocol or X-Forwarded-For."""

    host: str
    port: int = 0
    transport: str = "tcp"
    """``tcp``, ``tls``, ``ws``, ``wss``, ``unix``, ``memory`` or ``plugin``."""
    certificate: Certificate | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class Scope:
    """The listener settings that the core needs."""

    name: str = "default"
    mount_point: str = ""
    """Prefix added to every topic and filter from the listener's clients, and removed from topics sent to them. Empty
    means no prefix. It should end with a slash: without it, the prefix ``a`` also gives access to topics below ``ab/``.
    """
    versions: frozenset[int] = frozenset({3, 4, 5})
    connect_timeout: float = 10.0
    """Seconds that a client has to send its complete CONNECT."""
    connect_bytes: int = 65536
    """Bytes that a client may send before it is accepted."""
    identity: str = ""
    """The certificate field used as the user name: ``common_name``, ``san`` or ``fingerprint``. Empty means none is
    used."""


@dataclass(slots=True, eq=False)
class ClientInfo:
    """A client as hooks see it. Read-only, except for `state`: a plugin keeps its own data in
    ``client.state[plugin_id]``.

    The object is created for a connection. The session keeps it while the client is offline.
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
    """The name under which the client was authenticated; None if no plugin or certificate provided one."""
    claims: Mapping[str, Any] = field(default_factory=lambda: NO_CLAIMS)
    expires_at: float | None = None
    """When the client is disconnected with `expiry_code`, in epoch seconds; None means never."""
    expiry_code: ReasonCode = ReasonCode.MAXIMUM_CONNECT_TIME
    vouched_by: str | None = ""
    """What authenticated the client: ``plugin:ID``, ``listener:NAME`` if its certificate did, or '' if nothing did.
    None if an older version stored the session without recording this."""
    _state: dict[str, Any] | None = None
    _publisher: Any = None
    """The broker's entry for this client as a publisher of retained messages."""

    @property
    def listener(self) -> str:
        """The name of the client's listener."""
        return self.scope.name

    @property
    def state(self) -> dict[str, Any]:
        """Plugin data, by plugin id."""
        state = self._state
        if state is None:
            state = self._state = {}
        return state

    def record(self) -> "ClientRecord":
        """Return the record to store: every field that `authorize` may use, without `state` and the listener's
        settings."""
        scope = self.scope
        return ClientRecord(
            self.client_id, self.version, self.username, self.identity, self.claims, self.vouched_by, self.peer,
            scope.name, scope.mount_point, self.clean_start, self.keep_alive, self.connected_at, self.expires_at,
            self.expiry_code,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"ClientInfo({self.client_id!r}, v{self.version}, {self.listener!r}, {self.peer})"


class ClientRecord(NamedTuple):
    """A stored client. After a restart, the broker uses these values to authorize actions on the client's behalf.

    Most fields come from `ClientInfo`; `listener` and `mount_point` come from its `Scope`.
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
            self.client_id, self.version, self.username, self.peer, Scope(self.listener, self.mount_point),
            self.clean_start, self.keep_alive, self.connected_at, self.identity, self.claims, self.expires_at,
            self.expiry_code, self.vouched_by,
        )  # fmt: skip
