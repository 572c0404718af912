"""Fixtures for the client commands, including a whole broker in a thread."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import trustme
from door import Door, Point
from hookmq.broker import Broker
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.hooks.manager import Hooks
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.plugin import Deny, Plugin, hookimpl
from hookmq.server.addresses import parse_bind
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings, TlsSettings


class Rules(Plugin):
    """A plugin that refuses the user ``bad`` and all topics below ``no/``, and answers requests on ``svc``."""

    @hookimpl
    def on_connect(self, client: object, connect: object) -> Deny | None:
        return Deny() if getattr(client, "username", None) == "bad" else None

    @hookimpl
    def authorize(self, action: Action, topic: str) -> Deny | None:
        return Deny(reason="not here") if topic.startswith("no/") else None

    @hookimpl
    def on_published(self, message: Message, broker: object) -> None:
        return None


class Running(NamedTuple):
    """The ports of the running broker's listeners, as command-line options."""

    tcp: list[str]
    ws: list[str]
    tls: list[str]
    wss: list[str]
    ca: str
    unix: str


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore the logging configuration after the test, because `serve` changes it permanently for the process."""
    root, own = logging.getLogger(), logging.getLogger("hookmq")
    before = (root.handlers[:], root.level, own.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tls")
    ca, pem, trusted = trustme.CA(), str(folder / "server.pem"), str(folder / "ca.pem")
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
    ca.cert_pem.write_to_path(trusted)
    ports: list[Running] = []
    ready, leave = threading.Event(), threading.Event()

    async def main() -> None:
        runtime = AsyncioRuntime()
        settings = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))
        from hookmq.plugin import Context

        core = Broker(settings, runtime, Hooks.of(Rules(None, Context("rules"))))
        listeners = [
            ListenerSettings("tcp", "tcp", "127.0.0.1:0"),
            ListenerSettings("ws", "ws", "127.0.0.1:0"),
            ListenerSettings("unix", "unix", str(folder / "mqtt.sock")),
            ListenerSettings("tls", "tls", "127.0.0.1:0", tls=TlsSettings(pem)),
            ListenerSettings("wss", "wss", "127.0.0.1:0", tls=TlsSettings(pem)),
        ]
        node = Server(core, listeners, runtime)
        await node.start()
        where = node.addresses()
        socket = where.pop("unix")
        at = {name: ["-p", str(parse_bind(address)[1])] for name, address in where.items()}
        local = ["-h", "127.0.0.1"]
        named = ["-h", "localhost"]
        ports.append(
            Running(
                local + at["tcp"],
                [*local, *at["ws"], "--ws"],
                named + at["tls"],
                [*named, *at["wss"], "--ws"],
                trusted,
                socket.removeprefix("unix:"),
            )
        )
        ready.set()
        await asyncio.to_thread(leave.wait)
        await node.stop()
        await runtime.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(60)
    yield ports[0]
    leave.set()
    thread.join(10)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> None:
    point: Any = Point(lambda: Door)
    offered = (InstalledEntry("door", "m:Door", "hookmq-door", "1.2", point),)
    monkeypatch.setattr("hookmq.config.plugins.installed", lambda: offered)
    monkeypatch.setattr("hookmq.hooks.discovery.installed", lambda: offered)
    monkeypatch.setattr("hookmq.hooks.discovery.load", lambda found, plugin_id="": Door)
