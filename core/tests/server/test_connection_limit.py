"""Test the limit on a listener's connections."""

import asyncio
import contextlib
from typing import Any

import pytest
from hookmq.server import connection_limit as gate


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["tcp", "ws"])
async def test_a_full_listener_says_so_once_a_second(
    listen: Any, dial: Any, broker: Any, log: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "QUIET", 1e9)
    listener = await listen(type=kind, max_connections=1)
    await dial(listener)
    await until(lambda: listener.gate.entered)
    for _ in range(5):
        reader, _ = await dial(listener)
        assert await reader.read() == b""
    [fields] = [fields for _, event, fields in log.records if event == "listener.refused"]
    assert fields["why"] == "max_connections"
    assert fields["listener"] == "default"
    assert "127.0.0.1" in fields["peer"]
    assert broker.metrics.connections_refused == 5
    monkeypatch.setattr(gate, "QUIET", 0)
    reader, _ = await dial(listener)
    assert await reader.read() == b""
    assert log.records[-1][2]["unsaid"] == 4


async def test_full_listener_closes_and_counts(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen(max_connections=1)
    _, first = await dial(listener)
    connection = await broker.next()
    reader, second = await dial(listener)
    with contextlib.suppress(ConnectionError):
        assert await reader.read(-1) == b""
    assert broker.metrics.connections_refused == 1
    first.close()
    await connection.until_ended()
    _, third = await dial(listener)
    await broker.next()
    assert len(broker.connections) == 2
    second.close()
    third.close()


async def test_shut_listener_accepts_no_more_and_keeps_the_open(
    listen: Any, dial: Any, broker: Any
) -> None:
    listener = await listen()
    reader, writer = await dial(listener)
    connection = await broker.next()
    connection.echo = True
    listener.shut()
    listener.shut()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await dial(listener)
    writer.write(b"still")
    assert await reader.readexactly(5) == b"still"
    writer.close()
