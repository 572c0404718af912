"""Test the HTTP client with a real service: its responses, its failures and its limits."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp import web
from hookmq.plugin import MetricRegistry
from hookmq_toolkit.breaker import Breaker
from hookmq_toolkit.http_client import (
    AnswerTooLarge,
    HttpAnswer,
    HttpLimits,
    HttpRequest,
    HttpService,
    RequestFailed,
    Unavailable,
    open_session,
    register_service_metrics,
    send,
)

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A service that returns `answers` in order and repeats the last one."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[web.Request] = []
        self.answers: list[int | Respond] = [200]
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.requests.append(request)
        self.asked.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            return await answer(request)
        return web.Response(status=answer, body=b"hello")

    async def never(self, request: web.Request) -> web.StreamResponse:
        await self.released.wait()
        return web.Response(body=b"late")

    async def hang_up(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", made.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    made.released.set()
    await runner.cleanup()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


Make = Callable[..., HttpService]


@pytest.fixture
async def service() -> AsyncIterator[Make]:
    """Return a function that creates services with the given limits. `clock` is the breaker's clock."""
    made: list[HttpService] = []

    def make(failures: int = 3, clock: Clock | None = None, **limits: Any) -> HttpService:
        clock = clock or Clock()
        bounds = {"timeout": 20, "max_answer": 100, "max_parallel": 5, "max_waiting": 5, **limits}
        session = open_session("test-agent", 5)
        made.append(HttpService(session, HttpLimits(**bounds), Breaker(failures, 10, clock), clock))
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture
async def skip(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances the event loop's clock, so that timers fire at once."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + sum(ahead))
    return ahead.append


def get(server: Server, path: str = "/") -> HttpRequest:
    return HttpRequest("GET", server.url + path, {})


async def unavailable(service: HttpService, request: HttpRequest) -> str:
    with pytest.raises(Unavailable) as failed:
        await service.ask(request)
    return str(failed.value)


# requests and answers ---------------------------------------------------------------------------------------------


async def test_a_request_is_sent_as_it_is(server: Server, service: Make) -> None:
    request = HttpRequest("PUT", server.url + "/a%2Fb?c=%26", {"X-One": "1"}, b"body")
    assert await service().ask(request) == HttpAnswer(200, b"hello")
    [seen] = server.requests
    assert (seen.method, seen.raw_path, await seen.read()) == ("PUT", "/a%2Fb?c=%26", b"body")
    assert seen.headers["X-One"] == "1"
    assert seen.headers["User-Agent"] == "test-agent"
    assert seen.headers["Accept-Encoding"] == "identity"


def test_the_bytes_of_a_request_tell_requests_apart() -> None:
    one = HttpRequest("GET", "http://a/", {"a": "1", "b": "2"}, b"x")
    assert bytes(one) == bytes(one._replace(headers={"b": "2", "a": "1"}))
    others = (
        one._replace(method="PUT"), one._replace(url="http://a/b"), one._replace(headers={"a": "1"}),
        one._replace(body=b"y"),
    )  # fmt: skip
    assert len({bytes(other) for other in (one, *others)}) == 5


@pytest.mark.parametrize("status", [204, 302, 400, 401, 403, 404])
async def test_other_statuses_are_answers(server: Server, service: Make, status: int) -> None:
    server.answers = [status]
    assert (await service().ask(get(server))).status == status
    assert len(server.requests) == 1


async def test_redirects_are_not_followed(server: Server, service: Make) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": server.url + "/other"})

    server.answers = [redirect]
    assert (await service().ask(get(server))).status == 307
    assert len(server.requests) == 1


async def test_cookies_are_not_kept(server: Server, service: Make) -> None:
    async def cookie(request: web.Request) -> web.StreamResponse:
        return web.Response(headers={"Set-Cookie": "a=b"})

    server.answers = [cookie]
    one = service()
    await one.ask(get(server))
    await one.ask(get(server))
    assert "Cookie" not in server.requests[1].headers


async def test_a_compressed_answer_is_not_decompressed(server: Server, service: Make) -> None:
    async def packed(request: web.Request) -> web.StreamResponse:
        data = gzip.compress(b" " * 10_000)
        return web.Response(body=data, headers={"Content-Encoding": "gzip"})

    server.answers = [packed]
    assert (await service().ask(get(server))).body == gzip.compress(b" " * 10_000)


async def test_the_environment_sets_no_proxy(
    server: Server, service: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert (await service().ask(get(server))).status == 200


# failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_service_that_is_not_well(server: Server, service: Make, status: int) -> None:
    server.answers = [status]
    assert await unavailable(service(), get(server)) == f"status {status}"


async def test_an_answer_that_is_too_large(server: Server, service: Make) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * 101)
        await server.released.wait()
        return response

    server.answers = [stream]
    with pytest.raises(AnswerTooLarge, match="more than 100 bytes"):
        await service().ask(get(server))


async def test_an_answer_that_does_not_come(server: Server, service: Make) -> None:
    server.answers = [server.never]
    one = service(timeout=0.05)
    assert await unavailable(one, get(server)) == "no answer within 0.05 s"
    assert one.counts.failures == 1


async def test_nothing_that_is_sent_is_in_the_error(server: Server, service: Make) -> None:
    server.answers = [server.hang_up]
    request = HttpRequest("GET", server.url + "/?p=hunter2", {"Authorization": "hunter2"})
    assert "hunter2" not in await unavailable(service(), request)
    refused = HttpRequest("GET", "http://127.0.0.1:1/?p=hunter2", {})
    assert "hunter2" not in await unavailable(service(), refused)
    header = HttpRequest("GET", server.url, {"X": "hunter2\r\nY: 1"})
    assert await unavailable(service(), header) == "other: ValueError"


async def test_a_request_is_sent_again_if_a_kept_connection_ended(server: Server) -> None:
    session = open_session("test", 1)
    try:
        server.answers = [200, server.hang_up, 200]
        post = HttpRequest("POST", server.url, {}, b"x")
        await send(session, post, 100)
        assert await send(session, post, 100, resend=True) == HttpAnswer(200, b"hello")
        server.answers = [server.hang_up]
        for resend, requests in ((False, 1), (True, 2)):
            server.requests.clear()
            with pytest.raises(aiohttp.ClientError):
                await send(session, post, 100, resend)
            assert len(server.requests) == requests
    finally:
        await session.close()


async def test_only_trusted_certificates_are_accepted() -> None:
    authority = trustme.CA()
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(own)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"secure")

    server = web.Server(answer)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=own).start()
    request = HttpRequest("GET", f"https://127.0.0.1:{runner.addresses[0][1]}/", {})
    try:
        async with open_session("test", 1, tls=trusting) as session:
            assert (await send(session, request, 100)).body == b"secure"
        async with open_session("test", 1) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await send(session, request, 100)
    finally:
        await runner.cleanup()


# retries, breaker and bounds --------------------------------------------------------------------------------------


async def test_retries(server: Server, service: Make) -> None:
    server.answers = [503, 502, 200]
    one = service(retries=2)
    assert (await one.ask(get(server))).status == 200
    assert (one.counts.requests, one.counts.failures) == (3, 2)
    server.answers = [503]
    assert await unavailable(service(retries=1), get(server)) == "status 503"
    assert len(server.requests) == 5


async def test_a_failing_service_is_not_asked_for_a_while(server: Server, service: Make) -> None:
    server.answers = [503]
    clock = Clock()
    one = service(failures=2, clock=clock, retries=5)
    assert "not asked for a while" in await unavailable(one, get(server))
    assert len(server.requests) == 2
    assert (one.counts.refused, one.breaker.state) == (1, "open")
    server.answers = [200]
    clock.now += 10
    assert (await one.ask(get(server))).status == 200
    assert one.breaker.state == "closed"


async def test_one_failed_request_does_not_open_the_breaker(server: Server, service: Make) -> None:
    server.answers = [500]
    one = service(failures=1)
    with pytest.raises(RequestFailed):
        await one.ask(get(server))
    assert one.breaker.state == "closed"
    assert one.counts.failures == 1


async def test_a_cancelled_call_does_not_count(server: Server, service: Make) -> None:
    server.answers = [server.never]
    one = service(failures=1)
    call = asyncio.create_task(one.ask(get(server)))
    await server.asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    counts = one.counts
    assert (counts.running, counts.waiting, counts.failures) == (0, 0, 0)
    assert one.breaker.state == "closed"


async def test_calls_in_progress_and_waiting_are_bounded(server: Server, service: Make) -> None:
    server.answers = [server.never]
    one = service(max_parallel=1, max_waiting=1)
    calls = [asyncio.create_task(one.ask(get(server)))]
    await server.asked.wait()
    calls.append(asyncio.create_task(one.ask(get(server))))
    await asyncio.sleep(0)
    assert (one.counts.running, one.counts.waiting) == (1, 1)
    assert await unavailable(one, get(server)) == "1 requests are waiting already"
    assert one.counts.refused == 1
    server.released.set()
    assert [answer.body for answer in await asyncio.gather(*calls)] == [b"late", b"late"]
    assert (one.counts.running, one.counts.waiting, len(server.requests)) == (0, 0, 2)


async def test_the_deadline_covers_waiting(
    server: Server, service: Make, skip: Callable[[float], None]
) -> None:
    server.answers = [server.never]
    one = service(timeout=2000, max_parallel=1, deadline=1000)
    calls = asyncio.gather(*(one.ask(get(server)) for _ in range(2)), return_exceptions=True)
    await server.asked.wait()
    # Both calls are due in the same turn, so the second never gets the place of the first.
    skip(1500)
    assert [str(result) for result in await calls] == ["no answer within 1000 s"] * 2
    assert len(server.requests) == 1
    assert (one.counts.running, one.counts.waiting, one.counts.failures) == (0, 0, 1)


async def test_the_deadline_covers_retries(
    server: Server, service: Make, skip: Callable[[float], None]
) -> None:
    server.answers = [503]
    one = service(timeout=2000, deadline=1000, retries=1, retry_delay=10_000)
    call = asyncio.create_task(unavailable(one, get(server)))
    while not one.counts.failures:  # noqa: ASYNC110 - a few turns, until the answer has arrived
        await asyncio.sleep(0)
    skip(1500)
    assert await call == "no answer within 1000 s"
    assert len(server.requests) == 1


async def test_a_closed_service_does_not_answer(server: Server, service: Make) -> None:
    one = service()
    await one.close()
    assert await unavailable(one, get(server)) == "the client is closed"
    assert server.requests == []


class Registry(MetricRegistry):
    def __init__(self) -> None:
        self.read: dict[str, Callable[[], Any]] = {}

    def counter(self, name: str, help: str, read: Callable[[], Any]) -> None:
        self.read[name] = read

    gauge = summary = counter


async def test_metrics(server: Server, service: Make) -> None:
    found: list[HttpService] = []
    registry = Registry()
    register_service_metrics(registry, "x", lambda: found[0] if found else None)
    assert {name: read() for name, read in registry.read.items()} == {
        "x_failures_total": 0, "x_refused_total": 0, "x_waiting": 0, "x_running": 0, "x_circuit": 0,
        "x_request_seconds": [({}, 0, 0.0)],
    }  # fmt: skip
    server.answers = [503]
    found.append(service(failures=1))
    for _ in range(2):
        await unavailable(found[0], get(server))
    values = {name: read() for name, read in registry.read.items()}
    assert (values["x_failures_total"], values["x_refused_total"], values["x_circuit"]) == (1, 1, 2)
    assert values["x_request_seconds"] == [({}, 1, 0.0)]
