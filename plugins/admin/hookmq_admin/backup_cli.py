"""``hookmq admin backup``: back up the store of a running broker."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from hookmq_admin.api_client import ApiClient
from hookmq_admin.tables import print_fields

INTERVAL: Final = 0.5
"""Seconds between progress requests."""


def register(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command with `command`."""
    backup = command("backup", "Back up the store to the folder in the plugin's settings", _backup)
    choice = backup.add_mutually_exclusive_group()
    choice.add_argument("--no-wait", action="store_true", help="do not wait for the end")
    choice.add_argument(
        "--status", action="store_true", help="print the progress or the result of the newest one"
    )


def _backup(api: ApiClient, arguments: argparse.Namespace) -> int:
    found: Any = api.ask("GET" if arguments.status else "POST", "/backup")
    shown = sys.stderr.isatty()
    while found["state"] == "running" and not (arguments.status or arguments.no_wait):
        if shown:
            print(f"\rcopying {found['progress']:4.0%}\x1b[K", end="", file=sys.stderr)
        time.sleep(INTERVAL)
        found = api.ask("GET", "/backup")
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print_fields(found)
    return 1 if found["state"] == "failed" else 0
