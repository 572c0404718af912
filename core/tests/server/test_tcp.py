"""Test TCP: byte order, flow control in both directions, limits, and how connections end."""

import asyncio
import os
import socket
import struct
from typing import Any

import pytest
from hookmq.model.settings import BrokerSettings
from hookmq.server.tcp import TURN, BufferedStream, Stream, address_peer
from hypothesis import given
from hypothesis import strategies as st


def raw(listener: Any) -> socket.socket:
    host, port = listener.address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    return sock


async def test_bytes_arrive_and_leave_in_order(listen: Any, dial: Any, broker: Any) -> None:
    reader, writer = await dial(await listen(name="in", connect_bytes=100, versions=("5",)))
    connection = await broker.next()
    connection.echo = True
    data = bytes(range(256)) * 4096
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    await connection.until_received(data)
    assert connection.peer.host == "127.0.0.1"
    assert connection.peer.port == writer.get_extra_info("sockname")[1]
    assert connection.peer.transport == "tcp"
    assert connection.peer.certificate is None
    assert (connection.scope.name, connection.scope.versions) == ("in", frozenset({5}))
    assert connection.scope.connect_bytes == 100
    writer.close()
    assert await connection.until_ended() == ""


async def test_nagle_is_off_on_accepted_sockets(listen: Any, dial: Any, broker: Any) -> None:
    _, writer = await dial(await listen())
    connection = await broker.next()
    sock = connection.wire._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()
    await connection.until_ended()


async def test_two_connections_do_not_mix(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen()
    _, first = await dial(listener)
    one = await broker.next()
    _, second = await dial(listener)
    two = await broker.next()
    for _ in range(50):
        first.write(b"a" * 1000)
        second.write(b"b" * 1000)
    await one.until_received(b"a" * 50_000)
    await two.until_received(b"b" * 50_000)
    first.close()
    second.close()


async def test_slow_reader_pauses_and_resumes(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen(limits=BrokerSettings(max_write_buffer=65536))
    reader, writer = await dial(listener, limit=1024)
    connection = await broker.next()
    size = 0
    while "pause" not in connection.events:
        connection.wire.write(b"x" * 65536)
        size += 65536
        assert size < 1 << 26, "never paused"
    assert "resume" not in connection.events
    assert len(await reader.readexactly(size)) == size
    await connection.until(lambda: "resume" in connection.events)
    assert connection.events == ["pause", "resume"]
    writer.close()


async def test_pause_reading_holds_bytes_until_resumed(listen: Any, dial: Any, broker: Any) -> None:
    _, writer = await dial(await listen())
    connection = await broker.next()
    connection.wire.pause_reading()
    connection.wire.pause_reading()
    other = await probe(listen, dial, broker)
    writer.write(b"held")
    await writer.drain()
    # Complete an exchange on another connection, so that the bytes had time to arrive.
    await other()
    assert connection.received == b""
    connection.wire.resume_reading()
    connection.wire.resume_reading()
    await connection.until_received(b"held")
    writer.close()


async def test_one_that_never_stops_sending_lets_the_others_have_their_turn(
    listen: Any, dial: Any, broker: Any
) -> None:
    """A client that never stops sending does not starve others. A read that fills uvloop's buffer is the last read in
    its turn. asyncio reads only once per turn anyway.
    """
    _, writer = await dial(await listen())
    connection = await broker.next()
    wire = connection.wire
    if not isinstance(wire, Stream):
        assert isinstance(wire, BufferedStream)
        writer.close()
        return
    transport = wire._transport
    assert transport is not None
    full = bytes(TURN)
    wire.data_received(full[1:])
    assert transport.is_reading()
    wire.data_received(full)
    assert not transport.is_reading()
    connection.wire.resume_reading()  # the broker's call does not end the pause early
    assert not transport.is_reading()
    await turn()
    assert transport.is_reading()
    wire.data_received(full)
    connection.wire.pause_reading()  # the broker's pause continues after the turn
    await turn()
    assert not transport.is_reading()
    connection.wire.resume_reading()
    assert transport.is_reading()
    wire.data_received(full)
    wire.abort()
    await turn()  # nothing happens on a closed connection
    await connection.until_ended()
    writer.close()


async def turn() -> None:
    """Let the event loop run the callbacks that are due."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


async def probe(listen: Any, dial: Any, broker: Any) -> Any:
    """Return a function that exchanges bytes over a separate connection. Calling it gives the event loop time to
    process other pending events.
    """
    reader, writer = await dial(await listen(name="probe"))
    connection = await broker.next()
    connection.echo = True

    async def exchange() -> None:
        for _ in range(3):
            writer.write(b"?")
            assert await reader.readexactly(1) == b"?"

    return exchange


@pytest.mark.parametrize("goodbye", [False, True])
async def test_close_flushes_to_a_slow_reader(
    listen: Any, dial: Any, broker: Any, goodbye: bool
) -> None:
    reader, writer = await dial(await listen(), limit=1024)
    connection = await broker.next()
    connection.goodbye = goodbye
    connection.wire.write(b"y" * 5_000_000)
    connection.wire.close()
    connection.wire.write(b"dropped")
    connection.wire.close()
    assert await drain(reader) == 5_000_000
    writer.close()
    assert await connection.until_ended() == ""


async def drain(reader: asyncio.StreamReader) -> int:
    size = 0
    while chunk := await reader.read(65536):
        size += len(chunk)
    return size


async def test_last_words_survive_bytes_nobody_read(listen: Any, dial: Any, broker: Any) -> None:
    """The peer receives the last bytes that the broker sends, even if the broker has not read everything from the peer.
    Closing the socket at once would reset the connection instead.
    """
    reader, writer = await dial(await listen())
    connection = await broker.next()
    connection.wire.pause_reading()
    writer.write(b"z" * 200_000)
    connection.wire.write(b"reason")
    connection.wire.close()
    assert await reader.read(-1) == b"reason"
    writer.write(b"z" * 200_000)
    writer.close()
    await writer.wait_closed()
    await connection.until_ended()
    assert b"z" not in connection.received


async def test_the_end_after_disconnect_does_not_wait_for_the_client(
    listen: Any, dial: Any, broker: Any
) -> None:
    reader, writer = await dial(await listen(close_timeout=3600.0))
    connection = await broker.next()
    writer.write(b"bye")
    await connection.until_received(b"bye")
    connection.goodbye = True
    connection.wire.write(b"the last")
    connection.wire.close()
    assert await connection.until_ended() == ""
    assert await reader.read(-1) == b"the last"
    writer.close()


@pytest.mark.parametrize("goodbye", [False, True])
async def test_close_gives_up_on_a_peer_that_never_closes(
    listen: Any, dial: Any, broker: Any, goodbye: bool
) -> None:
    listener = await listen(close_timeout=0.1)
    with raw(listener):
        connection = await broker.next()
        connection.goodbye = goodbye
        connection.wire.write(b"w" * 20_000_000)
        connection.wire.close()
        await connection.until_ended()
        assert not listener.gate.entered


async def test_abort_resets_at_once(listen: Any, dial: Any, broker: Any) -> None:
    reader, writer = await dial(await listen())
    connection = await broker.next()
    connection.wire.write(b"w" * 20_000_000)
    connection.wire.abort()
    connection.wire.abort()
    await connection.until_ended()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(20_000_000)
    writer.close()


async def test_half_open_peer_ends_the_connection(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen()
    reader, writer = await dial(listener)
    connection = await broker.next()
    writer.write(b"last")
    writer.write_eof()
    assert await reader.read(-1) == b""
    await connection.until_ended()
    assert connection.received == b"last"
    assert not listener.gate.entered
    writer.close()


async def test_half_open_peer_that_does_not_read_is_cut_off(
    listen: Any, dial: Any, broker: Any
) -> None:
    listener = await listen(close_timeout=0.1)
    with raw(listener) as sock:
        connection = await broker.next()
        connection.wire.write(b"w" * 20_000_000)
        sock.shutdown(socket.SHUT_WR)
        await connection.until_ended()


async def test_reset_by_peer_is_told_as_an_error(listen: Any, dial: Any, broker: Any) -> None:
    sock = raw(await listen())
    connection = await broker.next()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    assert "reset" in (await connection.until_ended()).lower()


async def test_wire_is_silent_after_the_end(listen: Any, dial: Any, broker: Any) -> None:
    _, writer = await dial(await listen())
    connection = await broker.next()
    writer.close()
    await connection.until_ended()
    wire = connection.wire
    for call in (wire.close, wire.abort, wire.pause_reading, wire.resume_reading):
        call()
    wire.write(b"nobody")
    assert connection.events == ["closed:"]


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_broker_may_end_it_while_accepting(
    listen: Any, dial: Any, broker: Any, how: str
) -> None:
    def refuse(connection: Any) -> None:
        connection.wire.write(b"no")
        getattr(connection.wire, how)()

    broker.on_accept = refuse
    reader, writer = await dial(await listen())
    connection = await broker.next()
    writer.write(b"never fed")
    try:
        said = await reader.read(-1)
    except ConnectionError:
        said = b""
    assert said == b"no" or how == "abort"
    writer.close()
    await connection.until_ended()
    assert connection.received == b""


@given(
    st.one_of(st.none(), st.text(), st.tuples(st.ip_addresses().map(str), st.integers(0, 65535)))
)
def test_peer_of_any_address(address: object) -> None:
    peer = address_peer(address, "tcp")
    assert peer.transport == "tcp"
    assert not peer.host.startswith("::ffff:")
    assert peer.port == (address[1] if isinstance(address, tuple) else 0)


async def test_another_process_can_go_on_with_the_socket(
    listen: Any, dial: Any, broker: Any
) -> None:
    reader, writer = await dial(await listen())
    connection = await broker.next()
    writer.write(b"first")
    await connection.until_received(b"first")
    copy = socket.socket(fileno=os.dup(connection.wire.descriptor))
    connection.wire.abort()
    await connection.until_ended()
    assert connection.wire.descriptor is None
    with copy:
        copy.setblocking(False)
        loop = asyncio.get_running_loop()
        writer.write(b"second")
        assert await loop.sock_recv(copy, 100) == b"second"
        await loop.sock_sendall(copy, b"answer")
        assert await reader.readexactly(6) == b"answer"
    assert await reader.read() == b""
    writer.close()


async def test_a_socket_with_unsent_bytes_has_no_descriptor(
    listen: Any, dial: Any, broker: Any
) -> None:
    listener = await listen()
    sock = raw(listener)
    connection = await broker.next()
    assert connection.wire.descriptor is not None
    connection.wire.write(bytes(50_000_000))  # more than the kernel takes
    assert connection.wire.descriptor is None
    sock.close()
    await connection.until_ended()
