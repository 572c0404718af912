"""Stores for tests: one in the test's own process, and one with a writer process and an event loop."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hookmq_storage.store import SQLiteStore
from hookmq_testing import AsyncioRuntime, VirtualRuntime


class Loop:
    """An event loop that a synchronous test advances, with a runtime that uses it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.runtime = AsyncioRuntime(self.loop, threads=1)

    def turn(self) -> None:
        """Run the event loop briefly."""
        self.loop.call_later(0.002, self.loop.stop)
        self.loop.run_forever()

    def close(self) -> None:
        self.loop.run_until_complete(self.runtime.close())
        self.loop.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def runtime() -> VirtualRuntime:
    return VirtualRuntime()


@pytest.fixture
def store(tmp_path: Path, runtime: VirtualRuntime) -> Iterator[SQLiteStore]:
    """Yield an open, empty store."""
    made = SQLiteStore(tmp_path / "data", runtime)
    list(made.load())
    yield made
    made.close(lambda: None)
