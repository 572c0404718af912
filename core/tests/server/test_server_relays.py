"""Test connections that other nodes of a cluster relay to one of the server's listeners."""

import asyncio
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.cluster_api import RelayTarget
from hookmq.hooks.manager import Hooks
from hookmq.model.client import Peer
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings
from scripted_cluster import ScriptedCluster

OPEN = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))
CONNECT = bytes.fromhex("100d00044d51545404020000000163")
CLIENT = Peer("192.0.2.7", 5000, "tls")


class ListWire:
    """A wire that collects the bytes written to it."""

    def __init__(self, target: RelayTarget) -> None:
        self.written = b""
        self.closed = asyncio.Event()
        self.told = asyncio.Event()
        self.connection = target.accept(self, CLIENT)

    def write(self, data: bytes) -> None:
        self.written += data
        self.told.set()

    def close(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            asyncio.get_running_loop().call_soon(self.lose)

    abort = close

    def lose(self) -> None:
        self.connection.closed()

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    async def exchange(self, data: bytes) -> bytes:
        """Send `data`, and return the first bytes of the answer."""
        self.connection.feed(data)
        async with asyncio.timeout(60):
            await self.told.wait()
        return self.written


@pytest.fixture
async def cluster() -> ScriptedCluster:
    return ScriptedCluster()


@pytest.fixture
async def server(cluster: ScriptedCluster) -> Any:
    runtime = AsyncioRuntime()
    broker = Broker(OPEN, runtime, Hooks.of(cluster))
    listeners = (
        ListenerSettings("front", bind="127.0.0.1:0", mount_point="m/", max_connections=1),
        ListenerSettings("web", "http", bind="127.0.0.1:0"),
    )
    server = Server(broker, listeners, runtime)
    await server.start()
    yield server
    await server.stop()
    await runtime.close()


def target(cluster: ScriptedCluster, name: str = "front") -> RelayTarget:
    found = cluster.node.relay_target(name)
    assert found is not None
    return found


async def test_a_relayed_client_belongs_to_the_listener(
    cluster: ScriptedCluster, server: Server
) -> None:
    front = target(cluster)
    assert front.scope.mount_point == "m/"
    wire = ListWire(front)
    assert await wire.exchange(CONNECT) == b"\x20\x02\x00\x00"
    [session] = server.broker.sessions.values()  # type: ignore[attr-defined]
    assert session.client.peer == CLIENT
    assert session.client.listener == "front"
    assert server.connections() == {"front": 1, "web": 0}
    assert server.broker.metrics.listeners["front"].bytes_received == len(CONNECT)
    wire.lose()
    assert server.connections() == {"front": 0, "web": 0}
    assert not server.broker.sessions  # type: ignore[attr-defined]


async def test_the_listeners_limit_holds(cluster: ScriptedCluster, server: Server) -> None:
    front = target(cluster)
    first = ListWire(front)
    second = ListWire(front)
    assert second.closed.is_set()
    second.connection.feed(CONNECT)
    second.lose()
    assert server.connections()["front"] == 1
    assert not first.closed.is_set()


async def test_a_relayed_client_is_not_relayed_again(
    cluster: ScriptedCluster, server: Server
) -> None:
    cluster.place = cluster.relaying
    wire = ListWire(target(cluster))
    assert await wire.exchange(CONNECT) == b"\x20\x02\x00\x03"
    assert wire.closed.is_set()
    assert cluster.relays == []


async def test_only_open_mqtt_listeners_take_relayed_clients(
    cluster: ScriptedCluster, server: Server
) -> None:
    assert cluster.node.relay_target("web") is None
    assert cluster.node.relay_target("nothing") is None
    server.listeners["front"].shut()
    assert cluster.node.relay_target("front") is None
