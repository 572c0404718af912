"""Which plugins are installed, and loading the one that is asked for.

Entry points of the group ``hookmq.plugins`` discover; the configuration activates. Listing imports nothing, and
installing a package changes nothing about who may connect.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import importlib_metadata

from hookmq.errors import PluginError, PluginNotFound
from hookmq.hooks.place import at
from hookmq.hooks.registry import ON_CLASS, class_hook
from hookmq.plugin import Plugin

GROUP: Final = "hookmq.plugins"


@dataclass(frozen=True, slots=True)
class Installed:
    """A plugin that some distribution offers: `name` is what ``use:`` says, `target` is ``module:attribute``."""

    name: str
    target: str
    distribution: str
    version: str
    entry_point: importlib_metadata.EntryPoint


def installed() -> tuple[Installed, ...]:
    """Every plugin offered by an installed distribution, by name, none of them imported. A name that two distributions
    offer stands twice."""
    found: dict[tuple[str, str, str], Installed] = {}
    for distribution in importlib_metadata.distributions():
        # The first of a name on sys.path shadows the others, as it does for import.
        owner = distribution.metadata["Name"] or "?"
        for point in distribution.entry_points.select(group=GROUP):
            key = (point.name, owner.lower().replace("_", "-"), point.value)
            if key not in found:
                found[key] = Installed(
                    point.name, point.value, owner, distribution.version or "", point
                )
    return tuple(found[key] for key in sorted(found))


def find(use: str, plugin_id: str = "", among: Iterable[Installed] | None = None) -> Installed:
    """The installed plugin of that name.

    Raises PluginNotFound, naming the nearest, if there is none, and PluginError if two distributions offer one: both are
    named, for which of them would win is chance.
    """
    plugin_id = plugin_id or use
    all_ = installed() if among is None else tuple(among)
    named = [one for one in all_ if one.name == use]
    if not named:
        near = difflib.get_close_matches(use, {one.name for one in all_}, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `hookmq plugins` lists what is"
        raise PluginNotFound(plugin_id, f"no plugin named {use!r} is installed{hint}")
    if len(named) > 1:
        owners = " and ".join(sorted({f"{one.distribution} {one.version}" for one in named}))
        raise PluginError(plugin_id, f"{use!r} is offered more than once, by {owners}")
    return named[0]


def load(found: Installed, plugin_id: str = "") -> type[Plugin]:
    """Import the plugin's class. Raises PluginError if that fails, if it is no Plugin, or if a hook that is called on
    the class cannot be."""
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
