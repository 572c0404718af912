"""Find drivers by name, among the entry points in the group ``hookmq.sink_drivers``."""

from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from hookmq.plugin import ConfigError

from hookmq_sinks.driver import Driver

GROUP: Final = "hookmq.sink_drivers"


def driver_names() -> list[str]:
    """Return the names of the installed drivers."""
    return sorted({one.name for one in entry_points(group=GROUP)})


@cache
def find_driver(name: str) -> type[Driver]:
    """Return the class of a driver. Raises ConfigError if it is not installed or not a driver."""
    found: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not found:
        names = driver_names()
        close = get_close_matches(name, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"installed: {', '.join(names)}"
        raise ConfigError(f"driver: {name!r} is not an installed driver", hint=hint)
    try:
        kind = found[0].load()
    except Exception as error:
        raise ConfigError(f"driver: {name} cannot be loaded: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Driver)):
        raise ConfigError(f"driver: {found[0].value} is not a subclass of Driver")
    return kind
