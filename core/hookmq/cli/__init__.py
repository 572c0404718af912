"""``hookmq``: the command line. Each command is a module with `add_arguments(parser)` and `run(arguments) -> int`; only
the one that was asked for is imported, so that ``hookmq version`` is quick.

Exit codes: 0 done, 1 failed while running, 2 wrong configuration or arguments, 3 a plugin, 4 a listener's address.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn


class Command(NamedTuple):
    """A command: the module that holds it and its line in the help."""

    module: str
    help: str


COMMANDS: Final[dict[str, Command]] = {
    "serve": Command("serve", "run the broker"),
    "check": Command("check", "validate a configuration and open nothing"),
    "config": Command("config", "show, describe or write a configuration"),
    "plugins": Command("plugins", "list plugins and explain what they hook into"),
    "pub": Command("pub", "publish messages"),
    "sub": Command("sub", "subscribe and print messages"),
    "rr": Command("rr", "send a request and print the response"),
    "version": Command("version", "print versions"),
}

RESERVED: Final = frozenset({*COMMANDS, "help"})
"""Names that plugins' commands cannot have."""

EXAMPLES: Final = """\
examples:
  hookmq serve                              the broker on 127.0.0.1:1883 (TCP) and :8083/mqtt (WebSocket)
  hookmq sub -t 'sensors/#' -v              print what arrives
  hookmq pub -t sensors/a -m 21.5           send something
  hookmq config init > hookmq.yaml          a commented configuration to start from
  hookmq check -c hookmq.yaml               is it right?

exit codes: 0 done, 1 failed while running, 2 configuration or arguments, 3 plugin, 4 listener address
HOOKMQ_DEBUG=1 shows the traceback of an error."""


class Parser(argparse.ArgumentParser):
    """An argument parser with our exit code, plain help and the nearest known option."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", Formatter)
        super().__init__(allow_abbrev=False, **options)
        self.color = False

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit with 2."""
        self.exit(2, f"{self.prog}: {message}\n{self.prog} --help tells more\n")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments; exits with 2 when there is one too many, naming the option most like it."""
        # commands below a command can stand in one place only
        parse = self.parse_known_args if self._subparsers else self.parse_known_intermixed_args
        known, extra = parse(arguments)
        if extra:
            options = [option for action in self._actions for option in action.option_strings]
            close = get_close_matches(extra[0].partition("=")[0], options, 1, 0.6)
            hint = f" (did you mean {close[0]}?)" if close else ""
            self.error(f"unknown argument {extra[0]}{hint}")
        return known


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as it was written, the same on every terminal and in every version of Python."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # as from Python 3.13 on: the value stands once, behind the last name
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def top_parser(added: Mapping[str, str] = MappingProxyType({})) -> Parser:
    """The parser of ``hookmq`` itself: help and the list of commands, those that plugins `added` behind our own."""
    width = max(len(name) for name in [*COMMANDS, *added]) + 2
    commands = "\n".join(f"  {name:<{width}}{command.help}" for name, command in COMMANDS.items())
    if added:
        lines = (f"  {name:<{width}}{help}" for name, help in added.items())
        commands += "\n\ncommands of plugins:\n" + "\n".join(lines)
    parser = Parser(
        prog="hookmq",
        usage="hookmq COMMAND [options]",
        description=f"HookMQ, a plugin-driven MQTT broker.\n\ncommands:\n{commands}\n\n"
        "hookmq COMMAND --help tells more about one.",
        epilog=EXAMPLES,
    )
    return parser


def command_parser(name: str) -> Parser:
    """The parser of one command; imports its module."""
    module = import_module(f"hookmq.cli.{COMMANDS[name].module}")
    parser = Parser(
        prog=f"hookmq {name}",
        description=(module.__doc__ or "").strip(),
        epilog=getattr(module, "EXAMPLES", None),
        add_help=getattr(module, "ADD_HELP", True),
    )
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``hookmq`` with `arguments` (the process's own by default) and return the exit code. Errors are one message on
    stderr, without a traceback unless ``HOOKMQ_DEBUG`` is set."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except SystemExit as leaving:
        return _code(leaving.code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of our output left; the interpreter must not find the pipe again at exit
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
        return _help(rest)
    if name not in COMMANDS:
        from hookmq.cli import commands

        added = commands.added(RESERVED)
        if name in added:
            return commands.run(commands.only(name, added[name]), rest)
        close = get_close_matches(name, [*COMMANDS, *added], 1, 0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        print(f"hookmq: unknown command {name!r}{hint}\nhookmq --help lists them", file=sys.stderr)
        return 2
    parsed = command_parser(name).parse(rest)
    code: int = parsed.run(parsed)
    return code


def _help(rest: list[str]) -> int:
    if rest == ["--markdown"]:  # the manual's page
        from hookmq.cli.reference import reference

        print(reference(), end="")
    elif not rest:
        print(_whole_help(), end="")
    elif rest[0] in COMMANDS:
        print(command_parser(rest[0]).format_help(), end="")
    else:
        return _dispatch([rest[0], "--help"])
    return 0


def _whole_help() -> str:
    from hookmq.cli import commands

    added = commands.added(RESERVED)
    return top_parser({name: found[0].help for name, found in sorted(added.items())}).format_help()


def _report(error: Exception) -> int:
    """Tell an error on stderr, behind all that was logged before it; the exit code."""
    import logging

    from hookmq.errors import HookMQError

    for handler in logging.getLogger().handlers:
        handler.flush()  # a thread writes it
    if isinstance(error, HookMQError):
        lines = str(error).splitlines() or [type(error).__name__]
        if len(lines) > 1:
            lines = [f"{len(lines)} errors in the configuration:", *("  " + line for line in lines)]
        print("hookmq: " + "\n".join(lines), file=sys.stderr)
        return error.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        print(f"hookmq: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    print(
        f"hookmq: {type(error).__name__}: {error}\n"
        "This is a fault of HookMQ or of a plugin; HOOKMQ_DEBUG=1 shows where.",
        file=sys.stderr,
    )
    return 1


def _code(code: object) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else 1
