"""``hookmq admin streams``: list other plugins' streams."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from hookmq_admin.api_client import ApiClient
from hookmq_admin.tables import print_table, shown


def register(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command with `command`."""
    command("streams", "List the streams of plugins, with the lag of consumers", _streams)


def _streams(api: ApiClient, arguments: argparse.Namespace) -> None:
    found = api.ask("GET", "/streams")
    items = found["items"]
    for one in found.get("failed", ()):  # an older broker does not send it
        print(f"# {shown(one['plugin'])}: {shown(one['error'])}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(items, indent=2))
        return
    for one in items:
        lags = {consumer["name"]: _lag(consumer) for consumer in one["consumers"]}
        one["lag"] = one["error"] or lags or None
    columns = ("plugin", "name", "kind", "messages", "bytes", "oldest", "refused", "dropped", "lag")
    print_table(items, columns)


def _lag(consumer: dict[str, Any]) -> str:
    """Return a consumer's lag in messages and seconds, together with anything else that an operator should know."""
    shown = f"{consumer['lag']}"
    if (age := consumer.get("lag_seconds")) is not None:  # an older broker does not send it
        shown += f"/{age:.0f}s"
    if letters := consumer.get("dead_letters"):
        shown += f"/{letters}dead"
    declared = consumer.get("declared")
    if declared and consumer["committed_at"] is None:
        shown += "(silent)"
    return shown + "(undeclared)" * (declared is False)
