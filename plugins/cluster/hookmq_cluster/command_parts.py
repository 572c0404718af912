"""The common parts of the commands for a cluster's log: options, progress and results."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from hookmq.cli_api import add_source

STOP: Final = "Stop all nodes of the cluster first."
Work = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


def add_command(
    commands: Any,
    name: str,
    work: Work,
    help: str,
    more: str,
    json_help: str = "print the counts as a JSON object",
) -> argparse.ArgumentParser:
    """Add a subcommand that uses the log of the chosen configuration, and return its parser."""
    found: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=f"{help}. {more}"
    )
    found.set_defaults(run=lambda arguments: asyncio.run(work(arguments)))
    add_source(found)
    # fmt: off
    found.add_argument("--plugin", metavar="ID", help="id of the plugin cluster, if several are configured")
    found.add_argument("--json", action="store_true", help=json_help)
    # fmt: on
    return found


def add_replace(parser: argparse.ArgumentParser) -> None:
    """Add the option to delete the contents of the cluster."""
    parser.add_argument(
        "--replace", action="store_true", help="delete the contents of the cluster first"
    )


class ProgressLine:
    """Shows a number of items on a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._drawn = False

    def __call__(self, count: int) -> None:
        """Show the number."""
        if sys.stderr.isatty():
            self._drawn = True
            print(f"\r{self._what} {count:,}", end="\x1b[K", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Erase the line."""
        if self._drawn:
            print("\r", end="\x1b[K", file=sys.stderr, flush=True)


def print_counts(arguments: argparse.Namespace, done: str, counts: Mapping[str, int]) -> None:
    """Print the result of a command, with its counts."""
    dry_run = getattr(arguments, "dry_run", False)
    if arguments.json:
        print(json.dumps({"dry_run": dry_run, **counts}))
        return
    print(f"dry run: nothing was changed; it would have {done}:" if dry_run else f"{done}:")
    for name, count in counts.items():
        print(f"  {name.replace('_', ' '):<15} {count:,}")
