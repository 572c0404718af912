"""Plugin objects for tests."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from typing import Any

from hookmq.config.binder import bound_fields
from hookmq.config.model import Config
from hookmq.config.plugins import build
from hookmq.config.units import Rate
from hookmq.hooks.discovery import Installed
from hookmq.hooks.entry import PluginEntry, PluginInstance
from hookmq.plugin import Context, Log, Plugin, no_log


def make_plugin(
    kind: type[Plugin],
    config: Any = None,
    id: str = "",
    log: Log = no_log,
    **entry: Any,
) -> PluginInstance:
    """An entry of ``plugins:`` at work: `kind` made with `config` and the entry's other fields, such as
    ``filters=("a/#",)`` or ``hooks={...}``.

    `config` is what the file's ``config:`` would hold, a mapping: it is bound and checked as `hookmq serve` does, so that
    ``"64KiB"`` becomes a number and a nested mapping a dataclass. In it, paths may be `pathlib.Path` and nested parts
    their dataclass; they are checked as if they were written. None is an empty mapping; an object of the plugin's
    `Config` is taken as it is. Raises ConfigError for what the configuration says
    wrong and PluginError when the plugin cannot be made, in the words of `hookmq serve`.
    """
    id = id or kind.__name__.lower()
    use = entry.pop("use", id)
    if config is not None and not isinstance(config, Mapping):
        plugin = kind(config, Context(id, use, "0", log))
        return instance_of(plugin, use=use, **entry)
    written = PluginEntry(use=use, id=id, config=_as_written(config or {}), **entry)
    point: Any = _Point(lambda: kind)
    offered = Installed(use, f"{kind.__module__}:{kind.__qualname__}", "", "0", point)
    needed = replace(written, required=True)  # what `serve` would go on without is an error here
    (made,) = build(Config(version=1, listeners=(), plugins=(needed,)), (offered,), log)
    return made.with_entry(written)


def instance_of(plugin: Plugin, **entry: Any) -> PluginInstance:
    """A plugin object with an entry of its own."""
    entry.setdefault("use", plugin.id)
    return PluginInstance(PluginEntry(id=plugin.id, **entry), plugin)


def _default(field: "dataclasses.Field[Any]") -> Any:
    """Return the field's default. A file would leave out a value that equals it."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@dataclass(frozen=True)
class _Point:
    """Stands for the entry point of a plugin that is not installed."""

    load: Callable[[], type[Plugin]]


def _as_written(value: Any) -> Any:
    """A configuration as a file would say it."""
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
