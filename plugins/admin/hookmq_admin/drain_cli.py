"""``hookmq admin drain``: disconnect all clients, so that they reconnect to another broker."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from hookmq.cli_api import seconds

from hookmq_admin.api_client import ApiClient, RequestRefused

INTERVAL: Final = 0.5
"""Seconds between progress requests."""
PATIENCE: Final = 30.0
"""Seconds to wait for closing connections after the last client was disconnected."""


def register(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command with `command`."""
    drain = command("drain", "Refuse new connections and disconnect all clients", _drain)
    drain.add_argument(
        "--over", type=seconds, default=10.0, dest="seconds", metavar="TIME",
        help="the time over which clients are disconnected (default: 10s)",
    )  # fmt: skip
    drain.add_argument(
        "--reference", default="", metavar="SERVER", help="the server that clients should use"
    )
    drain.add_argument(
        "--moved", action="store_true", help="clients should always use that server from now on"
    )
    choice = drain.add_mutually_exclusive_group()
    choice.add_argument("--no-wait", action="store_true", help="do not wait for the end")
    choice.add_argument("--status", action="store_true", help="print how far a drain is")
    choice.add_argument("--cancel", action="store_true", help="accept connections again")


def _drain(api: ApiClient, arguments: argparse.Namespace) -> Any:
    if arguments.cancel:
        return api.ask("DELETE", "/drain")
    if arguments.status:
        return api.ask("GET", "/drain")
    body = {
        "seconds": arguments.seconds,
        "server_reference": arguments.reference,
        "moved": arguments.moved,
    }
    found = api.ask("POST", "/drain", body=body)
    if arguments.no_wait:
        return found
    found = waited(api, found, arguments.seconds + PATIENCE)
    if found["draining"] and not found["connections"]:
        return found
    what = "connections are still open" if found["draining"] else "clients: the drain was cancelled"
    raise RequestRefused(f"{found['connections']} {what}")


def waited(api: ApiClient, found: Any, most: float) -> Any:
    """Wait at most `most` seconds until no client is connected or the drain is cancelled. Return the status."""
    end = time.monotonic() + most
    shown = sys.stderr.isatty()
    while found["draining"] and found["connections"] and time.monotonic() < end:
        if shown:
            print(f"\r{found['connections']} connections \x1b[K", end="", file=sys.stderr)
        time.sleep(INTERVAL)
        found = api.ask("GET", "/drain")
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr)
    return found
