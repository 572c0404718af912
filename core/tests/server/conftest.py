"""Fixtures for server tests: a fake broker, and listeners on ephemeral loopback ports, on either event loop."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import trustme
import uvloop
from hookmq.broker import Broker
from hookmq.hooks.manager import Hooks
from hookmq.model.client import Peer, Scope
from hookmq.model.metrics import Metrics
from hookmq.model.runtime import Wire
from hookmq.model.settings import BrokerSettings, Settings
from hookmq.plugin import Plugin
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.extensions import PluginExtensions
from hookmq.server.listener import Listener
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings
from http_nodes import OPEN, Ask, Begin


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class FakeConnection:
    """A connection that records the listener's calls. `events` contains "pause", "resume" and "closed:WHY". `heard` is
    set on each call.
    """

    def __init__(self, wire: Wire, peer: Peer, scope: Scope) -> None:
        self.wire = wire
        self.peer = peer
        self.scope = scope
        self.received = bytearray()
        self.events: list[str] = []
        self.echo = False
        self.goodbye = False
        self.accepted = True
        self._heard = asyncio.Condition()
        self._changed = asyncio.Event()

    def feed(self, data: bytes) -> None:
        assert type(data) is bytes
        self.received += data
        if self.echo:
            self.wire.write(data)
        self._changed.set()

    def closed(self, error: str = "") -> None:
        self.events.append(f"closed:{error}")
        self._changed.set()

    def pause_writing(self) -> None:
        self.events.append("pause")
        self._changed.set()

    def resume_writing(self) -> None:
        self.events.append("resume")
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_received(self, data: bytes) -> None:
        await self.until(lambda: len(self.received) >= len(data))
        assert bytes(self.received) == data

    @property
    def ended(self) -> bool:
        return any(event.startswith("closed") for event in self.events)

    async def until_ended(self) -> str:
        await self.until(lambda: self.ended)
        assert sum(event.startswith("closed") for event in self.events) == 1
        return self.events[-1].removeprefix("closed:")


@dataclass
class FakeBroker:
    """A broker that accepts every connection. `on_accept` may modify a connection before it is returned."""

    settings: Settings = field(default_factory=Settings)
    metrics: Metrics = field(default_factory=Metrics)
    on_accept: Callable[[FakeConnection], None] = lambda connection: None
    connections: list[FakeConnection] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    reported: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)
    on_failure: Callable[[str], None] | None = None
    unready_because: str = ""

    def __post_init__(self) -> None:
        self._queue: asyncio.Queue[FakeConnection] = asyncio.Queue()

    def accept(self, wire: Wire, peer: Peer, scope: Scope, relayed: bool = False) -> FakeConnection:
        connection = FakeConnection(wire, peer, scope)
        self.on_accept(connection)
        self.connections.append(connection)
        self._queue.put_nowait(connection)
        return connection

    async def next(self) -> FakeConnection:
        async with asyncio.timeout(60):
            return await self._queue.get()

    def report(self, event: str, listener: str, fields: dict[str, object]) -> None:
        self.reported.append((event, listener, fields))

    def unready(self) -> str:
        return self.unready_because

    def load(self, done: Callable[[BaseException | None], None]) -> None:
        done(None)

    def start(self, done: Callable[[BaseException | None], None]) -> None:
        done(None)

    def drain(self, reference: str, done: Callable[[], None]) -> None:
        self.drained.append(reference)
        for connection in self.connections:
            connection.wire.write(b"bye")
            connection.wire.close()
        done()


@dataclass
class Log:
    """A log function that collects its entries."""

    records: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    on_record: Callable[[], None] = lambda: None

    def __call__(self, level: str, event: str, /, **fields: object) -> None:
        self.records.append((level, event, fields))
        self.on_record()

    def events(self) -> list[str]:
        return [event for _, event, _ in self.records]


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def log() -> Log:
    return Log()


Open = Callable[..., Any]


@pytest.fixture
async def listen(broker: FakeBroker, log: Log) -> AsyncIterator[Open]:
    """Yield a function that opens listeners with the given settings. The listeners are closed at the end."""
    opened: list[Listener] = []

    async def open_listener(**changes: Any) -> Listener:
        limits = changes.pop("limits", BrokerSettings())
        inherited = changes.pop("inherited", None)
        defaults: dict[str, Any] = {"bind": "127.0.0.1:0", "close_timeout": 2.0}
        settings = ListenerSettings(**defaults | changes)
        listener = Listener(settings, broker.accept, broker.metrics, log, limits)
        opened.append(listener)
        await listener.open(inherited)
        return listener

    yield open_listener
    for listener in opened:
        await listener.close()


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@dataclass(frozen=True)
class Files:
    """Certificate files in a folder."""

    folder: Any
    authority: trustme.CA

    def server(self, name: str = "server", issuer: trustme.CA | None = None) -> dict[str, str]:
        """Create the certificate and key of a server named localhost. Return their paths."""
        certificate = (issuer or self.authority).issue_cert("localhost", "127.0.0.1")
        paths = {"certificate": self.folder / f"{name}.pem", "key": self.folder / f"{name}.key"}
        certificate.cert_chain_pems[0].write_to_path(paths["certificate"])
        certificate.private_key_pem.write_to_path(paths["key"])
        return {key: str(path) for key, path in paths.items()}

    def spoil(self, path: str) -> None:
        """Overwrite a file with invalid contents."""
        Path(path).write_text("no PEM")

    def client_ca(self) -> str:
        path = self.folder / "ca.pem"
        self.authority.cert_pem.write_to_path(path)
        return str(path)

    def client(self, *names: str, issuer: trustme.CA | None = None) -> ssl.SSLContext:
        """Return a TLS context for a client that trusts the authority. If `names` are given, the client has a
        certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.authority.configure_trust(context)
        if names:
            issued = (issuer or self.authority).issue_cert(*names, common_name=names[0])
            issued.configure_cert(context)
        return context


@pytest.fixture
def files(tmp_path: Any, authority: trustme.CA) -> Files:
    return Files(tmp_path, authority)


@pytest.fixture
async def dial() -> AsyncIterator[Open]:
    """Yield a function that connects to a listener or an address. The connections are closed at the end."""
    writers: list[asyncio.StreamWriter] = []

    async def connect(listener: Any, **options: Any) -> Any:
        address = listener if isinstance(listener, str) else listener.address
        if "/" in address:
            reader, writer = await asyncio.open_unix_connection(address, **options)
        else:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), **options)
        writers.append(writer)
        return reader, writer

    yield connect
    for writer in writers:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


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


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Return a function that sends a request to an HTTP listener: `ask(node, path)` returns the status, text and
    headers of the response.
    """
    async with aiohttp.ClientSession() as session:

        async def send(
            node: Server, path: str, method: str = "GET", listener: str = "http", **options: Any
        ) -> Any:
            scheme = "https" if "ssl" in options else "http"
            url = f"{scheme}://{node.addresses()[listener]}{path}"
            async with session.request(method, url, allow_redirects=False, **options) as answer:
                text = await answer.text()
                return SimpleNamespace(status=answer.status, text=text, headers=answer.headers)

        yield send
