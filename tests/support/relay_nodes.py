"""Real brokers on loopback that relay connections to each other, with a cluster that is otherwise scripted.

Run as a module with the name of a node and a secret, it serves one node until it is killed, and prints the ports.
"""

import asyncio
import ssl
import sys
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from hookmq.broker import Broker
from hookmq.cluster_api import Here, Place
from hookmq.hooks.manager import Hooks
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.plugin import Plugin
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings
from hookmq_cluster.relay import Relays
from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_listener import RelayListener
from scripted_cluster import ScriptedCluster

OPEN = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))
LISTENERS = (ListenerSettings("front", bind="127.0.0.1:0", close_timeout=2.0),)


class Runtime(AsyncioRuntime):
    """A runtime that collects log events."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[str, str, dict[str, Any]]] = []

    def log(self, level: str, event: str, /, **fields: object) -> None:
        self.logged.append((level, event, fields))

    def logs(self, level: str) -> bool:
        return True

    def events(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, name, fields in self.logged if name == event]


class PlacingCluster(ScriptedCluster):
    """Relays the clients whose ids begin with ``relayed``."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere_place: Place = Here()

    def locate(self, client_id: str, done: Any) -> None:
        self.place = self.elsewhere_place if client_id.startswith("relayed") else Here()
        super().locate(client_id, done)


class RelayNode:
    """One broker. `target` sets the node that it relays to."""

    def __init__(
        self,
        name: str,
        secret: str = "secret",
        listeners: Sequence[ListenerSettings] = LISTENERS,
        plugins: Sequence[Plugin] = (),
        cluster: str = "test",
        tls: ssl.SSLContext | None = None,
        tls_out: ssl.SSLContext | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.name = name
        self.runtime = Runtime()
        self.cluster = PlacingCluster()
        hooks = Hooks.of(self.cluster, *plugins)
        open_ = replace(settings or Settings(), auth=OPEN.auth, authz=OPEN.authz)
        self.broker = Broker(open_, self.runtime, hooks)
        self.server = Server(self.broker, listeners, self.runtime)
        self.counters = RelayCounters(self.runtime.log)
        self.relays = Relays(cluster, name, secret, self.counters, tls_out)
        self.lanes = {name}
        self.entry = RelayListener(
            "127.0.0.1:0",
            cluster,
            secret,
            lambda listener: self.cluster.node.relay_target(listener),
            lambda lane: lane in self.lanes,
            self.counters,
            tls,
        )

    async def start(self) -> None:
        await self.server.start()
        await self.entry.open()

    async def stop(self) -> None:
        await self.server.stop()
        await self.entry.close()
        self.relays.close()
        await self.runtime.close()

    def port(self, listener: str = "front") -> int:
        return int(self.server.addresses()[listener].rpartition(":")[2])

    def relay_to(self, node: str, address: str, lane: str = "") -> None:
        """Relay the clients whose ids begin with ``relayed``."""
        self.cluster.elsewhere_place = self.relays.relaying(node, address, lane or node)

    async def until(self, condition: Any) -> None:
        """Wait until `condition()` is true. It is checked in every turn of the loop."""
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - a condition of the broker, which has no event for it
                await asyncio.sleep(0)


@asynccontextmanager
async def two_nodes(a: dict[str, Any] | None = None, b: dict[str, Any] | None = None, **both: Any):  # type: ignore[no-untyped-def]
    """Yield two started nodes. Node a relays to node b."""
    first = RelayNode("a", **both | (a or {}))
    second = RelayNode("b", **both | (b or {}))
    try:
        await second.start()
        await first.start()
        first.relay_to("b", second.entry.address)
        yield first, second
    finally:
        await first.stop()
        await second.stop()


async def serve(name: str, secret: str) -> None:
    node = RelayNode(name, secret)
    await node.start()
    print(node.port(), node.entry.address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
