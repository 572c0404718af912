"""Count what the plugin does, and export the counts as metrics."""

from collections import Counter
from typing import Any, Protocol

from hookmq.plugin import MetricRegistry
from hookmq_toolkit.passwords.cache import Cache

from hookmq_auth_password.users import Users

RESULTS = (
    "accepted", "cached", "wrong_password", "unknown_user", "disabled", "no_password", "too_long", "no_user_name",
    "busy", "changed", "ignored",
)  # fmt: skip


class Counts:
    """The counters of one plugin object. No metric label contains a value that a client sent."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        self.reloads: Counter[str] = Counter({"ok": 0, "failed": 0})
        self.upgrades: Counter[str] = Counter({"ok": 0, "failed": 0})
        self.disconnected = 0


class Decides(Protocol):
    """The attributes of the plugin that are exported."""

    counts: Counts
    cache: Cache
    good: bool
    users: Users

    @property
    def hashing(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def hashed(self) -> tuple[int, float]: ...


def register(registry: MetricRegistry, plugin: Decides) -> None:
    """Add the metrics to a `MetricRegistry`."""
    counts = plugin.counts

    def by(label: str, counter: Counter[str]) -> Any:
        return lambda: [({label: name}, value) for name, value in counter.items()]

    registry.counter(
        "auth_password_connects_total", "CONNECT packets, by result.", by("result", counts.results)
    )
    registry.summary(
        "auth_password_hash_seconds",
        "Time to hash a password, without waiting.",
        lambda: [({}, *plugin.hashed)],
    )
    registry.gauge("auth_password_hashing", "Passwords being hashed.", lambda: plugin.hashing)
    registry.gauge(
        "auth_password_waiting", "Passwords that wait to be hashed.", lambda: plugin.waiting
    )
    registry.gauge(
        "auth_password_cached", "Accepted passwords in the cache.", lambda: len(plugin.cache)
    )
    registry.gauge(
        "auth_password_users",
        "Users, by the scheme of their hash.",
        lambda: [({"scheme": name}, n) for name, n in plugin.users.schemes.items()],
    )
    registry.gauge(
        "auth_password_file_good",
        "1 while the users are those of the file, 0 after a failed reload.",
        lambda: int(plugin.good),
    )
    registry.counter(
        "auth_password_reloads_total",
        "Reloads of the changed file, by result.",
        by("result", counts.reloads),
    )
    registry.counter(
        "auth_password_upgrades_total",
        "Weak hashes replaced, by result.",
        by("result", counts.upgrades),
    )
    registry.counter(
        "auth_password_disconnected_total",
        "Connections closed because the file changed.",
        lambda: counts.disconnected,
    )
