"""Test fetching from a real server that is fast, slow or down, redirects, or sends wrong or huge responses."""

import gzip
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from hookmq_auth_jwt.config import FetchConfig
from hookmq_auth_jwt.fetch import FetchFailed, fetch
from tokens import jwk, jwks, key_server

SET = jwks(jwk("RSA 2048", "k"))
PATIENT = FetchConfig(timeout=20)


async def why(url: str, config: FetchConfig = PATIENT) -> str:
    """Return why the fetch fails."""
    with pytest.raises(FetchFailed) as failed:
        await fetch(url, config)
    return str(failed.value)


def say(response: Callable[[], web.StreamResponse]) -> Callable[[web.Request], Awaitable[Any]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return response()

    return answer


async def test_a_good_answer() -> None:
    async with key_server() as server:
        server.body = SET
        assert await fetch(server.url, PATIENT) == SET


async def test_a_key_set_is_fetched_with_one_get_request() -> None:
    async with key_server() as server:
        seen: list[web.Request] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            seen.append(request)
            return web.Response(body=SET)

        server.answer = answer
        await fetch(server.url, PATIENT)
        [request] = seen
        assert request.method == "GET"
        assert request.headers["Accept-Encoding"] == "identity"
        assert "Authorization" not in request.headers
        assert "Cookie" not in request.headers


@pytest.mark.parametrize("status", [204, 206, 301, 304, 400, 401, 404, 429, 500, 503])
async def test_another_status(status: int) -> None:
    async with key_server() as server:
        server.answer = say(lambda: web.Response(status=status))
        expected = "invalid URL" if status == 301 else f"HTTP {status}"
        assert expected in await why(server.url)


async def test_slow() -> None:
    async with key_server() as server:
        server.answer = server.slow
        assert await why(server.url, FetchConfig(timeout=0.1)) == "no answer within 0.1 s"


async def test_slow_byte_by_byte() -> None:
    async with key_server() as server:

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"{")
            await server.released.wait()
            return response

        server.answer = answer
        assert "no answer within" in await why(server.url, FetchConfig(timeout=0.1))


async def test_dead() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    assert "cannot connect" in await why(f"http://127.0.0.1:{port}/")


async def test_an_answer_that_is_not_http_is_reported() -> None:
    import asyncio

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert "fetching failed" in await why(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("told", [True, False])
async def test_huge(told: bool) -> None:
    async with key_server() as server:

        async def answer(request: web.Request) -> web.StreamResponse:
            if told:
                return web.Response(body=b" " * 300_000)
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(1000):
                await response.write(b" " * 10_000)
            return response

        server.answer = answer
        assert await why(server.url) == "more than 262144 bytes"


async def test_a_bomb() -> None:
    async with key_server() as server:
        packed = gzip.compress(b" " * 10_000_000)
        server.answer = say(lambda: web.Response(body=packed, headers={"Content-Encoding": "gzip"}))
        assert "compressed" in await why(server.url)


async def test_cut_short() -> None:
    async with key_server() as server:

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b"{")
            assert request.transport is not None
            request.transport.close()
            return response

        server.answer = answer
        assert "fetching failed" in await why(server.url)


def redirect(to: str) -> Callable[[web.Request], Awaitable[Any]]:
    return say(lambda: web.Response(status=302, headers={"Location": to}))


async def test_redirects() -> None:
    async with key_server() as server:

        async def answer(request: web.Request) -> web.StreamResponse:
            left = int(request.query.get("left", "9"))
            if not left:
                return web.Response(body=SET)
            return web.Response(status=302, headers={"Location": f"/other?left={left - 1}"})

        server.answer = answer
        assert await fetch(server.url + "?left=2", PATIENT) == SET
        assert await why(server.url + "?left=3") == "more than 2 redirects"
        assert (
            await why(server.url + "?left=1", FetchConfig(max_redirects=0))
            == "more than 0 redirects"
        )


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("http://idp.example/", "away from https"),
        ("http://169.254.169.254/latest", "away from https"),
        ("ftp://idp.example/", "invalid URL"),
        ("file:///etc/passwd", "invalid URL"),
        ("http://[", "invalid URL"),
        ("", "invalid URL"),
    ],
)
async def test_redirects_elsewhere(to: str, says: str) -> None:
    async with key_server() as server:
        server.answer = redirect(to)
        assert says in await why(server.url)


async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)
    async with key_server(context) as server, key_server() as plain:
        server.body = SET
        assert await fetch(server.url, FetchConfig(ca_file=ca_file)) == SET
        assert await why(server.url) == "the server's certificate is not trusted"
        # down to http, even to this machine
        server.answer = redirect(plain.url)
        assert "away from https" in await why(server.url, FetchConfig(ca_file=ca_file))
        ca_file.unlink()
        assert "fetching failed" in await why(server.url, FetchConfig(ca_file=ca_file))


async def test_the_environment_does_not_send_it_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with key_server() as server:
        server.body = SET
        assert await fetch(server.url, PATIENT) == SET
