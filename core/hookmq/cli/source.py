"""``-c FILE``, ``-o KEY=VALUE`` and ``--data-dir``: the configuration that a command works on."""

import argparse
from typing import TYPE_CHECKING, Final, TypeVar

from hookmq.errors import ConfigError

if TYPE_CHECKING:
    from hookmq.config.model import Config

_Kind = TypeVar("_Kind")

STORAGE: Final = "storage"
"""The plugin that keeps state in a folder."""


def add_source(parser: argparse.ArgumentParser) -> None:
    """The options that name a configuration."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="configuration file; without it, the built-in default",
    )
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a value, as in -o broker.max_qos=1 or -o listeners.0.bind=127.0.0.1:1884",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of what is kept: the `path` of the plugin storage; made if it is not there",
    )


def config_of(arguments: argparse.Namespace) -> "Config":
    """The configuration that the options name. Raises ConfigError."""
    config = _read(arguments, arguments.option)
    if arguments.data_dir is None:
        return config
    for index, entry in enumerate(config.plugins):
        if entry.use == STORAGE:
            path = f"plugins.{index}.config.path={arguments.data_dir}"
            return _read(arguments, [*arguments.option, path])
    raise ConfigError(
        f"option --data-dir: {config.source} has no plugin {STORAGE!r}, so that nothing is kept",
        hint=f"plugins: [{{use: {STORAGE}}}]",
    )


def plugin_of(arguments: argparse.Namespace, kind: type[_Kind], use: str) -> _Kind:
    """For commands of plugins: the one plugin of class `kind`, whose entry point is `use`, in the configuration that the
    options name, made as the broker makes it; ``arguments.plugin`` is its id where there are several. Raises ConfigError
    and PluginError."""
    from hookmq.config.plugins import build

    found = [one for one in build(config_of(arguments)) if isinstance(one.plugin, kind)]
    if arguments.plugin is not None:
        found = [one for one in found if one.id == arguments.plugin]
    if not found:
        name = "" if arguments.plugin is None else f" with the id {arguments.plugin!r}"
        raise ConfigError(f"the configuration has no plugin {use}{name}", hint="name it by -c")
    if len(found) > 1:
        names = ", ".join(one.id for one in found)
        raise ConfigError(f"several plugins {use}: {names}", hint="choose by --plugin")
    plugin = found[0].plugin
    assert isinstance(plugin, kind)
    return plugin


def _read(arguments: argparse.Namespace, options: list[str]) -> "Config":
    from hookmq.config.model import default_config, load

    if arguments.config is None:
        return default_config(options)
    return load(arguments.config, options)
