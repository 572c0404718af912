"""Test the HTTP listener on real sockets."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hookmq.hooks.manager import Hooks
from hookmq.model.errors import ConfigError, PluginError
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.extensions import PluginExtensions
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings, TlsSettings
from http_nodes import Ask, Begin, Pages, http


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition()` is true, checking it in every turn of the event loop."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while not condition():
            turned = loop.create_future()
            loop.call_soon(turned.set_result, None)
            await turned


async def exchange(node: Server, data: bytes) -> bytes:
    """Send these bytes to the HTTP listener. Return everything it sends until it closes the connection."""
    host, _, port = node.addresses()["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


# health and metrics ----------------------------------------------------------------------------------------------


async def test_health_follows_the_node(begin: Begin, ask: Ask) -> None:
    node = await begin((), http())
    assert ((await ask(node, "/healthz")).status, (await ask(node, "/healthz")).text) == (
        200,
        "ok\n",
    )
    ready = await ask(node, "/readyz")
    assert (ready.status, ready.text) == (200, "ready\n")
    assert (await ask(node, "/readyz", "HEAD")).status == 200
    refused = await ask(node, "/readyz", "POST")
    assert (refused.status, refused.headers["Allow"]) == (405, "GET,HEAD")
    node.request_stop()
    stopping = await ask(node, "/readyz")
    assert (stopping.status, stopping.text) == (503, "stopping\n")
    assert (await ask(node, "/healthz")).status == 200
    assert node.broker.on_failure is not None
    node.broker.on_failure("disk full")
    assert (await ask(node, "/healthz")).status == 503
    assert (await ask(node, "/readyz")).text == "failed\n"


async def test_readyz_says_503_while_it_starts_and_drains(broker: Any, ask: Ask) -> None:
    """The HTTP listener responds at every stage. It answers /readyz with 503 while the server starts and drains, which
    tells a load balancer more than a refused connection would.
    """
    runtime = AsyncioRuntime()
    tcp = ListenerSettings(name="tcp", bind="127.0.0.1:0", close_timeout=2.0)
    node = Server(broker, (tcp, http()), runtime)
    loaded: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    drained: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.start = loaded.set_result
    broker.drain = lambda _, done: drained.set_result(done)
    starting = asyncio.create_task(node.start())
    await loaded
    for path, status, text in (
        ("/readyz", 503, "starting\n"),
        ("/healthz", 200, "ok\n"),
        ("/metrics", 503, "starting\n"),
        ("/plugins/a/b", 503, "starting\n"),
    ):
        answer = await ask(node, path)
        assert (answer.status, answer.text) == (status, text)
    (await loaded)(None)
    await starting
    assert list(node.listeners) == ["tcp", "http"]
    assert (await ask(node, "/readyz")).status == 200
    broker.unready_because = "isolated"
    answer = await ask(node, "/readyz")
    assert (answer.status, answer.text) == (503, "isolated\n")
    assert node.phase() == "ready"
    assert (await ask(node, "/healthz")).status == 200
    stopping = asyncio.create_task(node.stop())
    done = await drained
    answer = await ask(node, "/readyz")
    assert (answer.status, answer.text) == (503, "stopping\n")
    done()
    await stopping
    await runtime.close()


async def test_a_node_that_has_not_started_is_not_ready(broker: Any) -> None:
    runtime = AsyncioRuntime()
    node = Server(broker, (), runtime)
    assert node.phase() == "starting"
    await node.start()
    assert node.phase() == "ready"
    await node.stop()
    assert node.phase() == "stopping"
    await runtime.close()


# routes of plugins -----------------------------------------------------------------------------------------------


async def test_routes_are_below_the_plugins_id(begin: Begin, ask: Ask) -> None:
    node = await begin((Pages(None, Context("a")), Pages(None, Context("b"))), http())
    for plugin in "ab":
        answer = await ask(node, f"/plugins/{plugin}/hello/you")
        assert json.loads(answer.text) == {"hello": "you", "id": plugin}
    assert (await ask(node, "/plugins/a/any", "PUT")).text == "PUT"
    assert (await ask(node, "/plugins/c/any")).status == 404
    assert (await ask(node, "/plugins/a")).status == 404
    assert (await ask(node, "/")).status == 404
    refused = await ask(node, "/plugins/a/echo", "PUT")
    assert (refused.status, refused.headers["Allow"]) == (405, "POST")
    moved = await ask(node, "/plugins/a/moved")
    assert (moved.status, moved.headers["Location"]) == (302, "/elsewhere")


async def test_a_plugin_that_fails_tells_nothing(begin: Begin, ask: Ask, log: Any) -> None:
    node = await begin((Pages(None, Context("web")),), http())
    for page in ("fails", "nothing"):
        answer = await ask(node, f"/plugins/web/{page}")
        assert (answer.status, answer.text) == (500, "the plugin failed\n")
    failed = [fields for _, event, fields in log.records if event == "http.plugin_failed"]
    assert [one["path"] for one in failed] == ["/plugins/web/fails", "/plugins/web/nothing"]
    assert failed[0]["plugin"] == "web"
    assert failed[0]["error"] == "TimeoutError('secret of the plugin')"
    assert "is not a response" in failed[1]["error"]


async def page(request: web.BaseRequest) -> web.Response:
    return web.Response()


def plain(request: web.BaseRequest) -> web.Response:
    return web.Response()


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ([("GET", "hello", page)], "it must start with /, without . or .."),
        ([("GET", "/../b/x", page)], "it must start with /, without . or .."),
        ([("GET", "/x/./y", page)], "it must start with /, without . or .."),
        ([("GET", "/x", plain)], "is not an async def"),
        ([("G T", "/x", page)], "is not allowed HTTP method"),
        ([("GET", "/{", page)], "the route GET /{"),
        ([("GET", "/x", page), ("GET", "/x", page)], "the route GET /x"),
    ],
)
def test_routes_that_cannot_be_are_the_plugins_error(routes: Any, words: str) -> None:
    class Routes(Plugin):
        @hookimpl
        def register_http(self, router: Any) -> None:
            for route in routes:
                router.add(*route)

    with pytest.raises(PluginError, match=f"plugin 'web': .*{words}"):
        PluginExtensions(Hooks.of(Routes(None, Context("web"))))


# limits ----------------------------------------------------------------------------------------------------------


async def test_bodies_are_bounded_however_they_come(begin: Begin, ask: Ask) -> None:
    node = await begin((Pages(None, Context("web")),), http(http={"max_body": 100}))
    assert (await ask(node, "/plugins/web/echo", "POST", data=b"x" * 100)).text == "x" * 100
    assert (await ask(node, "/plugins/web/echo", "POST", data=b"x" * 101)).status == 413
    head = (
        b"POST /plugins/web/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    answer = await exchange(node, head + b"80\r\n" + bytes(128) + b"\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    answer = await exchange(
        node, head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"zz\r\n"
    )
    assert answer.split()[1] == b"400"


async def test_heads_are_bounded(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "aiohttp")
    node = await begin((), http())
    line = b"GET /" + b"x" * 330_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert (await exchange(node, line)).split()[1] == b"400"
    field = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9000 + b"\r\n\r\n"
    assert (await exchange(node, field)).split()[1] == b"400"
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


async def test_nobody_waits_for_ever(begin: Begin) -> None:
    node = await begin((), http(connect_timeout=0.1))
    assert await exchange(node, b"GET / HT") == b""  # the rest of the request never arrives
    node = await begin((Pages(None, Context("web")),), http(http={"timeout": 0.1}))
    slow = b"GET /plugins/web/slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert (await exchange(node, slow)).startswith(b"HTTP/1.1 503 ")
    body = b"POST /plugins/web/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"
    assert (await exchange(node, body)).startswith(b"HTTP/1.1 503 ")


async def test_an_http_client_that_does_not_read_is_disconnected(begin: Begin, dial: Any) -> None:
    node = await begin((Pages(None, Context("web")),), http(http={"timeout": 0.2}))
    _, writer = await dial(node.addresses()["http"], limit=1024)
    writer.write(b"GET /plugins/web/endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
    gate = node.listeners["http"].gate
    async with asyncio.timeout(60):
        await until(lambda: bool(gate.entered))
        await gate.emptied()
    assert node.connections() == {"http": 0}


async def test_connections_are_bounded(begin: Begin, ask: Ask, dial: Any) -> None:
    node = await begin((), http(max_connections=1))
    await dial(node.addresses()["http"])
    await until(lambda: node.connections() == {"http": 1})
    with pytest.raises((aiohttp.ClientConnectionError, ConnectionError)):
        await ask(node, "/healthz")
    assert node.broker.metrics.connections_refused >= 1


# access ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/plugins/web/any", "/nope"])
async def test_with_a_token_nothing_is_told_without_it(path: str, begin: Begin, ask: Ask) -> None:
    node = await begin((Pages(None, Context("web")),), http(http={"token": "s3cret"}))
    for given in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic s3cret"}):
        answer = await ask(node, path, headers=given)
        assert (answer.status, answer.text) == (401, "a token is required\n")
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="hookmq"'
    answer = await ask(node, path, headers={"Authorization": "bearer s3cret"})
    assert answer.status == (404 if path == "/nope" else 200)


async def test_errors_of_the_listener_have_safe_headers(begin: Begin, ask: Ask) -> None:
    """The headers of an error response tell browsers neither to store it nor to embed it in a page."""
    closed = await begin((Pages(None, Context("web")),), http(http={"token": "s3cret"}))
    open_ = await begin((Pages(None, Context("web")),), http(http={"max_body": 1}))
    answers = [
        await ask(closed, "/plugins/web/any"),
        await ask(open_, "/plugins/web/any", headers={"Origin": "https://evil.example"}),
        await ask(open_, "/plugins/web/echo", "POST", data=b"xx"),
        await ask(open_, "/plugins/web/nope"),
    ]
    assert [answer.status for answer in answers] == [401, 403, 413, 404]
    for answer in answers:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


async def test_health_may_be_public(begin: Begin, ask: Ask) -> None:
    node = await begin((), http(http={"token": "s3cret", "public_health": True}))
    assert (await ask(node, "/healthz")).status == 200
    assert (await ask(node, "/readyz")).status == 200
    assert (await ask(node, "/metrics")).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:9090"}, 200),
        ({"Host": "LocalHost"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "[::1].evil"}, 403),
        ({"Host": "[::1]:9090"}, 200),
        ({"Origin": "http://localhost:8000"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_without_a_token_web_pages_do_not_get_in(
    headers: dict[str, str], status: int, begin: Begin, ask: Ask
) -> None:
    node = await begin((), http(), http("open", http={"insecure": True}))
    assert (await ask(node, "/metrics", headers=headers)).status == status
    assert (await ask(node, "/metrics", listener="open", headers=headers)).status == 200


def test_an_http_listener_open_to_the_network_needs_a_token() -> None:
    for bind in ("*:9090", "0.0.0.0:9090", "192.0.2.1:9090", "[::]:9090", "example.org:9090"):
        with pytest.raises(ConfigError, match="reached from the network without a token"):
            http(bind=bind)
        assert http(bind=bind, http={"token": "x"}).http.token == "x"
        assert http(bind=bind, http={"insecure": True}).http.insecure
    with pytest.raises(ConfigError, match="ASCII"):
        http(http={"token": "gehéim"})


async def test_a_plugin_that_authenticates_needs_no_token(begin: Begin, ask: Ask) -> None:
    node = await begin((Pages(None, Context("web")),), http(http={"token": "s3cret"}))
    assert json.loads((await ask(node, "/plugins/web/own/you")).text)["hello"] == "you"
    assert (await ask(node, "/plugins/web/own/you", "POST")).status == 401
    assert (await ask(node, "/plugins/web/hello/you")).status == 401


async def test_a_stream_outlasts_the_timeout_and_ends_with_its_client(
    begin: Begin, ask: Ask
) -> None:
    pages = Pages(None, Context("web"))
    node = await begin((pages,), http(http={"timeout": 0.1}))
    host, _, port = node.addresses()["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /plugins/web/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(60):
        await reader.readuntil(b"one\n")
        assert (await ask(node, "/plugins/web/slow")).status == 503  # the timeout has passed
        pages.more.set()
        await reader.readuntil(b"two\n")
        writer.transport.abort()
        await pages.left.wait()


async def test_the_address_of_a_client_behind_a_proxy(begin: Begin, ask: Ask) -> None:
    pages = Pages(None, Context("web"))
    node = await begin((pages,), http(), http("trusting", trusted_proxies=("127.0.0.0/8",)))
    headers = {"X-Forwarded-For": "192.0.2.7"}
    path = "/plugins/web/address"
    assert (await ask(node, path, headers=headers)).text == "127.0.0.1"
    assert (await ask(node, path, listener="trusting", headers=headers)).text == "192.0.2.7"


async def test_https_and_a_token_that_changes(begin: Begin, ask: Ask, files: Any) -> None:
    settings = http(type="https", tls=TlsSettings(**files.server()), http={"token": "one"})
    node = await begin((), settings)
    context = files.client()

    async def status(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        answer = await ask(node, "/metrics", headers=headers, ssl=context)
        code: int = answer.status
        return code

    assert (await status("one"), await status("two")) == (200, 401)
    changed = http(type="https", tls=settings.tls, http={"token": "two"})
    node.listeners["http"].apply(changed)
    assert (await status("one"), await status("two")) == (401, 200)
    assert await node.reload_certificates()
    assert await status("two") == 200


# types of listeners that plugins add -----------------------------------------------------------------------------
