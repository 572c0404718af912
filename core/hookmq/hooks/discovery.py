"""Find installed plugins and load the configured ones.

Plugins are entry points in the ``hookmq.plugins`` group. Listing them imports nothing. An installed plugin is
inactive until it is configured.
"""

import difflib
from collections.abc import Iterable
from typing import Final

from hookmq.hooks.entry_points import InstalledEntry, entries, import_entry
from hookmq.model.errors import PluginError, PluginNotFound
from hookmq.plugin import Plugin

GROUP: Final = "hookmq.plugins"


def installed() -> tuple[InstalledEntry, ...]:
    """Return all installed plugins, sorted by name, without importing them. A name that two distributions provide is
    listed twice."""
    return entries(GROUP)


def find(
    use: str, plugin_id: str = "", among: Iterable[InstalledEntry] | None = None
) -> InstalledEntry:
    """Return the installed plugin named `use`.

    If there is none, raises PluginNotFound with the closest name. Raises PluginError if two distributions provide it.
    """
    plugin_id = plugin_id or use
    all_ = installed() if among is None else tuple(among)
    named = [one for one in all_ if one.name == use]
    if not named:
        near = difflib.get_close_matches(use, {one.name for one in all_}, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `hookmq plugins` lists those that are"
        raise PluginNotFound(plugin_id, f"no plugin named {use!r} is installed{hint}")
    if len(named) > 1:
        owners = " and ".join(sorted({f"{one.distribution} {one.version}" for one in named}))
        raise PluginError(plugin_id, f"{use!r} is offered by several distributions: {owners}")
    return named[0]


def load(found: InstalledEntry, plugin_id: str = "") -> type[Plugin]:
    """Import the plugin's class.

    Raises PluginError if the import fails, or if the class is not a subclass of Plugin.
    """
    plugin_id = plugin_id or found.name
    loaded = import_entry(found, plugin_id)
    if not isinstance(loaded, type) or not issubclass(loaded, Plugin):
        where = f"{found.target} of {found.distribution} {found.version}"
        raise PluginError(plugin_id, f"{where} is not a subclass of hookmq.plugin.Plugin")
    return loaded
