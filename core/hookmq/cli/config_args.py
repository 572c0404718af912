"""The options that choose a command's configuration: ``-c FILE``, ``-o KEY=VALUE`` and ``--data-dir``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from hookmq.model.errors import ConfigError

if TYPE_CHECKING:
    from hookmq.config.model import Config

Kind = TypeVar("Kind")

DOCUMENT: Final = "document"
"""The name that messages use for a configuration that is not in a file."""
STORAGE: Final = "storage"
"""The name of the plugin that stores state in a folder."""


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a configuration."""
    # fmt: off
    add = parser.add_argument
    add("-c", "--config", metavar="FILE", help="configuration file (default: the built-in configuration)")
    add("-o", "--option", action="append", default=[], metavar="KEY=VALUE",
        help="override a setting, as in: -o broker.max_qos=1 or -o listeners.0.bind=127.0.0.1:1884")
    add("--data-dir", metavar="DIR",
        help="folder for the state of the broker, created if missing: overrides `path` of the plugin storage")
    # fmt: on


def config_of(arguments: argparse.Namespace, text: str | None = None) -> "Config":
    """Read the configuration that the options choose; if `text` is given, read that instead. Raises ConfigError."""
    from hookmq.config.model import default_config, load, loads

    def read(options: list[str]) -> "Config":
        if text is not None:
            return loads(text, DOCUMENT, options, folder=Path(arguments.config or "").parent)
        if arguments.config is None:
            return default_config(options)
        return load(arguments.config, options)

    config = read(arguments.option)
    if arguments.data_dir is None:
        return config
    for index, entry in enumerate(config.plugins):
        if entry.use == STORAGE:
            return read([*arguments.option, f"plugins.{index}.config.path={arguments.data_dir}"])
    raise ConfigError(
        f"option --data-dir: {config.source} has no plugin {STORAGE!r} that keeps state",
        hint=f"plugins: [{{use: {STORAGE}}}]",
    )


class ChosenPlugin(NamedTuple, Generic[Kind]):
    """A plugin in a chosen configuration: its id, its object, and the names of its listeners (None for all)."""

    id: str
    plugin: Kind
    listeners: tuple[str, ...] | None


class ChosenConfig(NamedTuple, Generic[Kind]):
    """The part of a configuration that a plugin's command uses: the name to show in messages, the names of the MQTT
    listeners, and the plugins of one class.
    """

    source: str
    listeners: tuple[str, ...]
    plugins: tuple[ChosenPlugin[Kind], ...]


def chosen(arguments: argparse.Namespace, kind: type[Kind]) -> ChosenConfig[Kind]:
    """Return the configuration that the options of `add_source` choose, with its plugins of class `kind`.

    For use by commands that plugins add. Plugins are built in the same way as in the broker. Raises ConfigError or
    PluginError.
    """
    from hookmq.config.plugins import build
    from hookmq.server.settings import HTTP

    config = config_of(arguments)
    plugins: list[ChosenPlugin[Kind]] = [
        ChosenPlugin(one.id, one.plugin, one.entry.listeners)
        for one in build(config)
        if isinstance(one.plugin, kind)
    ]
    listeners = tuple(one.name for one in config.listeners if one.type not in HTTP)
    return ChosenConfig(config.source, listeners, tuple(plugins))


def plugin_of(arguments: argparse.Namespace, kind: type[Kind], use: str) -> Kind:
    """Return the plugin with class `kind` and entry point `use` from the configuration that the options choose.

    If several plugins match, ``arguments.plugin`` must be the id of one of them. In other respects, this function works
    like `chosen`.
    """
    found = list(chosen(arguments, kind).plugins)
    if arguments.plugin is not None:
        found = [one for one in found if one.id == arguments.plugin]
    if not found:
        name = "" if arguments.plugin is None else f" with the id {arguments.plugin!r}"
        raise ConfigError(f"the configuration has no plugin {use}{name}", hint="use -c FILE")
    if len(found) > 1:
        names = ", ".join(one.id for one in found)
        raise ConfigError(f"several plugins {use}: {names}", hint="choose one with --plugin")
    return found[0].plugin
