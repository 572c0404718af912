"""Plugin objects for tests."""

from typing import Any

from hookmq.hooks.entry import PluginEntry, PluginInstance
from hookmq.plugin import Context, Log, Plugin, no_log


def make_plugin(
    kind: type[Plugin],
    config: Any = None,
    id: str = "",
    log: Log = no_log,
    **entry: Any,
) -> PluginInstance:
    """An entry of ``plugins:`` at work: `kind` constructed with `config` (its Config, a mapping of Config's fields, or
    None for its defaults) and the entry's other fields, such as ``filters=("a/#",)`` or ``hooks={...}``."""
    id = id or kind.__name__.lower()
    if kind.Config is not None and (config is None or isinstance(config, dict)):
        validate = getattr(kind.Config, "model_validate", None)
        config = validate(config or {}) if validate is not None else kind.Config(**(config or {}))
    plugin = kind(config, Context(id, entry.get("use", id), "0", log))
    return instance_of(plugin, **entry)


def instance_of(plugin: Plugin, **entry: Any) -> PluginInstance:
    """A plugin object with an entry of its own."""
    entry.setdefault("use", plugin.id)
    return PluginInstance(PluginEntry(id=plugin.id, **entry), plugin)
