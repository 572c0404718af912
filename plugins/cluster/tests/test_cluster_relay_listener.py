"""Test what strangers can do to a relay listener. tests/cluster tests it with brokers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import hookmq_cluster.relay_listener
import hookmq_cluster.relay_stream
import pytest
from hookmq.cluster_api import RelayTarget
from hookmq.plugin import ConfigError, MetricRegistry, Peer, Scope
from hookmq.server_api import Wire
from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_handshake import Request, SenderHandshake
from hookmq_cluster.relay_listener import RelayListener

REQUEST = Request("a", "b", "front", "", "", Peer("192.0.2.1", 5))


class Echo:
    """A broker's connection that sends back what it gets."""

    def __init__(self, wire: Wire, peer: Peer) -> None:
        self.wire = wire
        self.peer = peer
        self.events: list[str] = []
        self._changed = asyncio.Event()

    def _add(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, event: str) -> None:
        async with asyncio.timeout(60):
            while event not in self.events:
                self._changed.clear()
                await self._changed.wait()

    def feed(self, data: bytes) -> None:
        self.wire.write(data)
        if data == b"bye":
            self.wire.close()

    def closed(self, error: str = "") -> None:
        self._add("closed")

    def pause_writing(self) -> None:
        self._add("pause")

    def resume_writing(self) -> None:
        self._add("resume")


class Desk:
    """A listener, its log, and the connections it has accepted."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.accepted: list[Echo] = []
        self.counters = RelayCounters(self.log)
        self.listener = RelayListener(
            "127.0.0.1:0", "c", "secret", self.find, lambda lane: lane == "b", self.counters
        )

    def log(self, level: str, event: str, /, **fields: object) -> None:
        self.logged.append({"event": event, **fields})

    def find(self, name: str) -> RelayTarget | None:
        return RelayTarget(Scope("front"), self.accept) if name == "front" else None

    def accept(self, wire: Wire, peer: Peer) -> Echo:
        self.accepted.append(Echo(wire, peer))
        return self.accepted[-1]

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.listener.address.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def ask(
        self, request: Request = REQUEST
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection that has completed the handshake up to the reply."""
        reader, writer = await self.dial()
        sender = SenderHandshake("c", "secret")
        writer.write(sender.hello())
        while not sender.challenge(await some(reader)):
            pass
        writer.write(sender.request(request))
        return reader, writer


async def some(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        return await reader.read(65536)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return everything until the listener closes the connection."""
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    await desk.listener.open()
    yield desk
    await desk.listener.close()
    assert not desk.listener.clients
    assert desk.listener.arriving == 0
    assert desk.counters.open_in == 0


async def test_bytes_pass_in_both_directions(desk: Desk) -> None:
    reader, writer = await desk.ask()
    writer.write(b"hello")
    async with asyncio.timeout(60):
        assert await reader.readexactly(7) == b"\0\0hello"
    assert desk.accepted[0].peer == REQUEST.peer
    writer.write(b"bye")
    assert await rest(reader) == b"bye"
    writer.close()


async def test_a_request_and_its_first_bytes_may_arrive_together(desk: Desk) -> None:
    reader, writer = await desk.dial()
    sender = SenderHandshake("c", "secret")
    writer.write(sender.hello())
    assert sender.challenge(await some(reader))
    writer.write(sender.request(REQUEST) + b"bye")
    writer.write_eof()
    assert await rest(reader) == b"\0\0bye"
    writer.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lane": "z"}, b"lane z is not here"),
        ({"listener": "web"}, b"listener 'web' is not open here"),
        ({"identity": "san"}, b"identity of listener 'front' is '' here, and 'san' there"),
    ],
)
async def test_a_request_that_does_not_fit_is_refused(
    desk: Desk, changes: dict[str, Any], reason: bytes
) -> None:
    reader, writer = await desk.ask(REQUEST._replace(**changes))
    assert await rest(reader) == bytes((1, len(reason))) + reason
    writer.close()
    assert not desk.accepted
    [logged] = desk.logged
    assert logged["event"] == "cluster.relay_refused"
    assert logged["peer"] == "a"
    assert logged["reason"] == reason.decode()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", bytes(100_000), b"HMQR\x01" + bytes(33)])  # fmt: skip
async def test_a_stranger_is_closed_at_once(desk: Desk, data: bytes) -> None:
    reader, writer = await desk.dial()
    writer.write(data)
    assert await rest(reader) == b""
    writer.close()
    assert not desk.accepted
    assert desk.counters.refused_in == 1


async def test_a_silent_stranger_is_closed_in_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.relay_listener, "DEADLINE", 0.05)
    reader, writer = await desk.dial()
    assert await rest(reader) == b""
    writer.close()
    assert "no handshake within 0.05 s" in desk.logged[0]["reason"]


async def test_a_stranger_that_guesses_the_secret_is_closed(desk: Desk) -> None:
    reader, writer = await desk.dial()
    sender = SenderHandshake("c", "secret")
    writer.write(sender.hello())
    assert sender.challenge(await some(reader))
    sender._secret = b"guess"
    writer.write(sender.request(REQUEST))
    assert await rest(reader) == b""
    writer.close()
    assert not desk.accepted


async def test_the_number_of_handshakes_is_limited(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.relay_listener, "ARRIVING", 2)
    strangers = [await desk.dial() for _ in range(2)]
    for _, writer in strangers:
        writer.write(b"HMQR")
    reader, late = await desk.dial()
    assert await rest(reader) == b""
    late.close()
    assert desk.logged[0]["reason"] == "too many handshakes at a time"
    for reader, writer in strangers:
        writer.write(b"X" * 40)
        assert await rest(reader) == b""
        writer.close()
    _, writer = await desk.ask()
    writer.write(b"bye")
    writer.close()


async def test_log_lines_about_strangers_are_rare(desk: Desk) -> None:
    for _ in range(5):
        reader, writer = await desk.dial()
        writer.write(b"no")
        await rest(reader)
        writer.close()
    assert len(desk.logged) == 1
    assert desk.counters.refused_in == 5


async def test_a_node_that_does_not_read_pauses_the_broker(desk: Desk) -> None:
    reader, writer = await desk.ask()
    async with asyncio.timeout(60):
        assert await reader.readexactly(2) == b"\0\0"
    [echo] = desk.accepted
    for _ in range(100):
        echo.wire.write(bytes(100_000))
    assert echo.events == ["pause"]
    size = 0
    while size < 10_000_000:
        size += len(await some(reader))
    await echo.until("resume")
    writer.close()


async def test_a_node_that_does_not_close_is_aborted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.relay_stream, "LINGER", 0.05)
    reader, writer = await desk.ask()
    async with asyncio.timeout(60):
        await reader.readexactly(2)
    [echo] = desk.accepted
    for _ in range(100):
        echo.wire.write(bytes(100_000))
    echo.wire.close()
    await echo.until("closed")
    writer.close()


async def test_an_address_that_is_taken_is_reported(desk: Desk) -> None:
    other = Desk()
    other.listener.address = desk.listener.address
    with pytest.raises(ConfigError, match=f"cannot listen on {desk.listener.address}"):
        await other.listener.open()
    other.listener.address = "nonsense"
    with pytest.raises(ConfigError, match="cannot listen on nonsense"):
        await other.listener.open()


async def test_a_closed_listener_closes_its_clients(desk: Desk) -> None:
    reader, writer = await desk.ask()
    async with asyncio.timeout(60):
        await reader.readexactly(2)
    await desk.listener.close()
    assert await rest(reader) == b""
    assert desk.accepted[0].events == ["closed"]
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await desk.dial()


def test_metrics() -> None:
    counters = RelayCounters(lambda *_, **__: None)
    counters.relayed_out = 3
    counters.open_in = 2
    registry = MetricRegistry()
    counters.register(registry.of("cluster"))
    lines = registry.text().splitlines()
    assert 'hookmq_cluster_relays_total{direction="out",plugin="cluster"} 3' in lines
    assert 'hookmq_cluster_open_relays{direction="in",plugin="cluster"} 2' in lines
