"""Commands that installed plugins add: `register_cli` of their classes, without a configuration and without an object.

A plugin that cannot be imported or breaks the rules costs a line of warning and nothing else.
"""

import re
import sys
from typing import Any, Final, NamedTuple

from hookmq.cli import Parser
from hookmq.errors import PluginError
from hookmq.hooks.discovery import Installed, installed, load
from hookmq.hooks.registry import class_hook

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class Added(NamedTuple):
    """A plugin's command."""

    plugin: Installed
    help: str
    parser: Parser


class Group:
    """What `register_cli` gets."""

    def __init__(self, plugin: Installed, reserved: frozenset[str]) -> None:
        self._plugin = plugin
        self._reserved = reserved
        self.found: dict[str, Added] = {}

    def add_parser(self, name: str, *, help: str, **options: Any) -> Parser:
        """The parser of a new command ``hookmq name``, an `argparse.ArgumentParser` with `options` (such as
        ``description`` and ``epilog``): add arguments, and ``parser.set_defaults(run=function)``. The function gets the
        parsed arguments and returns the exit code, None for 0. Raises PluginError for a name that is taken or cannot be.
        """
        if not _NAME.fullmatch(name):
            raise PluginError(self._plugin.name, f"{name!r} is no name of a command")
        if name in self._reserved or name in self.found:
            raise PluginError(self._plugin.name, f"the command {name!r} is taken")
        options.setdefault("description", f"{help[:1].upper()}{help[1:]}.")
        parser = Parser(prog=f"hookmq {name}", **options)
        self.found[name] = Added(self._plugin, help, parser)
        return parser


def added(reserved: frozenset[str]) -> dict[str, list[Added]]:
    """The commands of installed plugins by name; more than one under a name is a conflict. Imports every plugin, and
    warns on stderr of those that fail. `reserved` are names that plugins cannot have."""
    commands: dict[str, list[Added]] = {}
    for plugin in installed():
        group = Group(plugin, reserved)
        try:
            hook = class_hook(plugin.name, load(plugin), "register_cli")
            if hook is None:
                continue
            hook(group)
        except (Exception, SystemExit) as error:
            why = error.message if isinstance(error, PluginError) else repr(error)
            owner = f"{plugin.name!r} ({plugin.distribution} {plugin.version})"
            print(f"hookmq: warning: plugin {owner}: {why}", file=sys.stderr)
            continue
        for name, command in group.found.items():
            commands.setdefault(name, []).append(command)
    return commands


def only(name: str, commands: list[Added]) -> Added:
    """The one command of that name. Raises PluginError when two plugins add it."""
    if len(commands) > 1:
        owners = " and ".join(f"{one.plugin.distribution} {one.plugin.version}" for one in commands)
        raise PluginError(commands[0].plugin.name, f"the command {name!r} is added by {owners}")
    return commands[0]


def run(command: Added, words: list[str]) -> int:
    """Run a plugin's command; its exit code."""
    parsed = command.parser.parse(words)
    function = getattr(parsed, "run", None)
    if function is None:
        command.parser.error("which command? --help lists them")
    code = function(parsed)
    return 0 if code is None else int(code)
