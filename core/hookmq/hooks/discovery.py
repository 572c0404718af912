"""Find installed plugins and load the configured ones.

Plugins are entry points in the ``hookmq.plugins`` group. Listing them imports nothing. An installed plugin is
inactive until it is configured.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import importlib_metadata

from hookmq.hooks.place import at
from hookmq.hooks.registry import ON_CLASS, class_hook
from hookmq.model.errors import PluginError, PluginNotFound
from hookmq.plugin import Plugin

GROUP: Final = "hookmq.plugins"


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin provided by a distribution. `name` is the value for ``use:``; `target` is ``module:attribute``."""

    name: str
    target: str
    distribution: str
    version: str
    entry_point: importlib_metadata.EntryPoint


def installed() -> tuple[InstalledPlugin, ...]:
    """Return all installed plugins, sorted by name, without importing them. A name that two distributions provide is
    listed twice."""
    found: dict[tuple[str, str, str], InstalledPlugin] = {}
    for distribution in importlib_metadata.distributions():
        # Parsing the metadata of a distribution costs far more than reading its entry points.
        points = distribution.entry_points.select(group=GROUP)
        if not points:
            continue
        # As with imports, the first distribution with a name on sys.path shadows the others.
        owner = distribution.metadata["Name"] or "?"
        for point in points:
            key = (point.name, owner.lower().replace("_", "-"), point.value)
            if key not in found:
                found[key] = InstalledPlugin(
                    point.name, point.value, owner, distribution.version or "", point
                )
    return tuple(found[key] for key in sorted(found))


def find(
    use: str, plugin_id: str = "", among: Iterable[InstalledPlugin] | None = None
) -> InstalledPlugin:
    """Return the installed plugin named `use`.

    Raises PluginNotFound, suggesting the closest name, if there is none. Raises PluginError if two distributions
    provide it.
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


def load(found: InstalledPlugin, plugin_id: str = "") -> type[Plugin]:
    """Import the plugin's class.

    Raises PluginError if the import fails, if the class is not a subclass of Plugin, or if one of its `ON_CLASS`
    hooks is invalid.
    """
    plugin_id = plugin_id or found.name
    where = f"{found.target} of {found.distribution} {found.version}"
    try:
        loaded = found.entry_point.load()
    except SyntaxError as error:
        place = f"{error.filename}:{error.lineno}" if error.filename else where
        raise PluginError(plugin_id, f"importing {where} failed: {place}: {error.msg}") from error
    except Exception as error:
        raise PluginError(plugin_id, f"importing {where} failed: {error!r}{at(error)}") from error
    if not isinstance(loaded, type) or not issubclass(loaded, Plugin):
        raise PluginError(plugin_id, f"{where} is not a subclass of hookmq.plugin.Plugin")
    for name in ON_CLASS:
        class_hook(plugin_id, loaded, name)
    return loaded
