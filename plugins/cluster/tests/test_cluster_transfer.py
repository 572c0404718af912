"""Test transfers of clients' sockets between nodes on one machine. tests/workers tests them with brokers."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hookmq_cluster.transfer
import hookmq_cluster.transfer_listener
import pytest
from hookmq.cluster_api import Here, RelayTarget, SendSocket
from hookmq.plugin import ConfigError, Peer, Scope
from hookmq.server_api import Wire
from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_handshake import Request
from hookmq_cluster.relay_listener import RelayListener, TransferredClient
from hookmq_cluster.relay_stream import TURN
from hookmq_cluster.transfer import (
    MAX_DATA,
    MAX_QUESTION,
    Transfers,
    encode_question,
    prepare,
    socket_path,
)
from hookmq_cluster.transfer_listener import TransferListener

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
        self.listener = self.listen(self.path)
        self.sent = RelayCounters(self.log)
        self.sender = Transfers(folder, "c", "a", self.sent)
        self.changed = asyncio.Event()

    def log(self, level: str, event: str, /, **fields: object) -> None:
        self.logged.append({"event": event, **fields})
        self.changed.set()

    def listen(self, path: Path) -> TransferListener:
        return TransferListener(path, "c", self.relays.refusal, self.relays.take, self.counters)

    def find(self, name: str) -> RelayTarget | None:
        return RelayTarget(SCOPE, self.accept) if name == "front" else None

    def accept(self, wire: Wire, peer: Peer) -> Echo:
        self.accepted.append(Echo(wire, peer))
        return self.accepted[-1]

    async def ask(self, lane: str = "b", node: str = "b", **scope: Any) -> SendSocket | None:
        """Ask the node. Its answer holds until the next turn."""
        answer = asyncio.get_running_loop().create_future()
        ask = self.sender.transfer(node, lane, Here()).ask
        ask(PEER, replace(SCOPE, **scope), answer.set_result)
        async with asyncio.timeout(60):
            found: SendSocket | None = await answer
        return found

    async def send(self, client: socket.socket, data: bytes, lane: str = "b", **scope: Any) -> bool:
        """Transfer a client."""
        answer = asyncio.get_running_loop().create_future()

        def answered(send: SendSocket | None) -> None:
            answer.set_result(send is not None and send(client.fileno(), data))

        self.sender.transfer("b", lane, Here()).ask(PEER, replace(SCOPE, **scope), answered)
        async with asyncio.timeout(60):
            return bool(await answer)

    async def refused(self) -> str:
        """Return the reason in the next log line about a refusal."""
        async with asyncio.timeout(60):
            while not self.logged:
                self.changed.clear()
                await self.changed.wait()
        found = self.logged.pop(0)
        assert found["event"] == "cluster.relay_refused"
        return str(found["reason"])

    def raw(self) -> socket.socket:
        """Return a connection to the node."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        sock.connect(str(self.path))
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
    assert await desk.send(node, b"connect")
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
    assert await desk.send(node, b"1")
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
        assert await desk.send(node, b"%d" % number)
        node.close()
    for number, (client, _) in enumerate(pairs):
        assert await read(client) == b"%d" % number
        client.close()


@pytest.mark.parametrize(
    ("lane", "scope"),
    [("x", {}), ("b", {"name": "back"}), ("b", {"mount_point": ""}), ("b", {"identity": "cn"})],
)
async def test_a_client_that_does_not_belong_there_stays(
    desk: Desk, lane: str, scope: dict[str, str]
) -> None:
    client, node = pair()
    assert not await desk.send(node, b"connect", lane, **scope)
    assert desk.sent.transfers_declined == 1
    client.send(b"still here")
    assert node.recv(100) == b"still here"
    assert not desk.accepted
    assert not desk.logged
    client.close()
    node.close()


async def test_a_listener_that_closes_after_the_answer(desk: Desk) -> None:
    client, node = pair()
    desk.relays.refusal = lambda request: ""  # type: ignore[method-assign]
    desk.listener.close()
    desk.listener = desk.listen(desk.path)
    desk.listener.open()
    assert await desk.send(node, b"connect", name="back")
    node.close()
    assert await desk.refused() == "listener 'back' is not open here"
    assert await read(client) == b""
    client.close()


async def test_a_node_of_another_cluster_takes_no_client(desk: Desk) -> None:
    other = Transfers(desk.folder, "d", "a", desk.sent)
    answer = asyncio.get_running_loop().create_future()
    other.transfer("b", "b", Here()).ask(PEER, SCOPE, answer.set_result)
    assert await answer is None


async def test_a_node_that_does_not_answer_takes_no_client(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.transfer, "ANSWER", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hanging:
        hanging.bind(str(socket_path(desk.folder, "h")))
        hanging.listen(1)
        assert await desk.ask(node="h") is None
        assert await desk.ask(node="h") is None
        assert await desk.ask(node="h") is None  # its queue is full
    assert desk.sent.transfers_declined == 3


async def test_a_client_that_has_left_is_not_missed(desk: Desk) -> None:
    assert await desk.ask() is not None
    client, node = pair()
    assert await desk.send(node, b"connect")  # the node has seen the end of the first one
    node.close()
    assert await read(client) == b"connect"
    assert not desk.logged
    client.close()


async def test_a_node_that_is_not_there_takes_no_client(desk: Desk) -> None:
    client, node = pair()
    assert desk.sender.reaches("b")
    assert not desk.sender.reaches("c")
    assert await desk.ask(node="c") is None
    desk.listener.close()
    assert not desk.sender.reaches("b")
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(str(desk.path))
    stale.close()
    assert desk.sender.reaches("b")
    assert not await desk.send(node, b"connect")
    client.send(b"still here")
    assert node.recv(100) == b"still here"
    desk.listener.open()  # replaces the stale socket
    client.close()
    node.close()


async def test_a_large_message_is_not_transferred(desk: Desk) -> None:
    client, node = pair()
    assert not await desk.send(node, bytes(MAX_DATA + 1))
    assert not await desk.send(node, b"", name="x" * 20_000)
    data = os.urandom(MAX_DATA - 40_000)
    assert await desk.send(node, data)
    found = b""
    while len(found) < len(data):
        found += await read(client)
    assert found == data
    client.close()
    node.close()


async def test_two_processes_cannot_use_one_socket(desk: Desk) -> None:
    other = desk.listen(desk.path)
    with pytest.raises(ConfigError, match="another process uses it"):
        other.open()
    assert desk.path.exists()
    desk.path.with_name("file.sock").touch()
    with pytest.raises(ConfigError, match="the file exists and is not a socket"):
        desk.listen(desk.path.with_name("file.sock")).open()
    assert desk.path.with_name("file.sock").exists()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "it asked nothing"),
        (b"\x02", "a question of another version"),
        (b"\x01\x01c", "a question of another version"),
        (b"\x02\x01c\xc1", "a malformed request"),
        (b"\x02\xffc", "a malformed request"),
        (b"\x02\x01c" + bytes(MAX_QUESTION), "a malformed request"),
    ],
)
async def test_wrong_questions_are_refused(desk: Desk, data: bytes, error: str) -> None:
    sock = desk.raw()
    if data:
        sock.send(data)
        assert await read(sock) == b""
    sock.close()
    assert await desk.refused() == error


async def test_wrong_descriptors_are_closed(desk: Desk) -> None:
    before = len(os.listdir("/proc/self/fd"))
    first, second = os.pipe()
    client, node = pair()
    for descriptors in ((), (first,), (node.fileno(), node.fileno())):
        desk.counters._last.clear()  # log each refusal
        sock = desk.raw()
        sock.send(encode_question("c", REQUEST))
        assert await read(sock) == b"\0"
        socket.send_fds(sock, [b"connect"], descriptors)
        assert await desk.refused() == "a message without a socket"
        sock.close()
    for one in (first, second):
        os.close(one)
    client.close()
    node.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not desk.accepted


async def test_a_process_without_free_descriptors_rests(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.transfer_listener, "REST", 0.01)
    accept = desk.listener._sock.accept  # type: ignore[union-attr]
    failures = ["1", "2"]

    class Full:
        """The listening socket while the first two calls find no free descriptor."""

        def __init__(self, sock: socket.socket) -> None:
            self.fileno, self.close = sock.fileno, sock.close

        def accept(self) -> Any:
            if failures:
                raise OSError(failures.pop(0))
            return accept()

    desk.listener._sock = Full(desk.listener._sock)  # type: ignore[arg-type, assignment]
    assert await desk.ask() is not None
    assert not failures
    assert await desk.refused() == "1"


async def test_a_sender_without_free_descriptors_keeps_the_client(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(hookmq_cluster.transfer, "new_socket", fail)
    assert await desk.ask() is None
    assert desk.sent.transfers_declined == 1


async def test_a_descriptor_is_kept_free_for_the_client(desk: Desk) -> None:
    before = len(os.listdir("/proc/self/fd"))
    sock = desk.raw()
    sock.send(encode_question("c", REQUEST))
    assert await read(sock) == b"\0"
    assert len(os.listdir("/proc/self/fd")) == before + 3  # ours, the node's, and the place
    client, node = pair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd"))) + 1
    spare = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        with contextlib.suppress(OSError):  # until no descriptor is free
            while True:
                spare.append(os.dup(0))
        socket.send_fds(sock, [b"connect"], (node.fileno(),))
        assert await read(client) == b"connect"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in spare:
            os.close(one)
    for end in (sock, client, node):
        end.close()


async def test_a_sender_without_a_message_is_closed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.transfer_listener, "DEADLINE", 0.05)
    silent = desk.raw()
    assert await desk.refused() == "nothing was sent within 0.05 s"
    assert await read(silent) == b""
    silent.close()


async def test_too_many_silent_senders_are_closed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_cluster.transfer_listener, "ARRIVING", 2)
    silent = [desk.raw() for _ in range(3)]
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
    monkeypatch.setattr(hookmq_cluster.transfer, "AVAILABLE", False)
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
