"""What is counted, and how it is exported."""

from collections import Counter
from typing import Any, Protocol

from hookmq_auth_password.cache import Cache
from hookmq_auth_password.users import Users

RESULTS = (
    "accepted", "cached", "wrong_password", "unknown_user", "disabled", "no_password", "too_long", "no_user_name",
    "busy", "changed", "ignored",
)  # fmt: skip


class Counts:
    """Counters of one plugin; no label ever holds what a client sent."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        self.reloads: Counter[str] = Counter({"ok": 0, "failed": 0})
        self.upgrades: Counter[str] = Counter({"ok": 0, "failed": 0})
        self.disconnected = 0


class Decides(Protocol):
    """The plugin, as far as it is of interest here."""

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


def register(registry: Any, plugin: Decides) -> None:
    """Add the families to a `hookmq.metric_registry.MetricRegistry`."""
    counts = plugin.counts

    def by(label: str, counter: Counter[str]) -> Any:
        return lambda: [({label: name}, value) for name, value in counter.items()]

    registry.counter(
        "auth_password_connects_total", "Answers to CONNECT.", by("result", counts.results)
    )
    registry.summary(
        "auth_password_hash_seconds",
        "Time of hashing a password in its thread.",
        lambda: [({}, *plugin.hashed)],
    )
    registry.gauge("auth_password_hashing", "Passwords being hashed.", lambda: plugin.hashing)
    registry.gauge("auth_password_waiting", "Passwords that wait for it.", lambda: plugin.waiting)
    registry.gauge("auth_password_cached", "Right passwords remembered.", lambda: len(plugin.cache))
    registry.gauge(
        "auth_password_users",
        "Users by the kind of their hash.",
        lambda: [({"scheme": name}, n) for name, n in plugin.users.schemes.items()],
    )
    registry.gauge(
        "auth_password_file_good",
        "1 while the file as it is now is in use.",
        lambda: int(plugin.good),
    )
    registry.counter(
        "auth_password_reloads_total",
        "Times that a changed file was read.",
        by("result", counts.reloads),
    )
    registry.counter(
        "auth_password_upgrades_total", "Hashes made stronger.", by("result", counts.upgrades)
    )
    registry.counter(
        "auth_password_disconnected_total",
        "Connections ended because the file changed.",
        lambda: counts.disconnected,
    )
