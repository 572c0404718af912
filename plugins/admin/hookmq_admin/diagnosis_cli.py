"""``hookmq admin slow``, ``hot`` and ``drops``."""

import argparse
import json
import time
from collections.abc import Callable
from heapq import nlargest
from typing import Any

from hookmq.cli_api import count, seconds

from hookmq_admin.api_client import ApiClient
from hookmq_admin.diagnosis import FIGURES
from hookmq_admin.tables import print_table

Add = Callable[..., argparse.ArgumentParser]


def register(command: Add) -> None:
    """Add the commands with `command`."""
    slow = command("slow", "List the clients with the most messages that wait", _slow)
    slow.add_argument("--by", choices=FIGURES, default="queued", help="default: queued")
    _limit(slow)
    hot = command("hot", "List the topics with the most messages", _hot)
    hot.add_argument("filter", nargs="?", default="#", help="a topic filter (default: #)")
    hot.add_argument(
        "--levels", type=count, default=0, metavar="N", help="count by the first N levels of topics"
    )
    hot.add_argument(
        "--for", type=seconds, default=5.0, dest="seconds", metavar="TIME", help="how long (default: 5s)"
    )  # fmt: skip
    _limit(hot)
    drops = command("drops", "List dropped messages by reason, client and topic", _drops)
    drops.add_argument(
        "--for", type=seconds, dest="seconds", metavar="TIME", help="first record clients and topics"
    )  # fmt: skip
    _limit(drops)


def _limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--limit", type=count, default=20, help="most items (default: 20)")


def _slow(api: ApiClient, arguments: argparse.Namespace) -> None:
    by, limit = arguments.by, min(max(arguments.limit, 1), 100)
    found: list[Any] = []
    cursor = ""
    while True:
        page = api.ask("GET", "/slow-clients", {"by": by, "limit": limit, "cursor": cursor})
        found = nlargest(limit, found + page["items"], key=lambda one: one[by])
        cursor = page["cursor"]
        if not cursor:
            break
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        columns = ("client_id", "connected", "address", *FIGURES, "receive_maximum", "oldest")
        print_table(found, columns)


def _measured(
    api: ApiClient, path: str, body: dict[str, Any], arguments: argparse.Namespace
) -> Any:
    """Start a measurement, wait until it ends, and return the result. An interrupt ends it early."""
    api.ask("POST", path, body={**body, "seconds": max(1.0, arguments.seconds)})
    try:
        time.sleep(arguments.seconds)
        return _result(api, path, arguments)
    finally:
        api.ask("DELETE", path)


def _result(api: ApiClient, path: str, arguments: argparse.Namespace) -> Any:
    return api.ask("GET", path, {"limit": min(max(arguments.limit, 1), 100)})


def _hot(api: ApiClient, arguments: argparse.Namespace) -> Any:
    body = {"filter": arguments.filter, "levels": arguments.levels}
    found = _measured(api, "/hot-topics", body, arguments)
    if arguments.json:
        return found
    print_table(found["topics"], ("topic", "messages", "rate", "bytes", "error"))
    return None


def _drops(api: ApiClient, arguments: argparse.Namespace) -> Any:
    if arguments.seconds is None:
        found = _result(api, "/drops", arguments)
    else:
        found = _measured(api, "/drops", {}, arguments)
    if arguments.json:
        return found
    rows = [
        {"reason": reason, "direction": direction, "messages": messages}
        for key, messages in found["reasons"].items()
        for direction, _, reason in [key.partition(":")]
    ]
    rows.sort(key=lambda row: -row["messages"])
    print_table(rows, ("reason", "direction", "messages"))
    for name, key in (("clients", "client_id"), ("topics", "topic")):
        if found[name]:
            print()
            print_table(found[name], (key, "messages", "bytes", "error"))
    return None
