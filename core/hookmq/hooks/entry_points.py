"""Find and import the plugins and commands that installed distributions offer as entry points. Listing them imports
nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import Any

import importlib_metadata

from hookmq.hooks.place import at
from hookmq.model.errors import PluginError


@dataclass(frozen=True, slots=True)
class InstalledEntry:
    """An entry point of a distribution. `target` is ``module:attribute``.

    For a plugin, `name` is the value for ``use:``. For a command, it is the word after ``hookmq``.
    """

    name: str
    target: str
    distribution: str
    version: str
    entry_point: importlib_metadata.EntryPoint


def entries(group: str) -> tuple[InstalledEntry, ...]:
    """Return all entry points of a group, sorted by name, without importing them. A name that two distributions offer
    is listed twice. Raises PluginError if a distribution is damaged."""
    found: dict[tuple[str, str, str], InstalledEntry] = {}
    for distribution in importlib_metadata.distributions():
        try:
            points = _points(distribution, group)
        except Exception as error:
            where = getattr(distribution, "_path", "a distribution")
            why = f"the entry points of {where} cannot be read: {error!r}"
            raise PluginError(group, why) from error
        if not points:
            continue
        # As with imports, the first distribution with a name on sys.path shadows the others.
        owner, version = _name_and_version(distribution.read_text)
        for point in points:
            key = (point.name, owner.lower().replace("_", "-"), point.value)
            if key not in found:
                found[key] = InstalledEntry(point.name, point.value, owner, version, point)
    return tuple(found[key] for key in sorted(found))


def _points(distribution: Any, group: str) -> tuple[importlib_metadata.EntryPoint, ...]:
    """Return the entry points of a group. This reads the files directly, because parsing every distribution's entry
    points is far slower."""
    if group not in (distribution.read_text("entry_points.txt") or ""):
        return ()
    return tuple(distribution.entry_points.select(group=group))


def _name_and_version(read_text: Callable[[str], str | None]) -> tuple[str, str]:
    """Return the name of a distribution, or ``?``, and its version. Using the distribution's `metadata` would parse its
    whole README.
    """
    text = read_text("METADATA") or read_text("PKG-INFO") or ""
    headers = HeaderParser().parsestr(text)
    return headers["Name"] or "?", headers["Version"] or ""


def import_entry(found: InstalledEntry, owner: str) -> Any:
    """Import the object that an entry point names.

    Raises PluginError about `owner` if the import fails.
    """
    where = f"{found.target} of {found.distribution} {found.version}"
    try:
        return found.entry_point.load()
    except SyntaxError as error:
        place = f"{error.filename}:{error.lineno}" if error.filename else where
        raise PluginError(owner, f"importing {where} failed: {place}: {error.msg}") from error
    except (Exception, SystemExit) as error:  # a module that exits must not end the broker
        raise PluginError(owner, f"importing {where} failed: {error!r}{at(error)}") from error
