"""Compare two configurations: list each change, and whether it needs a restart. `hot_reload` applies the changes."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from hookmq.config.binding import bound_fields, is_secret_path
from hookmq.config.diagnostics import KeyPath, dotted
from hookmq.config.model import Config
from hookmq.config.show import MASK, masked
from hookmq.model.reload_report import ReloadReport, SettingChange
from hookmq.server.settings import ListenerSettings

RESTART_KEYS: Final = frozenset({"broker.max_topic_levels", "broker.max_write_buffer"})
"""Core settings that cannot change while the broker is running."""
LIVE_LISTENER_KEYS: Final = frozenset(
    {
        "mount_point", "versions", "connect_timeout", "connect_bytes", "identity", "max_connections", "close_timeout",
        "tls", "http",
    }
)  # fmt: skip
"""Listener settings that can change while the socket stays open. They apply to new connections."""


def compare(old: Config, new: Config) -> ReloadReport:
    """Return the changes from `old` to `new`."""
    applied: list[SettingChange] = []
    restart: list[SettingChange] = []
    moved = moved_listeners(old, new)
    hidden = _secret_names(old) | _secret_names(new)
    secrets = _secret_paths(old) | _secret_paths(new)
    for path, before, after in _differences(old, new, ()):
        secret = (
            any(is_secret_path(path[: end + 1]) for end in range(len(path)))
            or path in secrets
            or (path == ("plugins", "order") and bool(hidden))
        )
        named = (path[0], MASK, *path[2:]) if path[:2] in hidden else path
        change = SettingChange(dotted(named), _shown(before, secret), _shown(after, secret))
        live = _live(path, before, after) or (path[0] == "listeners" and path[1] in moved)
        (applied if live else restart).append(change)
    return ReloadReport(tuple(applied), tuple(restart))


def moved_listeners(old: Config, new: Config) -> frozenset[str]:
    """Return the names of listeners whose address changed. These listeners get a new socket, so all their settings
    apply."""
    before = {listener.name: listener for listener in old.listeners}
    return frozenset(
        listener.name
        for listener in new.listeners
        if listener.name in before and listener.bind != before[listener.name].bind
    )


def _differences(old: Any, new: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any, Any]]:
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
        # the order of plugins is the order of calls, so a new order is a change
        shared = [name for name in named[1] if name in named[0]]
        if path == ("plugins",) and shared != [name for name in named[0] if name in named[1]]:
            yield (*path, "order"), list(named[0]), list(named[1])
        return
    yield path, old, new


_ABSENT: Final = object()


def _by_name(value: Any) -> dict[str, Any] | None:
    """Return listeners by name or plugins by id, since list positions may change. Return None for other values."""
    if not isinstance(value, tuple) or not all(dataclasses.is_dataclass(item) for item in value):
        return None
    return {getattr(item, "id", None) or item.name: item for item in value}


def _live(path: KeyPath, before: Any, after: Any) -> bool:
    if path[0] == "listeners":
        if len(path) == 2:
            return True  # the whole listener is opened or closed
        tls_toggled = path[2:] == ("tls",) and (before is None or after is None)
        return path[2] in LIVE_LISTENER_KEYS and not tls_toggled
    return path[0] not in ("loop", "version") and dotted(path) not in RESTART_KEYS


def _secret_paths(config: Config) -> frozenset[KeyPath]:
    """Return the paths of all values from ``$env`` or ``$file``, and of everything that contains such a value. The paths
    have the same form as those from `_differences`.
    """
    if config.origin is None:
        return frozenset()
    names = {
        section: list(_by_name(getattr(config, section)) or {})
        for section in ("listeners", "plugins")
    }
    found: set[KeyPath] = set()
    for at, node in config.origin.nodes.items():
        if not node.secret:
            continue
        if len(at) > 1 and at[0] in names:
            at = (at[0], names[str(at[0])][int(at[1])], *at[2:])
        found.update(at[:end] for end in range(1, len(at) + 1))
    return frozenset(found)


def _secret_names(config: Config) -> frozenset[KeyPath]:
    """Return the paths of all listeners and plugins whose names come from ``$env`` or ``$file``. The paths have the same
    form as those from `_differences`.
    """
    nodes = config.origin.nodes if config.origin else {}
    return frozenset(
        (section, name)
        for section in ("listeners", "plugins")
        for index, name in enumerate(_by_name(getattr(config, section)) or {})
        for key in ("name", "id", "use")
        if (node := nodes.get((section, index, key))) is not None and node.secret
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
