"""The limits in one configuration, and their buckets for each client."""

from typing import Final

from hookmq.mqtt_api import SubscriptionTree
from hookmq.plugin import ClientInfo

from hookmq_ratelimit.addresses import network_of, short
from hookmq_ratelimit.buckets import Allowance, Bucket
from hookmq_ratelimit.client_keys import user_of
from hookmq_ratelimit.settings import Limit, Per, RateLimitConfig, What
from hookmq_ratelimit.tolls import ByTopic, Matched

MATCHES: Final = 4096
"""Maximum number of topics whose limits are cached."""


class LimitTable:
    """The limits in one configuration. `id` is the plugin id.

    `before` is the previous configuration's table, until its buckets have been copied. A limit that keeps its name
    carries over the usage of its previous buckets.
    """

    __slots__ = ("_config", "allowances", "before", "by_topic", "flapping", "violations")

    def __init__(self, config: RateLimitConfig, id: str) -> None:
        self._config = config
        self.allowances = tuple(
            Allowance(limit, f"{id}/{limit.name}", config.max_keys) for limit in config.limits
        )
        self.by_topic = _by_topic(self.allowances)
        """The limits that have topic filters, or None if there are none."""
        self.violations = self._hidden(id, "violations", config.ban.after)
        """The rate of refusals above which a client is banned; None to never ban."""
        self.flapping = self._hidden(id, "flapping", config.flapping.after)
        """The rate of connections above which a client is banned; None to never ban."""
        self.before: LimitTable | None = None

    def _hidden(self, id: str, name: str, rate: str | None) -> Allowance | None:
        if rate is None:
            return None
        limit = Limit("connections", "ip", rate, name=name)
        return Allowance(limit, f"{id}/{name}", self._config.max_keys)

    def all(self) -> tuple[Allowance, ...]:
        """Return all limits, including those that count towards bans."""
        hidden = (one for one in (self.violations, self.flapping) if one is not None)
        return (*self.allowances, *hidden)

    def divide(self, nodes: int) -> None:
        """Divide the rates that all nodes of a cluster share."""
        for one in self.allowances:
            if one.limit.shared:
                one.divide(nodes)

    def concerned(self, what: What, filtered: bool = False) -> list[Allowance]:
        """Return the limits of the given kind that have topic filters (if `filtered` is True), or that have none."""
        return [
            one
            for one in self.allowances
            if one.what == what and bool(one.limit.filters) is filtered
        ]

    def key(self, per: Per | None, client: ClientInfo) -> str:
        """Return the key of the client's bucket. It depends on what the limit counts `per`, such as client or user."""
        if per == "client":
            return short(client.client_id)
        if per == "user":
            # Clients without a user name must not share one bucket.
            return short(user_of(client) or f"\0{client.client_id}")
        if per == "ip":
            return self.network(client)
        return client.listener if per == "listener" else ""

    def network(self, client: ClientInfo) -> str:
        """Return the network that the client's address is counted under."""
        config = self._config
        return network_of(client.peer.host, config.ipv4_prefix, config.ipv6_prefix)

    def bucket(self, allowance: Allowance, client: ClientInfo, now: float) -> Bucket:
        """Return the client's bucket for a limit."""
        return self.bucket_of(allowance, self.key(allowance.per, client), now)

    def bucket_of(self, allowance: Allowance, key: str, now: float) -> Bucket:
        """Return the bucket for a key and a limit."""
        return allowance.get(key, now, self._predecessor(allowance))

    def inherit(self, now: float) -> None:
        """Copy the used buckets from the previous configuration, then drop the reference to it."""
        for allowance in self.all():
            before = self._predecessor(allowance)
            if before is not None:
                allowance.inherit(before, now)
        self.before = None

    def _predecessor(self, allowance: Allowance) -> Allowance | None:
        if self.before is None:
            return None
        for old in self.before.all():
            if (old.name, old.what, old.per) == (allowance.name, allowance.what, allowance.per):
                return old
        return None


def _by_topic(allowances: tuple[Allowance, ...]) -> ByTopic | None:
    filtered = [one for one in allowances if one.limit.filters]
    if not filtered:
        return None

    def compile(topic: str, found: list[tuple[Allowance, str, int]]) -> Matched:
        order = {index: allowance for allowance, _, index in found}
        return Matched(tuple(order[index] for index in sorted(order)))

    router: ByTopic = SubscriptionTree(compile, MATCHES)
    for index, allowance in enumerate(filtered):
        for filter in allowance.limit.filters:
            router.subscribe(filter, allowance, index)
    return router
