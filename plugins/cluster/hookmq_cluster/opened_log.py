"""The log of a configured cluster, opened for a command without a broker."""

import argparse
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from hookmq.cli_api import plugin_of
from hookmq.plugin import Runtime, StoreError
from hookmq_toolkit.child_runtime import ChildRuntime
from hookmq_toolkit.state_folder import default_folder

from hookmq_cluster.engine import Engine
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.names import Names
from hookmq_cluster.nats_child import NatsChild
from hookmq_cluster.nats_engine import NatsEngine
from hookmq_cluster.plugin import ClusterPlugin
from hookmq_cluster.waiting import ended


class OpenedLog(NamedTuple):
    """A cluster's log, and the nodes that the configuration names. `exists` is False if it has no stream. The engine
    cannot be used then.
    """

    engine: Engine
    names: Names
    runtime: Runtime
    nodes: tuple[str, ...]
    exists: bool = True

    @property
    def existing(self) -> Engine | None:
        """The engine, or None if the log has no stream."""
        return self.engine if self.exists else None

    def require(self) -> None:
        """Raise StoreError if the log has no stream."""
        if not self.exists:
            raise StoreError(
                f"cluster {self.names.cluster!r} has no contents: the NATS servers have no stream {self.names.stream}; "
                "check `servers` and `name`"
            )


def _log(level: str, event: str, /, **fields: object) -> None:
    # The server's own warnings concern its configuration, which the plugin writes.
    if level == "error" or (level == "warning" and event != "cluster.nats_log"):
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        print(f"hookmq: {event} {shown}", file=sys.stderr)


def nodes_of(plugin: ClusterPlugin) -> tuple[str, ...]:
    """Return the names of the nodes that a configuration describes: one, or one for each worker."""
    workers = plugin.config.workers
    if not workers:
        return (plugin.node,)
    count = len(os.sched_getaffinity(0)) if workers == "auto" else workers
    prefix = f"{plugin.config.node}-" if plugin.config.node else ""
    return tuple(f"{prefix}w{number}" for number in range(count))


@asynccontextmanager
async def opened_log(
    arguments: argparse.Namespace, create: bool = True
) -> AsyncIterator[OpenedLog]:
    """Open the log of the cluster in the chosen configuration. With `workers`, this starts their nats-server. Unless
    `create` is set, a missing stream is not made.

    Raises StoreError if the log cannot be used, and ConfigError if no plugin `cluster` is configured.
    """
    plugin = plugin_of(arguments, ClusterPlugin, "cluster")
    config, runtime = plugin.config, ChildRuntime(_log)
    child: NatsChild | None = None
    try:
        if config.workers and not config.servers:
            child = NatsChild(config.folder or default_folder("cluster"), runtime)
            await child.start()
        names = Names(config.name)
        engine = plugin.make_engine(runtime)
        if child is not None:
            engine = NatsEngine(child.options, names.stream, names.everything, runtime, 1, True)
        exists = True
        if isinstance(engine, NatsEngine):
            exists = await engine.open(create=create) is not None
        try:
            yield OpenedLog(engine, names, runtime, nodes_of(plugin), exists)
        finally:
            await ended(runtime, engine.close)
    except EngineError as error:
        raise StoreError(str(error)) from None
    finally:
        if child is not None:
            await child.stop()
