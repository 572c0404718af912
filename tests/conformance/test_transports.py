"""Test chapters 4.2 and 6: TCP and WebSocket on real ports, with packets assembled by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import mqttbytes as m
import pytest
from bytememory import LEVELS
from hookmq.broker import Broker
from hookmq.model.settings import AuthSettings, AuthzSettings, BrokerSettings, Settings
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings
from statements import statement

UPGRADE = (
    "GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n{}\r\n"
)
TEXT, BINARY, CLOSE = 1, 2, 8


class Peer:
    """A TCP connection to the broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(60):
            return await self.reader.readexactly(size)

    async def read_to_end(self) -> bytes:
        async with asyncio.timeout(60):
            return await self.reader.read()

    async def packet(self) -> bytes:
        """Return the next packet, which must be shorter than 130 bytes."""
        head = await self.read(2)
        return head + await self.read(head[1])


class WebSocket(Peer):
    """A WebSocket connection. `read` returns the contents of binary frames as one stream."""

    stream = b""
    head = b""
    """The response to the handshake."""

    async def upgrade(self, *lines: str) -> None:
        """Perform the handshake."""
        self.writer.write(UPGRADE.format("".join(f"{line}\r\n" for line in lines)).encode())
        async with asyncio.timeout(60):
            self.head = await self.reader.readuntil(b"\r\n\r\n")
        assert self.head.startswith(b"HTTP/1.1 101"), self.head

    def send_frame(self, opcode: int, data: bytes, last: bool = True) -> None:
        assert len(data) < 126
        head = bytes((0x80 * last | opcode, 0x80 | len(data)))
        self.writer.write(head + b"\x01\x02\x03\x04" + mask(data))

    def send(self, data: bytes) -> None:
        self.send_frame(BINARY, data)

    async def frame(self) -> tuple[int, bytes]:
        """Return the next frame from the broker as (opcode, data)."""
        first, size = await super().read(2)
        assert first & 0x80, "a fragment"
        assert size < 127
        if size == 126:
            size = int.from_bytes(await super().read(2), "big")
        return first & 15, await super().read(size)

    async def read(self, size: int) -> bytes:
        while len(self.stream) < size:
            opcode, data = await self.frame()
            assert opcode == BINARY
            self.stream += data
        data, self.stream = self.stream[:size], self.stream[size:]
        return data


def mask(data: bytes) -> bytes:
    return bytes(byte ^ (1 + index % 4) for index, byte in enumerate(data))


Dial = Callable[..., Any]


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """Connect to a broker with a TCP and a WebSocket listener."""
    runtime = AsyncioRuntime()
    settings = Settings(
        broker=BrokerSettings(shutdown_timeout=2.0),
        auth=AuthSettings("allow"),
        authz=AuthzSettings("allow"),
    )
    listeners = [
        ListenerSettings(name=kind, type=kind, bind="127.0.0.1:0", close_timeout=1.0)
        for kind in ("tcp", "ws")
    ]
    node = Server(Broker(settings, runtime), listeners, runtime)
    await node.start()
    peers: list[Peer] = []

    async def connect(kind: str, *lines: str) -> Any:
        host, _, port = node.addresses()[kind].rpartition(":")
        streams = await asyncio.open_connection(host, int(port))
        peer = Peer(*streams) if kind == "tcp" else WebSocket(*streams)
        peers.append(peer)
        if isinstance(peer, WebSocket):
            await peer.upgrade(*(lines or ("Sec-WebSocket-Protocol: mqtt",)))
        return peer

    yield connect
    for peer in peers:
        peer.writer.transport.abort()
    await node.stop()
    await runtime.close()


@statement("MQTT-4.2.0-1", "MQTT311-7.1.1-1", "MQTT311-7.0.0-2", "MQTT-6.0.0-1", "MQTT311-6.0.0-1")
@LEVELS
@pytest.mark.parametrize("kind", ["tcp", "ws"])
async def test_messages_over_a_real_stream(dial: Dial, kind: str, level: int) -> None:
    """Clients exchange messages without properties over a real, ordered stream."""
    client = await dial(kind)
    client.send(m.connect("c", level=level))
    assert (await client.packet())[2:4] == b"\x00\x00"
    client.send(m.subscribe(1, ("t", 2), level=level))
    assert await client.packet() == m.suback(1, 2, level=level)
    for number in range(1, 101):
        client.send(m.publish("t", bytes((number,)) * 20, 1, number, level=level))
    seen = [await client.packet() for _ in range(200)]
    assert [one for one in seen if one[0] == 0x40] == [m.puback(n) for n in range(1, 101)]
    assert [one for one in seen if one[0] != 0x40] == [
        m.publish("t", bytes((n,)) * 20, 1, n, level=level) for n in range(1, 101)
    ]
    client.send(m.disconnect())
    assert await client.read_to_end() in (b"", b"\x88\x02\x03\xe8")


@statement("MQTT-6.0.0-1", "MQTT311-6.0.0-1")
async def test_a_text_frame_closes(dial: Dial) -> None:
    client = await dial("ws")
    client.send(m.connect("c"))
    await client.packet()
    client.send_frame(TEXT, m.PINGREQ)
    data = await client.read_to_end()
    assert data[:1] == b"\x88"  # a close frame, then the end of the stream, without a PINGRESP
    assert data[2:4] == (1003).to_bytes(2, "big")
    assert len(data) == 2 + data[1]


@statement("MQTT-6.0.0-1", "MQTT311-6.0.0-1")
async def test_a_text_frame_instead_of_connect_closes(dial: Dial) -> None:
    client = await dial("ws")
    client.send_frame(TEXT, m.connect("c"))
    assert (await client.read_to_end())[:1] == b"\x88"


@statement("MQTT-6.0.0-2", "MQTT311-6.0.0-2")
@LEVELS
async def test_frames_have_nothing_to_do_with_packets(dial: Dial, level: int) -> None:
    connect, publish = m.connect("c", level=level), m.publish("t", b"x", level=level)
    client = await dial("ws")
    # Several packets and the beginning of another in one frame
    client.send(connect + m.subscribe(1, ("t", 0), level=level) + publish[:3])
    assert (await client.packet())[2:4] == b"\x00\x00"
    assert await client.packet() == m.suback(1, 0, level=level)
    client.send(publish[3:] + m.PINGREQ[:1])
    assert await client.packet() == publish
    client.send(m.PINGREQ[1:])
    assert await client.packet() == m.PINGRESP
    # Byte by byte, an empty frame in between, and one message in three fragments
    for index in range(len(publish)):
        client.send(publish[index : index + 1])
        client.send(b"")
    assert await client.packet() == publish
    client.send_frame(BINARY, publish[:2], last=False)
    client.send_frame(0, publish[2:3], last=False)
    client.send_frame(0, publish[3:])
    assert await client.packet() == publish


@statement("MQTT-6.0.0-1", "MQTT311-6.0.0-1")
async def test_the_broker_sends_binary_frames(dial: Dial) -> None:
    client = await dial("ws")
    client.send(m.connect("c") + m.PINGREQ)
    data = b""
    while not data.endswith(m.PINGRESP):
        opcode, more = await client.frame()
        assert opcode == BINARY
        data += more
    assert [frame[0] for frame in m.frames(data)] == [0x20, 0xD0]


@statement("MQTT-6.0.0-4", "MQTT311-6.0.0-4")
@pytest.mark.parametrize("offered", ["mqtt", "soap, mqtt", "mqtt, chat"])
async def test_the_subprotocol_is_mqtt(dial: Dial, offered: str) -> None:
    client = await dial("ws", f"Sec-WebSocket-Protocol: {offered}")
    lines = client.head.decode().lower().split("\r\n")
    chosen = [line for line in lines if line.startswith("sec-websocket-protocol")]
    assert chosen == ["sec-websocket-protocol: mqtt"]
