"""``hookmq cluster status|move|drain|undrain``: see and change the cluster of a running broker, from a terminal."""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, Final

from hookmq.cli_api import seconds

from hookmq_admin.api_client import (
    DEFAULT_URL,
    TOKEN,
    ApiClient,
    RequestRefused,
    add_options,
    part,
)
from hookmq_admin.cli import run_command
from hookmq_admin.tables import print_fields, print_table

EXAMPLES: Final = f"""\
examples:
  hookmq cluster status --token-file admin.token
  hookmq cluster status --json
  hookmq cluster move gamma beta
  hookmq cluster drain alpha --over 1m
  hookmq cluster undrain alpha

The token is in --token-file or ${TOKEN}. The plugin admin is at {DEFAULT_URL} unless --url names another place.
exit codes: 0 done, 1 refused, node not ready or not reachable, 2 usage error"""
MEMBERS: Final = ("node", "address")
INTERVAL: Final = 0.5
"""Seconds between two looks at the progress."""
PATIENCE: Final = 60.0
"""Seconds that lanes may take to move, after the clients have gone."""
LANES: Final = ("lane", "owner", "live", "sessions", "bytes")


def add_commands(commands: Any) -> None:
    """Add the subcommands for a running broker to `hookmq cluster`."""

    def command(
        name: str, help: str, run: Callable[[ApiClient, argparse.Namespace], Any]
    ) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = commands.add_parser(
            name, help=help, description=f"{help}.", epilog=EXAMPLES
        )
        add_options(found)
        found.set_defaults(run=lambda arguments: run_command(run, arguments))
        return found

    command("status", "Print the nodes and lanes; exit with 1 if the node is not ready", _status)
    move = command("move", "Give a lane that the node has adopted to another node", _move)
    move.add_argument("lane", help="the name of the lane")
    move.add_argument("node", help="the name of the node that gets the lane")
    drain = command("drain", "Move the clients and lanes of the node to other nodes", _drain)
    drain.add_argument(
        "--over", type=seconds, default=10.0, metavar="TIME",
        help="the time over which clients without a durable session are disconnected (default: 10s)",
    )  # fmt: skip
    drain.add_argument(
        "--moved", action="store_true", help="clients should use the other nodes from now on"
    )
    undrain = command("undrain", "Put a drained node back into service", _undrain)
    for one in (drain, undrain):
        one.add_argument("node", help="the name of the node, which must be the one that is asked")
        one.add_argument("--no-wait", action="store_true", help="do not wait for the end")


def _status(api: ApiClient, arguments: argparse.Namespace) -> Any:
    found = api.ask("GET", "/cluster")
    code = 0 if found["state"] == "ready" else 1
    if arguments.json:
        print(json.dumps(found, indent=2))
        return code
    members, lanes = found.pop("members"), found.pop("lanes")
    if not found["problem"]:
        del found["problem"]
    print_fields(found)
    print()
    print_table(members, MEMBERS)
    print()
    print_table(
        ({**one, "lane": one["name"], "owner": one["owner"] or "-"} for one in lanes), LANES
    )
    return code


def _move(api: ApiClient, arguments: argparse.Namespace) -> Any:
    path = f"/cluster/lanes/{part(arguments.lane)}/move"
    return api.ask("POST", path, body={"node": arguments.node})


def _drain(api: ApiClient, arguments: argparse.Namespace) -> Any:
    body = {"seconds": arguments.over, "moved": arguments.moved}
    return _change(api, arguments, "drain", body, "drained", arguments.over + PATIENCE)


def _undrain(api: ApiClient, arguments: argparse.Namespace) -> Any:
    return _change(api, arguments, "undrain", None, "ready", PATIENCE)


def _change(
    api: ApiClient, arguments: argparse.Namespace, verb: str, body: Any, wanted: str, most: float
) -> Any:
    """Ask the node for a change of its state, and wait until it is in the `wanted` state."""
    found = api.ask("POST", f"/cluster/nodes/{part(arguments.node)}/{verb}", body=body)
    end = time.monotonic() + most
    while not arguments.no_wait and found["state"] != wanted:
        if found["problem"]:
            raise RequestRefused(f"node {arguments.node!r} is {found['state']}: {found['problem']}")
        if time.monotonic() > end:
            raise RequestRefused(
                f"node {arguments.node!r} is still {found['state']} after {most:g} s"
            )
        time.sleep(INTERVAL)
        found = api.ask("GET", "/cluster")
    return {"node": found["node"], "state": found["state"]}
