"""The configuration: limits, bans and exemptions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, get_args

from hookmq.config_api import Rate, parse_rate
from hookmq.mqtt_api import SHARE_PREFIX, validate_filter
from hookmq.plugin import ConfigError, ProtocolError, Seconds, setting
from hookmq.server_api import parse_networks

What = Literal["connections", "auth_failures", "publishes", "bytes", "subscriptions", "deliveries"]
Per = Literal["client", "user", "ip", "listener", "broker"]
Mode = Literal["throttle", "reject", "drop", "disconnect"]

PER: Final[Mapping[What, tuple[Per, ...]]] = {
    # Before authentication, the names that a client sends prove nothing.
    "connections": ("ip", "listener", "broker"),
    "auth_failures": ("ip", "user"),
    "publishes": get_args(Per),
    "bytes": get_args(Per),
    "subscriptions": get_args(Per),
    "deliveries": get_args(Per),
}
"""The values of `per` for each kind; the first is the default."""
MODES: Final[Mapping[What, tuple[Mode, ...]]] = {
    "connections": ("reject",),
    "auth_failures": ("reject",),
    "publishes": ("throttle", "reject", "drop", "disconnect"),
    "bytes": ("throttle", "reject", "drop", "disconnect"),
    "subscriptions": ("reject",),
    "deliveries": ("throttle", "drop"),
}
"""The modes of each kind; the first is the default."""
SHORTEST: Final = 1e-10
"""Minimum number of seconds in which a token may be refilled."""


def parse_rates(text: str) -> tuple[Rate, ...]:
    """Parse a rate into its windows: ``100/s``, ``1MiB/s``, or several that all apply, as in ``100/s, 5000/min``.

    Raise ValueError if the text is not a rate.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError("expected a rate such as 100/s, or several as in 100/s, 5000/min")
    found: list[Rate] = []
    for part in text.split(","):
        try:
            rate = parse_rate(part)
        except ValueError:
            raise ValueError(
                f"{part.strip()!r} is not a rate; expected 100/s, 5000/min, 10/5s or 1MiB/s"
            ) from None
        if rate.count <= 0:
            raise ValueError(f"{part.strip()!r} allows nothing; deny it with access rules instead")
        if rate.per_seconds / rate.count < SHORTEST:
            raise ValueError(f"{part.strip()!r} is more than ten billion per second")
        if any(other.per_seconds == rate.per_seconds for other in found):
            raise ValueError(f"{part.strip()!r} is a second rate for the same time")
        found.append(rate)
    return tuple(sorted(found, key=lambda rate: rate.per_seconds))


T = TypeVar("T")


def _made(kind: type[T], value: Any) -> T:
    """Convert a mapping to the dataclass `kind`, for configurations created in code."""
    return kind(**value) if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class Limit:
    """One limit: what it counts, its scope, how much it allows, and what happens when it is exceeded."""

    what: What = setting("publishes", "what is counted")
    per: Per | None = setting(
        None, "what has its own allowance; by default ip for connections, otherwise client"
    )
    rate: str = setting("", "the allowed rate, such as `100/s`, or several that all apply")
    burst: float = setting(0, "how many at once, with a single rate; 0 for the rate's number")
    mode: Mode | None = setting(None, "what happens above the rate")
    filters: tuple[str, ...] = setting(
        (),
        "topic filters the limit applies to, for publishes and bytes; all topics by default",
        nonempty=True,
    )
    name: str = setting("", "its name in logs and metrics; WHAT-per-PER by default")
    shared: bool = setting(
        False, "in a cluster, divide the rate by the number of live nodes; not for per: client"
    )

    def __post_init__(self) -> None:
        if self.what not in get_args(What):
            raise ConfigError(f"what: {self.what!r} is not one of {', '.join(get_args(What))}")
        allowed = PER[self.what]
        if self.per is None:
            object.__setattr__(self, "per", allowed[0])
        if self.per not in allowed:
            raise ConfigError(
                f"per: {self.what} are counted per {' or '.join(allowed)}, not {self.per}"
            )
        if self.shared and self.per == "client":
            raise ConfigError("shared: a client is on one node at a time; expected another `per`")
        modes = MODES[self.what]
        if self.mode is None:
            object.__setattr__(self, "mode", modes[0])
        if self.mode not in modes:
            raise ConfigError(
                f"mode: {self.what} can be limited by {' or '.join(modes)}, not {self.mode}"
            )
        try:
            rates = parse_rates(self.rate)
        except ValueError as error:
            raise ConfigError(f"rate: {error}") from None
        if self.burst and len(rates) > 1:
            raise ConfigError(
                "burst: not allowed with several rates; each allows its own number at once"
            )
        if self.burst and self.burst < 1:
            raise ConfigError(f"burst: {self.burst:g} allows nothing; expected 1 or more")
        if self.filters and self.what not in ("publishes", "bytes"):
            raise ConfigError(f"filters: {self.what} are not counted by topic")
        object.__setattr__(self, "filters", tuple(self.filters))
        for filter in self.filters:
            if filter.startswith(SHARE_PREFIX):
                raise ConfigError(
                    f"filters: {filter!r} is a shared subscription; expected a topic filter"
                )
            try:
                validate_filter(filter)
            except ProtocolError as error:
                raise ConfigError(f"filters: {filter!r}: {error.detail}") from None
        if not self.name:
            object.__setattr__(self, "name", f"{self.what}-per-{self.per}")

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The windows, shortest first."""
        return parse_rates(self.rate)


def _after(text: str | None) -> None:
    if text is not None:
        try:
            parse_rates(text)
        except ValueError as error:
            raise ConfigError(f"after: {error}") from None


@dataclass(frozen=True)
class Ban:
    """When to ban clients that repeatedly exceed limits."""

    after: str | None = setting(
        None, "a rate of refusals, such as `20/min`; above it, a ban; never by default"
    )
    duration: Seconds = setting(300.0, "how long a ban lasts", minimum=1)

    def __post_init__(self) -> None:
        _after(self.after)


@dataclass(frozen=True)
class Flapping:
    """When to ban clients that reconnect too often."""

    after: str | None = setting(
        None,
        "a rate of connections of one client id, such as `15/min`; above it, a ban; never by default",
    )
    duration: Seconds = setting(300.0, "how long a ban lasts", minimum=1)

    def __post_init__(self) -> None:
        _after(self.after)


@dataclass(frozen=True)
class Exempt:
    """Clients that are not limited."""

    networks: tuple[str, ...] = setting((), "networks or addresses without any limit")
    listeners: tuple[str, ...] = setting((), "listeners without any limit")
    users: tuple[str, ...] = setting(
        (), "users without limits once accepted; `*` matches any characters"
    )
    client_ids: tuple[str, ...] = setting(
        (), "client ids without limits once accepted; `*` matches any characters"
    )

    def __post_init__(self) -> None:
        for name in ("networks", "listeners", "users", "client_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        try:
            parse_networks(self.networks)
        except ValueError as error:
            raise ConfigError(f"networks: {error}") from None


@dataclass(frozen=True)
class RateLimitConfig:
    """Limits, and the settings that apply to all of them."""

    limits: tuple[Limit, ...] = setting((), "the limits; all that match apply")
    ban: Ban = setting(Ban(), "bans of clients that exceed limits repeatedly")
    flapping: Flapping = setting(Flapping(), "bans of clients that reconnect too often")
    exempt: Exempt = setting(Exempt(), "clients that are not limited")
    ipv4_prefix: int = setting(
        32,
        "IPv4 addresses that share this many leading bits count as one `ip`",
        minimum=8,
        maximum=32,
    )
    ipv6_prefix: int = setting(
        64,
        "IPv6 addresses that share this many leading bits count as one `ip`",
        minimum=16,
        maximum=128,
    )
    max_keys: int = setting(65536, "clients, users or addresses that each limit stores", minimum=1)
    max_bans: int = setting(
        65536, "most bans at the same time; further ones are not added", minimum=1
    )
    share_bans: bool = setting(True, "in a cluster, whether a ban applies to all nodes")

    def __post_init__(self) -> None:
        made = tuple(_made(Limit, limit) for limit in self.limits)
        object.__setattr__(self, "limits", made)
        object.__setattr__(self, "ban", _made(Ban, self.ban))
        object.__setattr__(self, "flapping", _made(Flapping, self.flapping))
        object.__setattr__(self, "exempt", _made(Exempt, self.exempt))
        names: set[str] = set()
        for limit in made:
            if limit.name in names:
                raise ConfigError(
                    f"limits: two have the name {limit.name!r}", hint="give each its own `name`"
                )
            names.add(limit.name)
