"""Overload for a short time, and that its checks see what they are for; `make overload` has the long one."""

from pathlib import Path

import pytest
from pressure.client import connect
from pressure.overload import BODY, SCENARIOS, Outcome, pressed
from pressure.witness import witness


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
async def test_overload_is_graceful(tmp_path: Path, name: str) -> None:
    outcome = await SCENARIOS[name](tmp_path, 4.0, 0.1)
    assert outcome.broken == []
    assert outcome.seen.sent > 20


@pytest.mark.slow
async def test_what_is_broken_is_told(tmp_path: Path) -> None:
    """A client that stays, memory beyond the bound and a message that nobody took: each is found."""
    outcome = Outcome()
    async with pressed(tmp_path, outcome, growth=-1, patience=0.1) as broker:
        async with witness(broker.port) as lost:
            pass
        stays = await connect(broker.port, "stays", clean=False)
        await stays.subscribe("kept")
        for _ in range(20_000):
            stays.publish("kept", BODY, 1)
        stays.drop()
    assert lost.well
    assert any("memory grew" in sentence for sentence in outcome.broken)
    assert any("not as before" in sentence for sentence in outcome.broken)
