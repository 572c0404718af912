"""Test WebSocket: which requests are accepted, frames and packets, flow control, and how connections end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hookmq.model.settings import BrokerSettings
from hookmq.server.settings import TlsSettings, WebSocketSettings

Client = Any


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def url(listener: Any, path: str = "/mqtt") -> str:
    scheme = "https" if listener.settings.secure else "http"
    return f"{scheme}://{listener.address}{path}"


async def connect(
    session: aiohttp.ClientSession, listener: Any, **options: Any
) -> aiohttp.ClientWebSocketResponse:
    wanted: dict[str, Any] = {"protocols": ("mqtt",), "max_msg_size": 0, **options}
    ws: aiohttp.ClientWebSocketResponse = await session.ws_connect(url(listener), **wanted)
    return ws


async def test_bytes_arrive_and_leave(listen: Any, session: Client, broker: Any) -> None:
    ws = await connect(session, await listen(name="web", type="ws"))
    assert ws.protocol == "mqtt"
    connection = await broker.next()
    assert connection.peer.host == "127.0.0.1"
    assert connection.peer.transport == "ws"
    assert connection.scope.name == "web"
    connection.echo = True
    await ws.send_bytes(b"\x10hello")
    assert await ws.receive_bytes() == b"\x10hello"
    await ws.close()
    assert await connection.until_ended() == ""
    assert ws.close_code == 1000


async def test_packets_may_be_cut_anywhere(listen: Any, session: Client, broker: Any) -> None:
    listener = await listen(type="ws")
    packets = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\xc0\x00\xc0\x00"
    for cut in range(len(packets) + 1):
        ws = await connect(session, listener)
        connection = await broker.next()
        await ws.send_bytes(packets[:cut])
        await ws.send_bytes(packets[cut:])
        await connection.until_received(packets)
        await ws.close()
        await connection.until_ended()


async def test_fragmented_message_and_ping(listen: Any, dial: Any, broker: Any) -> None:
    reader, writer = await dial(await listen(type="ws"))
    writer.write(handshake())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    connection = await broker.next()
    mask = bytes(4)
    writer.write(b"\x02\x82" + mask + b"\x10\x02")  # first fragment
    writer.write(b"\x89\x81" + mask + b"p")  # a ping in between
    writer.write(b"\x80\x82" + mask + b"ab")  # last fragment
    await connection.until_received(b"\x10\x02ab")
    assert await reader.readexactly(3) == b"\x8a\x01p"


def handshake(path: str = "/mqtt", **headers: str) -> bytes:
    lines = {
        "Host": "x",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    text = f"GET {path} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in lines.items() if v)
    return text.encode() + b"\r\n"


def frame(kind: int, length: int) -> bytes:
    """Return the header of a client's frame whose payload has `length` bytes."""
    if length < 126:
        size = bytes((0x80 | length,))
    elif length < 65536:
        size = b"\xfe" + length.to_bytes(2, "big")
    else:
        size = b"\xff" + length.to_bytes(8, "big")
    return bytes((kind,)) + size + bytes(4)


@pytest.mark.parametrize(
    "sent",
    [
        frame(0x82, 2_000_000),
        frame(0x82, 65537),
        frame(0x02, 40_000) + bytes(40_000) + frame(0x00, 25_537),
        frame(0x02, 40_000) + bytes(40_000) + frame(0x89, 1) + b"p" + frame(0x80, 25_537),
        frame(0x82, 5) + b"hello" + frame(0x82, 100_000),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("together", [False, True])
async def test_a_long_message_is_refused_by_its_header_before_connect(
    listen: Any, dial: Any, broker: Any, sent: bytes, cut: bool, together: bool
) -> None:
    """Before CONNECT, a long message is refused as soon as its header arrives. Otherwise, aiohttp would buffer up to
    twice `broker.max_packet_size` for any client.
    """
    broker.on_accept = not_accepted
    reader, writer = await dial(await listen(type="ws"))
    if together:
        writer.write(handshake() + sent)
    else:
        writer.write(handshake())
        await reader.readuntil(b"\r\n\r\n")
        for part in (sent[:-8], *(sent[at : at + 1] for at in range(-8, -1)), sent[-1:]):
            writer.write(part if cut else b"")
            await writer.drain()
        writer.write(b"" if cut else sent)
    async with asyncio.timeout(10):
        answer = await reader.read()
    assert answer.endswith(b"\x88\x02" + (1009).to_bytes(2, "big"))
    connection = await broker.next()
    await connection.until_ended()
    assert len(connection.received) <= 65536


def not_accepted(connection: Any) -> None:
    connection.accepted = False


async def test_frames_before_connect_are_bounded_and_larger_ones_follow_it(
    listen: Any, session: Client, broker: Any
) -> None:
    broker.on_accept = not_accepted
    ws = await connect(session, await listen(type="ws"))
    connection = await broker.next()
    for _ in range(3):
        await ws.send_bytes(bytes(65536))
    await connection.until_received(bytes(3 * 65536))
    connection.accepted = True
    await ws.send_bytes(bytes(1_000_000))
    await connection.until_received(bytes(3 * 65536 + 1_000_000))
    await ws.close()


async def test_a_compressed_message_counts_by_what_it_unfolds_to(
    listen: Any, session: Client, broker: Any
) -> None:
    broker.on_accept = not_accepted
    listener = await listen(type="ws", websocket=WebSocketSettings(compression=True))
    ws = await connect(session, listener, compress=15)
    connection = await broker.next()
    await ws.send_bytes(bytes(1_000_000))
    message = await ws.receive()
    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1009)
    await connection.until_ended()
    assert connection.received == b""


async def test_one_frame_for_all_that_was_written_in_a_turn(
    listen: Any, session: Client, broker: Any
) -> None:
    ws = await connect(session, await listen(type="ws"))
    connection = await broker.next()
    for part in (b"one", b"two", b"three"):
        connection.wire.write(part)
    assert await ws.receive_bytes() == b"onetwothree"
    await ws.close()


async def test_text_frame_closes(listen: Any, session: Client, broker: Any) -> None:
    ws = await connect(session, await listen(type="ws"))
    connection = await broker.next()
    await ws.send_str("hello")
    message = await ws.receive()
    assert message.type is aiohttp.WSMsgType.CLOSE
    assert ws.close_code == 1003
    assert "text frame" in await connection.until_ended()
    assert connection.received == b""


async def test_no_compression_unless_wanted(listen: Any, session: Client, broker: Any) -> None:
    ws = await connect(session, await listen(type="ws"), compress=15)
    assert not ws.compress
    wanted = WebSocketSettings(compression=True)
    other = await connect(session, await listen(type="ws", websocket=wanted), compress=15)
    assert other.compress
    for _ in range(2):
        (await broker.next()).echo = True
    await other.send_bytes(b"a" * 10_000)
    assert await other.receive_bytes() == b"a" * 10_000
    await ws.close()
    await other.close()


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (("mqtt",), "mqtt"),
        (("mqttv3.1",), "mqttv3.1"),
        (("mqttv3.1", "mqtt"), "mqtt"),
        (("soap", "mqtt"), "mqtt"),
    ],
)
async def test_subprotocol(
    listen: Any, session: Client, broker: Any, offered: Any, chosen: str
) -> None:
    ws = await connect(session, await listen(type="ws"), protocols=offered)
    assert ws.protocol == chosen
    await ws.close()


@pytest.mark.parametrize("offered", [(), ("soap",), ("MQTT",)])
async def test_subprotocol_is_needed(
    listen: Any, session: Client, broker: Any, offered: Any
) -> None:
    listener = await listen(type="ws")
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await connect(session, listener, protocols=offered)
    assert caught.value.status == 400
    assert broker.connections == []
    await until_empty(listener)


async def until_empty(listener: Any) -> None:
    async with asyncio.timeout(60):
        await listener.gate.emptied()


async def test_other_paths_and_plain_requests(listen: Any, session: Client, broker: Any) -> None:
    listener = await listen(type="ws", websocket=WebSocketSettings(path="/broker"))
    for path, status in (("/mqtt", 404), ("/broker/", 404), ("/broker", 426)):
        async with session.get(url(listener, path)) as response:
            assert response.status == status
            assert response.headers.get("Upgrade", "") == ("websocket" if status == 426 else "")
    async with session.post(url(listener, "/broker"), data=b"x" * 100_000) as response:
        assert response.status == 426
    assert broker.connections == []
    await until_empty(listener)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_WebSocket_Version": "12"},
        {"Sec_WebSocket_Key": "short"},
        {"Sec_WebSocket_Key": ""},
        {"Connection": "close"},
    ],
)
async def test_bad_handshake(listen: Any, dial: Any, broker: Any, headers: Any) -> None:
    reader, writer = await dial(await listen(type="ws"))
    writer.write(handshake(**headers))
    assert (await reader.readline()).split()[1] in (b"400", b"426")
    assert broker.connections == []


@pytest.mark.parametrize("name", ["Sec_WebSocket_Version", "Sec_WebSocket_Key"])
async def test_a_bad_handshake_that_cannot_be_quoted(
    listen: Any, dial: Any, broker: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A bad handshake is logged without a traceback. Otherwise, an untrusted client could fill the log."""
    reader, writer = await dial(await listen(type="ws"))
    writer.write(handshake(**{name: "quoted"}).replace(b"quoted", b"\x80"))
    assert (await reader.readline()).split()[1] == b"400"
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
    assert broker.connections == []


async def test_a_request_that_is_not_http_ends_the_connection(
    listen: Any, dial: Any, broker: Any
) -> None:
    reader, writer = await dial(await listen(type="ws"))
    writer.write(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"400"
    assert broker.connections == []


@pytest.mark.parametrize("sent", [b"", b"GET /mqtt HTTP/1.1\r\nHost:"])
async def test_request_that_never_ends_is_cut_off(
    listen: Any, dial: Any, broker: Any, sent: bytes
) -> None:
    listener = await listen(type="ws", connect_timeout=0.2)
    reader, writer = await dial(listener)
    writer.write(sent)
    async with asyncio.timeout(60):
        await reader.read()
    await until_empty(listener)


@pytest.mark.parametrize(
    ("origins", "origin", "status"),
    [
        ((), None, 101),
        ((), "http://localhost:3000", 101),  # the listener is bound to loopback
        ((), "http://127.0.0.1", 101),
        ((), "http://[::1]:8080", 101),
        ((), "https://evil.example", 403),
        ((), "https://localhost.evil.example", 403),
        ((), "http://[::1].evil", 403),
        ((), "http://[::1]evil.example:80", 403),
        ((), "http://[::1", 403),
        ((), "http://127.0.0.1%25.evil", 403),
        ((), "http://localhost@evil", 403),
        ((), "http://[::1]:8083", 101),
        ((), "null", 403),
        (("https://app.example",), None, 101),
        (("https://app.example",), "https://app.example", 101),
        (("https://APP.example/",), "https://App.Example", 101),
        (("https://app.example",), "http://app.example", 403),
        (("https://app.example",), "https://app.example:8443", 403),
        (("https://app.example",), "http://localhost", 403),
        (("*",), "https://anything.example", 101),
    ],
)
async def test_origins(
    listen: Any, dial: Any, broker: Any, origins: Any, origin: str | None, status: int
) -> None:
    listener = await listen(type="ws", websocket=WebSocketSettings(origins=origins))
    reader, writer = await dial(listener)
    writer.write(handshake(**({"Origin": origin} if origin is not None else {})))
    assert int((await reader.readline()).split()[1]) == status
    assert len(broker.connections) == (status == 101)


async def test_loopback_pages_only_where_the_listener_is_loopback(
    listen: Any, dial: Any, broker: Any
) -> None:
    listener = await listen(type="ws", bind="0.0.0.0:0")
    reader, writer = await dial(listener.address.replace("0.0.0.0", "127.0.0.1"))
    writer.write(handshake(Origin="http://localhost"))
    assert int((await reader.readline()).split()[1]) == 403


@pytest.mark.parametrize(
    ("trusted", "forwarded", "host"),
    [
        ((), "203.0.113.9", "127.0.0.1"),
        (("10.0.0.0/8",), "203.0.113.9", "127.0.0.1"),
        (("127.0.0.0/8",), "203.0.113.9", "203.0.113.9"),
        (("127.0.0.0/8",), "203.0.113.9:4711", "203.0.113.9"),
        (("127.0.0.0/8",), "[2001:db8::9]:4711", "2001:db8::9"),
        # The client could have forged the first address.
        (("127.0.0.0/8",), "6.6.6.6, 203.0.113.9", "203.0.113.9"),
        (("127.0.0.0/8", "10.0.0.0/8"), "203.0.113.9, 10.0.0.2", "203.0.113.9"),
        (("127.0.0.0/8", "10.0.0.0/8"), "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        (("127.0.0.0/8",), "unknown", "127.0.0.1"),
        (("127.0.0.0/8",), "", "127.0.0.1"),
    ],
)
async def test_forwarded_for_only_of_trusted_proxies(
    listen: Any, session: Client, broker: Any, trusted: Any, forwarded: str, host: str
) -> None:
    listener = await listen(type="ws", trusted_proxies=trusted)
    ws = await connect(session, listener, headers={"X-Forwarded-For": forwarded})
    peer = (await broker.next()).peer
    assert peer.host == host
    assert (peer.port == 0) == (host != "127.0.0.1")
    await ws.close()


async def test_message_above_the_limit_closes(listen: Any, session: Client, broker: Any) -> None:
    listener = await listen(type="ws", websocket=WebSocketSettings(max_message=1000))
    ws = await connect(session, listener)
    connection = await broker.next()
    await ws.send_bytes(b"x" * 900)
    await connection.until_received(b"x" * 900)
    await ws.send_bytes(b"x" * 1100)
    message = await ws.receive()
    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1009)
    assert await connection.until_ended() != ""


async def test_limit_follows_the_largest_packet(listen: Any, session: Client, broker: Any) -> None:
    listener = await listen(type="ws", limits=BrokerSettings(max_packet_size=5000))
    ws = await connect(session, listener)
    connection = await broker.next()
    await ws.send_bytes(b"x" * 9000)
    await connection.until_received(b"x" * 9000)
    await ws.send_bytes(b"x" * 11_000)
    await connection.until_ended()
    await ws.close()


async def test_slow_reader_pauses_and_resumes(listen: Any, session: Client, broker: Any) -> None:
    listener = await listen(type="ws", limits=BrokerSettings(max_write_buffer=65536))
    ws = await connect(session, listener)
    connection = await broker.next()
    for _ in range(200):
        connection.wire.write(b"x" * 100_000)
    assert connection.events == ["pause"]
    size = 0
    while size < 20_000_000:
        size += len(await ws.receive_bytes())
    await connection.until(lambda: "resume" in connection.events)
    assert connection.events == ["pause", "resume"]
    await ws.close()


async def test_slow_reader_stays_paused_until_it_reads(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen(type="ws", limits=BrokerSettings(max_write_buffer=65536))
    reader, writer = await dial(listener, limit=1024)
    writer.write(handshake())
    await reader.readuntil(b"\r\n\r\n")
    connection = await broker.next()
    connection.wire.write(b"x" * 30_000_000)  # more than any socket's buffers hold
    _, other = await dial(listener)
    other.write(handshake())
    await broker.next()  # the loop has run a turn
    assert connection.events == ["pause"]
    await reader.readexactly(30_000_000)
    await connection.until(lambda: "resume" in connection.events)


async def test_pause_reading_holds_messages(listen: Any, session: Client, broker: Any) -> None:
    listener = await listen(type="ws")
    ws = await connect(session, listener)
    connection = await broker.next()
    connection.wire.pause_reading()
    connection.wire.pause_reading()
    await ws.send_bytes(b"held")
    await ws.send_bytes(b"too")
    other = await connect(session, listener)
    echo = await broker.next()
    echo.echo = True
    await other.send_bytes(b"?")
    await other.receive_bytes()
    assert connection.received == b""
    connection.wire.resume_reading()
    connection.wire.resume_reading()
    await connection.until_received(b"heldtoo")
    await ws.close()
    await other.close()


async def test_pause_reading_ends_with_the_connection(
    listen: Any, session: Client, broker: Any
) -> None:
    ws = await connect(session, await listen(type="ws"))
    connection = await broker.next()
    connection.wire.pause_reading()
    await ws.send_bytes(b"never fed")
    connection.wire.close()
    await ws.receive()
    await connection.until_ended()
    assert connection.received == b""


async def test_close_flushes_and_says_goodbye(listen: Any, session: Client, broker: Any) -> None:
    ws = await connect(session, await listen(type="ws"))
    connection = await broker.next()
    connection.wire.write(b"y" * 3_000_000)
    connection.wire.close()
    connection.wire.close()
    connection.wire.write(b"dropped")
    assert await ws.receive_bytes() == b"y" * 3_000_000
    assert (await ws.receive()).type is aiohttp.WSMsgType.CLOSE
    assert ws.close_code == 1000
    assert await connection.until_ended() == ""


async def test_close_gives_up_on_a_peer_that_never_reads(
    listen: Any, dial: Any, broker: Any
) -> None:
    listener = await listen(type="ws", close_timeout=0.1)
    reader, writer = await dial(listener, limit=1024)
    writer.write(handshake())
    await reader.readuntil(b"\r\n\r\n")
    connection = await broker.next()
    connection.wire.write(b"w" * 30_000_000)
    connection.wire.close()
    await connection.until_ended()
    await until_empty(listener)


async def test_abort(listen: Any, session: Client, broker: Any) -> None:
    listener = await listen(type="ws")
    ws = await connect(session, listener)
    connection = await broker.next()
    connection.wire.write(b"lost")
    connection.wire.abort()
    connection.wire.abort()
    await connection.until_ended()
    assert (await ws.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE)
    await until_empty(listener)


async def test_bytes_received_before_the_peer_vanished_are_read(
    listen: Any, dial: Any, broker: Any
) -> None:
    """Bytes that arrived before the peer vanished are read, even if reading was paused. They may contain a DISCONNECT."""
    listener = await listen(type="ws")
    reader, writer = await dial(listener)
    writer.write(handshake())
    await reader.readuntil(b"\r\n\r\n")
    connection = await broker.next()
    connection.wire.pause_reading()
    writer.write(frame(0x82, 4) + b"held" + frame(0x82, 3) + b"too")
    await writer.drain()
    writer.close()
    while connection.wire._handler.transport is not None:  # noqa: ASYNC110 - aiohttp tells nobody
        await asyncio.sleep(0)
    assert connection.events == []
    connection.wire.write(b"nobody")
    connection.wire.resume_reading()
    await connection.until_ended()
    assert connection.received == b"heldtoo"
    await until_empty(listener)


async def test_peer_that_vanishes(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen(type="ws")
    reader, writer = await dial(listener)
    writer.write(handshake())
    await reader.readuntil(b"\r\n\r\n")
    connection = await broker.next()
    writer.transport.abort()
    await connection.until_ended()
    wire = connection.wire
    for call in (wire.close, wire.abort, wire.pause_reading, wire.resume_reading):
        call()
    wire.write(b"nobody")
    await until_empty(listener)
    assert len(connection.events) == 1


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_broker_may_end_it_while_accepting(
    listen: Any, dial: Any, broker: Any, how: str
) -> None:
    broker.on_accept = lambda connection: getattr(connection.wire, how)()
    listener = await listen(type="ws")
    reader, writer = await dial(listener)
    writer.write(handshake() + b"\x82\x81" + bytes(4) + b"x" + b"\x88\x80" + bytes(4))
    try:
        await reader.read()
    except ConnectionError:
        pass
    connection = await broker.next()
    await connection.until_ended()
    assert connection.received == b""
    await until_empty(listener)


async def test_full_listener_closes_and_counts(listen: Any, session: Client, broker: Any) -> None:
    listener = await listen(type="ws", max_connections=1)
    ws = await connect(session, listener)
    connection = await broker.next()
    with pytest.raises(aiohttp.ClientError):
        await connect(session, listener)
    assert broker.metrics.connections_refused >= 1
    await ws.close()
    await connection.until_ended()
    await until_empty(listener)
    await (await connect(session, listener)).close()


async def test_shut_lets_go_who_is_no_mqtt_yet(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen(type="ws")
    first_reader, _ = await dial(listener)
    reader, writer = await dial(listener)
    writer.write(handshake())
    await reader.readuntil(b"\r\n\r\n")
    connection = await broker.next()  # the first was accepted before
    listener.shut()
    try:
        assert await first_reader.read() == b""
    except ConnectionError:
        pass
    assert not connection.ended
    assert len(listener.gate.entered) == 1


async def test_wss_with_a_client_certificate(
    listen: Any, session: Client, broker: Any, files: Any
) -> None:
    options = {"client_ca": files.client_ca(), "client_certificates": "required"}
    listener = await listen(type="wss", tls=TlsSettings(**files.server() | options))
    with pytest.raises(aiohttp.ClientError):
        await connect(session, listener, ssl=files.client())
    ws = await connect(session, listener, ssl=files.client("device-7"))
    connection = await broker.next()
    assert connection.peer.transport == "wss"
    assert connection.peer.certificate.common_name == "device-7"
    connection.echo = True
    await ws.send_bytes(b"\xc0\x00")
    assert await ws.receive_bytes() == b"\xc0\x00"
    files.server()
    await listener.reload_certificates()
    await ws.send_bytes(b"again")
    assert await ws.receive_bytes() == b"again"
    await ws.close()
    await connection.until_ended()
