"""Test the byte-level client itself: its packets over a socket and in memory, and the errors that
it detects.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient, SocketTransport, over_tcp
from bytememory import LEVELS, MemoryTransport, in_memory, join
from hookmq.broker import Broker
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings
from hookmq_testing import Harness, LoopThread

Dial = Callable[..., ByteClient]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Yield the port of a broker in another thread."""
    with LoopThread() as thread:
        runtime = thread.call(AsyncioRuntime)
        settings = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))
        listener = ListenerSettings(name="tcp", type="tcp", bind="127.0.0.1:0", close_timeout=1.0)
        node = thread.call(Server, thread.call(Broker, settings, runtime), [listener], runtime)
        thread.run(node.start())
        yield int(node.addresses()["tcp"].rpartition(":")[2])
        thread.run(node.stop())
        thread.run(runtime.close())


@pytest.fixture(params=["socket", "memory"])
def dial(request: pytest.FixtureRequest) -> Iterator[Dial]:
    """Connect over either transport."""
    clients: list[ByteClient] = []

    def connect(level: int = 5) -> ByteClient:
        if request.param == "socket":
            made = over_tcp(request.getfixturevalue("port"), level)
        else:
            made = in_memory(request.getfixturevalue("harness"), level)
        clients.append(made)
        return made

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def pair() -> Iterator[tuple[ByteClient, socket.socket]]:
    """Return a client, and the other end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, over_tcp(server.getsockname()[1]) as one:
        other, _ = server.accept()
        with other:
            yield one, other


@LEVELS
def test_a_conversation(dial: Dial, level: int) -> None:
    one, two = dial(level).join("one"), dial(level).join("two")
    two.subscribe(("t", 1), ("u", 2))
    one.publish("t", b"x", 1, 7)
    one.get(m.puback(7))
    _, topic, packet_id, _, payload = m.split_publish(two.frame(), level)
    assert (topic, payload) == (b"t", b"x")
    two.send(m.puback(packet_id))
    two.unsubscribe("t", "u")
    two.tell(m.PINGREQ, m.PINGRESP)
    one.goodbye(m.packet(0xE0))
    assert one.closed
    assert not two.closed


@LEVELS
def test_a_session_is_found_again(dial: Dial, level: int) -> None:
    kept: dict[str, Any] = {"properties": m.session_expiry(60)} if level == 5 else {}
    name = f"durable-{level}"
    with dial(level).join(name, clean=False, **kept) as client:
        client.subscribe(("t", 0))
    with pytest.raises(AssertionError, match="CONNACK 01 00"):
        dial(level).join(name, clean=False, **kept)
    dial(level).join(name, clean=False, present=True, **kept)
    dial(level).join(name)


def test_a_refusal(dial: Dial) -> None:
    found = dial().send(m.connect(level=9)).not_accepted(0x84)
    assert found[0] == 0x20
    dial().send(m.publish("t")).not_accepted()
    client = dial().join("refused")
    client.send(m.PINGREQ, b"\x00\x00")
    client.refused(0x81, after=m.PINGRESP)
    client = dial(4).join("refused")
    client.send(b"\x00\x00")
    client.refused()
    client = dial().join("refused")
    client.send(m.PINGREQ, b"\x00\x00")
    frames = client.rest()
    assert [frame[0] for frame in frames] == [0xD0, 0xE0]


def wrong_packet(client: ByteClient) -> None:
    client.get(m.puback(1))


def wrong_code(client: ByteClient) -> None:
    client.send(b"\x00\x00")
    client.refused(0x82)


def wrong_before(client: ByteClient) -> None:
    client.send(b"\x00\x00")
    client.refused(0x81, after=m.PINGREQ)


def ends_with_more(client: ByteClient) -> None:
    client.send(b"\x00\x00")
    client.ends()


def expects_an_open_connection(client: ByteClient) -> None:
    client.send(m.disconnect())
    client.rest()
    client.expect()


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (wrong_packet, "d0 00, expected 40 02 00 01"), (wrong_code, "DISCONNECT 0x81"), (wrong_before, "expected first"),
        (ends_with_more, ", expected $"), (expects_an_open_connection, "closed"),
    ],
)  # fmt: skip
def test_the_client_detects_each_mistake(
    dial: Dial, mistake: Callable[[ByteClient], None], message: str
) -> None:
    client = dial().join("wrong")
    if mistake is wrong_packet:
        client.send(m.PINGREQ, m.PINGREQ)
    with pytest.raises(AssertionError, match=message):
        mistake(client)


def test_memory_tells_that_more_came(harness: Harness) -> None:
    """In memory, the client detects unexpected bytes at once, because no bytes are in transit."""
    client = join(harness)
    client.send(m.PINGREQ, m.PINGREQ)
    with pytest.raises(AssertionError):
        client.expect(m.PINGRESP)
    with pytest.raises(AssertionError, match="nothing more came"):
        client.frame()
    with pytest.raises(AssertionError, match="still open"):
        client.ends()
    with pytest.raises(AssertionError, match="still open"):
        client.refused()
    with pytest.raises(AssertionError, match="still open"):
        client.not_accepted()
    with pytest.raises(AssertionError, match="still open"):
        client.rest()
    client.send(m.PINGREQ, m.PINGREQ)
    with pytest.raises(AssertionError, match="one packet"):
        client.take_one()
    client.close()
    with pytest.raises(AssertionError, match="closed"):
        client.expect()
    with pytest.raises(OSError, match="descriptor"):
        client.fileno()


def test_memory_may_let_time_pass(harness: Harness) -> None:
    client = ByteClient(MemoryTransport(harness, patience=4.0)).join("c", keep_alive=2)
    before = harness.clock.now()
    assert [frame[0] for frame in client.rest()] == [0xE0]
    assert harness.clock.now() == before + 4


def test_a_socket_waits_for_the_whole_packet(pair: tuple[ByteClient, socket.socket]) -> None:
    client, other = pair
    packet = m.publish("t", b"x" * 300)
    other.sendall(packet[:2])
    assert client.read() == []
    later = threading.Timer(0.01, other.sendall, [packet[2:] + m.PINGRESP])
    later.start()
    assert client.frame() == packet
    later.join()
    client.get(m.PINGRESP)
    assert client.arrived == b""
    other.sendall(m.PINGRESP * 2)
    with pytest.raises(AssertionError):
        client.get(m.puback(1))


def test_a_socket_that_is_reset_is_closed(pair: tuple[ByteClient, socket.socket]) -> None:
    client, other = pair
    client.send(m.PINGREQ)
    other.close()  # with bytes unread: a reset
    assert client.rest() == []
    with pytest.raises(AssertionError, match="the broker closed the connection"):
        client.frame()
    assert client.closed
    assert client.read() == []


def test_a_socket_offers_what_is_taken(pair: tuple[ByteClient, socket.socket]) -> None:
    client, other = pair
    client.offer(bytes(1 << 26))  # the peer does not read
    assert other.recv(10) == bytes(10)
    assert client.fileno() > 0


def test_a_small_receive_buffer(port: int) -> None:
    transport = SocketTransport(port, buffer=4096)
    with ByteClient(transport), socket.socket(fileno=transport.fileno()) as same:
        assert same.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 2 * 4096
        same.detach()


def test_a_port_without_a_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        over_tcp(port)
