"""The plugin that ``use: ratelimit`` creates."""

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Final

from hookmq.plugin import (
    Admission,
    BrokerHandle,
    ClientInfo,
    Context,
    Deny,
    HttpRouter,
    MetricRegistry,
    Plugin,
    RateLimiter,
    ReasonCode,
    Runtime,
    hookimpl,
)

from hookmq_ratelimit.addresses import short
from hookmq_ratelimit.bans import OF_CLIENTS, Banned, Bans, Key
from hookmq_ratelimit.buckets import Allowance, Bucket
from hookmq_ratelimit.client_keys import ClientKeys, user_of
from hookmq_ratelimit.exemptions import Exemptions
from hookmq_ratelimit.limit_table import LimitTable
from hookmq_ratelimit.login_guard import LoginGuard
from hookmq_ratelimit.node_count import NodeCount
from hookmq_ratelimit.requests import BAN, UNBAN, ban_request, unban_request
from hookmq_ratelimit.settings import Per, RateLimitConfig, What
from hookmq_ratelimit.shared_bans import SharedBans
from hookmq_ratelimit.tolls import ByTopic, ClientRateLimiter

_RUNNING: Final[dict[tuple[int, str], "RateLimitPlugin"]] = {}
"""The active plugin objects, by runtime and plugin id. After a reload, the successor continues with the old object's
state."""
_KINDS: Final[tuple[tuple[What, ...], ...]] = (
    ("publishes", "bytes"),
    ("subscriptions",),
    ("deliveries",),
)


class RateLimitPlugin(Plugin):
    """A plugin that limits the rates of clients, and bans clients that exceed the limits."""

    Config = RateLimitConfig
    config: RateLimitConfig
    runtime: Runtime

    def __init__(self, config: RateLimitConfig, context: Context) -> None:
        super().__init__(config, context)
        self.table = LimitTable(config, self.id)
        self.bans = Bans(config.max_bans)
        self.counts: dict[tuple[str, str], int] = {}
        """Number of events over a limit, by limit name and outcome."""
        self.waits: dict[str, tuple[int, float]] = {}
        """Number of waits that ended, and their total duration in seconds, by limit name."""
        self.waiting = 0
        self.turned_away = 0
        """Number of connections refused because of a ban."""
        self.guard = LoginGuard(self.table, self.id, config.max_keys, self._over)
        self._keys = ClientKeys(self.id)
        self._shared = SharedBans(self.id, self)
        self._nodes = NodeCount(self.table.divide)
        self._exemptions = Exemptions(config.exempt)
        self._broker: BrokerHandle | None = None
        self._before: RateLimitPlugin | None = None
        self._after: RateLimitPlugin | None = None
        self._active = False

    @property
    def admission(self) -> Admission:
        """Declare that the plugin can refuse clients but never accepts any."""
        return Admission()

    # reloads ------------------------------------------------------------------------------------------------------

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Find the plugin object that this one replaces."""
        self._bind(broker)

    def _bind(self, broker: BrokerHandle) -> None:
        if self._broker is broker:
            return
        self._broker = broker
        self.runtime = broker.runtime
        self._active = False
        running = _RUNNING.get((id(self.runtime), self.id))
        if running is not None and running is not self and running.runtime is self.runtime:
            self._before = running
            self.table.before = running.table

    @hookimpl
    def on_ready(self, broker: BrokerHandle) -> None:
        """Apply the bans of the cluster, and the node's part of shared limits, if the broker is in a cluster."""
        if any(limit.shared for limit in self.config.limits):
            self._nodes.open(broker)
        if self.config.share_bans:
            self._shared.open(broker)

    def _activate(self, broker: BrokerHandle) -> None:
        """Take over from the previous plugin object when the first client hook is called."""
        self._bind(broker)
        self._active = True
        before = self._before
        if before is not None:
            before._after = self
            before.bans.most = self.config.max_bans
            self.bans = before.bans
            self.guard.known = before.guard.known
            self.counts = before.counts
            self.waits = before.waits
        _RUNNING[id(self.runtime), self.id] = self

    @hookimpl
    def on_shutdown(self) -> None:
        """Pass the used buckets on to the plugin object that replaces this one."""
        self._shared.close()
        self._nodes.close()
        if self._after is not None:
            self._after._inherit()
            self._after = None
        if self._broker is not None and _RUNNING.get((id(self.runtime), self.id)) is self:
            del _RUNNING[id(self.runtime), self.id]

    def _inherit(self) -> None:
        self.table.inherit(self.runtime.now())
        self._before = None

    # limits -------------------------------------------------------------------------------------------------------

    @property
    def allowances(self) -> tuple[Allowance, ...]:
        """The configured limits."""
        return self.table.allowances

    @property
    def by_topic(self) -> ByTopic | None:
        """The limits that have topic filters, or None if there are none."""
        return self.table.by_topic

    def key(self, per: Per | None, client: ClientInfo) -> str:
        """Return the key of a client's bucket; see `LimitTable.key`."""
        return self.table.key(per, client)

    def bucket(self, allowance: Allowance, client: ClientInfo) -> Bucket:
        """Return a client's bucket for a limit."""
        return self.table.bucket(allowance, client, self.runtime.now())

    def free(self, client: ClientInfo) -> str:
        """Return why a client is exempt from all limits, or '' if it is not exempt."""
        return self._exemptions.unauthenticated(client)

    def free_inside(self, client: ClientInfo) -> str:
        """Return why an accepted client is exempt, or '' if it is not exempt."""
        return self._exemptions.accepted(client)

    # connection attempts ------------------------------------------------------------------------------------------

    @hookimpl
    def on_auth(
        self, client: ClientInfo, broker: BrokerHandle
    ) -> Deny | Awaitable[Deny | None] | None:
        """Admit or refuse a client before enhanced authentication starts."""
        return self._decide(client, broker)

    @hookimpl
    def on_connect(
        self, client: ClientInfo, broker: BrokerHandle
    ) -> Deny | Awaitable[Deny | None] | None:
        """Admit or refuse a client before later plugins check its credentials."""
        return self._decide(client, broker)

    def _decide(
        self, client: ClientInfo, broker: BrokerHandle
    ) -> Deny | Awaitable[Deny | None] | None:
        """Refuse a client that is banned or over a limit. Each connection is decided only once."""
        if not self._active or self._broker is not broker:
            self._activate(broker)
        if self.id in client.state:
            return None
        client.state[self.id] = "asked"
        self._keys.note(client)
        if self.free(client):
            return None
        now = self.runtime.now()
        user, name = short(client.username or ""), short(client.client_id)
        for key in (
            ("ip", self.table.network(client), ""),
            ("user", user, ""),
            ("client", name, user),
            ("client_id", name, ""),
        ):
            ban = self.bans.find(key, now)
            if ban is not None:
                self.turned_away += 1
                return Deny(ReasonCode.BANNED, f"banned: {ban.why}")
        return self.guard.decide(client, self.runtime)

    def _over(self, bucket: Bucket, client: ClientInfo) -> Deny:
        self.limited(bucket, client, "rejected")
        return Deny(ReasonCode.CONNECTION_RATE_EXCEEDED, f"over {bucket.limit.rule}")

    @hookimpl
    async def on_auth_failed(
        self, client: ClientInfo, code: ReasonCode, broker: BrokerHandle
    ) -> None:
        """Count wrong credentials. After any other failure, return the attempt's tokens."""
        if self._active:
            # A connection without a decision was refused before its credentials were checked.
            counts = self.id in client.state and not self.free(client)
            self.guard.failed(client, code, counts, self.runtime.now())

    # accepted clients ---------------------------------------------------------------------------------------------

    @hookimpl
    def provide_rate_limiter(self, client: ClientInfo, broker: BrokerHandle) -> RateLimiter | None:
        """Return the rate limiter for an accepted client."""
        if not self._active or self._broker is not broker:
            self._activate(broker)
        if client.state.get(self.id) != "inside":
            client.state[self.id] = "inside"
            self._accepted(client)
        if self.free_inside(client):
            return None
        publishes, subscriptions, deliveries = (
            [self.bucket(one, client) for what in kinds for one in self.table.concerned(what)]
            for kinds in _KINDS
        )
        if not (publishes or subscriptions or deliveries or self.by_topic):
            return None
        return ClientRateLimiter(self, client, publishes, self.by_topic, subscriptions, deliveries)

    def _accepted(self, client: ClientInfo) -> None:
        now = self.runtime.now()
        vouched = self._keys.vouched(client)
        self.guard.accepted(client, vouched, now)
        if self.free_inside(client):
            return
        key = self._keys.client(client)
        if not vouched and any(self.bans.find(one, now) for one in (self._keys.user(client), key)):
            # The client's identity was unknown when bans were looked up.
            self.turned_away += 1
            if self._broker is not None:
                self.runtime.call_soon(partial(_disconnect, self._broker, client))
            return
        flapping = self.table.flapping
        # Only accepted connections count. Otherwise, anyone who knows a client id could get it banned.
        if flapping is not None and not self._take(flapping, key, now):
            self._ban(key, self.config.flapping.duration, "flapping", client)

    def _take(self, allowance: Allowance, key: Key, now: float) -> bool:
        return self.table.bucket_of(allowance, "\0".join(key), now).take(now)

    # outcomes -----------------------------------------------------------------------------------------------------

    def limited(self, bucket: Bucket, client: ClientInfo, outcome: str) -> None:
        """Count that `client` was over a limit, log it and emit an event. A refusal counts towards a ban."""
        limit = bucket.limit
        key = (limit.name, outcome)
        self.counts[key] = self.counts.get(key, 0) + 1
        now = self.runtime.now()
        if now - bucket.told >= limit.rates[-1].per_seconds:
            bucket.told = now
            fields = {"limit": limit.rule, "outcome": outcome, "per": limit.per, "key": bucket.key}
            self._log("info", "ratelimit.limited", client_id=client.client_id, **fields)
            if self._broker is not None:
                self._broker.emit("ratelimit.limited", client, **fields)
        if outcome == "throttled":
            self.waiting += 1
        elif self.table.violations is not None and limit.per in ("client", "user", "ip"):
            self._violated(self.table.violations, bucket, client, now)

    def _violated(
        self, violations: Allowance, bucket: Bucket, client: ClientInfo, now: float
    ) -> None:
        limit = bucket.limit
        if limit.what == "deliveries" or (limit.what == "auth_failures" and limit.per == "user"):
            return  # caused by others: the publishers, or clients that guess at this name
        key: Key
        if limit.per == "ip":
            key = ("ip", bucket.key, "")
        elif limit.per == "user" and user_of(client):
            key = self._keys.user(client)
        else:
            key = self._keys.client(client)
        if not self._take(violations, key, now):
            self._ban(key, self.config.ban.duration, limit.name, client)

    def waited(self, bucket: Bucket, seconds: float) -> None:
        """Count a finished wait."""
        self.waiting -= 1
        count, total = self.waits.get(bucket.limit.name, (0, 0.0))
        self.waits[bucket.limit.name] = (count + 1, total + seconds)

    def gave_up(self) -> None:
        """Count a cancelled wait."""
        self.waiting -= 1

    def _ban(self, key: Key, duration: float, why: str, client: ClientInfo | None) -> None:
        """Ban `key`. Disconnect `client`, the client that caused the ban. `client` is None if it is offline."""
        now = self.runtime.now()
        ban = self.bans.add(key, now + duration, why, now)
        broker = self._broker
        if ban is None or broker is None:
            self._log("warning", "ratelimit.bans_full", bans=len(self.bans))
            return
        self._shared.add(ban, now)
        fields = {"kind": key[0], "name": key[1], "seconds": duration, "why": why}
        self._log("warning", "ratelimit.banned", **fields)
        broker.emit("ratelimit.banned", client, **fields)
        if client is not None:
            self.runtime.call_soon(partial(_disconnect, broker, client))

    def banned_elsewhere(self, key: Key, seconds: float, why: str) -> None:
        """Apply a ban of another node. A client that it names is disconnected."""
        now = self.runtime.now()
        known = self.bans.find(key, now)
        if self._broker is None or (known is not None and known.until > now + seconds - 1.0):
            return  # usually a ban of this node
        if self.bans.add(key, now + seconds, why, now) is None:
            self._log("warning", "ratelimit.bans_full", bans=len(self.bans))
            return
        self._log(
            "info", "ratelimit.ban_received", kind=key[0], name=key[1], seconds=seconds, why=why
        )
        client = self._broker.client(key[1]) if key[0] in OF_CLIENTS else None
        if client is not None and (key[0] == "client_id" or self._keys.client(client) == key):
            self.runtime.call_soon(partial(_disconnect, self._broker, client))

    def unbanned_elsewhere(self, key: Key) -> None:
        """Lift a ban that another node has lifted."""
        self.bans.lift_key(key)

    @hookimpl
    async def on_event(
        self, event: str, fields: Mapping[str, object], plugin: str, broker: BrokerHandle
    ) -> None:
        """Ban or unban a client id at the request of another plugin."""
        if event not in (BAN, UNBAN):
            return
        if not self._active or self._broker is not broker:
            self._activate(broker)
        try:
            if event == BAN:
                asked = ban_request(fields)
                key = ("client_id", short(asked.client_id), "")
                why = asked.reason or f"plugin {plugin}"
                self._ban(key, asked.seconds, why, broker.client(asked.client_id))
            else:
                now = self.runtime.now()
                for ban in self.bans.lift_client(short(unban_request(fields)), now):
                    self._shared.lift(ban.key)
                    self._log("info", "ratelimit.unbanned", kind=ban.key[0], name=ban.key[1])
        except ValueError as error:
            self._log(
                "error", "ratelimit.request_refused", request=event, by=plugin, why=str(error)
            )

    def _log(self, level: str, event: str, **fields: object) -> None:
        if self._broker is not None:
            self._broker.log(level, event, **fields)

    def unban(self, id: int) -> Banned | None:
        """Lift the ban with this number and return it, or return None if there is no such ban."""
        ban = self.bans.lift(id, self.runtime.now())
        if ban is not None:
            self._shared.lift(ban.key)
            self._log("info", "ratelimit.unbanned", kind=ban.key[0], name=ban.key[1])
        return ban

    # registration -------------------------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics of `hookmq_ratelimit.metrics`."""
        from hookmq_ratelimit.metrics import register

        register(registry, self)

    @hookimpl
    def register_http(self, router: HttpRouter) -> None:
        """Add the routes for bans."""
        from hookmq_ratelimit.http import register

        register(router, self)


def _disconnect(broker: BrokerHandle, client: ClientInfo) -> None:
    """Disconnect the client, unless a newer connection has taken over its client id."""
    if broker.client(client.client_id) is client:
        broker.disconnect(client.client_id, ReasonCode.MESSAGE_RATE_TOO_HIGH, "banned")
