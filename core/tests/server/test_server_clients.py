"""Test the real broker with real listeners: messages over every transport, limits, and how clients experience a drain."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiomqtt
import pytest
from hookmq.broker import Broker
from hookmq.model.settings import AuthSettings, AuthzSettings, BrokerSettings, Settings
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings, TlsSettings

Start = Callable[..., Any]
CONNECT = b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x02me"
CONNACK = b"\x20"


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Yield a function that starts servers whose brokers accept every client. The servers are stopped at the end."""
    runtime = AsyncioRuntime()
    nodes: list[Server] = []

    async def begin(*listeners: ListenerSettings, **options: Any) -> Server:
        settings = Settings(
            broker=BrokerSettings(**{"shutdown_timeout": 2.0} | options),
            auth=AuthSettings("allow"),
            authz=AuthzSettings("allow"),
        )
        node = Server(Broker(settings, runtime), listeners, runtime)
        nodes.append(node)
        await node.start()
        return node

    yield begin
    for node in nodes:
        await node.stop()
    await runtime.close()


def listener(kind: str, files: Any, folder: Any) -> ListenerSettings:
    options: dict[str, Any] = {"name": kind, "type": kind, "bind": "127.0.0.1:0"}
    if kind in ("tls", "wss"):
        options["tls"] = TlsSettings(**files.server())
    if kind == "unix":
        options["bind"] = f"{folder}/mqtt.sock"
    return ListenerSettings(**options)


def client(node: Server, kind: str, context: ssl.SSLContext, name: str) -> aiomqtt.Client:
    address = node.addresses()[kind]
    host, _, port = address.rpartition(":")
    options: dict[str, Any] = {"hostname": "localhost" if kind in ("tls", "wss") else host}
    if kind == "unix":
        options = {"hostname": address, "transport": "unix", "port": 1}
    else:
        options["port"] = int(port)
    if kind in ("ws", "wss"):
        options |= {"transport": "websockets", "websocket_path": "/mqtt"}
    if kind in ("tls", "wss"):
        options["tls_context"] = context
    return aiomqtt.Client(
        identifier=name, protocol=aiomqtt.ProtocolVersion.V5, timeout=60, **options
    )


@pytest.mark.parametrize("kind", ["tcp", "tls", "ws", "wss", "unix"])
async def test_messages_by_every_transport(
    start: Start, files: Any, tmp_path: Any, kind: str
) -> None:
    node = await start(
        listener("tcp", files, tmp_path), *([listener(kind, files, tmp_path)] * (kind != "tcp"))
    )
    payloads = [b"", b"x", bytes(range(256)) * 1200]
    async with (
        asyncio.timeout(60),
        client(node, kind, files.client(), "one") as one,
        client(node, "tcp", files.client(), "two") as two,
    ):
        await one.subscribe("to/one", qos=2)
        await two.subscribe("to/two", qos=2)
        for payload in payloads:
            await one.publish("to/two", payload, qos=2)
            await two.publish("to/one", payload, qos=2)
        for side in (one, two):
            seen = [bytes((await anext(side.messages)).payload) for _ in payloads]
            assert seen == payloads
        assert node.state()["connections"][kind] == (2 if kind == "tcp" else 1)


async def test_packet_split_at_every_byte(
    start: Start, dial: Any, files: Any, tmp_path: Any
) -> None:
    node = await start(listener("tcp", files, tmp_path))
    for cut in range(1, len(CONNECT)):
        reader, writer = await dial(node.addresses()["tcp"])
        writer.write(CONNECT[:cut])
        await writer.drain()
        writer.write(CONNECT[cut:] + b"\xc0\x00")
        assert await reader.readexactly(1) == CONNACK
        size = (await reader.readexactly(1))[0]
        await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\xd0\x00"
        writer.write(b"\xe0\x00")
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(("reference", "code"), [("", 0x8B), ("other.example:1883", 0x9C)])
async def test_drain_tells_clients_why(
    start: Start, dial: Any, files: Any, tmp_path: Any, reference: str, code: int
) -> None:
    node = await start(listener("tcp", files, tmp_path))
    reader, writer = await dial(node.addresses()["tcp"])
    writer.write(CONNECT)
    await reader.readexactly(1)
    await reader.readexactly((await reader.readexactly(1))[0])
    silent, other = await dial(node.addresses()["tcp"])  # never sends its CONNECT
    stopping = asyncio.create_task(node.stop(reference))
    said = await reader.read()
    assert said[0] == 0xE0
    assert said[2] == code
    assert reference.encode() in said
    writer.close()
    assert await silent.read() == b""
    other.close()
    await stopping


async def test_first_packet_that_does_not_come(
    start: Start, dial: Any, files: Any, tmp_path: Any
) -> None:
    settings = ListenerSettings(bind="127.0.0.1:0", connect_timeout=0.1)
    node = await start(settings)
    reader, writer = await dial(node.addresses()["default"])
    writer.write(CONNECT[:5])
    async with asyncio.timeout(60):
        assert await reader.read() == b""


async def test_refusal_reaches_a_client_that_goes_on_sending(
    start: Start, dial: Any, files: Any, tmp_path: Any
) -> None:
    node = await start(listener("tcp", files, tmp_path), max_packet_size=1000)
    reader, writer = await dial(node.addresses()["tcp"])
    writer.write(CONNECT)
    await reader.readexactly(1)
    await reader.readexactly((await reader.readexactly(1))[0])
    writer.write(b"\x30\xff\xff\x7f" + bytes(500_000))
    said = await reader.read()
    assert said[0] == 0xE0
    assert said[2] == 0x95  # packet too large
    writer.close()


async def test_slow_subscriber_does_not_hold_up_a_fast_one(
    start: Start, dial: Any, files: Any, tmp_path: Any
) -> None:
    node = await start(listener("tcp", files, tmp_path), max_write_buffer=65536)
    address = node.addresses()["tcp"]
    reader, slow = await dial(address, limit=1024)
    slow.write(CONNECT.replace(b"me", b"sl") + b"\x82\x07\x00\x01\x00\x00\x01t\x00")
    await reader.readexactly(1)
    await reader.readexactly((await reader.readexactly(1))[0])
    # The client has subscribed, and reads nothing more.
    assert (await reader.readexactly(1)) == b"\x90"
    async with (
        asyncio.timeout(60),
        client(node, "tcp", files.client(), "fast") as fast,
        client(node, "tcp", files.client(), "source") as source,
    ):
        await fast.subscribe("t")
        payload = bytes(100_000)
        for _ in range(150):
            await source.publish("t", payload)
            await anext(fast.messages)
    held: Any = node.broker
    # Queued by the broker, because the transport is full.
    assert held.sessions["sl"].queued_bytes > 1_000_000
    slow.transport.abort()
    await until_gone(node)


async def until_gone(node: Server) -> None:
    async with asyncio.timeout(60):
        for item in node.listeners.values():
            await item.gate.emptied()
