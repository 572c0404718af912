"""Implement ``hookmq bridge``, which converts mosquitto's bridge configuration."""

import argparse
import platform
import re
import sys
from pathlib import Path

from hookmq.plugin import ConfigError
from hookmq.server_api import open_regular


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Convert the bridges of a mosquitto.conf."
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    one = commands.add_parser(
        "import",
        help="print the bridges of a mosquitto.conf as entries of the plugin sinks",
        description="Print the bridges of a mosquitto.conf as a configuration. Comments say what is left out.",
    )
    one.add_argument("source", type=Path, metavar="SOURCE", help="mosquitto.conf")
    one.add_argument(
        "-o", "--output", type=Path, help="the file to create; standard output by default"
    )
    one.add_argument(
        "--broker",
        default=re.sub(r"[^A-Za-z0-9_.-]", "-", platform.node()) or "here",
        metavar="NAME",
        help="this broker's name among all bridged brokers; the host name by default",
    )
    one.set_defaults(run=import_)


def import_(arguments: argparse.Namespace) -> int:
    """Run ``hookmq bridge import``."""
    from hookmq_sinks.mosquitto_bridge import convert

    source: Path = arguments.source
    try:
        with open_regular(source) as file:
            text = file.read().decode()
    except OSError as error:
        raise ConfigError((error.strerror or str(error)).lower(), source=str(source)) from None
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8 text", source=str(source)) from None
    made = convert(text, arguments.broker, source.name)
    if arguments.output is None:
        sys.stdout.write(made)
        return 0
    try:
        with arguments.output.open("x", encoding="utf-8") as file:
            file.write(made)
    except OSError as error:
        raise ConfigError(
            (error.strerror or str(error)).lower(), source=str(arguments.output)
        ) from None
    print(f"{arguments.output} has the bridges of {source}")
    return 0


__all__ = ["add_arguments"]
