"""Test the address on which the reader process listens."""

import socket

import pytest
from aiohttp import web
from hookmq_spark_sink import reader


@pytest.fixture
def taken() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def test_an_address_that_is_let_go_is_taken(
    taken: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its address is in use, the reader retries. A killed broker's reader may hold the address for a moment."""
    port = taken.getsockname()[1]
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            taken.close()

    monkeypatch.setattr("asyncio.sleep", sleep)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await reader.listen(runner, "127.0.0.1", port, None)
    assert (runner.addresses[-1][1], waits) == (port, [reader.AGAIN] * 3)
    await runner.cleanup()


async def test_one_that_stays_taken_is_an_error(
    taken: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    with taken, pytest.raises(OSError, match="address already in use"):
        await reader.listen(runner, "127.0.0.1", taken.getsockname()[1], None)
    assert len(waits) == reader.TRIES - 1
    await runner.cleanup()
