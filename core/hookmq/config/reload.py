"""What a changed configuration would do to a running broker: each change, and whether it needs a restart.

Nothing is changed here. `hookmq.config.live` applies a configuration.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookmq.config.binder import bound_fields, is_secret_key
from hookmq.config.model import Config
from hookmq.config.problems import Path, dotted
from hookmq.config.show import MASK, masked
from hookmq.server.settings import ListenerSettings

RESTART_KEYS: Final = frozenset({"broker.max_topic_levels", "broker.max_write_buffer"})
"""Keys of the core that its parts were built with."""
LIVE_LISTENER_KEYS: Final = frozenset(
    {
        "mount_point", "versions", "connect_timeout", "connect_bytes", "identity", "max_connections", "close_timeout",
        "tls", "http",
    }
)  # fmt: skip
"""Keys of a listener that take effect for new connections while its socket stays open."""


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs; `old` and `new` are texts fit to be shown, ``-`` for nothing."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class Report:
    """What became, or would become, of each change: `applied` now, `restart` with the next start. `rejected` says why the
    new configuration was refused as a whole; then nothing was applied."""

    applied: tuple[Change, ...] = ()
    restart: tuple[Change, ...] = ()
    rejected: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.applied or self.restart or self.rejected)

    def lines(self) -> list[str]:
        """The report for people, a line each."""
        found = [f"applied        {change}" for change in self.applied]
        found += [f"needs restart  {change}" for change in self.restart]
        found += [f"rejected       {why}" for why in self.rejected]
        return found or ["nothing changed"]

    def fields(self) -> dict[str, list[str]]:
        """The report as fields of a log event."""
        return {
            "applied": [str(change) for change in self.applied],
            "needs_restart": [str(change) for change in self.restart],
            "rejected": list(self.rejected),
        }


def compare(old: Config, new: Config) -> Report:
    """What changes from `old` to `new`. Changes nothing."""
    applied: list[Change] = []
    restart: list[Change] = []
    moved = moved_listeners(old, new)
    for path, before, after in _differences(old, new, ()):
        secret = any(is_secret_key(part) for part in path) or _given_secretly(old, new, path)
        change = Change(dotted(path), _shown(before, secret), _shown(after, secret))
        live = _live(path, before, after) or (path[0] == "listeners" and path[1] in moved)
        (applied if live else restart).append(change)
    return Report(tuple(applied), tuple(restart))


def moved_listeners(old: Config, new: Config) -> frozenset[str]:
    """The names of listeners that listen elsewhere: a new socket is opened, so that every key of theirs is applied."""
    before = {listener.name: listener for listener in old.listeners}
    return frozenset(
        listener.name
        for listener in new.listeners
        if listener.name in before and listener.bind != before[listener.name].bind
    )


def _differences(old: Any, new: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    if old == new and type(old) is type(new):
        return
    if dataclasses.is_dataclass(old) and type(old) is type(new):
        for field, _ in bound_fields(type(old)):
            before, after = getattr(old, field.name), getattr(new, field.name)
            yield from _differences(before, after, (*path, field.name))
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
            yield from _differences(before, after, (*path, key))
        return
    named = _by_name(old), _by_name(new)
    if named[0] is not None and named[1] is not None:
        yield from _differences(named[0], named[1], path)
        # with all the same entries, their order alone may differ, and it is the order of calls
        shared = [name for name in named[1] if name in named[0]]
        if path == ("plugins",) and shared != [name for name in named[0] if name in named[1]]:
            yield (*path, "order"), list(named[0]), list(named[1])
        return
    yield path, old, new


class _Absent:
    def __repr__(self) -> str:
        return "-"


_ABSENT: Final = _Absent()


def _by_name(value: Any) -> dict[str, Any] | None:
    """Listeners by their names and plugins by their ids: a position says nothing about which is which."""
    if not isinstance(value, tuple) or not all(dataclasses.is_dataclass(item) for item in value):
        return None
    return {getattr(item, "id", None) or item.name: item for item in value}


def _live(path: Path, before: Any, after: Any) -> bool:
    if path[0] == "listeners":
        if len(path) == 2:
            return True  # opened or closed as a whole
        return path[2] in LIVE_LISTENER_KEYS and not _security_kind(path, before, after)
    return path[0] not in ("loop", "version") and dotted(path) not in RESTART_KEYS


def _security_kind(path: Path, before: Any, after: Any) -> bool:
    """Whether a listener's TLS came or went."""
    return path[2] == "tls" and len(path) == 3 and (before is None or after is None)


def _given_secretly(old: Config, new: Config, path: Path) -> bool:
    """Whether one of the values came by ``$env`` or ``$file``."""
    return any(_is_secret(config, path) for config in (old, new))


def _is_secret(config: Config, path: Path) -> bool:
    if config.origin is None:
        return False
    real = list(path)
    if len(path) > 1 and path[0] in ("listeners", "plugins"):
        entries: tuple[Any, ...] = getattr(config, str(path[0]))
        names = list(_by_name(entries) or {})
        if path[1] not in names:
            return False
        real[1] = names.index(str(path[1]))
    prefix = tuple(real)
    return any(
        node.secret for at, node in config.origin.nodes.items() if at[: len(prefix)] == prefix
    )


def _shown(value: Any, secret: bool) -> str:
    if value is _ABSENT:
        return "-"
    if secret:
        return MASK
    if isinstance(value, ListenerSettings):
        return f"{value.type} {value.bind}"
    if dataclasses.is_dataclass(value):
        return str(getattr(value, "use", type(value).__name__))
    if isinstance(value, Mapping):
        return f"{len(value)} keys"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_shown(item, False) for item in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return masked(str(value))
