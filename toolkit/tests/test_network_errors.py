"""Test which reasons are reported for failures, using real sockets and real certificates."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from aiohttp import ClientTimeout, web
from hookmq_toolkit.http_client import open_session
from hookmq_toolkit.network_errors import WORDS, network_reason, reason_word

DAY = timedelta(days=1)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


class Server:
    """Serves HTTPS with a certificate that a test chooses."""

    def __init__(self) -> None:
        self.runners: list[web.ServerRunner] = []

    async def start(self, certificate: trustme.LeafCert, **options: ssl.VerifyMode) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        for name, value in options.items():
            setattr(context, name, value)

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response()

        runner = web.ServerRunner(web.Server(answer))
        self.runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port: int = runner.addresses[0][1]
        return port


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    yield made
    for runner in made.runners:
        await runner.cleanup()


async def ask(url: str, trusted: trustme.CA | None = None, seconds: float = 30) -> str:
    """Send a request that fails, and return the reason."""
    context = ssl.create_default_context()
    if trusted is not None:
        trusted.configure_trust(context)
    timeout = ClientTimeout(total=seconds)
    async with open_session("test", 1, tls=context, timeout=timeout) as session:
        with pytest.raises(Exception) as raised:  # noqa: PT011
            async with session.get(url):
                pass
    return network_reason(raised.value)


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[int]:
    """Serve TCP connections with `handle`, yield the port, and wait until all connections are closed."""
    tasks: list[asyncio.Task[None]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await handle(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(connected(reader, writer)))

    async with await asyncio.start_server(start, "127.0.0.1", 0) as served:
        yield served.sockets[0].getsockname()[1]
        await asyncio.gather(*tasks)


async def test_certificates(server: Server, authority: trustme.CA) -> None:
    now = datetime.now(UTC)
    expired = authority.issue_cert("127.0.0.1", not_before=now - 2 * DAY, not_after=now - DAY)
    early = authority.issue_cert("127.0.0.1", not_before=now + DAY, not_after=now + 2 * DAY)
    other = authority.issue_cert("other.example")
    good = authority.issue_cert("127.0.0.1")

    async def reason(certificate: trustme.LeafCert, trusted: trustme.CA | None = authority) -> str:
        return await ask(f"https://127.0.0.1:{await server.start(certificate)}/", trusted)

    assert await reason(expired) == "certificate expired"
    assert await reason(early) == "certificate not yet valid"
    assert await reason(other) == "wrong host"
    assert (await reason(good, None)).startswith("certificate not trusted: ")
    assert (await reason(good, trustme.CA())).startswith("certificate not trusted: ")
    port = await server.start(good)
    named = await ask(f"https://localhost:{port}/", authority)
    assert named == "wrong host"


async def test_a_service_that_requires_a_certificate(server: Server, authority: trustme.CA) -> None:
    port = await server.start(authority.issue_cert("127.0.0.1"), verify_mode=ssl.CERT_REQUIRED)
    found = await ask(f"https://127.0.0.1:{port}/", authority)
    assert reason_word(found) in ("TLS", "connection reset", "connection closed")


async def test_a_service_without_tls() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(plain) as port:
        found = await ask(f"https://127.0.0.1:{port}/")
    assert found.startswith("TLS: ")


async def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/"
        assert await ask(url) == "connection refused"


async def test_unknown_hosts() -> None:
    # RFC 6761: no name server knows names that end with .invalid.
    assert reason_word(await ask("http://nobody.invalid/")) == "unknown host"


@pytest.mark.parametrize("answer", [None, b"", b"\x00\xff", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_connections_that_end_too_early(answer: bytes | None) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            taken: socket.socket = writer.get_extra_info("socket")
            # Linger 0: the kernel sends RST.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01" + b"\0" * 7)
        else:
            writer.write(answer)

    expected = {None: "connection reset", b"\x00\xff": "malformed answer"}
    async with serving(serve) as port:
        found = await ask(f"http://127.0.0.1:{port}/")
    assert reason_word(found) == expected.get(answer, "connection closed")


async def test_a_service_that_does_not_answer() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as port:
        assert await ask(f"http://127.0.0.1:{port}/", seconds=0.1) == "timeout"


def test_every_other_error_has_a_reason_that_is_bounded() -> None:
    found = network_reason(RuntimeError("a secret"))
    assert found == "other: RuntimeError"
    assert network_reason(OSError(101, "Network is unreachable")) == "unreachable"
    assert reason_word(found) == "other"
    assert reason_word("what a client wrote") == "other"
    assert reason_word("token: 500", frozenset({"token"})) == "token"
    assert {reason_word(f"{word}: more") for word in WORDS} == WORDS
