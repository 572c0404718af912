"""``hookmq``: the command line.

Each command is a module with `add_arguments(parser)` and `run(arguments) -> int`. Only the module of the command that
runs is imported, so that ``hookmq version`` is fast.

Exit codes: 0 success, 1 failure, 2 invalid configuration or arguments, 3 plugin error, 4 listener address error.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NoReturn

COMMANDS: Final = {
    "serve": "run the broker",
    "check": "validate a configuration without opening anything",
    "config": "show, describe or write a configuration",
    "plugins": "list plugins, explain their hooks, or write a new one",
    "pub": "publish messages",
    "sub": "subscribe and print messages",
    "rr": "send a request and print the response",
    "completion": "print a script for completion in a shell",
    "version": "print versions",
}
"""The commands and their lines in the help. Each name is a module of this package."""

RESERVED: Final = frozenset({*COMMANDS, "help"})
"""Names that plugins cannot use for their commands."""

EXAMPLES: Final = """\
examples:
  hookmq serve                              run on 127.0.0.1:1883 (TCP) and 127.0.0.1:8083/mqtt (WebSocket)
  hookmq sub -t 'sensors/#' -v              print messages as they arrive
  hookmq pub -t sensors/a -m 21.5           publish a message
  hookmq config init > hookmq.yaml          write a commented configuration to start from
  hookmq check -c hookmq.yaml               validate it

exit codes: 0 success, 1 failure, 2 configuration or arguments, 3 plugin, 4 listener address
Set HOOKMQ_DEBUG=1 to see the traceback of an error."""


class Parser(argparse.ArgumentParser):
    """An argument parser that exits with 2, prints plain help, and suggests the nearest option."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", Formatter)
        super().__init__(allow_abbrev=False, **options)
        self.color = False

    def error(self, message: str) -> NoReturn:
        """Print `message` and exit with 2."""
        self.exit(2, f"{self.prog}: {message}\nTry {self.prog} --help.\n")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments. For an unknown argument, suggest the nearest option and exit with status 2."""
        # argparse cannot intermix options and positional arguments in a parser with subcommands
        parse = self.parse_known_args if self._subparsers else self.parse_known_intermixed_args
        known, extra = parse(arguments)
        if extra:
            options = [option for action in self._actions for option in action.option_strings]
            close = get_close_matches(extra[0].partition("=")[0], options, 1, 0.6)
            hint = f" (did you mean {close[0]}?)" if close else ""
            self.error(f"unknown argument {extra[0]}{hint}")
        return known


class Formatter(argparse.RawDescriptionHelpFormatter):
    """A help formatter that breaks lines itself, so that the help is the same on every terminal and Python version."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # like Python 3.13 and later, show the value once, after the last name
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def top_parser(added: Mapping[str, str] = MappingProxyType({})) -> Parser:
    """Return the parser for ``hookmq`` itself. Its help lists the built-in commands and the plugins' commands in
    `added`."""
    width = max(len(name) for name in [*COMMANDS, *added]) + 2

    def listed(commands: Mapping[str, str]) -> str:
        return "\n".join(f"  {name:<{width}}{help}" for name, help in commands.items())

    more = f"\n\ncommands of plugins:\n{listed(added)}" if added else ""
    return Parser(
        prog="hookmq",
        usage="hookmq COMMAND [options]",
        description=f"HookMQ, a plugin-driven MQTT broker.\n\ncommands:\n{listed(COMMANDS)}{more}\n\n"
        "hookmq COMMAND --help explains a command.",
        epilog=EXAMPLES,
    )


def command_parser(name: str) -> Parser:
    """Return the parser for one command. Imports the command's module."""
    module = import_module(f"hookmq.cli.{name}")
    parser = Parser(
        prog=f"hookmq {name}",
        description=(module.__doc__ or "").strip(),
        epilog=getattr(module, "EXAMPLES", None),
    )
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``hookmq`` with `arguments`, by default those of the process, and return the exit code.

    An error prints one message to stderr. If ``HOOKMQ_DEBUG`` is set, the error is raised instead.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except SystemExit as leaving:
        if leaving.code is None:
            return 0
        return leaving.code if isinstance(leaving.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader closed the pipe, so prevent the interpreter from flushing into it at exit
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("HOOKMQ_DEBUG"):
            raise
        return _report(error)


def _dispatch(words: list[str]) -> int:
    if words and words[0] in ("--version", "-V"):
        words[0] = "version"
    if not words or words[0].startswith("-"):
        if set(words) - {"-h", "--help"}:
            top_parser().parse(words)
        print(_whole_help(), end="")
        return 0 if words else 2
    name, rest = words[0], words[1:]
    if name == "help":
        if rest:
            return _dispatch([rest[0], "--help"])
        print(_whole_help(), end="")
        return 0
    if name not in COMMANDS:
        from hookmq.cli import commands

        parser = commands.parser_of(name)
        if parser is not None:
            return commands.run(parser, rest)
        close = get_close_matches(name, [*COMMANDS, *commands.names()], 1, 0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        print(f"hookmq: unknown command {name!r}{hint}\nTry hookmq --help.", file=sys.stderr)
        return 2
    parsed = command_parser(name).parse(rest)
    code: int = parsed.run(parsed)
    return code


def _whole_help() -> str:
    from hookmq.cli import commands

    return top_parser(commands.summaries()).format_help()


def _report(error: Exception) -> int:
    """Print an error to stderr after all pending log lines, and return the exit code."""
    import logging

    from hookmq.mqtt.errors import HookMQError

    for handler in logging.getLogger().handlers:
        handler.flush()  # a thread writes the log
    code = 1
    if isinstance(error, HookMQError):
        lines = str(error).splitlines() or [type(error).__name__]
        if len(lines) > 1:
            lines = [f"{len(lines)} errors in the configuration:", *("  " + line for line in lines)]
        text, code = "\n".join(lines), error.exit_code
    elif isinstance(error, OSError):
        text = f"{error.filename}: " if error.filename else ""
        text += error.strerror or str(error)
    else:
        text = f"{type(error).__name__}: {error}\n"
        text += "This is a bug in HookMQ or in a plugin. HOOKMQ_DEBUG=1 shows the traceback."
    print(f"hookmq: {text}", file=sys.stderr)
    return code
