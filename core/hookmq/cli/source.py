"""``-c FILE``, ``-o KEY=VALUE`` and ``--data-dir``: the configuration that a command works on."""

import argparse
from typing import TYPE_CHECKING, Final

from hookmq.errors import ConfigError

if TYPE_CHECKING:
    from hookmq.config.model import Config

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


def _read(arguments: argparse.Namespace, options: list[str]) -> "Config":
    from hookmq.config.model import default_config, load

    if arguments.config is None:
        return default_config(options)
    return load(arguments.config, options)
