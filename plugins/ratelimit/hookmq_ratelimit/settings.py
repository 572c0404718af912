"""What the configuration says: limits, bans, exemptions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, get_args

from hookmq.config.units import Rate, parse_rate
from hookmq.errors import ProtocolError
from hookmq.plugin import ConfigError, Seconds, setting
from hookmq.server.addresses import parse_networks
from hookmq.topics import SHARE_PREFIX, validate_filter

What = Literal["connections", "auth_failures", "publishes", "bytes", "subscriptions", "deliveries"]
Per = Literal["client", "user", "ip", "listener", "broker"]
Mode = Literal["throttle", "reject", "drop", "disconnect"]

PER: Final[Mapping[What, tuple[Per, ...]]] = {
    # Who a client says it is counts for nothing before it was believed.
    "connections": ("ip", "listener", "broker"),
    "auth_failures": ("ip", "user"),
    "publishes": get_args(Per),
    "bytes": get_args(Per),
    "subscriptions": get_args(Per),
    "deliveries": get_args(Per),
}
"""What may be counted by what; the first is the default."""
MODES: Final[Mapping[What, tuple[Mode, ...]]] = {
    "connections": ("reject",),
    "auth_failures": ("reject",),
    "publishes": ("throttle", "reject", "drop", "disconnect"),
    "bytes": ("throttle", "reject", "drop", "disconnect"),
    "subscriptions": ("reject",),
    "deliveries": ("throttle", "drop"),
}
"""What may become of what is over a limit; the first is the default."""
SHORTEST: Final = 1e-10
"""Seconds: no token comes faster."""


def parse_rates(text: str) -> tuple[Rate, ...]:
    """The windows of ``100/s``, ``100/s, 5000/min`` or ``1MiB/s``, all of which must hold. Raises ValueError that says
    what is wrong."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError("expected a rate such as 100/s, or several as in 100/s, 5000/min")
    found: list[Rate] = []
    for part in text.split(","):
        try:
            rate = parse_rate(part)
        except ValueError:
            raise ValueError(
                f"{part.strip()!r} is no rate: write 100/s, 5000/min, 10/5s or 1MiB/s"
            ) from None
        if rate.count <= 0:
            raise ValueError(f"{part.strip()!r} lets nothing pass: forbid it with an ACL")
        if rate.per_seconds / rate.count < SHORTEST:
            raise ValueError(f"{part.strip()!r} is above ten billion a second: no limit at all")
        if any(other.per_seconds == rate.per_seconds for other in found):
            raise ValueError(f"{part.strip()!r}: there are two rates for the same time")
        found.append(rate)
    return tuple(sorted(found, key=lambda rate: rate.per_seconds))


T = TypeVar("T")


def _made(kind: type[T], value: Any) -> T:
    """For whoever embeds it: a mapping in place of an object."""
    return kind(**value) if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class Limit:
    """One limit: how often what may happen, counted by what, and what becomes of more."""

    what: What = setting("publishes", "what is counted")
    per: Per | None = setting(
        None, "what has an allowance of its own; none given is ip for connections, else client"
    )
    rate: str = setting("", "how many in which time: `100/s`, or several that all hold")
    burst: float = setting(0, "how many at once, where there is one rate; 0 is that rate's number")
    mode: Mode | None = setting(None, "what becomes of more")
    filters: tuple[str, ...] = setting(
        (), "topic filters it is about, for publishes and bytes; without it all", nonempty=True
    )
    name: str = setting("", "what logs and metrics call it; none given is WHAT-per-PER")

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
        modes = MODES[self.what]
        if self.mode is None:
            object.__setattr__(self, "mode", modes[0])
        if self.mode not in modes:
            raise ConfigError(f"mode: of {self.what} it is {' or '.join(modes)}, not {self.mode}")
        try:
            rates = parse_rates(self.rate)
        except ValueError as error:
            raise ConfigError(f"rate: {error}") from None
        if self.burst and len(rates) > 1:
            raise ConfigError("burst: with several rates each allows its own number at once")
        if self.burst and self.burst < 1:
            raise ConfigError(f"burst: {self.burst:g} lets nothing pass")
        if self.filters and self.what not in ("publishes", "bytes"):
            raise ConfigError(f"filters: {self.what} are not counted by topic")
        object.__setattr__(self, "filters", tuple(self.filters))
        for filter in self.filters:
            if filter.startswith(SHARE_PREFIX):
                raise ConfigError(f"filters: {filter!r} is a shared subscription")
            try:
                validate_filter(filter)
            except ProtocolError as error:
                raise ConfigError(f"filters: {filter!r}: {error.detail}") from None
        if not self.name:
            object.__setattr__(self, "name", f"{self.what}-per-{self.per}")

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The windows, the shortest first."""
        return parse_rates(self.rate)


def _after(text: str | None) -> None:
    if text is not None:
        try:
            parse_rates(text)
        except ValueError as error:
            raise ConfigError(f"after: {error}") from None


@dataclass(frozen=True)
class Ban:
    """Shutting out who breaks limits again and again."""

    after: str | None = setting(
        None, "more refusals than this rate ban: `20/min`; none given: never"
    )
    duration: Seconds = setting(300.0, "how long a ban lasts", minimum=1)

    def __post_init__(self) -> None:
        _after(self.after)


@dataclass(frozen=True)
class Flapping:
    """Shutting out who comes and goes again and again."""

    after: str | None = setting(
        None, "a client id that comes in more often is banned: `15/min`; none given: never"
    )
    duration: Seconds = setting(300.0, "how long a ban lasts", minimum=1)

    def __post_init__(self) -> None:
        _after(self.after)


@dataclass(frozen=True)
class Exempt:
    """Who is not limited."""

    networks: tuple[str, ...] = setting((), "networks or addresses: of nothing at all")
    listeners: tuple[str, ...] = setting((), "listeners: of nothing at all")
    users: tuple[str, ...] = setting((), "users, once they are let in; `*` stands for any letters")
    client_ids: tuple[str, ...] = setting((), "client ids, likewise")

    def __post_init__(self) -> None:
        for name in ("networks", "listeners", "users", "client_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        try:
            parse_networks(self.networks)
        except ValueError as error:
            raise ConfigError(f"networks: {error}") from None


@dataclass(frozen=True)
class RateLimitConfig:
    """Limits, and what holds for all of them."""

    limits: tuple[Limit, ...] = setting((), "the limits; all that concern something hold")
    ban: Ban = setting(Ban(), "shutting out who breaks limits again and again")
    flapping: Flapping = setting(Flapping(), "shutting out who comes and goes again and again")
    exempt: Exempt = setting(Exempt(), "who is not limited")
    ipv4_prefix: int = setting(
        32, "bits of an IPv4 address that make one `ip`", minimum=8, maximum=32
    )
    ipv6_prefix: int = setting(
        64, "bits of an IPv6 address that make one `ip`", minimum=16, maximum=128
    )
    max_keys: int = setting(
        65536, "clients, users or addresses remembered by each limit", minimum=1
    )
    max_bans: int = setting(65536, "bans at once; beyond it nobody more is banned", minimum=1)

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
                    f"limits: two are called {limit.name!r}", hint="give each a `name` of its own"
                )
            names.add(limit.name)
