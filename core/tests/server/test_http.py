"""The http listener, and the types of listeners that plugins add: on real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hookmq import BUILD
from hookmq.broker import Broker
from hookmq.errors import BindError, ConfigError, PluginError
from hookmq.hooks.manager import Hooks
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq.server.extensions import Extensions
from hookmq.server.node import Node
from hookmq.server.runtime import AsyncioRuntime
from hookmq.server.settings import HttpSettings, ListenerSettings, TlsSettings
from hookmq.settings import AuthSettings, AuthzSettings, Settings
from hookmq.types import Peer

OPEN = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))
Begin = Callable[..., Awaitable[Node]]
Ask = Callable[..., Awaitable[Any]]


def http(name: str = "http", **options: Any) -> ListenerSettings:
    section = HttpSettings(**options.pop("http", {}))
    defaults: dict[str, Any] = {"bind": "127.0.0.1:0", "close_timeout": 2.0, "type": "http"}
    return ListenerSettings(name=name, http=section, **defaults | options)


class Pages(Plugin):
    """Routes of several kinds."""

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.never = asyncio.Event()

    @hookimpl
    def register_http(self, router: Any) -> None:
        router.add("GET", "/hello/{name}", self.hello)
        router.add("POST", "/echo", self.echo)
        router.add("*", "/any", self.any)
        router.add("GET", "/slow", self.slow)
        router.add("GET", "/endless", self.endless)
        router.add("GET", "/fails", self.fails)
        router.add("GET", "/nothing", self.nothing)
        router.add("GET", "/moved", self.moved)

    @hookimpl
    def register_metrics(self, registry: Any) -> None:
        registry.counter("pages_total", "Pages shown.", lambda: 7)

    async def hello(self, request: web.BaseRequest, name: str) -> web.Response:
        return web.json_response({"hello": name, "id": self.id})

    async def echo(self, request: web.BaseRequest) -> web.Response:
        return web.Response(body=await request.read())

    async def any(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text=request.method)

    async def slow(self, request: web.BaseRequest) -> web.Response:
        await self.never.wait()
        return web.Response()

    async def endless(self, request: web.BaseRequest) -> web.Response:
        return web.Response(body=bytes(64 << 20))

    async def fails(self, request: web.BaseRequest) -> web.Response:
        raise TimeoutError("secret of the plugin")

    async def nothing(self, request: web.BaseRequest) -> Any:
        return None

    async def moved(self, request: web.BaseRequest) -> web.Response:
        raise web.HTTPFound("/elsewhere")


@pytest.fixture
async def begin(log: Any) -> AsyncIterator[Begin]:
    """Start a node with a real broker, plugins and listeners; stopped at the end."""
    nodes: list[Node] = []

    class Logged(AsyncioRuntime):
        __slots__ = ("log",)

    async def start(plugins: tuple[Plugin, ...] = (), *listeners: ListenerSettings) -> Node:
        runtime = Logged()
        runtime.log = log  # type: ignore[method-assign]
        hooks = Hooks.of(*plugins)
        broker = Broker(OPEN, runtime, hooks)
        node = Node(broker, listeners, runtime)
        nodes.append(node)
        node.use(Extensions(hooks, broker, node.connections, log))
        await node.start()
        return node

    yield start
    for node in nodes:
        await node.stop()
        await node.runtime.close()


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """`ask(node, path)`: status, text and headers of the answer of a node's http listener."""
    async with aiohttp.ClientSession() as session:

        async def send(
            node: Node, path: str, method: str = "GET", listener: str = "http", **options: Any
        ) -> Any:
            scheme = "https" if "ssl" in options else "http"
            url = f"{scheme}://{node.addresses()[listener]}{path}"
            async with session.request(method, url, allow_redirects=False, **options) as answer:
                text = await answer.text()
                return SimpleNamespace(status=answer.status, text=text, headers=answer.headers)

        yield send


async def until(condition: Callable[[], bool]) -> None:
    """Return when `condition` holds, looked at in every turn of the loop."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while not condition():
            turned = loop.create_future()
            loop.call_soon(turned.set_result, None)
            await turned


async def exchange(node: Node, data: bytes) -> bytes:
    """What the http listener answers to these bytes, until it closes."""
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
    """Asked over HTTP at each step: a balancer that is refused knows less than one that is told."""
    runtime = AsyncioRuntime()
    tcp = ListenerSettings(name="tcp", bind="127.0.0.1:0", close_timeout=2.0)
    node = Node(broker, (tcp, http()), runtime)
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
    stopping = asyncio.create_task(node.stop())
    done = await drained
    answer = await ask(node, "/readyz")
    assert (answer.status, answer.text) == (503, "stopping\n")
    done()
    await stopping
    await runtime.close()


async def test_a_node_that_has_not_started_is_not_ready(broker: Any) -> None:
    runtime = AsyncioRuntime()
    node = Node(broker, (), runtime)
    assert node.phase() == "starting"
    await node.start()
    assert node.phase() == "ready"
    await node.stop()
    assert node.phase() == "stopping"
    await runtime.close()


async def test_metrics_of_the_core_and_of_plugins(begin: Begin, ask: Ask, dial: Any) -> None:
    tcp = ListenerSettings(name="tcp", bind="127.0.0.1:0", close_timeout=2.0)
    node = await begin((Pages(None, Context("web")),), http(), tcp)
    reader, writer = await dial(node.addresses()["tcp"])
    writer.write(bytes.fromhex("100d00044d5154540400003c000178"))  # CONNECT, the session stays
    writer.write(bytes.fromhex("820800010003612f2301"))  # SUBSCRIBE a/#
    writer.write(b"\x31\x06\x00\x03b/cx")  # retained: b/c
    writer.write(b"\xc0\x00")
    answers = await reader.readexactly(11)
    assert all(one in answers for one in (b"\x20\x02\0\0", b"\x90\x03\0\x01\x01", b"\xd0\0"))
    answer = await ask(node, "/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    assert "hookmq_connections 1" in lines
    assert 'hookmq_listener_connections{listener="tcp"} 1' in lines
    assert 'hookmq_listener_connections{listener="http"} 1' in lines
    assert "hookmq_sessions 1" in lines
    assert "hookmq_subscriptions 1" in lines
    assert "hookmq_retained_messages 1" in lines
    broker: Any = node.broker
    kept = broker.core.retained.get("b/c")
    assert kept.size == 4  # b/c and x above
    assert kept.publisher.size > 0
    assert f"hookmq_retained_bytes {4 + kept.publisher.size}" in lines
    assert "hookmq_queue_bytes 0" in lines
    for name, who in (("retained_bytes", ", and who published them"), ("queue_bytes", "")):
        (help,) = [line for line in lines if line.startswith(f"# HELP hookmq_{name} ")]
        assert help.endswith(f"topics, payloads and properties{who}.")
    assert "hookmq_route_cache_misses_total 1" in lines
    assert "hookmq_connections_accepted_total 1" in lines
    assert "hookmq_messages_received_total 1" in lines
    assert 'hookmq_pages_total{plugin="web"} 7' in lines
    ok = 'hookmq_hook_calls_total{hook="register_metrics",outcome="ok",plugin="web"} 1'
    assert ok in lines
    info = f'hookmq_build_info{{build="{BUILD.kind}",plugins_api="1.0",python="'
    assert any(line.startswith(info) for line in lines)
    assert len({line for line in lines if line[0] != "#"}) == len(
        [line for line in lines if line[0] != "#"]
    )
    asked = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    other = await ask(node, "/metrics", headers=asked)
    assert other.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert other.text.endswith("# EOF\n")


async def test_dropped_messages_are_counted_by_reason_and_direction(begin: Begin, ask: Ask) -> None:
    node = await begin((), http())
    node.broker.metrics.count_drop("queue_full", "out", 3)
    text = (await ask(node, "/metrics")).text
    assert 'hookmq_messages_dropped_total{direction="out",reason="queue_full"} 3\n' in text


async def test_a_metric_that_cannot_be_read_is_logged_once(
    begin: Begin, ask: Ask, log: Any
) -> None:
    class Bad(Plugin):
        @hookimpl
        def register_metrics(self, registry: Any) -> None:
            registry.gauge("bad", "Bad.", lambda: [][0])

    node = await begin((Bad(None, Context("bad")),), http())
    for _ in range(2):
        assert (await ask(node, "/metrics")).status == 200
    unreadable = [fields for _, event, fields in log.records if event == "metrics.unreadable"]
    causes = [fields.pop("traceback") for fields in unreadable]
    assert [type(cause) for cause in causes] == [IndexError]
    assert unreadable == [
        {
            "family": "hookmq_bad",
            "plugin": "bad",
            "error": "IndexError('list index out of range')",
        }
    ]


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
    assert "is no response" in failed[1]["error"]


async def page(request: web.BaseRequest) -> web.Response:
    return web.Response()


def plain(request: web.BaseRequest) -> web.Response:
    return web.Response()


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ([("GET", "hello", page)], "begins with / and goes down"),
        ([("GET", "/../b/x", page)], "begins with / and goes down"),
        ([("GET", "/x/./y", page)], "begins with / and goes down"),
        ([("GET", "/x", plain)], "is no async def"),
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
        Extensions(Hooks.of(Routes(None, Context("web"))))


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
    line = b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert (await exchange(node, line)).split()[1] == b"400"
    field = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9000 + b"\r\n\r\n"
    assert (await exchange(node, field)).split()[1] == b"400"
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


async def test_nobody_waits_for_ever(begin: Begin) -> None:
    node = await begin((), http(connect_timeout=0.1))
    assert await exchange(node, b"GET / HT") == b""  # the rest of its head does not come
    node = await begin((Pages(None, Context("web")),), http(http={"timeout": 0.1}))
    slow = b"GET /plugins/web/slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert (await exchange(node, slow)).startswith(b"HTTP/1.1 503 ")
    body = b"POST /plugins/web/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"
    assert (await exchange(node, body)).startswith(b"HTTP/1.1 503 ")


async def test_who_does_not_read_is_cut_off(begin: Begin, dial: Any) -> None:
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


# who may ask -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/plugins/web/any", "/nope"])
async def test_with_a_token_nothing_is_told_without_it(path: str, begin: Begin, ask: Ask) -> None:
    node = await begin((Pages(None, Context("web")),), http(http={"token": "s3cret"}))
    for given in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic s3cret"}):
        answer = await ask(node, path, headers=given)
        assert (answer.status, answer.text) == (401, "a token is needed\n")
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="hookmq"'
    answer = await ask(node, path, headers={"Authorization": "bearer s3cret"})
    assert answer.status == (404 if path == "/nope" else 200)


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


def test_what_the_network_reaches_needs_a_token() -> None:
    for bind in ("*:9090", "0.0.0.0:9090", "192.0.2.1:9090", "[::]:9090", "example.org:9090"):
        with pytest.raises(ConfigError, match="reached from the network and asks for no token"):
            http(bind=bind)
        assert http(bind=bind, http={"token": "x"}).http.token == "x"
        assert http(bind=bind, http={"insecure": True}).http.insecure
    with pytest.raises(ConfigError, match="ASCII"):
        http(http={"token": "gehéim"})


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


class Reversed(asyncio.Protocol):
    """A transport that sends and takes every chunk backwards: a Wire of somebody else."""

    def __init__(self, accept: Any) -> None:
        self.accept = accept

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.abort, self.close = transport.abort, transport.close
        self.pause_reading, self.resume_reading = (
            transport.pause_reading,
            transport.resume_reading,
        )
        self.connection = self.accept(self, Peer("upside", 0, "reversed"))

    def write(self, data: bytes) -> None:
        self.transport.write(data[::-1])

    def data_received(self, data: bytes) -> None:
        self.connection.feed(data[::-1])

    def connection_lost(self, error: Exception | None) -> None:
        self.connection.closed(str(error or ""))


class ReversedListener:
    def __init__(self, settings: ListenerSettings, accept: Any, runtime: Any) -> None:
        self.settings = settings
        self.accept = accept
        self.address = settings.bind
        self.server: asyncio.Server | None = None

    async def open(self) -> None:
        if self.settings.settings.get("fail"):
            raise BindError("no such wire")
        loop = asyncio.get_running_loop()
        port = self.settings.settings["port"]
        self.server = await loop.create_server(lambda: Reversed(self.accept), "127.0.0.1", port)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def shut(self) -> None:
        if self.server is not None:
            self.server.close()

    async def close(self) -> None:
        self.shut()


class Listens(Plugin):
    @hookimpl
    def register_listeners(self, registry: Any) -> None:
        registry.add("reversed", ReversedListener)


def backwards(**options: Any) -> ListenerSettings:
    defaults: dict[str, Any] = {"settings": {"port": 0}, "bind": "loop", "close_timeout": 2.0}
    return ListenerSettings(name="back", type="reversed", **defaults | options)


CONNECT = bytes.fromhex("100c00044d5154540402003c0000")[::-1]
CONNACK = bytes.fromhex("20020000")[::-1]


async def test_a_plugins_listener_brings_clients(begin: Begin, dial: Any, log: Any) -> None:
    node = await begin((Listens(None, Context("p")),), backwards(max_connections=1))
    address = node.addresses()["back"]
    fields = {"listener": "back", "type": "reversed", "address": address}
    assert ("info", "listener.opened", fields) in log.records
    reader, writer = await dial(address)
    writer.write(CONNECT)
    assert await reader.readexactly(4) == CONNACK
    assert node.connections() == {"back": 1}
    full, _ = await dial(address)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await full.readexactly(1)
    assert node.connections() == {"back": 1}
    writer.close()
    async with asyncio.timeout(60):
        await node.listeners["back"].gate.emptied()
    reader, writer = await dial(address)
    writer.write(CONNECT)
    assert await reader.readexactly(4) == CONNACK
    node.listeners["back"].apply(backwards(max_connections=5))
    assert await node.reload_certificates()
    stopping = asyncio.create_task(node.stop())
    async with asyncio.timeout(60):
        assert await reader.read() == b""
        await stopping
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await dial(address)


async def test_a_plugins_listener_that_cannot_open(begin: Begin) -> None:
    plugins = (Listens(None, Context("p")),)
    with pytest.raises(BindError, match="no such wire"):
        await begin(plugins, backwards(settings={"fail": True}))
    with pytest.raises(PluginError, match=r"plugin 'p': the listener 'back' cannot open: KeyError"):
        await begin(plugins, backwards(settings={}))
    with pytest.raises(ConfigError, match="listener 'back': there is no type 'reversed'"):
        await begin((), backwards())


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["tcp"], "listeners of type tcp are HookMQ's own"),
        (["A b"], "'A b' is no name of a type of listener"),
        (["a", "a"], "plugin 'p' adds the type a as well"),
    ],
)
def test_types_that_cannot_be_are_the_plugins_error(names: list[str], words: str) -> None:
    class Types(Plugin):
        @hookimpl
        def register_listeners(self, registry: Any) -> None:
            for name in names:
                registry.add(name, ReversedListener)

    with pytest.raises(PluginError, match=f"plugin 'p': {words}"):
        Extensions(Hooks.of(Types(None, Context("p"))))


def test_a_metric_that_the_core_has_is_the_plugins_error() -> None:
    class Takes(Plugin):
        @hookimpl
        def register_metrics(self, registry: Any) -> None:
            registry.gauge("sessions", "Mine.", lambda: 1)

    with pytest.raises(PluginError, match=r"'p': register_metrics failed: .*already there"):
        Extensions(Hooks.of(Takes(None, Context("p"))))
