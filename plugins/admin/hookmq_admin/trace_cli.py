"""``hookmq admin trace``: print what the broker does with some clients or messages."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO, Any, Final

from hookmq.cli_api import count, seconds
from hookmq.plugin import ConfigError

from hookmq_admin.api_client import ApiClient
from hookmq_admin.tables import say_ready, shown
from hookmq_admin.terminal import BOLD, DIM, PLAIN, RED, colored

Add = Callable[..., argparse.ArgumentParser]
MARKS: Final = {"received": ">", "sent": "<", "hook": "?", "route": "=", "drop": "x", "event": "*"}
"""The mark that each kind of event gets in the output."""
_STYLES: Final = {"received": BOLD, "sent": BOLD, "drop": RED}


def register(command: Add) -> None:
    """Add the command with `command`."""
    trace = command("trace", "Follow packets and decisions of clients or topics", _trace)
    add = trace.add_argument
    add("--client", metavar="ID", help="trace this client")
    add("--user", metavar="NAME", help="trace the clients with this user name")
    add("--address", metavar="PREFIX", help="trace clients whose addresses begin with this")
    add("--filter", help="only topics that this filter matches")
    add("--plugin", metavar="ID", help="only calls of this plugin")
    add("--for", type=seconds, default=60.0, dest="seconds", metavar="TIME", help="how long (default: 60s)")  # fmt: skip
    add("--rate", type=count, default=200, help="most events per second (default: 200)")
    add("--payloads", action="store_true", help="show the beginning of payloads")
    add("--output", metavar="FILE", help="also write the events to this new file, as JSON lines")


def _trace(api: ApiClient, arguments: argparse.Namespace) -> None:
    query = {
        "client_id": arguments.client,
        "username": arguments.user,
        "address": arguments.address,
        "filter": arguments.filter,
        "plugin": arguments.plugin,
        "seconds": arguments.seconds,
        "rate": arguments.rate,
        "payloads": arguments.payloads,
    }
    color = colored(sys.stdout)
    with ExitStack() as stack:
        file: IO[str] | None = None
        if arguments.output:
            file = stack.enter_context(_new_file(arguments.output))
        for name, data in api.events("/trace", query, say_ready):
            line = json.dumps({"event": name, **data})
            if file is not None:
                print(line, file=file, flush=True)
            if arguments.json:
                print(line, flush=True)
            elif name == "trace":
                print(line_of(data, color), flush=True)
            else:
                print(f"# {name}: {shown(data)}", file=sys.stderr, flush=True)


def _new_file(path: str) -> IO[str]:
    """Create a file that only its owner can read. Raises ConfigError."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
    except OSError as error:
        raise ConfigError(f"option --output: {error}") from error


def line_of(event: Any, color: bool = False) -> str:
    """Return an event as one line without control characters."""
    seen = float(event["time"])
    clock = time.strftime("%H:%M:%S", time.localtime(seen)) + f"{seen % 1:.3f}"[1:]
    fields = {name: value for name, value in event["fields"].items() if value not in (None, "", [])}
    kind = event["kind"]
    words = [MARKS.get(kind, "#"), event["name"]]
    if kind == "hook":
        plugin, verdict = fields.pop("plugin", ""), fields.pop("verdict", "")
        words.append(f"{plugin}: {verdict} in {fields.pop('microseconds', 0)} µs")
    if event["topic"] is not None:
        words.append(event["topic"])
    text = " ".join(shown(word) for word in words)
    if color and kind in _STYLES:
        text = f"{_STYLES[kind]}{text}{PLAIN}"
    elif color and kind == "hook" and verdict in ("deny", "error"):
        text = f"{RED}{text}{PLAIN}"
    rest = " ".join(f"{name}={_value(name, value)}" for name, value in fields.items())
    start = f"{clock} {shown(event['client_id'])}"
    if color:
        return f"{DIM}{start}{PLAIN} {text} {DIM}{rest}{PLAIN}"
    return f"{start} {text} {rest}".rstrip()


def _value(name: str, value: Any) -> str:
    if name == "code":
        return f"0x{value:02X}"
    if name == "recipients":
        return ",".join(
            shown(f"{one['client_id']}({one['filter']})" + ("" if one["online"] else "(offline)"))
            for one in value
        )
    return shown(value)
