"""``hookmq admin log``: show and change the log level, and follow log events."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from hookmq.cli_api import count
from hookmq.plugin import LOG_LEVELS

from hookmq_admin.api_client import ApiClient
from hookmq_admin.tables import say_ready, shown
from hookmq_admin.terminal import DIM, PLAIN, RED, colored

STYLES: Final = {"debug": DIM, "warning": RED, "error": RED}


def register(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to `commands`, with `command`."""
    group = commands.add_parser("log", help="show and change the log level, follow the log")
    log = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    level = command(
        "level", "Print the log level, or change it until a reload or restart", _level, log
    )
    level.add_argument("level", nargs="?", choices=LOG_LEVELS)
    tail = command("tail", "Follow the log", _tail, log)
    tail.add_argument("--level", choices=LOG_LEVELS, help="only events of at least this level")
    tail.add_argument("--event", metavar="PREFIX", help="only events whose names begin with this")
    tail.add_argument(
        "-n", "--recent", type=count, default=10, help="begin with this many events (default: 10)"
    )
    tail.add_argument("-C", "--count", type=count, help="end after this many events")


def _level(api: ApiClient, arguments: argparse.Namespace) -> Any:
    if arguments.level is None:
        return api.ask("GET", "/log/level")
    return api.ask("PUT", "/log/level", body={"level": arguments.level})


def _tail(api: ApiClient, arguments: argparse.Namespace) -> None:
    query = {
        "level": arguments.level,
        "event": arguments.event,
        "recent": min(arguments.recent, 500),
    }
    color = colored(sys.stdout)
    seen = 0
    for name, data in api.events("/log/tail", query, say_ready):
        if arguments.json:
            print(json.dumps({"type": name, **data}), flush=True)
        elif name == "log":
            print(line_of(data, color), flush=True)
        else:
            print(f"# {name}: {shown(data)}", file=sys.stderr, flush=True)
        seen += name == "log"
        if arguments.count is not None and seen >= arguments.count:
            return


def line_of(event: Any, color: bool = False) -> str:
    """Return an event as one line without control characters."""
    at, thousandths = divmod(int(event["time"] * 1000), 1000)
    clock = f"{time.strftime('%H:%M:%S', time.localtime(at))}.{thousandths:03}"
    level = event["level"]
    fields = (f"{name}={shown(value)}" for name, value in event["fields"].items())
    line = " ".join([clock, f"{level:<7}", shown(event["event"]), *map(shown, fields)])
    return f"{STYLES[level]}{line}{PLAIN}" if color and level in STYLES else line
