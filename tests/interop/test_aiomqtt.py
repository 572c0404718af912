"""Interoperability with aiomqtt, an asyncio client, in MQTT 3.1.1 and 5."""

import asyncio
import ssl
from uuid import uuid4

import aiomqtt
import pytest
from aiomqtt import ProtocolVersion
from serving import Served

VERSIONS = [
    pytest.param(ProtocolVersion.V311, id="3.1.1"),
    pytest.param(ProtocolVersion.V5, id="5"),
]


def client(
    port: int,
    version: ProtocolVersion,
    will: aiomqtt.Will | None = None,
    tls: ssl.SSLContext | None = None,
    path: str | None = None,
) -> aiomqtt.Client:
    """Return a client for the broker on the loopback address."""
    return aiomqtt.Client(
        "127.0.0.1", port, identifier="aio-" + uuid4().hex, protocol=version, will=will, tls_context=tls,
        transport="websockets" if path else "tcp", websocket_path=path, timeout=60,
    )  # fmt: skip


async def payloads(messages: aiomqtt.MessagesIterator, count: int) -> list[bytes]:
    """Return the payloads of the next `count` messages."""
    got: list[bytes] = []
    async with asyncio.timeout(60):
        async for message in messages:
            assert isinstance(message.payload, bytes)
            got.append(message.payload)
            if len(got) == count:
                break
    return got


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_and_subscribe(
    broker: Served, topic: str, version: ProtocolVersion, qos: int
) -> None:
    ports = broker.ports
    async with client(ports["tcp"], version) as one, client(ports["tcp"], version) as two:
        await two.subscribe(f"{topic}/+", qos)
        for number in range(50):
            await one.publish(f"{topic}/a", b"%d" % number, qos)
        assert await payloads(two.messages, 50) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_retained(broker: Served, topic: str, version: ProtocolVersion) -> None:
    async with client(broker.ports["tcp"], version) as one:
        await one.publish(topic, b"kept", 1, retain=True)
        await one.subscribe(topic, 1)
        async with asyncio.timeout(60):
            message = await anext(aiter(one.messages))
        assert (message.payload, message.retain) == (b"kept", True)
        await one.publish(topic, b"", 1, retain=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", ["tls", "ws", "wss"])
async def test_other_transports(
    broker: Served, trust: ssl.SSLContext, topic: str, version: ProtocolVersion, transport: str
) -> None:
    tls = None if transport == "ws" else trust
    path = None if transport == "tls" else "/mqtt"
    async with client(broker.ports[transport], version, tls=tls, path=path) as one:
        await one.subscribe(topic, 2)
        await one.publish(topic, b"over " + transport.encode(), 2)
        assert await payloads(one.messages, 1) == [b"over " + transport.encode()]


@pytest.mark.parametrize("version", VERSIONS)
async def test_clients_that_come_and_go_leave_no_will(
    broker: Served, topic: str, version: ProtocolVersion
) -> None:
    gone = aiomqtt.Will(f"{topic}/will", b"gone", 1)
    async with client(broker.ports["tcp"], version) as watcher:
        await watcher.subscribe(f"{topic}/#", 1)
        for _ in range(5):
            async with client(broker.ports["tcp"], version, will=gone) as one:
                await one.publish(topic, b"here", 1)
        await watcher.publish(topic, b"end", 1)
        assert await payloads(watcher.messages, 6) == [b"here"] * 5 + [b"end"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_thirty_clients_at_once(broker: Served, topic: str, version: ProtocolVersion) -> None:
    async def echo(number: int) -> list[bytes]:
        async with client(broker.ports["tcp"], version) as one:
            await one.subscribe(f"{topic}/{number}", 1)
            await one.publish(f"{topic}/{number}", b"%d" % number, 1)
            return await payloads(one.messages, 1)

    got = await asyncio.gather(*(echo(number) for number in range(30)))
    assert got == [[b"%d" % number] for number in range(30)]
