"""Validate a configuration: every value, every plugin and its own configuration, every certificate. Nothing is opened.

Prints who could reach the broker, who may connect, what they may do and what a restart keeps.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from hookmq.cli.source import add_source, config_of

if TYPE_CHECKING:
    from hookmq.config.model import Config
    from hookmq.hooks.manager import Hooks
    from hookmq.plugin import Log

EXAMPLES = """\
examples:
  hookmq check -c hookmq.yaml
  hookmq check -c hookmq.yaml -o broker.max_qos=1

exit codes: 0 right, 2 configuration, 3 plugin"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_source(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing when it is right")


def validate(config: "Config", loop: str, log: "Log | None" = None) -> "Hooks":
    """The hooks that `config` makes, everything about them, the certificates and the event loop `loop` validated.
    Plugins log to `log` for as long as they live; without one what is severe goes to stderr. Reads files, opens no
    socket. Raises ConfigError and PluginError."""
    from importlib.util import find_spec

    from hookmq.config.listeners import check_types
    from hookmq.config.plugins import build
    from hookmq.errors import ConfigError
    from hookmq.hooks.manager import Hooks
    from hookmq.server.extensions import Extensions
    from hookmq.server.tls import server_context

    if loop == "uvloop" and find_spec("uvloop") is None:
        raise config.error_at(("loop",), "uvloop is not installed", "pip install uvloop")
    for index, listener in enumerate(config.listeners):
        if listener.secure and listener.tls is not None:
            try:
                server_context(listener.tls)
            except ConfigError as error:
                raise config.error_at(
                    ("listeners", index, "tls"), error.message, error.hint
                ) from None
    hooks = Hooks(build(config, log=log or _tell))
    check_types(config, Extensions(hooks).types)
    return hooks


def run(arguments: argparse.Namespace) -> int:
    """Validate and tell."""
    config = config_of(arguments)
    hooks = validate(config, getattr(arguments, "loop", None) or config.loop)
    if not getattr(arguments, "quiet", False):
        print(report(config, hooks))
    return 0


def report(config: "Config", hooks: "Hooks") -> str:
    """What the configuration means, several lines."""
    from hookmq.cli.entrance import entrances
    from hookmq.cli.summary import (
        durability,
        is_local,
        notices,
        what_is_allowed,
        where,
    )
    from hookmq.server.settings import TYPES

    lines = [f"{config.source}: right"]
    rows: list[tuple[str, str]] = []
    for listener in config.listeners:
        reach = "this machine only" if is_local(listener) else "from the network"
        if listener.type not in TYPES:
            reach = "as its plugin has it"
        rows.append(("listens", f"{listener.name:<8} {where(listener):<36} {reach}"))
    rows += [
        ("connect", f"{one.listener.name:<8} {one.text()}") for one in entrances(config, hooks)
    ]
    rows.append(("may do", what_is_allowed(config, hooks)))
    rows.append(("store", durability(hooks)))
    rows += [("plugin", f"{one.id} ({one.distribution} {one.version})") for one in hooks.plugins]
    rows += [("off", entry.id) for entry in config.plugins if not entry.enabled]
    rows += [("note", notice.text) for notice in notices(config, hooks)]
    shown = ""
    for name, text in rows:
        lines.append(f"  {name if name != shown else '':<8} {text}")
        shown = name
    return "\n".join(lines)


def _tell(level: str, event: str, /, **fields: object) -> None:
    """What plugins log while they are constructed."""
    if level in ("warning", "error"):
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        print(f"hookmq: {event} {text}", file=sys.stderr)
