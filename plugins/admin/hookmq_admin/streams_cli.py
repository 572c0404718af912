"""``hookmq admin streams``: list the streams of other plugins."""

import argparse
import json
from collections.abc import Callable

from hookmq_admin.api_client import ApiClient
from hookmq_admin.tables import print_table


def register(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command with `command`."""
    command("streams", "List the streams of plugins, with the lag of consumers", _streams)


def _streams(api: ApiClient, arguments: argparse.Namespace) -> None:
    items = api.ask("GET", "/streams")["items"]
    if arguments.json:
        print(json.dumps(items, indent=2))
        return
    for one in items:
        lags = {consumer["name"]: consumer["lag"] for consumer in one["consumers"]}
        one["lag"] = one["error"] or lags or None
    print_table(items, ("plugin", "name", "kind", "messages", "bytes", "oldest", "lag"))
