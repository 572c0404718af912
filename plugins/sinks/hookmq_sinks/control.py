"""Manage a broker's sinks. Implements `hookmq_toolkit.sinks.SinkManager`."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import StoreError
from hookmq_toolkit.sink_control import ControlState, write_control
from hookmq_toolkit.sinks import (
    DeadLetterPage,
    ReplayResult,
    SinkDeadLetter,
    SinkError,
    SinkLane,
    SinkProblem,
    SinkStatus,
)
from hookmq_toolkit.state_folder import make_folder

from hookmq_sinks.dead_letters import read_dead_letters
from hookmq_sinks.position import find_offset
from hookmq_sinks.process import SenderProcess

REPLY: Final = 10.0
"""Seconds that a sink's process may take to reply."""
LONG: Final = 3600.0
"""Seconds that a replay may take."""


async def store_paused(folder: Path, paused: bool) -> None:
    """Store on disk whether a sink or source is paused. Raises SinkError."""

    def store() -> None:
        make_folder(folder)
        write_control(folder, ControlState(paused))

    try:
        await asyncio.to_thread(store)
    except (OSError, StoreError) as error:
        raise SinkError("failed", f"cannot be stored: {error}") from error


def read_letters(folder: Path, after: int | None, limit: int) -> DeadLetterPage:
    """Return one page of a sink's or source's dead letters, oldest first. Blocks. Raises SinkError."""
    start = 0 if after is None else after + 1
    try:
        found = [
            SinkDeadLetter(
                number, one.record.id, one.record.offset, one.record.topic, one.record.payload, one.record.client_id,
                one.record.key, one.reason, one.at,
            )
            for number, one in islice(enumerate(read_dead_letters(folder)), start, start + limit + 1)
        ]  # fmt: skip
    except (OSError, ValueError) as error:
        raise SinkError("failed", f"the dead letters cannot be read: {error}") from error
    more = len(found) > limit
    return DeadLetterPage(found[:limit], found[limit - 1].number if more else None)


class SinkControl:
    """Manages sinks. `processes` returns their processes by name, and `time` returns the current time in epoch
    seconds."""

    def __init__(
        self, processes: Callable[[], dict[str, SenderProcess]], time: Callable[[], float]
    ) -> None:
        self._processes = processes
        self._time = time

    def _find(self, name: str) -> SenderProcess:
        found = self._processes().get(name)
        if found is None:
            raise SinkError("missing", f"there is no sink {name!r}")
        return found

    def list_sinks(self) -> Sequence[SinkStatus]:
        """Return all sinks, in configuration order."""
        return [status_of(one, self._time()) for one in self._processes().values()]

    def show_sink(self, name: str) -> SinkStatus:
        """Return one sink."""
        return status_of(self._find(name), self._time())

    async def test_sink(self, name: str) -> Sequence[SinkProblem]:
        """Connect to the target and check it with the sample."""
        process = self._find(name)
        found = await process.ask("test", process.sink.config.timeout + REPLY)
        return [SinkProblem(**one) for one in found]

    async def pause_sink(self, name: str, paused: bool) -> None:
        """Pause or resume a sink."""
        process = self._find(name)
        await store_paused(process.sink.folder, paused)
        process.pause(paused)

    async def seek_sink(self, name: str, position: str) -> int:
        """Move the cursor, and return its new offset."""
        process = self._find(name)
        try:
            offset = await asyncio.to_thread(find_offset, process.sink.log, position)
        except ValueError as error:
            raise SinkError("invalid", str(error), "position") from None
        except (StoreError, LookupError) as error:
            raise SinkError("failed", str(error)) from None
        await process.ask("seek", REPLY, offset=offset)
        return offset

    async def list_dead_letters(self, name: str, after: int | None, limit: int) -> DeadLetterPage:
        """Return dead letters, oldest first."""
        return await asyncio.to_thread(read_letters, self._find(name).sink.folder, after, limit)

    async def replay_dead_letters(self, name: str) -> ReplayResult:
        """Try again to write all dead letters."""
        return ReplayResult(**await self._find(name).ask("replay", LONG))

    async def purge_dead_letters(self, name: str) -> int:
        """Delete all dead letters."""
        return int(await self._find(name).ask("purge", REPLY))


def status_of(process: SenderProcess, now: float) -> SinkStatus:
    """Return the status of a sink. `now` is in epoch seconds."""
    sink, told = process.sink, process.status
    config = sink.config
    cursor = max(int(told.get("done", sink.done)), sink.log.earliest)
    lag = max(0, sink.log.readable - cursor)
    oldest: Any = told.get("oldest")
    age = None if oldest is None else max(0.0, round(now - oldest, 3))
    counts = process.counts
    return SinkStatus(
        config.name,
        config.driver,
        config.topics,
        process.state,
        told["reason"],
        config.kind.holds_position,
        cursor,
        sink.log.readable,
        lag,
        age if lag else 0.0,
        sink.bytes,
        config.max_bytes,
        config.on_full,
        sink.filled,
        int(told.get("dead_letters", 0)),
        {
            "written": counts["written"], "batches": counts["batches"], "write_seconds": counts["write_seconds"],
            "failures": counts["failures"], "dead_letters": counts["dead_letters"],
            "dropped": sink.dropped + counts["missed"], "restarts": process.restarts,
        },
        dict(told.get("driver", {})),
        [
            SinkLane(word, reason, waiting, None if first is None else max(0.0, round(now - first, 3)))
            for word, reason, waiting, first in told.get("lanes", ())
        ],
        process.last_error,
        process.last_error_at,
    )  # fmt: skip
