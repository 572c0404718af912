"""Test how clients and plugins see the draining of a server that keeps running."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
from hookmq.broker import Broker
from hookmq.model.drain import DrainRequest, DrainStatus
from hookmq.model.settings import AuthSettings, AuthzSettings, BrokerSettings, Settings
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.client_drain import TURN, ClientDrain
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings

Start = Callable[..., Any]
TCP = ListenerSettings(name="tcp", bind="127.0.0.1:0")
HTTP = ListenerSettings(name="http", type="http", bind="127.0.0.1:0")


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Yield a function that starts servers whose brokers accept every client. The servers are stopped at the end."""
    runtime = AsyncioRuntime()
    nodes: list[Server] = []

    async def begin(**options: Any) -> Server:
        settings = Settings(
            broker=BrokerSettings(**options),
            auth=AuthSettings("allow"),
            authz=AuthzSettings("allow"),
        )
        node = Server(Broker(settings, runtime), (TCP, HTTP), runtime)
        nodes.append(node)
        await node.start()
        return node

    yield begin
    for node in nodes:
        await node.stop()
    await runtime.close()


class Link(NamedTuple):
    """The client's end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def connect(node: Server, dial: Any, name: bytes, version: int = 5) -> Link:
    """Connect an MQTT client with a one-byte client id, and return the connection after CONNACK."""
    reader, writer = await dial(node.addresses()["tcp"])
    properties = b"\0" if version == 5 else b""
    body = b"\0\4MQTT" + bytes((version,)) + b"\2\0\x3c" + properties + b"\0\1" + name
    writer.write(b"\x10" + bytes((len(body),)) + body)
    async with asyncio.timeout(60):
        head = await reader.readexactly(2)
        assert head[0] == 0x20
        assert (await reader.readexactly(head[1]))[1] == 0
    return Link(reader, writer)


async def rest(link: Link) -> bytes:
    """Return the bytes that arrive until the server ends the connection. Then close it, because the server waits for
    the client to do so.
    """
    async with asyncio.timeout(60):
        try:
            return await link.reader.read()
        except ConnectionError:  # the connection was closed before its bytes were read
            return b""
        finally:
            link.writer.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition()` is true, checking it in every turn of the event loop."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while not condition():
            turned = loop.create_future()
            loop.call_soon(turned.set_result, None)
            await turned


async def readiness(node: Server, dial: Any) -> bytes:
    """Return the status line and the body of ``/readyz``."""
    link = Link(*await dial(node.addresses()["http"]))
    link.writer.write(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
    answer = await rest(link)
    return answer.split(b"\r\n")[0][9:12] + answer.split(b"\r\n\r\n")[1]


async def test_clients_are_disconnected_in_slices_and_the_server_continues(
    start: Start, dial: Any
) -> None:
    node = await start()
    drainer = node.broker.drainer
    assert drainer.status() == DrainStatus(False, 0, 0)
    links = [await connect(node, dial, name) for name in (b"a", b"b", b"c")]
    links.append(await connect(node, dial, b"d", version=4))
    silent = Link(*await dial(node.addresses()["tcp"]))
    drainer.begin(DrainRequest(seconds=0.2))
    assert drainer.status().waiting == 2  # of 4, in two slices
    assert await readiness(node, dial) == b"503draining\n"
    late = Link(*await dial(node.addresses()["tcp"]))
    assert await rest(late) == b""
    assert await rest(silent) == b""
    assert [await rest(one) for one in links] == [b"\xe0\x01\x8b"] * 3 + [b""]
    await until(lambda: drainer.status().connections == 0)
    assert drainer.status() == DrainStatus(True, 0, 0)
    with pytest.raises(RuntimeError, match="the broker is draining"):
        drainer.begin(DrainRequest())
    assert drainer.cancel()
    assert not drainer.cancel()
    assert await readiness(node, dial) == b"200ready\n"
    assert node.phase() == "ready"
    await connect(node, dial, b"a")


async def test_a_cancelled_drain_leaves_the_clients_that_wait(start: Start, dial: Any) -> None:
    node = await start()
    first, second = await connect(node, dial, b"a"), await connect(node, dial, b"b")
    node.broker.drainer.begin(DrainRequest(seconds=3600))
    assert await rest(first) == b"\xe0\x01\x8b"
    assert node.broker.drainer.cancel()
    assert node.broker.drainer.status().waiting == 0
    node.broker.drainer.begin(DrainRequest(seconds=0))
    assert await rest(second) == b"\xe0\x01\x8b"


@pytest.mark.parametrize(
    ("setting", "request_", "code", "reference"),
    [
        ("", DrainRequest(seconds=0, reference="b:1"), 0x9C, b"b:1"),
        ("c:1", DrainRequest(seconds=0), 0x9C, b"c:1"),
        ("c:1", DrainRequest(seconds=0, moved=True), 0x9D, b"c:1"),
        ("c:1", DrainRequest(seconds=0, reference="b:1", moved=True), 0x9D, b"b:1"),
    ],
)
async def test_the_server_to_use(
    start: Start, dial: Any, setting: str, request_: DrainRequest, code: int, reference: bytes
) -> None:
    node = await start(server_reference=setting)
    link = await connect(node, dial, b"a")
    node.broker.drainer.begin(request_)
    properties = b"\x1c\0" + bytes((len(reference),)) + reference
    body = bytes((code, len(properties))) + properties
    assert await rest(link) == b"\xe0" + bytes((len(body),)) + body


async def test_a_server_that_is_not_ready_does_not_drain(start: Start) -> None:
    node = await start()
    drainer = node.broker.drainer
    with pytest.raises(ValueError, match="moved needs a server reference"):
        drainer.begin(DrainRequest(moved=True))
    assert node.phase() == "ready"
    drainer.begin(DrainRequest())
    await node.stop()
    assert not drainer.cancel()
    with pytest.raises(RuntimeError, match="the broker is stopping"):
        drainer.begin(DrainRequest())


class Clients:
    """A broker with clients. The test advances the clock that the drain's timers use."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.parts: list[tuple[float, int]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.settings = Settings()
        self._count = count

    def network_clients(self) -> list[Any]:
        return [object()] * self._count

    def disconnect_clients(self, part: list[Any], code: object, reference: str) -> None:
        self.parts.append((round(self.now, 3), len(part)))

    def call_later(self, pause: float, call: Callable[..., None], *arguments: Any) -> None:
        self.timers.append((self.now + pause, lambda: call(*arguments)))

    def drained(self, seconds: float) -> list[tuple[float, int]]:
        fake: Any = self
        ClientDrain(fake, fake, lambda: (), lambda: "ready").begin(DrainRequest(seconds=seconds))
        while self.timers:
            self.now, call = self.timers.pop()
            call()
        return self.parts


def test_a_drain_takes_the_time_it_was_given() -> None:
    assert Clients(3).drained(30) == [(0, 1), (10, 1), (20, 1)]
    assert Clients(0).drained(30) == [(0, 0)]
    whole = Clients(1000).drained(30)
    assert {count for _, count in whole} == {4}
    assert whole[-1][0] == 29.88
    assert len(Clients(299).drained(30)) == 299


def test_a_turn_disconnects_a_bounded_number_of_clients() -> None:
    assert Clients(2 * TURN + 1).drained(0) == [(0, TURN), (0, TURN), (0, 1)]
    parts = Clients(3 * TURN).drained(0.2)
    assert parts == [(0, TURN), (0, TURN // 2), (0.1, TURN), (0.1, TURN // 2)]


async def test_a_stop_ends_the_slices(start: Start, dial: Any) -> None:
    node = await start()
    links = [await connect(node, dial, name) for name in (b"a", b"b")]
    node.broker.drainer.begin(DrainRequest(seconds=3600))
    assert node.broker.drainer.status().waiting == 1
    stopping = asyncio.create_task(node.stop())
    assert [await rest(one) for one in links] == [b"\xe0\x01\x8b"] * 2
    await stopping
    assert node.broker.drainer.status().waiting == 0
