"""Test requests over real sockets: which connection they use, and where it leads."""

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trustme
from aiohttp.abc import AbstractResolver, ResolveResult
from hookmq_webhook import http_client
from hookmq_webhook.config import ProxyConfig
from hookmq_webhook.http_client import ConnectTimeout, HttpClient, system_context
from hookmq_webhook.http_connection import ExchangeFailed
from yarl import URL

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Local(AbstractResolver):
    """Resolves all names to 127.0.0.1."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        pass


class Service:
    """A service that answers each request with the next of `answers`, and notes the connections' numbers."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.heads: list[bytes] = []
        self.connections: list[int] = []
        self.port = 0
        self._count = 0
        self._handlers: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self._count += 1
        number = self._count
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(size)
                self.heads.append(head)
                self.connections.append(number)
                answer = self.answers.pop(0) if self.answers else NO_CONTENT
                writer.write(answer)
                if not answer.endswith(b"\r\n\r\n"):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def stop(self) -> None:
        """Stop listening, and wait until the clients have closed all connections."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._handlers)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    await made.start()
    yield made
    await made.stop()


Make = Callable[..., HttpClient]


@pytest.fixture
async def client() -> AsyncIterator[Make]:
    made: list[HttpClient] = []

    def make(**more: Any) -> HttpClient:
        arguments: dict[str, Any] = {
            "agent": "tester", "resolver": Local(), "tls": system_context(), "timeout": 60.0, "connect_timeout": 60.0,
        }  # fmt: skip
        one = HttpClient(**(arguments | more))
        made.append(one)
        return one

    yield make
    for one in made:
        await one.close()


async def post(client: HttpClient, url: str, headers: dict[str, str] | None = None) -> int:
    return (await client.request("POST", URL(url), headers or {}, b"body", 1000)).status


async def test_a_request_line_and_headers(service: Service, client: Make) -> None:
    one = client()
    url = f"http://some.example:{service.port}/a%20b?c=%26#gone"
    assert await post(one, url, {"X-Name": "v\u00fc", "accept": "text/plain"}) == 204
    lines = service.heads[0].decode().split("\r\n")
    assert lines[:2] == ["POST /a%20b?c=%26 HTTP/1.1", f"Host: some.example:{service.port}"]
    assert sorted(lines[2:]) == [
        "", "", "Accept-Encoding: identity", "Content-Length: 4", "User-Agent: tester", "X-Name: v\u00fc",
        "accept: text/plain",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00", "\x7f"])
async def test_no_value_adds_a_header(service: Service, client: Make, value: str) -> None:
    for headers in ({"X": value}, {value: "x"}):
        with pytest.raises(ValueError, match="control character"):
            await post(client(), f"http://127.0.0.1:{service.port}/", headers)
    assert service.heads == []


async def test_connections_are_kept(service: Service, client: Make) -> None:
    one = client()
    url = f"http://127.0.0.1:{service.port}/"
    service.answers = [NO_CONTENT, b"HTTP/1.1 204 No\r\nConnection: close\r\n\r\n"]
    for _ in range(4):
        assert await post(one, url) == 204
    assert service.connections == [1, 1, 2, 2]
    await asyncio.gather(*(post(one, url) for _ in range(3)))
    assert len(set(service.connections)) == 4


async def test_an_old_connection_is_not_used(
    service: Service, client: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "KEEP_ALIVE", -1.0)
    one = client()
    for _ in range(2):
        await post(one, f"http://127.0.0.1:{service.port}/")
    assert service.connections == [1, 2]


async def test_a_request_is_sent_again_if_a_kept_connection_ends(
    service: Service, client: Make
) -> None:
    one = client()
    url = f"http://127.0.0.1:{service.port}/"
    service.answers = [NO_CONTENT, b"", NO_CONTENT]
    assert [await post(one, url), await post(one, url)] == [204, 204]
    assert service.connections == [1, 1, 2]
    cut = b"HTTP/1.1 2"
    for answers, expected in (
        ([b""], [1]),  # a new connection
        ([NO_CONTENT, b"", b""], [1, 1, 2]),  # the new one too
        ([NO_CONTENT, cut], [1, 1]),  # the service has begun to respond
    ):
        before = max(service.connections)
        service.connections.clear()
        one, service.answers = client(), answers
        if answers[0]:
            await post(one, url)
        with pytest.raises(ExchangeFailed):
            await post(one, url)
        assert [number - before for number in service.connections] == expected


async def test_addresses_are_resolved_once_in_a_while(
    service: Service, client: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Local()
    one = client(resolver=names)
    url = f"http://some.example:{service.port}/"
    close = b"HTTP/1.1 204 No\r\nConnection: close\r\n\r\n"
    service.answers = [close] * 3
    await post(one, url)
    await post(one, url)
    assert names.asked == ["some.example"]
    monkeypatch.setattr(http_client, "RESOLVED", -1.0)
    one = client(resolver=names)
    await post(one, url)
    await post(one, f"http://other.example:{service.port}/")
    assert names.asked == ["some.example", "some.example", "other.example"]
    assert len(set(service.connections)) == 4


async def test_time_limits(service: Service, client: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectTimeout):  # TLS never begins
            await post(client(connect_timeout=0.05), f"https://127.0.0.1:{port}/")
        with pytest.raises(TimeoutError) as raised:
            await post(client(timeout=0.05), f"http://127.0.0.1:{port}/")
        assert not isinstance(raised.value, ConnectTimeout)


async def test_a_closed_client(service: Service, client: Make) -> None:
    one = client()
    await one.close()
    with pytest.raises(ExchangeFailed, match="closed"):
        await post(one, f"http://127.0.0.1:{service.port}/")


class Proxy:
    """A proxy that opens tunnels to 127.0.0.1, or answers with `status`."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.heads: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        writer.write(f"HTTP/1.1 {self.status} Words\r\n\r\n".encode())
        if self.status != 200:
            writer.close()
            return
        port = int(head.split(" ")[1].rpartition(":")[2])
        far, back = await asyncio.open_connection("127.0.0.1", port)
        for pair in ((reader, back), (far, writer)):
            self.tasks.append(asyncio.create_task(self._pass(*pair)))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def test_a_tunnel_through_a_proxy(client: Make) -> None:
    authority = trustme.CA()
    theirs, ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("some.example").configure_cert(theirs)
    authority.configure_trust(ours)
    service, proxy = Service(), Proxy()
    await service.start(theirs)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
        where = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        names = Local()
        one = client(tls=ours, resolver=names, proxy=ProxyConfig(where, "me", "sec:ret"))
        url = f"https://some.example:{service.port}/x"
        assert [await post(one, url), await post(one, url)] == [204, 204]
        with pytest.raises(ssl.SSLCertVerificationError):
            await post(one, f"https://other.example:{service.port}/x")
        proxy.status = 407
        with pytest.raises(ExchangeFailed, match="unreachable: the proxy answered 407"):
            await post(one, "https://third.example/")
        await one.close()
        await asyncio.gather(*proxy.tasks)
    await service.stop()
    assert names.asked == []  # the proxy looks up the names
    assert service.connections == [1, 1]
    first, *others = proxy.heads
    assert first.startswith(f"CONNECT some.example:{service.port} HTTP/1.1\r\n")
    assert f"Basic {base64.b64encode(b'me:sec:ret').decode()}\r\n" in first
    assert len(others) == 2
    assert b"roxy" not in b"".join(service.heads)
