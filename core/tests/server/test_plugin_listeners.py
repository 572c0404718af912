"""Test listener types that plugins add."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.hooks.manager import Hooks
from hookmq.model.client import Peer
from hookmq.model.errors import BindError, ConfigError, PluginError
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.extensions import PluginExtensions
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings

OPEN = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))


Begin = Callable[..., Awaitable[Server]]


@pytest.fixture
async def begin(log: Any) -> AsyncIterator[Begin]:
    """Yield a function that starts servers with a real broker, plugins and listeners. The servers are stopped at the
    end.
    """
    nodes: list[Server] = []

    class Logged(AsyncioRuntime):
        __slots__ = ("log",)

    async def start(plugins: tuple[Plugin, ...] = (), *listeners: ListenerSettings) -> Server:
        runtime = Logged()
        runtime.log = log  # type: ignore[method-assign]
        hooks = Hooks.of(*plugins)
        broker = Broker(OPEN, runtime, hooks)
        node = Server(broker, listeners, runtime)
        nodes.append(node)
        node.use(PluginExtensions(hooks, broker, log))
        await node.start()
        return node

    yield start
    for node in nodes:
        await node.stop()
        await node.runtime.close()


class Reversed(asyncio.Protocol):
    """A plugin's transport that reverses every chunk of data. It has its own Wire."""

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
    with pytest.raises(ConfigError, match="listener 'back': unknown type 'reversed'"):
        await begin((), backwards())


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["tcp"], "HookMQ has a listener type tcp"),
        (["A b"], "invalid listener type 'A b'"),
        (["a", "a"], "plugin 'p' also adds the listener type a"),
    ],
)
def test_types_that_cannot_be_are_the_plugins_error(names: list[str], words: str) -> None:
    class Types(Plugin):
        @hookimpl
        def register_listeners(self, registry: Any) -> None:
            for name in names:
                registry.add(name, ReversedListener)

    with pytest.raises(PluginError, match=f"plugin 'p': {words}"):
        PluginExtensions(Hooks.of(Types(None, Context("p"))))
