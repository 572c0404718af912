"""The plugin: what the configuration's `use: ratelimit` makes."""

import re
from collections import OrderedDict
from collections.abc import Awaitable
from fnmatch import translate
from functools import partial
from typing import Any, Final

from hookmq.plugin import (
    Admission,
    BrokerHandle,
    ClientInfo,
    Context,
    Deny,
    Meter,
    Plugin,
    ReasonCode,
    hookimpl,
)
from hookmq.router import Router
from hookmq.runtime import Promise, Runtime
from hookmq.server.addresses import parse_networks

from hookmq_ratelimit.addresses import contains, network_of, short
from hookmq_ratelimit.attempts import Attempt
from hookmq_ratelimit.bans import Banned, Bans, Key
from hookmq_ratelimit.buckets import Allowance, Bucket
from hookmq_ratelimit.settings import Limit, Per, RateLimitConfig, What
from hookmq_ratelimit.tolls import ByTopic, ClientMeter, Matched

FAILED: Final = frozenset(
    {
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
    }
)
"""What a wrong password ends with; a refusal of ours is none."""
PATIENCE: Final = 4.0
"""Seconds that an attempt waits for those before it; the hook's own deadline is later."""
MATCHES: Final = 4096
"""Topics whose limits are remembered."""
_RUNNING: Final[dict[tuple[int, str], "RateLimitPlugin"]] = {}
"""The plugin at work by runtime and id, so that one with a changed configuration goes on where it stands."""


class RateLimitPlugin(Plugin):
    """Rate limits, quotas and bans for HookMQ's clients."""

    Config = RateLimitConfig
    config: RateLimitConfig
    runtime: Runtime

    def __init__(self, config: RateLimitConfig, context: Context) -> None:
        super().__init__(config, context)
        self.allowances = tuple(
            Allowance(limit, f"{self.id}/{limit.name}", config.max_keys) for limit in config.limits
        )
        self.by_topic = _by_topic(self.allowances)
        self.bans = Bans(config.max_bans)
        self.counts: dict[tuple[str, str], int] = {}
        """What was over a limit, by its name and what became of it."""
        self.waits: dict[str, tuple[int, float]] = {}
        """How many were throttled and went on, and seconds altogether, by the limit's name."""
        self.waiting = 0
        self.turned_away = 0
        """Connections of who is banned."""
        self._violations = self._hidden("violations", config.ban.after)
        self._comings = self._hidden("flapping", config.flapping.after)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Users and the addresses from where they were let in."""
        self._networks = parse_networks(config.exempt.networks)
        self._users = _pattern(config.exempt.users)
        self._client_ids = _pattern(config.exempt.client_ids)
        self._attempt = f"{self.id}.attempt"
        """Where a client's state holds its `Attempt`."""
        self._broker: BrokerHandle | None = None
        self._before: RateLimitPlugin | None = None
        self._after: RateLimitPlugin | None = None
        self._at_work = False

    def _hidden(self, name: str, rate: str | None) -> Allowance | None:
        if rate is None:
            return None
        limit = Limit("connections", "ip", rate, name=name)
        return Allowance(limit, f"{self.id}/{name}", self.config.max_keys)

    @property
    def admission(self) -> Admission:
        """It refuses, and lets nobody in."""
        return Admission()

    # from one configuration to the next ---------------------------------------------------------------------------

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Finds the plugin whose place it takes."""
        self._bind(broker)

    def _bind(self, broker: BrokerHandle) -> None:
        if self._broker is broker:
            return
        self._broker = broker
        self.runtime = broker.runtime
        self._at_work = False
        running = _RUNNING.get((id(self.runtime), self.id))
        if running is not None and running is not self and running.runtime is self.runtime:
            self._before = running

    def _begin(self, broker: BrokerHandle) -> None:
        """The first client is asked about: from now on this one is at work."""
        self._bind(broker)
        self._at_work = True
        before = self._before
        if before is not None:
            before._after = self
            before.bans.most = self.config.max_bans
            self.bans = before.bans
            self._known = before._known
            self.counts = before.counts
            self.waits = before.waits
        _RUNNING[id(self.runtime), self.id] = self

    @hookimpl
    def on_shutdown(self) -> None:
        """Hands over what is in use."""
        if self._after is not None:
            self._after._inherit()
            self._after = None
        if self._broker is not None and _RUNNING.get((id(self.runtime), self.id)) is self:
            del _RUNNING[id(self.runtime), self.id]

    def _inherit(self) -> None:
        now = self.runtime.now()
        for allowance in self._all():
            before = self._predecessor(allowance)
            if before is not None:
                allowance.inherit(before, now)
        self._before = None

    def _all(self) -> tuple[Allowance, ...]:
        hidden = (one for one in (self._violations, self._comings) if one is not None)
        return (*self.allowances, *hidden)

    def _predecessor(self, allowance: Allowance) -> Allowance | None:
        if self._before is None:
            return None
        for old in self._before._all():
            if (old.name, old.what, old.per) == (allowance.name, allowance.what, allowance.per):
                return old
        return None

    # who is meant -------------------------------------------------------------------------------------------------

    def key(self, per: Per | None, client: ClientInfo) -> str:
        """What has an allowance of its own."""
        if per == "client":
            return short(client.client_id)
        if per == "user":
            return short(
                user_of(client) or f"\0{client.client_id}"
            )  # who has no name is not all others
        if per == "ip":
            return self.network(client)
        return client.listener if per == "listener" else ""

    def network(self, client: ClientInfo) -> str:
        """The addresses that count as one with the client's."""
        config = self.config
        return network_of(client.peer.host, config.ipv4_prefix, config.ipv6_prefix)

    def free(self, client: ClientInfo) -> str:
        """Why a client is exempt from everything; '' if it is not."""
        if client.listener in self.config.exempt.listeners:
            return f"listener {client.listener}"
        if self._networks and contains(self._networks, client.peer.host):
            return f"address {client.peer.host}"
        return ""

    def free_inside(self, client: ClientInfo) -> str:
        """Why a client that was let in is exempt; '' if it is not."""
        user = user_of(client)
        if user and self._users is not None and self._users.match(user):
            return f"user {user}"
        if self._client_ids is not None and self._client_ids.match(client.client_id):
            return f"client id {client.client_id}"
        return self.free(client)

    def concerned(self, what: What, filtered: bool = False) -> list[Allowance]:
        """The limits of a kind."""
        return [
            one
            for one in self.allowances
            if one.what == what and bool(one.limit.filters) is filtered
        ]

    def bucket(self, allowance: Allowance, client: ClientInfo) -> Bucket:
        """A client's bucket under a limit."""
        return self._bucket(allowance, self.key(allowance.per, client))

    def _bucket(self, allowance: Allowance, key: str) -> Bucket:
        return allowance.get(key, self.runtime.now(), self._predecessor(allowance))

    # coming in ----------------------------------------------------------------------------------------------------

    @hookimpl
    def on_auth(
        self, client: ClientInfo, broker: BrokerHandle
    ) -> Deny | Awaitable[Deny | None] | None:
        """Before an exchange of credentials begins."""
        return self._ask(client, broker)

    @hookimpl
    def on_connect(
        self, client: ClientInfo, broker: BrokerHandle
    ) -> Deny | Awaitable[Deny | None] | None:
        """Before credentials are looked at by the plugins behind this one."""
        return self._ask(client, broker)

    def _ask(
        self, client: ClientInfo, broker: BrokerHandle
    ) -> Deny | Awaitable[Deny | None] | None:
        """Refuse a client that is banned or over a limit. Asked once for a connection."""
        if not self._at_work or self._broker is not broker:
            self._begin(broker)
        if self.id in client.state:
            return None
        client.state[self.id] = "asked"
        client.state[f"{self.id}.name"] = client.username
        if self.free(client):
            return None
        now = self.runtime.now()
        network = self.network(client)
        user = short(client.username or "")
        for key in (
            ("ip", network, ""),
            ("user", user, ""),
            ("client", short(client.client_id), user),
        ):
            ban = self.bans.find(key, now)
            if ban is not None:
                self.turned_away += 1
                return Deny(ReasonCode.BANNED, f"banned: {ban.why}")
        wanted = [self.bucket(one, client) for one in self.concerned("connections")]
        for bucket in wanted:
            if bucket.delay(now, 1) > 0.0:
                return self._over(bucket, client)
        guarded = self._guarded(client, network)
        used_up = self._reserve(client, guarded, now, True)
        if used_up is not None and not used_up.trials.undecided(now):
            return self._over(used_up, client)
        for one in wanted:
            one.use(now, 1)
        return None if used_up is None else self._wait(client, guarded, used_up)

    def _over(self, bucket: Bucket, client: ClientInfo) -> Deny:
        self.limited(bucket, client, "rejected")
        return Deny(ReasonCode.CONNECTION_RATE_EXCEEDED, f"over {bucket.limit.rule}")

    def _guarded(self, client: ClientInfo, network: str) -> list[Bucket]:
        """The allowances of wrong passwords that an attempt of `client` counts against."""
        found = []
        for allowance in self.concerned("auth_failures"):
            if allowance.per != "user":
                found.append(self.bucket(allowance, client))
                continue
            user = short(client.username or "")
            # Guesses at a name from elsewhere do not lock its owner out where it was before.
            if user and (user, network) not in self._known:
                found.append(self._bucket(allowance, user))
        return found

    def _reserve(
        self, client: ClientInfo, guarded: list[Bucket], now: float, last: bool
    ) -> Bucket | None:
        """Take a token of each bucket before any credential is looked at, or return the one that is used up. Guesses
        sent at the same time would otherwise all be answered before the first failure counts. With `last`, those that
        wait already are served first."""
        for bucket in guarded:
            if bucket.delay(now, 1) > 0.0 or (last and bucket.trials.waiting):
                return bucket
        if guarded:
            client.state[self._attempt] = Attempt(guarded, now)
        return None

    async def _wait(
        self, client: ClientInfo, guarded: list[Bucket], used_up: Bucket
    ) -> Deny | None:
        """Wait for attempts under way: right passwords give their tokens back."""
        runtime = self.runtime
        until = runtime.now() + PATIENCE
        while True:
            trials, promise = used_up.trials, runtime.promise()
            trials.waiting[promise] = None
            timer = runtime.call_later(until - runtime.now(), partial(_wake, promise))
            try:
                await promise
            except BaseException:
                if promise not in trials.waiting:
                    trials.wake(1)  # its turn had come
                raise
            finally:
                timer.cancel()
                trials.waiting.pop(promise, None)
            now = runtime.now()
            late = self._reserve(client, guarded, now, False)
            if late is not used_up:
                trials.wake(1)  # there may be room for more than one
            if late is None:
                return None
            if now >= until or not late.trials.undecided(now):
                return self._over(late, client)
            used_up = late

    @hookimpl
    async def on_auth_failed(
        self, client: ClientInfo, code: ReasonCode, broker: BrokerHandle
    ) -> None:
        """Count wrong passwords; an attempt that failed for another reason gives its tokens back."""
        if not self._at_work:
            return
        now = self.runtime.now()
        wrong = code in FAILED
        attempt: Attempt | None = client.state.pop(self._attempt, None)
        if attempt is not None:
            attempt.settle(now, wrong)
        if not wrong or self.id not in client.state or self.free(client):
            return  # one that was never asked about was refused before its credentials were looked at
        counted = () if attempt is None else attempt.buckets
        for allowance in self.concerned("auth_failures"):
            user = short(client.username or "")
            key = self.network(client) if allowance.per == "ip" else user
            if not key or any((b.limit.name, b.key) == (allowance.name, key) for b in counted):
                continue
            bucket = self._bucket(allowance, key)
            # Many that failed at the same time are not held against an address for ever.
            if bucket.delay(now, 1) <= bucket.limit.rates[-1].per_seconds:
                bucket.use(now, 1)

    # inside -------------------------------------------------------------------------------------------------------

    @hookimpl
    def provide_meter(self, client: ClientInfo, broker: BrokerHandle) -> Meter | None:
        """The buckets of a client that was let in."""
        if not self._at_work or self._broker is not broker:
            self._begin(broker)
        if client.state.get(self.id) != "inside":
            client.state[self.id] = "inside"
            attempt: Attempt | None = client.state.pop(self._attempt, None)
            if attempt is not None:
                attempt.settle(self.runtime.now(), False)
            self._came_in(client)
        if self.free_inside(client):
            return None
        publishes, subscriptions, deliveries = (
            [self.bucket(one, client) for what in kinds for one in self.concerned(what)]
            for kinds in _KINDS
        )
        if not (publishes or subscriptions or deliveries or self.by_topic):
            return None
        return ClientMeter(self, client, publishes, self.by_topic, subscriptions, deliveries)

    def _came_in(self, client: ClientInfo) -> None:
        if (
            client.username
            and self.vouched(client)
            and any(one.per == "user" for one in self.concerned("auth_failures"))
        ):
            known = (short(client.username), self.network(client))
            self._known[known] = None
            self._known.move_to_end(known)
            if len(self._known) > self.config.max_keys:
                self._known.popitem(last=False)
        if self.free_inside(client):
            return
        if not self.vouched(client):
            # Who this is was not known when it was asked about bans.
            now = self.runtime.now()
            if any(
                self.bans.find(key, now) for key in (self.user_key(client), self.client_key(client))
            ):
                self.turned_away += 1
                if self._broker is not None:
                    self.runtime.call_soon(partial(_end, self._broker, client))
                return
        if self._comings is None:
            return
        # Only who was let in counts: else whoever knows a client's id could have it banned.
        key = self.client_key(client)
        bucket = self._bucket(self._comings, "\0".join(key))
        if not bucket.take(self.runtime.now()):
            self._ban(key, self.config.flapping.duration, "flapping", client)

    def vouched(self, client: ClientInfo) -> bool:
        """Whether the user name that a client came with is its own. With a token in the password it may be anybody's."""
        return client.identity is None or client.identity == self._came_as(client)

    def _came_as(self, client: ClientInfo) -> str:
        """The user name as it was when bans were looked for: what it will be known again by."""
        name = client.state.get(f"{self.id}.name", client.username)
        return str(name or "")

    def user_key(self, client: ClientInfo) -> Key:
        """What a client's user is banned by."""
        if self.vouched(client):
            return ("user", short(self._came_as(client)), "")
        return ("identity", short(client.identity or ""), "")

    def client_key(self, client: ClientInfo) -> Key:
        """What a client is banned by."""
        if self.vouched(client):
            return ("client", short(client.client_id), short(self._came_as(client)))
        return ("identity_client", short(client.client_id), short(client.identity or ""))

    # what became of it --------------------------------------------------------------------------------------------

    def limited(self, bucket: Bucket, client: ClientInfo, outcome: str) -> None:
        """Something of `client` was over a limit."""
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
        elif self._violations is not None and limit.per in ("client", "user", "ip"):
            self._violated(bucket, client, now)

    def _violated(self, bucket: Bucket, client: ClientInfo, now: float) -> None:
        limit = bucket.limit
        if limit.what == "deliveries" or (limit.what == "auth_failures" and limit.per == "user"):
            return  # others' doing: who is sent too much, and whose name is guessed at
        assert self._violations is not None
        key: Key
        if limit.per == "ip":
            key = ("ip", bucket.key, "")
        elif limit.per == "user" and user_of(client):
            key = self.user_key(client)
        else:
            key = self.client_key(client)
        if not self._bucket(self._violations, "\0".join(key)).take(now):
            self._ban(key, self.config.ban.duration, limit.name, client)

    def waited(self, bucket: Bucket, seconds: float) -> None:
        """Something that was throttled goes on."""
        self.waiting -= 1
        count, total = self.waits.get(bucket.limit.name, (0, 0.0))
        self.waits[bucket.limit.name] = (count + 1, total + seconds)

    def gave_up(self) -> None:
        """Something that was throttled is waited for no more."""
        self.waiting -= 1

    def _ban(self, key: Key, duration: float, why: str, client: ClientInfo) -> None:
        now = self.runtime.now()
        ban = self.bans.add(key, now + duration, why, now)
        broker = self._broker
        if ban is None or broker is None:
            self._log("warning", "ratelimit.bans_full", bans=len(self.bans))
            return
        fields = {"kind": key[0], "name": key[1], "seconds": duration, "why": why}
        self._log("warning", "ratelimit.banned", **fields)
        broker.emit("ratelimit.banned", client, **fields)
        self.runtime.call_soon(partial(_end, broker, client))

    def _log(self, level: str, event: str, **fields: object) -> None:
        if self._broker is not None:
            self._broker.log(level, event, **fields)

    def unban(self, id: int) -> Banned | None:
        """End a ban; None if there is none of that number."""
        ban = self.bans.lift(id, self.runtime.now())
        if ban is not None:
            self._log("info", "ratelimit.unbanned", kind=ban.key[0], name=ban.key[1])
        return ban

    # beside -------------------------------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: Any) -> None:
        """Adds what `hookmq_ratelimit.metrics` lists."""
        from hookmq_ratelimit.metrics import register

        register(registry, self)

    @hookimpl
    def register_http(self, router: Any) -> None:
        """Adds the list of bans."""
        from hookmq_ratelimit.http import register

        register(router, self)

    @classmethod
    @hookimpl
    def register_cli(cls, group: Any) -> None:
        """Adds ``hookmq ratelimit``."""
        from hookmq_ratelimit.cli import register

        register(group, cls)


_KINDS: Final[tuple[tuple[What, ...], ...]] = (
    ("publishes", "bytes"),
    ("subscriptions",),
    ("deliveries",),
)


def user_of(client: ClientInfo) -> str:
    """Who a client that was let in is."""
    return client.identity if client.identity is not None else client.username or ""


def _end(broker: BrokerHandle, client: ClientInfo) -> None:
    """Disconnect the client itself, if it is connected: not one that bears the same id."""
    if broker.client(client.client_id) is client:
        broker.disconnect(client.client_id, ReasonCode.MESSAGE_RATE_TOO_HIGH, "banned")


def _wake(promise: Promise) -> None:
    if not promise.done():
        promise.set_result(None)


def _pattern(names: tuple[str, ...]) -> re.Pattern[str] | None:
    if not names:
        return None
    # Of a shell's signs only `*`: the others may stand in names.
    return re.compile("|".join(translate(re.sub(r"([?\[])", r"[\1]", name)) for name in names))


def _by_topic(allowances: tuple[Allowance, ...]) -> ByTopic | None:
    filtered = [one for one in allowances if one.limit.filters]
    if not filtered:
        return None

    def compile(topic: str, found: list[tuple[Allowance, str, int]]) -> Matched:
        order = {index: allowance for allowance, _, index in found}
        return Matched(tuple(order[index] for index in sorted(order)))

    router: ByTopic = Router(compile, MATCHES)
    for index, allowance in enumerate(filtered):
        for filter in allowance.limit.filters:
            router.subscribe(filter, allowance, index)
    return router
