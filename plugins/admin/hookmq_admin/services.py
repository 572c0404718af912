"""The objects that the API's routes use: the broker, the tokens, the audit log, the history and the live tails."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hookmq.plugin import BrokerHandle, ClientInfo, Log, Peer, Scope, SessionSnapshot

from hookmq_admin.audit import AuditLog
from hookmq_admin.drops import DropLog
from hookmq_admin.errors import ApiError
from hookmq_admin.failures import FailureLimit
from hookmq_admin.fields import Fields
from hookmq_admin.history import History
from hookmq_admin.hot_topics import HotTopics
from hookmq_admin.schemas import Schema
from hookmq_admin.settings import AdminConfig
from hookmq_admin.tokens import Role, Token, Tokens

if TYPE_CHECKING:
    from aiohttp import web  # not at runtime: commands need no server, and should start quickly

NO_FIELDS: Final[Fields] = {}


@dataclass(slots=True)
class Services:
    """A running plugin's state. `counts` holds the values of its metrics. A change with an entity tag holds the lock
    `changing`, so that nothing else changes after the tag has been checked.
    """

    plugin_id: str
    config: AdminConfig
    broker: BrokerHandle
    log: Log
    tokens: Tokens
    audit: AuditLog
    failures: FailureLimit
    history: History
    started_at: float
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    tails: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    hot: HotTopics = field(init=False)
    drops: DropLog = field(init=False)

    def __post_init__(self) -> None:
        self.hot = HotTopics(self.broker)
        self.drops = DropLog(self.broker)


async def _nothing() -> None:
    pass


@dataclass(slots=True)
class Call:
    """One request: its token, the client's address, the named parts of the path, and the validated arguments."""

    services: Services
    request: "web.BaseRequest"
    token: Token
    address: str
    parts: Mapping[str, str]
    arguments: Mapping[str, Any]
    begin: Callable[[], Awaitable[None]] = _nothing
    """Record the change in the audit log now. Streaming routes call this, because they end late."""

    @property
    def broker(self) -> BrokerHandle:
        """The broker."""
        return self.services.broker

    @property
    def payloads(self) -> bool:
        """Whether the token may read message contents."""
        return self.token.rank >= Role.OPERATOR

    def paging(self) -> tuple[str, int]:
        """Return the cursor and the limit of a listing."""
        return self.arguments["cursor"], self.arguments["limit"]

    def session(self) -> SessionSnapshot:
        """Return the session of the client named in the path. Raises ApiError 404."""
        found = self.broker.session(self.parts["client_id"])
        if found is None:
            raise ApiError(404, "no client has this id", "client_id")
        return found

    def as_client(self) -> ClientInfo:
        """Return the client that the token publishes as."""
        identity = self.token.identity
        plugin = self.services.plugin_id
        return ClientInfo(
            f"$admin/{self.token.id}",
            5,
            identity,
            Peer(self.address, 0, "http"),
            Scope(plugin),
            identity=identity,
            vouched_by=f"plugin:{plugin}",
        )


@dataclass(frozen=True, slots=True)
class Route:
    """One route of the API: its validation, its part of the OpenAPI document, and its handler.

    - `path`: below ``/api/v1``, with ``{name}`` parts.
    - `name`: the operation id, and the action in the audit log.
    - `change`: whether the route changes something; its calls are then recorded in the audit log.
    - `hidden`: fields whose values are not in the audit log.
    - `errors`: possible statuses in addition to 400, 401, 403 and 429.
    - `tag`: returns the entity tag of the state that the route reads or changes. Changes also accept ``If-Match``.
    - `streams`: whether the handler itself sends the response, as server-sent events.
    """

    method: str
    path: str
    name: str
    role: Role
    summary: str
    handler: Callable[[Call], Awaitable[Any]]
    answer: Schema
    query: Fields = field(default_factory=dict)
    body: Fields | None = None
    change: bool = False
    hidden: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    tag: Callable[[Call], str] | None = None
    streams: bool = False
