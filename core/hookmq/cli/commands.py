"""Commands that installed plugins add. They need no configuration.

A command is an entry point in the ``hookmq.commands`` group. The entry point's name is the command's name. Its value is
a function that takes the command's parser. Running a command imports its own entry point and no plugin.
"""

import argparse
import re
import sys
from typing import Final

from hookmq.cli import RESERVED, Parser
from hookmq.hooks.entry_points import InstalledEntry, entries, import_entry
from hookmq.model.errors import PluginError

GROUP: Final = "hookmq.commands"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def names() -> list[str]:
    """Return the names of the commands that plugins add, sorted. Imports nothing."""
    return sorted({one.name for one in entries(GROUP) if not _refusal(one)})


def parser_of(name: str) -> Parser | None:
    """Return the parser of a plugin's command, or None if no plugin adds it. Imports its entry point.

    Raises PluginError if more than one distribution adds the command, or if the command is broken.
    """
    named = [one for one in entries(GROUP) if one.name == name]
    return _parser(named) if named else None


def summaries() -> dict[str, str]:
    """Return the help line of each command that plugins add, by name.

    Imports all of their entry points. Leaves out broken commands, with a warning for each.
    """
    offered: dict[str, list[InstalledEntry]] = {}
    for one in entries(GROUP):
        offered.setdefault(one.name, []).append(one)
    found: dict[str, str] = {}
    for name, named in offered.items():
        try:
            found[name] = _line(_parser(named), named[0])
        except PluginError as error:
            owners = _owners(named)
            print(
                f"hookmq: warning: command {name!r} of {owners}: {error.message}", file=sys.stderr
            )
    return found


def run(parser: Parser, words: list[str]) -> int:
    """Run a plugin's command and return its exit code."""
    parsed: argparse.Namespace = parser.parse(words)
    function = getattr(parsed, "run", None)
    if function is None:
        parser.error("a command is required")
    code = function(parsed)
    return 0 if code is None else int(code)


def _parser(named: list[InstalledEntry]) -> Parser:
    """Return the parser of the command with these entry points. Raises PluginError if there is not exactly one, or if
    it is broken."""
    found = named[0]
    if len(named) > 1:
        raise PluginError(
            found.distribution, f"{_owners(named)} both add the command {found.name!r}"
        )
    refusal = _refusal(found)
    if refusal:
        raise PluginError(found.distribution, refusal)
    parser = Parser(prog=f"hookmq {found.name}")
    try:
        add_arguments = import_entry(found, found.distribution)
        if not callable(add_arguments):
            raise PluginError(found.distribution, f"{found.target} is not a function")
        add_arguments(parser)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(found.distribution, f"{found.target} failed: {error!r}") from error
    return parser


def _refusal(found: InstalledEntry) -> str:
    """Return why plugins cannot add a command with this name, or an empty string if they can."""
    if not _NAME.fullmatch(found.name):
        return f"invalid command name {found.name!r}"
    return f"the command {found.name!r} exists already" if found.name in RESERVED else ""


def _owners(named: list[InstalledEntry]) -> str:
    return " and ".join(f"{one.distribution} {one.version}" for one in named)


def _line(parser: Parser, command: InstalledEntry) -> str:
    """Return a command's help line: "inspect and change a broker" for the description "Inspect and change a broker.".
    Raises PluginError if argparse cannot format the command's help.
    """
    try:
        parser.format_help()
    except Exception as error:
        raise PluginError(command.distribution, f"its help is broken: {error!r}") from error
    text = (parser.description or "").replace("%(prog)s", parser.prog)
    lines = text.replace("%(prog)", "").strip().splitlines()  # argparse would expand it again
    if not lines:
        return f"a command of {command.distribution}"
    line = lines[0]
    first = line[:1] if line[:2].isupper() else line[:1].lower()
    return first + line[1:].rstrip(".")
