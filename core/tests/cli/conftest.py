"""A whole broker in a thread, for the commands that are clients."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hookmq.broker import Broker
from hookmq.hooks.manager import Hooks
from hookmq.plugin import Deny, Plugin, hookimpl
from hookmq.server.addresses import parse_bind
from hookmq.server.node import Node
from hookmq.server.runtime import AsyncioRuntime
from hookmq.server.settings import ListenerSettings
from hookmq.settings import AuthSettings, AuthzSettings, Settings
from hookmq.types import Action, Message


class Rules(Plugin):
    """Refuses the user ``bad``, topics below ``no/`` and answers requests on ``svc``."""

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
    """The ports of the broker's listeners, as options."""

    tcp: list[str]
    ws: list[str]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """`serve` in this process sets logging up, and for good."""
    root, own = logging.getLogger(), logging.getLogger("hookmq")
    before = (root.handlers[:], root.level, own.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
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
        ]
        node = Node(core, listeners, runtime)
        await node.start()
        where = node.addresses()
        tcp, ws = (str(parse_bind(where[name])[1]) for name in ("tcp", "ws"))
        ports.append(Running(["-h", "127.0.0.1", "-p", tcp], ["-h", "127.0.0.1", "-p", ws, "--ws"]))
        ready.set()
        await asyncio.to_thread(leave.wait)
        await node.stop()
        await runtime.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(10)
    yield ports[0]
    leave.set()
    thread.join(10)
