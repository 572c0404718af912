"""Test the PROXY protocol: first the parser alone, then every transport."""

import asyncio
import ipaddress
from typing import Any

import pytest
from hookmq.model.client import Certificate, Peer
from hookmq.model.errors import ConfigError
from hookmq.server.proxy_protocol import SIGNATURE, V1_LIMIT, V2_LIMIT, ProxyError, ProxyParser
from hookmq.server.settings import ListenerSettings, TlsSettings
from hypothesis import given
from hypothesis import strategies as st

V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 40001 1883\r\n"
LOOPBACK = ("127.0.0.0/8", "::1")


def tlv(kind: int, value: bytes) -> bytes:
    return bytes([kind]) + len(value).to_bytes(2, "big") + value


def v2(
    source: str = "192.0.2.7",
    port: int = 40001,
    tlvs: bytes = b"",
    command: int = 1,
    protocol: int = 1,
) -> bytes:
    address = ipaddress.ip_address(source)
    body = address.packed * 2 + port.to_bytes(2, "big") + b"\x07\x5b" + tlvs
    family = 0x10 if address.version == 4 else 0x20
    return (
        SIGNATURE + bytes([0x20 | command, family | protocol]) + len(body).to_bytes(2, "big") + body
    )


def client_tls(name: bytes, flags: int = 0x07, verify: int = 0) -> bytes:
    return tlv(0x20, bytes([flags]) + verify.to_bytes(4, "big") + tlv(0x22, name))


def parse(data: bytes, versions: Any = "any") -> tuple[Peer | None, int]:
    parser = ProxyParser(versions)
    size = parser.feed(data)
    assert parser.header is not None
    return parser.header.source, size


@given(st.ip_addresses(), st.integers(0, 65535), st.binary(max_size=50))
def test_v1_and_v2_name_the_peer_and_leave_the_rest(address: Any, port: int, rest: bytes) -> None:
    family = "TCP4" if address.version == 4 else "TCP6"
    line = f"PROXY {family} {address} {address} {port} 1883\r\n".encode()
    header = v2(str(address), port)
    expected = Peer(str(address), port, "")
    assert parse(line + rest) == parse(line + rest, "v1") == (expected, len(line))
    assert parse(header + rest) == parse(header + rest, "v2") == (expected, len(header))


@pytest.mark.parametrize("header", [V1, v2(), v2("2001:db8::1", tlvs=client_tls(b"device"))])
def test_split_at_every_byte(header: bytes) -> None:
    whole = parse(header)[0]
    for cut in range(len(header)):
        parser = ProxyParser("any")
        assert parser.feed(header[:cut]) == cut
        assert parser.header is None
        assert parser.feed(header[cut:] + b"\x10rest") == len(header) - cut
        assert parser.header is not None
        assert parser.header.source == whole
        assert parser.feed(b"more") == 0
    parser = ProxyParser("any")
    assert [parser.feed(header[at : at + 1]) for at in range(len(header))] == [1] * len(header)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN \r\n",
        b"PROXY UNKNOWN  a  %b \r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
        v2(command=0),
        v2(protocol=2),  # UDP
        SIGNATURE + b"\x21\x00\x00\x00",  # unspecified family
        SIGNATURE + b"\x21\x31" + (216).to_bytes(2, "big") + bytes(216),  # Unix
        SIGNATURE + b"\x20\x00\x00\x00",
    ],
)
def test_headers_that_name_nobody(header: bytes) -> None:
    assert parse(header + b"\x10") == (None, len(header))


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0c\x00\x04MQTT",
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP6 fe80::1%lo fe80::1%lo 1 2\r\n",
        b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
        b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 \xb2\r\n",
        b"PROXY \r\n",
        b"PROXY " + b"x" * (V1_LIMIT - 6),
        SIGNATURE + b"\x11\x11\x00\x0c" + bytes(12),  # version 1
        SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),  # command 2
        SIGNATURE + b"\x21\x41\x00\x0c" + bytes(12),  # family 4
        SIGNATURE + b"\x21\x13\x00\x0c" + bytes(12),  # protocol 3
        SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11),  # too short for its addresses
        SIGNATURE + b"\x21\x21\x00\x23" + bytes(35),
        SIGNATURE + b"\x21\x11\xff\xff",  # too long
        v2(tlvs=b"\x04\x00"),
        v2(tlvs=b"\x04\x00\x05abcd"),
        v2(tlvs=tlv(0x20, b"\x07\x00")),
        v2(tlvs=tlv(0x20, b"\x07\x00\x00\x00\x00\x22\x00\x09abc")),
        v2(tlvs=client_tls(b"\xff\xfe")),
    ],
)
def test_an_invalid_proxy_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyError):
        ProxyParser("any").feed(data)


@pytest.mark.parametrize(("versions", "header"), [("v1", v2()), ("v2", V1)])
def test_only_the_wanted_version(versions: Any, header: bytes) -> None:
    with pytest.raises(ProxyError):
        ProxyParser(versions).feed(header[:1])


def test_v1_of_the_longest_kind_fits() -> None:
    address = ":".join(["ffff"] * 8)
    line = f"PROXY TCP6 {address} {address} 65535 65535\r\n".encode()
    assert len(line) <= V1_LIMIT
    assert parse(line)[0] == Peer(address, 65535, "")


@pytest.mark.parametrize(
    ("tlvs", "expected"),
    [
        (client_tls(b"device-7"), Certificate(common_name="device-7")),
        (tlv(0x05, b"id") + client_tls("gerät".encode()), Certificate(common_name="gerät")),
        (client_tls(b"device-7", flags=0x01), None),  # TLS, but no certificate
        (client_tls(b"device-7", verify=1), None),  # not verified
        (client_tls(b""), None),
        (tlv(0x20, b"\x07\x00\x00\x00\x00"), None),
        (tlv(0x01, b"h2"), None),
    ],
)
def test_common_name_only_of_a_verified_certificate(
    tlvs: bytes, expected: Certificate | None
) -> None:
    source = parse(v2(tlvs=tlvs))[0]
    assert source is not None
    assert source.certificate == expected


@given(
    st.sampled_from(
        [b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11", v2()[:-3]]
    ),
    st.lists(st.binary(max_size=200), max_size=30),
    st.sampled_from(["v1", "v2", "any"]),
)
def test_any_bytes_end_in_a_header_or_an_error(
    start: bytes, chunks: list[bytes], versions: Any
) -> None:
    parser = ProxyParser(versions)
    taken = 0
    try:
        for chunk in (start, *chunks):
            size = parser.feed(chunk)
            assert 0 <= size <= len(chunk)
            taken += size
            if parser.header is not None:
                break
            assert size == len(chunk)
    except ProxyError:
        return
    assert taken <= V2_LIMIT


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_header_parses_the_same_however_it_is_cut(tlv_value: bytes, data: Any) -> None:
    header = v2(tlvs=tlv(0x05, tlv_value)) + b"rest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(header)), max_size=6)))
    parser = ProxyParser("v2")
    taken = 0
    for begin, end in zip([0, *cuts], [*cuts, len(header)], strict=True):
        taken += parser.feed(header[begin:end])
    assert taken == len(header) - 4
    assert parser.header is not None
    assert parser.header.source == Peer("192.0.2.7", 40001, "")


# In front of a transport


@pytest.mark.parametrize("header", [V1, v2(tlvs=client_tls(b"device-7"))], ids=["v1", "v2"])
async def test_tcp_peer_is_who_the_proxy_names(
    listen: Any, dial: Any, broker: Any, header: bytes
) -> None:
    listener = await listen(proxy_protocol="any", trusted_proxies=LOOPBACK)
    _, writer = await dial(listener)
    writer.write(header + b"\x10rest")
    connection = await broker.next()
    await connection.until_received(b"\x10rest")
    assert connection.peer[:3] == ("192.0.2.7", 40001, "tcp")
    assert (connection.peer.certificate is not None) == (header is not V1)


async def test_header_split_at_every_byte_over_a_socket(
    listen: Any, dial: Any, broker: Any
) -> None:
    listener = await listen(proxy_protocol="any", trusted_proxies=LOOPBACK)
    for cut in range(1, len(V1), 7):
        _, writer = await dial(listener)
        writer.write(V1[:cut])
        await writer.drain()
        _, other = await dial(
            listener
        )  # complete another connection in between, so that both parts are read separately
        other.write(v2("192.0.2.8"))
        assert (await broker.next()).peer.host == "192.0.2.8"
        writer.write(V1[cut:] + b"!")
        connection = await broker.next()
        assert connection.peer.host == "192.0.2.7"
        await connection.until_received(b"!")


async def test_health_check_keeps_its_own_address(listen: Any, dial: Any, broker: Any) -> None:
    _, writer = await dial(await listen(proxy_protocol="v2", trusted_proxies=LOOPBACK))
    writer.write(v2(command=0))
    connection = await broker.next()
    assert connection.peer.host == "127.0.0.1"
    assert connection.peer.port == writer.get_extra_info("sockname")[1]


@pytest.mark.parametrize(
    ("sent", "trusted", "why"),
    [
        (b"\x10\x0c\x00\x04MQTT\x04", LOOPBACK, "not a PROXY header"),
        (V1, ("192.0.2.0/24",), "proxy not trusted"),
        (V1[:10], LOOPBACK, "PROXY header timed out"),
    ],
)
async def test_refused_without_a_header_from_a_trusted_proxy(
    listen: Any, dial: Any, broker: Any, log: Any, sent: bytes, trusted: Any, why: str
) -> None:
    listener = await listen(proxy_protocol="any", trusted_proxies=trusted, proxy_timeout=0.1)
    reader, writer = await dial(listener)
    writer.write(sent)
    try:
        assert await reader.read() == b""
    except ConnectionError:
        pass
    assert broker.connections == []
    assert broker.metrics.connections_refused == 1
    assert [fields["why"] for _, event, fields in log.records if event == "listener.refused"] == [
        why
    ]


async def test_peer_that_leaves_within_its_header(
    listen: Any, dial: Any, broker: Any, log: Any
) -> None:
    listener = await listen(proxy_protocol="any", trusted_proxies=LOOPBACK)
    reader, writer = await dial(listener)
    writer.write(V1[:5])
    writer.write_eof()
    try:
        assert await reader.read() == b""
    except ConnectionError:
        pass
    assert broker.metrics.connections_refused == 1


async def test_full_listener_refuses_before_the_header(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen(proxy_protocol="any", trusted_proxies=LOOPBACK, max_connections=1)
    _, writer = await dial(listener)
    writer.write(V1)
    await broker.next()
    reader, _ = await dial(listener)
    assert await reader.read() == b""
    assert broker.metrics.connections_refused == 1


async def test_tls_begins_after_the_header(listen: Any, broker: Any, files: Any) -> None:
    options = {"client_ca": files.client_ca(), "client_certificates": "required"}
    listener = await listen(
        type="tls", tls=TlsSettings(**files.server() | options), proxy_protocol="v2",
        trusted_proxies=LOOPBACK,
    )  # fmt: skip
    host, port = listener.address.split(":")
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, protocol = await loop.create_connection(
        lambda: asyncio.StreamReaderProtocol(reader), host, int(port)
    )
    transport.write(v2(tlvs=client_tls(b"of the proxy")))
    secure = await loop.start_tls(
        transport, protocol, files.client("device-7"), server_hostname="localhost"
    )
    assert secure is not None
    secure.write(b"through")
    connection = await broker.next()
    await connection.until_received(b"through")
    assert connection.peer[:3] == ("192.0.2.7", 40001, "tls")
    assert connection.peer.certificate.common_name == "device-7"
    secure.abort()
    await connection.until_ended()


async def test_websocket_behind_a_proxy(listen: Any, broker: Any) -> None:
    listener = await listen(
        type="ws", proxy_protocol="v1", trusted_proxies=(*LOOPBACK, "192.0.2.7")
    )
    host, port = listener.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        V1 + b"GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n"
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 101")
    connection = await broker.next()
    assert connection.peer == Peer("203.0.113.9", 0, "ws")  # two hops, both trusted
    writer.transport.abort()
    await connection.until_ended()


async def test_shutting_lets_go_who_is_still_telling(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen(proxy_protocol="any", trusted_proxies=LOOPBACK)
    _, first = await dial(listener)
    first.write(V1)
    await broker.next()
    reader, writer = await dial(listener)
    writer.write(V1[:5])
    last_reader, last = await dial(listener)
    last.write(V1)
    # Accepted after the first connection, so that one was accepted too.
    connection = await broker.next()
    listener.shut()
    connection.wire.write(b"goes on")
    assert await last_reader.readexactly(7) == b"goes on"
    try:
        assert await reader.read() == b""
    except ConnectionError:
        pass


def test_trusting_nobody_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="trusted_proxies"):
        ListenerSettings(proxy_protocol="v1")
