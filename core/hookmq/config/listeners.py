"""Listeners of types that plugins add: whether there is such a type, and what it says of their settings."""

from hookmq.config.checks import unknown_type
from hookmq.config.model import Config
from hookmq.config.problems import Path
from hookmq.errors import ConfigError
from hookmq.server.plugged import ListenerTypes
from hookmq.server.settings import TYPES


def check_types(config: Config, types: ListenerTypes) -> None:
    """Raise ConfigError, with its place, for a listener of a type that nobody knows or with settings that its type
    refuses."""
    known = [*TYPES, *types.found]
    for index, listener in enumerate(config.listeners):
        if listener.type not in known:
            path: Path = ("listeners", index, "type")
            raise config.error_at(path, *unknown_type(listener.type, known))
        check = types.found[listener.type][2] if listener.type in types.found else None
        if check is not None:
            try:
                check(listener)
            except ConfigError as error:
                path = ("listeners", index, "settings")
                raise config.error_at(path, error.message, error.hint) from None
