"""Validate a configuration: every value, every plugin with its configuration, every certificate. Nothing is opened.

Prints the listeners and who can reach them, which clients may connect, what they may do, and what survives a restart.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from hookmq.cli.config_args import add_source, config_of

if TYPE_CHECKING:
    from hookmq.config.model import Config
    from hookmq.hooks.manager import Hooks
    from hookmq.plugin import Log

EXAMPLES = """\
examples:
  hookmq check -c hookmq.yaml
  hookmq check -c hookmq.yaml -o broker.max_qos=1

exit codes: 0 valid, 2 configuration, 3 plugin"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_source(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing if valid")


def validate(config: "Config", loop: str, log: "Log | None" = None) -> "Hooks":
    """Build the plugins in `config` and validate them, together with its certificates and the event loop `loop`.

    Plugins log to `log`; if it is None, to stderr. Reads files, but opens no sockets. Raises ConfigError or PluginError.
    """
    from importlib.util import find_spec

    from hookmq.config.plugins import build, check_types
    from hookmq.hooks.manager import Hooks
    from hookmq.model.errors import ConfigError
    from hookmq.server.extensions import PluginExtensions
    from hookmq.server.tls import server_context

    if loop == "uvloop" and find_spec("uvloop") is None:
        raise config.error_at(("loop",), "uvloop is not installed", "pip install uvloop")
    for index, listener in enumerate(config.listeners):
        if listener.secure and listener.tls is not None:
            try:
                server_context(listener.tls)
            except ConfigError as error:
                path = ("listeners", index, "tls")
                raise config.error_at(path, error.message, error.hint) from None
    hooks = Hooks(build(config, log=log or _print_log))
    check_types(config, PluginExtensions(hooks).types)
    return hooks


def run(arguments: argparse.Namespace) -> int:
    """Validate, and print the report."""
    config = config_of(arguments)
    hooks = validate(config, getattr(arguments, "loop", None) or config.loop)
    if not getattr(arguments, "quiet", False):
        print(report(config, hooks))
    return 0


def report(config: "Config", hooks: "Hooks") -> str:
    """Describe the configuration's effects in several lines."""
    from hookmq.cli.listener_access import listener_access
    from hookmq.cli.summary import durability, is_local, notices, permissions, url_of
    from hookmq.server.settings import TYPES

    rows: list[tuple[str, str]] = []
    for listener in config.listeners:
        reach = "this machine only" if is_local(listener) else "from the network"
        if listener.type not in TYPES:
            reach = "decided by its plugin"
        rows.append(("listens", f"{listener.name:<8} {url_of(listener):<36} {reach}"))
    access = listener_access(config, hooks)
    rows += [("connect", f"{one.listener.name:<8} {one.text()}") for one in access]
    rows.append(("may do", permissions(config, hooks)))
    rows.append(("store", durability(hooks)))
    rows += [("plugin", f"{one.id} ({one.distribution} {one.version})") for one in hooks.plugins]
    rows += [("off", entry.id) for entry in config.plugins if not entry.enabled]
    rows += [("note", notice.text) for notice in notices(config, hooks)]
    lines = [f"{config.source}: valid"]
    shown = ""
    for name, text in rows:
        lines.append(f"  {name if name != shown else '':<8} {text}")
        shown = name
    return "\n".join(lines)


def _print_log(level: str, event: str, /, **fields: object) -> None:
    """Print a log event from a plugin that is being constructed."""
    if level in ("warning", "error"):
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        print(f"hookmq: {event} {text}", file=sys.stderr)
