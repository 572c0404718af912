"""Plugin objects for tests."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from typing import Any

from hookmq.config.binding import bound_fields
from hookmq.config.model import Config
from hookmq.config.plugins import build
from hookmq.config.units import Rate
from hookmq.hooks.discovery import InstalledPlugin
from hookmq.hooks.instance import PluginEntry, PluginInstance
from hookmq.plugin import Context, Log, Plugin, no_log


def make_plugin(
    kind: type[Plugin],
    config: Any = None,
    id: str = "",
    log: Log = no_log,
    **entry: Any,
) -> PluginInstance:
    """Return a plugin object with its entry in ``plugins:``.

    `config` is the mapping below ``config:``, or None. It is bound and checked as in `hookmq serve`: ``"64KiB"``
    becomes a number, and a nested mapping becomes a dataclass. You may also pass paths as `pathlib.Path` and nested
    parts as dataclasses. An instance of the plugin's `Config` is used unchanged. `entry` are other fields of the entry,
    such as ``filters=("a/#",)`` or ``hooks={...}``.

    Raises ConfigError for an invalid configuration, and PluginError if the plugin cannot be created.
    """
    id = id or kind.__name__.lower()
    use = entry.pop("use", id)
    if config is not None and not isinstance(config, Mapping):
        plugin = kind(config, Context(id, use, "0", log))
        return instance_of(plugin, use=use, **entry)
    written = PluginEntry(use=use, id=id, config=_as_written(config or {}), **entry)
    point: Any = _Point(lambda: kind)
    offered = InstalledPlugin(use, f"{kind.__module__}:{kind.__qualname__}", "", "0", point)
    needed = replace(
        written, required=True
    )  # `serve` may start without the plugin, but a test must not
    (made,) = build(Config(version=1, listeners=(), plugins=(needed,)), (offered,), log)
    return made.with_entry(written)


def instance_of(plugin: Plugin, **entry: Any) -> PluginInstance:
    """Combine a plugin object with a configuration entry for it."""
    entry.setdefault("use", plugin.id)
    return PluginInstance(PluginEntry(id=plugin.id, **entry), plugin)


def _default(field: "dataclasses.Field[Any]") -> Any:
    """Return the field's default. A value equal to the default would be left out of a file."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@dataclass(frozen=True)
class _Point:
    """The entry point of a plugin that is not installed."""

    load: Callable[[], type[Plugin]]


def _as_written(value: Any) -> Any:
    """Return a configuration value as it would be written in a file."""
    if isinstance(value, Mapping):
        return {key: _as_written(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_written(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type | Rate):
        names = [field.name for field, _ in bound_fields(type(value))]
        given = {name: getattr(value, name) for name in names}
        defaults = {field.name: _default(field) for field in dataclasses.fields(value)}
        return {name: _as_written(one) for name, one in given.items() if one != defaults.get(name)}
    if isinstance(value, Enum):
        return value.value
    return os.fspath(value) if isinstance(value, os.PathLike) else value
