"""Provide fixtures for connections without sockets."""

from types import SimpleNamespace

import pytest
from unwired import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return an event loop, a turn and a tally. `now` is the clock of publishers and subscribers."""
    made = Bench()
    clock = SimpleNamespace(monotonic_ns=lambda: made.now)
    for module in ("publisher", "subscriber"):
        monkeypatch.setattr(f"hookmq_bench.{module}.time", clock)
    return made
