"""``hookmq cluster check``."""

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from hookmq.cli_api import plugin_of

from hookmq_cluster.command_parts import add_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hookmq_cluster.inspection import Finding

_SHOWN: Final = {"ok": "ok", "note": "note", "failed": "FAILED"}


def add_commands(commands: Any) -> None:
    """Add the subcommand to `hookmq cluster`."""
    add_command(
        commands, "check", check, "Check whether a node can use its NATS servers",
        "This contacts the servers, and changes nothing there. The exit code is 1 if something failed.",
        "print each finding as a JSON object",
    )  # fmt: skip


async def _findings(arguments: argparse.Namespace) -> "AsyncIterator[Finding]":
    from hookmq_toolkit.child_runtime import ChildRuntime

    from hookmq_cluster.inspection import Inspection, inspect_own_server
    from hookmq_cluster.opened_log import nodes_of
    from hookmq_cluster.plugin import ClusterPlugin

    plugin = plugin_of(arguments, ClusterPlugin, "cluster")
    config = plugin.config
    if config.workers and not config.servers:
        yield await inspect_own_server()
        return
    # Log events are dropped, because the findings have the same facts.
    runtime = ChildRuntime(lambda _level, _event, /, **_fields: None)
    inspection = Inspection(config, nodes_of(plugin), plugin.options, runtime)
    async for one in inspection.run():
        yield one


async def check(arguments: argparse.Namespace) -> int:
    """Print the findings. Return 1 if a node with this configuration could not start."""
    failed = False
    async for one in _findings(arguments):
        failed |= one.state == "failed"
        if arguments.json:
            print(json.dumps(one._asdict()), flush=True)
        else:
            print(f"{_SHOWN[one.state]:<7} {one.part:<11} {one.text}", flush=True)
    return 1 if failed else 0
