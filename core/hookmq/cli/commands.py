"""Commands that installed plugins add with the `register_cli` method of their classes. They need no configuration.

If a plugin cannot be imported or breaks a rule, a warning is printed and its commands are omitted.
"""

import re
import sys
from typing import Any, Final, NamedTuple

from hookmq.cli import Parser
from hookmq.hooks.discovery import InstalledPlugin, installed, load
from hookmq.hooks.registry import class_hook
from hookmq.model.errors import PluginError

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class PluginCommand(NamedTuple):
    """A command added by a plugin."""

    plugin: InstalledPlugin
    help: str
    parser: Parser


class Group:
    """Adds commands for one plugin; the argument of `register_cli`."""

    def __init__(self, plugin: InstalledPlugin, reserved: frozenset[str]) -> None:
        self._plugin = plugin
        self._reserved = reserved
        self.found: dict[str, PluginCommand] = {}

    def add_parser(self, name: str, *, help: str, **options: Any) -> Parser:
        """Add the command ``hookmq name``, and return its `argparse.ArgumentParser`, made with `options`.

        Add arguments to the parser, and call ``parser.set_defaults(run=function)``. The function gets the parsed
        arguments and returns the exit code, or None for 0. Raises PluginError if the name is invalid or taken.
        """
        if not _NAME.fullmatch(name):
            raise PluginError(self._plugin.name, f"invalid command name {name!r}")
        if name in self._reserved or name in self.found:
            raise PluginError(self._plugin.name, f"the command {name!r} exists already")
        options.setdefault("description", f"{help[:1].upper()}{help[1:]}.")
        parser = Parser(prog=f"hookmq {name}", **options)
        self.found[name] = PluginCommand(self._plugin, help, parser)
        return parser


def added(reserved: frozenset[str]) -> dict[str, list[PluginCommand]]:
    """Return the commands of installed plugins by name. More than one command under a name is a conflict.

    Imports every plugin, and prints a warning for each plugin that fails. Plugins cannot use the names in `reserved`.
    """
    commands: dict[str, list[PluginCommand]] = {}
    for plugin in installed():
        group = Group(plugin, reserved)
        try:
            hook = class_hook(plugin.name, load(plugin), "register_cli")
            if hook is not None:
                hook(group)
        except (Exception, SystemExit) as error:
            why = error.message if isinstance(error, PluginError) else repr(error)
            owner = f"{plugin.name!r} ({plugin.distribution} {plugin.version})"
            print(f"hookmq: warning: plugin {owner}: {why}", file=sys.stderr)
            continue
        for name, command in group.found.items():
            commands.setdefault(name, []).append(command)
    return commands


def only(name: str, commands: list[PluginCommand]) -> PluginCommand:
    """Return the only command called `name`. Raises PluginError if more than one plugin adds it."""
    if len(commands) > 1:
        owners = " and ".join(f"{one.plugin.distribution} {one.plugin.version}" for one in commands)
        raise PluginError(commands[0].plugin.name, f"{owners} both add the command {name!r}")
    return commands[0]


def run(command: PluginCommand, words: list[str]) -> int:
    """Run a plugin's command and return its exit code."""
    parsed = command.parser.parse(words)
    function = getattr(parsed, "run", None)
    if function is None:
        command.parser.error("a command is required")
    code = function(parsed)
    return 0 if code is None else int(code)
