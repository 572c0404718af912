"""Plugin objects for tests."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from typing import Any

from hookmq.config.binding import bound_fields
from hookmq.config.diagnostics import ConfigProblems
from hookmq.config.model import Config, bound_config, load, loads
from hookmq.config.plugins import as_node, build
from hookmq.config.units import Rate
from hookmq.hooks.entry_points import InstalledEntry
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
    parts as dataclasses. An instance of the plugin's `Config` is used unchanged. `entry` contains the other keys of
    the entry, such as ``filters=("a/#",)`` or ``hooks={"on_publish": {"timeout": "5s"}}``. They are checked in the
    same way.

    Raises ConfigError for an invalid configuration, and PluginError if the plugin cannot be created.
    """
    id = id or kind.__name__.lower()
    use = entry.pop("use", id)
    if config is not None and not isinstance(config, Mapping):
        plugin = kind(config, Context(id, use, "0", log))
        return instance_of(plugin, use=use, **entry)
    required = entry.pop("required", True)
    config = _configured({"use": use, "id": id, "config": dict(config or {}), **entry})
    point: Any = _Point(lambda: kind)
    offered = InstalledEntry(use, f"{kind.__module__}:{kind.__qualname__}", "", "0", point)
    (made,) = build(
        config, (offered,), log
    )  # required: without the plugin, a test has nothing to test
    return made.with_entry(replace(made.entry, required=required))


def load_plugins(
    config: str | os.PathLike[str], environ: Mapping[str, str] | None = None
) -> tuple[PluginInstance, ...]:
    """Create the plugins of a whole configuration, given as text or as the path of its file. Blocks on file reads.

    Use this instead of `make_plugin` to test the location that an error reports. Plugins are found through their entry
    points. ``$file`` in a text is relative to the current folder. `environ` replaces the process's environment.

    Raises the same errors as ``hookmq check``. One ConfigError lists every mistake with its file and line. PluginError
    means that a plugin is missing, requires another `HOOK_API`, or cannot be created.
    """
    if isinstance(config, str):
        return build(loads(config, environ=environ))
    return build(load(config, environ=environ))


def _configured(entry: Mapping[str, Any]) -> Config:
    """Return a configuration with one entry of ``plugins:``, bound and checked like a file. Raises ConfigError."""
    names = entry.get("listeners") or ("default",)
    # The kit has no ports. A client names its listener in its `Scope`.
    listeners = [{"name": name, "type": "unix", "bind": f"/{name}"} for name in names]
    document = {"version": 1, "listeners": listeners, "plugins": [entry]}
    return bound_config(as_node(_as_written(document)), "", os.environ, ".", ConfigProblems())


def instance_of(plugin: Plugin, **entry: Any) -> PluginInstance:
    """Combine a plugin object with a configuration entry for it."""
    entry.setdefault("use", plugin.id)
    return PluginInstance(PluginEntry(id=plugin.id, **entry), plugin)


def _default(field: "dataclasses.Field[Any]") -> Any:
    """Return the field's default. A configuration file would leave out a value that equals it."""
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


__all__ = ["PluginInstance", "instance_of", "load_plugins", "make_plugin"]
