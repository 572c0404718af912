"""``hookmq cluster``: see the cluster of a running broker, and move its lanes, from a terminal."""

import argparse
import json
from collections.abc import Callable
from typing import Any, Final

from hookmq_admin.api_client import DEFAULT_URL, TOKEN, ApiClient, add_options, part
from hookmq_admin.cli import run_command
from hookmq_admin.tables import print_fields, print_table

EXAMPLES: Final = f"""\
examples:
  hookmq cluster status --token-file admin.token
  hookmq cluster status --json
  hookmq cluster move gamma beta

The token is in --token-file or ${TOKEN}. The plugin admin is at {DEFAULT_URL} unless --url names another place.
exit codes: 0 done, 1 refused, node not ready or not reachable, 2 usage error"""
MEMBERS: Final = ("node", "address")
LANES: Final = ("lane", "owner", "live", "sessions", "bytes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "See the cluster of a running broker, and move its lanes. A lane holds the sessions of a node."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(
        name: str, help: str, run: Callable[[ApiClient, argparse.Namespace], Any]
    ) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = commands.add_parser(
            name, help=help, description=f"{help}."
        )
        add_options(found)
        found.set_defaults(run=lambda arguments: run_command(run, arguments))
        return found

    command("status", "Print the nodes and lanes; exit with 1 if the node is not ready", _status)
    move = command("move", "Give a lane that the node has adopted to another node", _move)
    move.add_argument("lane", help="the name of the lane")
    move.add_argument("node", help="the name of the node that gets the lane")


def _status(api: ApiClient, arguments: argparse.Namespace) -> Any:
    found = api.ask("GET", "/cluster")
    code = 0 if found["state"] == "ready" else 1
    if arguments.json:
        print(json.dumps(found, indent=2))
        return code
    members, lanes = found.pop("members"), found.pop("lanes")
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
