"""Connections without sockets."""

import pytest
from unwired import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A loop, a turn and a tally, with `now` as the clock of publishers and subscribers."""
    made = Bench()
    for module in ("publisher", "subscriber"):
        monkeypatch.setattr(f"hookmq_bench.{module}.time.monotonic_ns", lambda: made.now)
    return made
