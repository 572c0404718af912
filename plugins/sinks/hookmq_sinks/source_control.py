"""Manage a broker's sources. Implements `hookmq_toolkit.sources.SourceManager`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from hookmq_toolkit.sinks import DeadLetterPage, ReplayResult, SinkError, SinkProblem
from hookmq_toolkit.sources import SourceStatus

from hookmq_sinks.control import LONG, REPLY, read_letters, store_paused
from hookmq_sinks.source_process import SourceProcess

TEST: Final = 70.0
"""Seconds that a test may take: the origin may be opened twice, once by the source itself."""
_COUNTS: Final = ("batches", "connections", "delayed", "skipped")


class SourceControl:
    """Manages sources. `processes` returns their processes, in configuration order."""

    def __init__(self, processes: Callable[[], Sequence[SourceProcess]]) -> None:
        self._processes = processes

    def _find(self, name: str) -> SourceProcess:
        for one in self._processes():
            if one.name == name:
                return one
        raise SinkError("missing", f"there is no source {name!r}")

    def list_sources(self) -> Sequence[SourceStatus]:
        """Return all sources, in configuration order."""
        return [status_of(one) for one in self._processes()]

    def show_source(self, name: str) -> SourceStatus:
        """Return one source."""
        return status_of(self._find(name))

    async def pause_source(self, name: str, paused: bool) -> None:
        """Pause or resume a source."""
        process = self._find(name)
        await store_paused(process.folder, paused)
        process.pause(paused)

    async def list_source_letters(self, name: str, after: int | None, limit: int) -> DeadLetterPage:
        """Return dead letters, oldest first."""
        return await asyncio.to_thread(read_letters, self._find(name).folder, after, limit)

    async def test_source(self, name: str) -> Sequence[SinkProblem]:
        """Connect to the origin, unless the source is connected."""
        return [SinkProblem(**one) for one in await self._find(name).ask("test", TEST)]

    async def replay_source_letters(self, name: str) -> ReplayResult:
        """Try again to publish all dead letters."""
        return ReplayResult(**await self._find(name).ask("replay", LONG))

    async def purge_source_letters(self, name: str) -> int:
        """Delete all dead letters."""
        return int(await self._find(name).ask("purge", REPLY))


def status_of(process: SourceProcess) -> SourceStatus:
    """Return the status of a source."""
    config, told = process.intake.config, process.status
    state: Any = "paused" if process.paused and told["state"] != "failed" else told["state"]
    return SourceStatus(
        config.name,
        config.driver,
        config.publisher,
        state,
        told["reason"] or process.intake.reason,
        int(told.get("dead_letters", 0)),
        {
            "received": process.received, "refused": process.refused, "restarts": process.restarts,
        },
        {name: told[name] for name in _COUNTS if name in told},
        dict(told.get("metrics", {})),
    )  # fmt: skip
