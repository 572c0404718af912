"""Test reloads that a plugin requests. The plugin gets the report or the error, even if other requests arrive in the
meantime.
"""

import asyncio
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.model.errors import ConfigError
from hookmq.model.reload_report import ReloadReport, SettingChange
from hookmq.model.settings import Settings
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server

CHANGED = ReloadReport((SettingChange("broker.max_qos", "2", "1"),))


class Node:
    """A server whose reloads finish only when the test allows it."""

    def __init__(self) -> None:
        self.began = 0
        self.gate: asyncio.Queue[ReloadReport | Exception] = asyncio.Queue()
        self.ended: list[tuple[Any, str]] = []
        self.broker = Broker(Settings(), AsyncioRuntime())
        self.server = Server(self.broker, (), AsyncioRuntime(), reload=self.reload)

    async def reload(self) -> ReloadReport:
        self.began += 1
        result = await self.gate.get()
        if isinstance(result, Exception):
            raise result
        return result

    def ask(self) -> None:
        assert self.broker.reloader is not None
        self.broker.reloader(lambda report, error: self.ended.append((report, str(error))))


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_report_and_the_error() -> None:
    node = Node()
    await node.server.start()
    for result in (CHANGED, ConfigError("no good")):
        node.ask()
        await turns()
        node.gate.put_nowait(result)
        await turns()
    assert node.ended == [(CHANGED, "None"), (None, "no good")]
    await node.server.stop()


async def test_requests_during_a_reload_wait_for_the_next_one() -> None:
    """Requests that arrive during a reload cause one more reload, because the file may have changed since the running
    reload read it.
    """
    node = Node()
    await node.server.start()
    node.ask()
    await turns()
    node.ask()
    node.ask()
    node.gate.put_nowait(ReloadReport())
    await turns()
    assert (node.began, node.ended) == (2, [(ReloadReport(), "None")])
    node.gate.put_nowait(CHANGED)
    await turns()
    assert node.ended[1:] == [(CHANGED, "None")] * 2
    await node.server.stop()


async def test_before_the_start_and_after_the_stop() -> None:
    node = Node()
    node.ask()
    await node.server.start()
    await node.server.stop()
    node.ask()
    assert node.ended == [(None, "the broker is starting"), (None, "the broker is stopping")]
    assert not node.began


async def test_a_stop_during_a_reload() -> None:
    node = Node()
    await node.server.start()
    node.ask()
    await turns()
    node.ask()
    running = node.server._reloading
    assert running is not None
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert node.ended == [(None, "the broker is stopping")] * 2
    await node.server.stop()


async def test_a_server_without_a_configuration_offers_none() -> None:
    broker = Broker(Settings(), AsyncioRuntime())
    Server(broker, (), AsyncioRuntime())
    assert broker.reloader is None
