"""Test hostile bytes on real sockets: WebSocket frames, HTTP, PROXY headers, TLS, and slow or
silent peers.

Meanwhile, other clients are served, no errors are logged, and no connections are left behind.
"""

import asyncio
import itertools
import os
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import mqttbytes as m
import pytest
import uvloop
from attacks import HOSTILE_NAMES, PAYLOAD, TOKEN, dial, hang_up, house, read_all, serves
from hookmq.server.server import Server
from hookmq.server.settings import HttpSettings, ListenerSettings, WebSocketSettings
from hookmq_testing.harness import ALLOW, override
from hypothesis import given, settings
from hypothesis import strategies as st

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [
    asyncio.new_event_loop,
    uvloop.new_event_loop,
]
BOTH_LOOPS = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])


def run(main: Coroutine[Any, Any, None], loop: Any = uvloop.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main)


def listener(name: str, **more: Any) -> ListenerSettings:
    return ListenerSettings(**{
        "name": name, "type": name, "bind": "127.0.0.1:0", "close_timeout": 2.0, "connect_timeout": 5.0, **more
    })  # fmt: skip


UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n%b\r\n"
)


def ws_frame(
    data: bytes, first: int = 0x82, length: int | None = None, mask: bytes | None = b"\1\2\3\4"
) -> bytes:
    """Return a WebSocket frame. `length` may be wrong on purpose."""
    size = len(data) if length is None else length
    flag = 0x80 if mask is not None else 0
    if size < 126:
        head = bytes((first, flag | size))
    elif size < 65536:
        head = bytes((first, flag | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, flag | 127)) + size.to_bytes(8, "big")
    if mask is None:
        return head + data
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


async def web(
    node: Server, more: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """Open a WebSocket. Return the streams and the head of the response."""
    reader, writer = await dial(node, "ws")
    writer.write(UPGRADE % more)
    return reader, writer, await reader.readuntil(b"\r\n\r\n")


# --- WebSocket --------------------------------------------------------------------------------------------------------


@BOTH_LOOPS
def test_cve_2026_25627_packets_and_frames_cut_anywhere(loop: Any) -> None:
    """Packets and frames may be cut anywhere. NanoMQ read beyond a frame that was shorter than the
    packet in it.
    """

    async def main() -> None:
        async with house(listener("ws"), listener("tcp")) as (node, _):
            packets = m.connect("c") + m.publish("t", b"x" * 130, 1, 1) + m.PINGREQ + m.disconnect()
            for cut in range(0, len(packets) + 1, 3):
                reader, writer, _ = await web(node)
                writer.write(ws_frame(packets[:cut]) + ws_frame(b"") + ws_frame(packets[cut:]))
                answer = await read_all(reader)
                assert b"\xd0\x00" in answer
                await hang_up(writer)
            reader, writer, _ = await web(node)
            writer.write(b"".join(ws_frame(packets[at : at + 1]) for at in range(len(packets))))
            assert b"\xd0\x00" in await read_all(reader)
            await hang_up(writer)
            reader, writer, _ = await web(node)
            writer.write(ws_frame(packets[:1], 0x02))  # fragments of one message
            writer.write(
                b"".join(ws_frame(packets[at : at + 1], 0x00) for at in range(1, len(packets) - 1))
            )
            writer.write(ws_frame(packets[-1:], 0x80))
            assert b"\xd0\x00" in await read_all(reader)
            await hang_up(writer)

    run(main(), loop)


@BOTH_LOOPS
@pytest.mark.parametrize("length", [1 << 22, (1 << 31) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_cve_2026_27889_and_33219_frames_of_absurd_length(loop: Any, length: int) -> None:
    """A frame of absurd length is refused as soon as its header arrives, before memory is allocated for it. NATS had an
    integer overflow.
    """

    async def main() -> None:
        async with house(listener("ws"), listener("tcp")) as (node, _):
            before = resident()
            for first in (0x82, 0x02, 0x89, 0x81):
                reader, writer, _ = await web(node)
                writer.write(ws_frame(b"\x10\xff", first, length))
                await read_all(reader)
                await hang_up(writer)
            assert resident() - before < 16 << 20
            await serves(node)

    run(main(), loop)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@BOTH_LOOPS
def test_cve_2026_27571_compression_bombs(loop: Any) -> None:
    """Compressed frames cannot exhaust memory. NATS decompressed them without a limit. The broker uses compression only
    if configured, and within limits.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(64 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
    offer = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"

    async def main() -> None:
        async with house(listener("ws"), listener("tcp")) as (node, _):
            reader, writer, head = await web(node, offer)
            assert b"permessage-deflate" not in head
            writer.write(ws_frame(bomb, 0xC2))
            await read_all(reader)
            await hang_up(writer)
            await serves(node)
        allowing = listener("ws", websocket=WebSocketSettings(compression=True))
        async with house(allowing, listener("tcp")) as (node, _):
            before = resident()
            reader, writer, head = await web(node, offer)
            assert b"permessage-deflate" in head
            writer.write(ws_frame(bomb, 0xC2))
            await read_all(reader)
            await hang_up(writer)
            assert resident() - before < 32 << 20
            await serves(node)

    run(main(), loop)


FRAME = st.one_of(
    st.binary(max_size=40),
    st.builds(
        ws_frame,
        st.sampled_from(
            [
                m.connect("w"),
                m.PINGREQ,
                m.publish("t", PAYLOAD),
                b"",
                b"\x03\xe8",
                b"\x00",
                bytes(130),
            ]
        ),
        st.integers(0, 255) | st.sampled_from([0x82, 0x02, 0x00, 0x80, 0x88, 0x89, 0x8A, 0xC2]),
        st.none() | st.sampled_from([0, 1, 125, 126, 127, 65535, 65536, 1 << 40]),
        st.none() | st.just(b"\0\0\0\0"),
    ),
)


@settings(max_examples=40)
@given(st.lists(st.lists(FRAME, max_size=6), min_size=1, max_size=6))
def test_any_frames(attempts: list[list[bytes]]) -> None:
    async def main() -> None:
        async with house(listener("ws"), listener("tcp")) as (node, _):
            for frames in attempts:
                _, writer, _ = await web(node)
                for one in frames:
                    writer.write(one)
                writer.write_eof()
                await hang_up(writer)
            await serves(node)

    run(main())


# --- HTTP -------------------------------------------------------------------------------------------------------------

HEADS = [
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"GET //metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET /metrics/../plugins/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /plugins/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /plugins/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /plugins/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    b"GET /%00%ff%c0%80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nConnection: close\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n",
    b"GET http://[::1/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /mqtt HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
    UPGRADE.replace(b"AAAAAAAAAAAAAAAAAAAAAA==", b"short") % b"",
    UPGRADE.replace(b"13", b"99") % b"",
    UPGRADE % b"Sec-WebSocket-Protocol: \xff\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
    b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"y" * 20000 + b"\r\n\r\n",
    m.connect("mqtt"),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"\0" * 100,
]  # fmt: skip


@BOTH_LOOPS
@pytest.mark.parametrize("kind", ["ws", "http"])
def test_http_requests_that_are_none(loop: Any, kind: str) -> None:
    async def main() -> None:
        async with house(listener("ws"), listener("http"), listener("tcp")) as (node, _):
            for data in HEADS:
                _, writer = await dial(node, kind)
                writer.write(data)
                writer.write_eof()
                await hang_up(writer)
            await serves(node)

    run(main(), loop)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(HEADS), st.integers(0, 200), st.binary(max_size=4)), max_size=8
    )
)
def test_http_requests_that_nearly_are(attempts: list[Any]) -> None:
    async def main() -> None:
        web_, http = listener("ws"), listener("http", http=HttpSettings(token=TOKEN))
        async with house(web_, http, listener("tcp")) as (node, _):
            for data, at, change in attempts:
                for kind in ("ws", "http"):
                    reader, writer = await dial(node, kind)
                    writer.write(data[:at] + change + data[at + len(change) :])
                    writer.write_eof()
                    answer = await read_all(reader)
                    assert not answer.startswith(b"HTTP/1.1 200")
                    assert TOKEN.encode() not in answer
                    await hang_up(writer)
            await serves(node)

    run(main())


@BOTH_LOOPS
@pytest.mark.parametrize("kind", ["ws", "http"])
def test_slowloris_over_http_ends(loop: Any, kind: str) -> None:
    """Sending a request head byte by byte does not extend the timeout."""

    async def main() -> None:
        slow = listener(kind, connect_timeout=0.3)
        async with house(slow, listener("tcp")) as (node, _):
            reader, writer = await dial(node, kind)
            ended = asyncio.ensure_future(read_all(reader))
            for byte in itertools.cycle(b"GET / HTTP/1.1\r\nX: " + b"y" * 60 + b"\r\nX: "):
                writer.write(bytes((byte,)))
                done, _ = await asyncio.wait((ended,), timeout=0.02)
                if done:
                    break
            await hang_up(writer)
            await serves(node)

    run(main(), loop)


# --- PROXY ------------------------------------------------------------------------------------------------------------

V2 = b"\r\n\r\n\x00\r\nQUIT\n"
PROXIED = [
    b"PROXY TCP4 192.0.2.1 192.0.2.9 5000 1883\r\n", b"PROXY UNKNOWN\r\n", b"PROXY TCP4 192.0.2.1\r\n",
    b"PROXY TCP6 192.0.2.1 192.0.2.9 5000 1883\r\n", b"PROXY " + b"x" * 200, b"PROXY \r\n", b"PROXY\r\n", b"\r\n\r\n",
    V2, V2 + b"\x21\x11\x00\x0c" + bytes(12), V2 + b"\x21\x11\xff\xff", V2 + b"\x21\x11\x00\x01\x00", V2 + b"\x20\0\0\0",
    V2 + b"\x21\x21\x00\x24" + bytes(36), V2 + b"\x21\x11\x00\x10" + bytes(12) + b"\x20\xff\xff\x00",
    V2 + b"\x31\x11\x00\x0c" + bytes(12), b"",
]  # fmt: skip


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PROXIED), st.integers(0, 60), st.binary(max_size=3), st.booleans()
        ),
        max_size=8,
    )
)
def test_cve_2026_67411_proxy_headers(attempts: list[Any]) -> None:
    """A client can only connect with the address that a valid PROXY header announces."""

    async def main() -> None:
        proxied = listener(
            "proxied",
            type="tcp",
            proxy_protocol="any",
            trusted_proxies=("127.0.0.0/8",),
            proxy_timeout=2.0,
        )
        async with house(proxied, listener("tcp")) as (node, log):
            for header, at, change, whole in attempts:
                data = header if whole else header[:at] + change + header[at + len(change) :]
                reader, writer = await dial(node, "proxied")
                writer.write(data + m.connect("c") + m.disconnect())
                writer.write_eof()
                answer = await read_all(reader)
                if answer.startswith(b"\x20"):
                    assert data.startswith((b"PROXY ", V2))
                await hang_up(writer)
            await serves(node)
            assert "internal.error" not in log.events()

    run(main())


# --- TLS, MQTT ----------------------------------------------------------------------------------------------------------


@BOTH_LOOPS
def test_a_tls_listener_and_what_is_no_tls(loop: Any, tmp_path: Any) -> None:
    import trustme
    from hookmq.server.settings import TlsSettings

    path = tmp_path / "server.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

    async def main() -> None:
        tls = TlsSettings(str(path), handshake_timeout=0.5)
        async with house(listener("tls", tls=tls), listener("wss", tls=tls), listener("tcp")) as (
            node,
            _,
        ):
            for kind, data in itertools.product(
                ("tls", "wss"),
                (
                    m.connect("c"),
                    hello,
                    hello + bytes(600),
                    b"\x15\x03\x01\0\2\2\x28",
                    b"\0",
                    b"GET / HTTP/1.1\r\n\r\n",
                    b"",
                ),
            ):
                reader, writer = await dial(node, kind)
                writer.write(data)
                if len(data) > 1:
                    writer.write_eof()
                await read_all(reader)
                await hang_up(writer)
            await serves(node)

    run(main(), loop)


@BOTH_LOOPS
def test_hostile_names_over_a_socket(loop: Any) -> None:
    tolerant = override(ALLOW, {"broker": {"text": "tolerant"}})

    async def main() -> None:
        async with house(listener("tcp"), settings=tolerant) as (node, _):
            for name in HOSTILE_NAMES:
                reader, writer = await dial(node, "tcp")
                writer.write(m.connect(name, username=name[:50], password=b"s3cr3t-Passw0rd"))
                writer.write(m.publish(name, PAYLOAD, 1, 1) + m.disconnect())
                assert (await read_all(reader)).startswith(b"\x20")
                await hang_up(writer)
            await serves(node)

    run(main(), loop)


@BOTH_LOOPS
def test_peers_that_reset(loop: Any) -> None:
    """Connections may be reset at any point without harm to other clients."""

    async def main() -> None:
        async with house(listener("tcp"), listener("ws")) as (node, _):
            stream = (
                m.connect("c", will=("t", PAYLOAD))
                + m.subscribe(1, ("#", 1))
                + m.publish("t", PAYLOAD, 1, 2) * 3
            )
            for at in range(0, len(stream), 5):
                _, writer = await dial(node, "tcp")
                writer.write(stream[:at])
                writer.transport.abort()
                _, writer, _ = await web(node)
                writer.write(ws_frame(stream)[:at])
                writer.transport.abort()
            await serves(node)

    run(main(), loop)
