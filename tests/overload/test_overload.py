"""Run a short overload, and test its checks. `make overload` runs it longer."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from pressure.client import connect, subscribe
from pressure.overload import BODY, MEMORY, Outcome, pressed
from pressure.scenarios import SCENARIOS
from pressure.target import target
from pressure.witness import witness


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
async def test_overload_is_graceful(tmp_path: Path, name: str) -> None:
    outcome = await SCENARIOS[name](tmp_path, 4.0, 0.1)
    assert outcome.broken == []
    assert outcome.seen.sent > 20


@pytest.mark.slow
async def test_broken_promises_are_reported(tmp_path: Path) -> None:
    """The checks detect a client that remains connected, memory above the limit and a message that was not received."""
    outcome = Outcome()
    async with pressed(tmp_path, outcome, growth=-1, patience=0.1) as broker:
        async with witness(broker.port) as lost:
            pass
        stays = await connect(broker.port, "stays", clean=False)
        await subscribe(stays, "kept")
        for _ in range(20_000):
            stays.send_publish("kept", BODY, 1)
        stays.drop()
    assert lost.well
    assert any("memory grew" in sentence for sentence in outcome.broken)
    assert any("not as before" in sentence for sentence in outcome.broken)


@pytest.mark.slow
async def test_a_client_served_only_after_the_load_counts_as_not_served(tmp_path: Path) -> None:
    with target(tmp_path, MEMORY) as broker:
        process = broker.served.process.pid
        async with witness(broker.port) as seen:
            os.kill(process, signal.SIGSTOP)
            await asyncio.sleep(1)
            asyncio.get_running_loop().call_later(1, os.kill, process, signal.SIGCONT)
    assert seen.sent == seen.acknowledged == seen.received > 20
    assert not seen.well
