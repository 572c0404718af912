"""Test transfers of clients' sockets between nodes on one machine. tests/workers tests them with brokers."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hookmq_cluster.transfer
import pytest
from hookmq.cluster_api import Here, RelayTarget
from hookmq.plugin import ConfigError, Peer, Scope
from hookmq.server_api import Wire
from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_handshake import Request, encode_request
from hookmq_cluster.relay_listener import RelayListener, TransferredClient
from hookmq_cluster.relay_stream import TURN
from hookmq_cluster.transfer import (
    MAX_MESSAGE,
    TransferListener,
    Transfers,
    prepare,
    socket_path,
)

PEER = Peer("192.0.2.1", 5)
REQUEST = Request("a", "b", "front", "m/", "", PEER)
SCOPE = Scope("front", mount_point="m/")


class Echo:
    """A broker's connection that sends back what it gets."""

    def __init__(self, wire: Wire, peer: Peer) -> None:
        self.wire = wire
        self.peer = peer
        self.ended = asyncio.Event()

    def feed(self, data: bytes) -> None:
        self.wire.write(data)

    def closed(self, error: str = "") -> None:
        self.ended.set()

    def pause_writing(self) -> None:
        pass

    resume_writing = pause_writing


class Desk:
    """Node b, which receives clients, and a sender of node a."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logged: list[dict[str, Any]] = []
        self.counters = RelayCounters(self.log)
        self.accepted: list[Echo] = []
        self.relays = RelayListener(
            "127.0.0.1:0", "c", "secret", self.find, lambda lane: lane == "b", self.counters
        )
        self.path = socket_path(folder, "b")
        self.listener = TransferListener(self.path, self.relays.take, self.counters)
        self.sender = Transfers(folder, "a", RelayCounters(self.log))
        self.changed = asyncio.Event()

    def log(self, level: str, event: str, /, **fields: object) -> None:
        self.logged.append({"event": event, **fields})
        self.changed.set()

    def find(self, name: str) -> RelayTarget | None:
        return RelayTarget(SCOPE, self.accept) if name == "front" else None

    def accept(self, wire: Wire, peer: Peer) -> Echo:
        self.accepted.append(Echo(wire, peer))
        return self.accepted[-1]

    def send(self, client: socket.socket, data: bytes, lane: str = "b", **scope: Any) -> bool:
        transfer = self.sender.transfer("b", lane, Here())
        return transfer.send(client.fileno(), PEER, replace(SCOPE, **scope), data)

    async def refused(self) -> str:
        """Return the reason in the next log line about a refusal."""
        async with asyncio.timeout(60):
            while not self.logged:
                self.changed.clear()
                await self.changed.wait()
        found = self.logged.pop(0)
        assert found["event"] == "cluster.relay_refused"
        return str(found["reason"])

    def raw(self, data: bytes, *descriptors: int) -> socket.socket:
        """Send a message of any kind."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        sock.connect(str(self.path))
        if data or descriptors:
            socket.send_fds(sock, [data or b"x"], descriptors)
        return sock


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection: the client's, and the one that a node has accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        node, _ = server.accept()
    client.setblocking(False)
    node.setblocking(False)
    return client, node


async def read(sock: socket.socket, size: int = 65536) -> bytes:
    async with asyncio.timeout(60):
        try:
            return await asyncio.get_running_loop().sock_recv(sock, size)
        except ConnectionResetError:
            return b""


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    prepare(tmp_path / "t")
    desk = Desk(tmp_path / "t")
    desk.listener.open()
    yield desk
    desk.listener.close()
    await desk.relays.close()
    assert not desk.path.exists()
    assert desk.counters.open_in == 0


async def test_a_client_goes_on_at_the_other_node(desk: Desk) -> None:
    client, node = pair()
    assert desk.send(node, b"connect")
    node.close()
    assert await read(client) == b"connect"
    client.send(b"more")
    assert await read(client) == b"more"
    [echo] = desk.accepted
    assert echo.peer == PEER
    assert (desk.counters.transferred_in, desk.counters.open_in) == (1, 1)
    client.close()
    async with asyncio.timeout(60):
        await echo.ended.wait()
    assert desk.counters.open_in == 0


async def test_bytes_on_their_way_are_not_lost(desk: Desk) -> None:
    client, node = pair()
    client.send(b"2")  # the node has not read them
    assert desk.send(node, b"1")
    node.close()
    client.send(b"3")
    found = b""
    while len(found) < 3:
        found += await read(client)
    assert found == b"123"
    client.close()


async def test_many_clients_at_a_time(desk: Desk) -> None:
    pairs = [pair() for _ in range(150)]
    for number, (_, node) in enumerate(pairs):
        assert desk.send(node, b"%d" % number)
        node.close()
    for number, (client, _) in enumerate(pairs):
        assert await read(client) == b"%d" % number
        client.close()


@pytest.mark.parametrize(
    ("lane", "scope", "reason"),
    [
        ("x", {}, "lane x is not here"),
        ("b", {"name": "back"}, "there is no open listener 'back' here"),
        ("b", {"mount_point": ""}, "mount_point of listener 'front' is 'm/' here, and '' there"),
    ],
)
async def test_a_client_that_does_not_belong_here_is_closed(
    desk: Desk, lane: str, scope: dict[str, str], reason: str
) -> None:
    client, node = pair()
    assert desk.send(node, b"connect", lane, **scope)
    node.close()
    assert await desk.refused() == reason
    assert await read(client) == b""
    assert not desk.accepted
    client.close()


async def test_a_node_that_is_not_there_takes_no_client(desk: Desk) -> None:
    client, node = pair()
    assert desk.sender.reaches("b")
    assert not desk.sender.reaches("c")
    assert not desk.sender.transfer("c", "c", Here()).send(node.fileno(), PEER, SCOPE, b"")
    desk.listener.close()
    assert not desk.sender.reaches("b")
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(str(desk.path))
    stale.close()
    assert desk.sender.reaches("b")
    assert not desk.send(node, b"connect")
    client.send(b"still here")
    assert node.recv(100) == b"still here"
    desk.listener.open()  # replaces the stale socket
    client.close()
    node.close()


async def test_a_large_message_is_not_transferred(desk: Desk) -> None:
    client, node = pair()
    assert not desk.send(node, bytes(MAX_MESSAGE))
    assert not desk.send(node, b"", name="x" * 20_000)
    data = os.urandom(150_000)
    assert desk.send(node, data)
    found = b""
    while len(found) < len(data):
        found += await read(client)
    assert found == data
    client.close()
    node.close()


async def test_two_processes_cannot_use_one_socket(desk: Desk) -> None:
    other = TransferListener(desk.path, desk.relays.take, desk.counters)
    with pytest.raises(ConfigError, match="another process uses it"):
        other.open()
    assert desk.path.exists()
    desk.path.with_name("file.sock").touch()
    with pytest.raises(ConfigError, match="the file exists and is not a socket"):
        TransferListener(desk.path.with_name("file.sock"), desk.relays.take, desk.counters).open()
    assert desk.path.with_name("file.sock").exists()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x02\x00\x00", "it sent a message of another version"),
        (b"\x01\x00", "it sent a message of another version"),
        (b"\x01\x00\x01\xc1", "it sent a malformed request"),
        (b"\x01\xff\xff" + encode_request(REQUEST), "it sent an incomplete message"),
    ],
)
async def test_wrong_messages_are_refused(desk: Desk, data: bytes, error: str) -> None:
    client, node = pair()
    desk.raw(data, node.fileno()).close()
    node.close()
    assert await desk.refused() == error
    assert await read(client) == b""
    client.close()


async def test_wrong_descriptors_are_closed(desk: Desk) -> None:
    request = encode_request(REQUEST)
    message = b"\x01" + len(request).to_bytes(2, "big") + request
    before = len(os.listdir("/proc/self/fd"))
    first, second = os.pipe()
    client, node = pair()
    for descriptors in ((), (first,), (node.fileno(), node.fileno())):
        desk.counters._last.clear()  # log each refusal
        desk.raw(message, *descriptors).close()
        assert await desk.refused() == "a message without a socket"
    for one in (first, second):
        os.close(one)
    client.close()
    node.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not desk.accepted


async def test_a_sender_without_a_message_is_closed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.transfer, "DEADLINE", 0.05)
    silent = desk.raw(b"")
    assert await desk.refused() == "no message within 0.05 s"
    assert await read(silent) == b""
    silent.close()
    desk.counters._last.clear()
    desk.raw(b"").close()
    assert await desk.refused() == "a message without a socket"


async def test_too_many_silent_senders_are_closed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.transfer, "ARRIVING", 2)
    silent = [desk.raw(b"") for _ in range(3)]
    assert await read(silent[2]) == b""
    for one in silent:
        one.close()


def test_other_users_may_not_enter_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    prepare(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    prepare(folder)
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match="must belong to the broker's user and have mode 0700"):
        prepare(folder)
    with pytest.raises(ConfigError, match="transfers: "):
        prepare(Path("/dev/null/x"))


def test_systems_without_these_sockets_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.transfer, "_KIND", None)
    with pytest.raises(ConfigError, match="has no sequenced Unix sockets"):
        prepare(tmp_path)


class Bulk(asyncio.Transport):
    """A transport that counts what its reading is told."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None:
        pass

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


@pytest.mark.parametrize("paused", [False, True])
async def test_one_that_never_stops_sending_lets_the_others_have_their_turn(
    desk: Desk, paused: bool
) -> None:
    client = TransferredClient(desk.relays, REQUEST, b"connect")
    transport = Bulk()
    client.stream.connection_made(transport)
    client.stream.data_received(bytes(TURN - 1))
    assert transport.calls == []
    client.stream.data_received(bytes(TURN))
    assert transport.calls == ["pause"]
    if paused:
        client.pause_reading()
    await asyncio.sleep(0)
    assert transport.calls == (["pause", "pause"] if paused else ["pause", "resume"])
    if paused:
        client.resume_reading()
        assert transport.calls[-1] == "resume"
    client.stream.connection_lost(None)
