"""``-c FILE`` and ``-o KEY=VALUE``: the configuration that a command works on."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookmq.config.model import Config


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


def config_of(arguments: argparse.Namespace) -> "Config":
    """The configuration that the options name. Raises ConfigError."""
    from hookmq.config.model import default_config, load

    if arguments.config is None:
        return default_config(arguments.option)
    return load(arguments.config, arguments.option)
