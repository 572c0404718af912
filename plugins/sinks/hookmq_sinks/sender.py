"""A sink's process: ``python -P -m hookmq_sinks.sender``, started by `hookmq_sinks.process`.

The process shares only the sink's files with the broker, so a target that is stuck never delays the broker. It reads
its settings as one line of JSON from standard input, so that secrets do not appear in a process list. Further lines say
up to which offset messages are committed, and pass on operators' requests. The process writes its status, log events
and replies as lines of JSON. It ends when its standard input closes, which happens when the broker ends.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from hookmq.config_api import bind_values
from hookmq.plugin import StoreError
from hookmq_toolkit.breaker import Breaker
from hookmq_toolkit.segment_log import LogTail
from hookmq_toolkit.state_folder import try_lock

from hookmq_sinks.config import SinkConfig
from hookmq_sinks.cursor import Cursor, read_cursor, write_cursor
from hookmq_sinks.dead_letters import DeadLetters, read_file
from hookmq_sinks.driver import DriverContext, TargetUnavailable
from hookmq_sinks.event_loop import new_event_loop
from hookmq_sinks.feed import Feed
from hookmq_sinks.lane import Counts, Lane, TargetAhead, TargetBehind
from hookmq_sinks.record import Record
from hookmq_sinks.record_template import RecordError
from hookmq_sinks.sink_log import LOG
from hookmq_sinks.trial import try_target

NICE: Final = 5
"""Niceness of the process, which gives the broker priority on a busy machine."""
STORE_EVERY: Final = 0.2
"""Seconds between two writes of the cursor."""
TELL_EVERY: Final = 0.5
"""Seconds between two reports of the status, if it changes."""
GRACE: Final = 3.0
"""Seconds that lanes may take for their last batch when the broker ends."""
LOCK: Final = "sender.lock"


def tell(**what: Any) -> None:
    """Send one line to the broker."""
    with suppress(OSError):
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


class Refused(Exception):
    """An operator's request was refused. The text says why."""


class Sender:
    """Runs the feed and the lanes of one sink."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.config = bind_values(SinkConfig, given["sink"])
        self.folder = Path(given["folder"])
        self.sync: bool = given["sync"]
        self.end: int = given["end"]
        self.paused: bool = given["paused"]
        self.log_id: str = given["log_id"]
        self._first_end: int | None = self.end if given.get("first") else None
        """The end of the log at the start of the broker; None in later processes and after a seek."""
        self.cursor = Cursor(self.log_id, 0)
        self.stored = self.cursor
        self.counts = Counts()
        self.letters = DeadLetters(self.folder, self.config.dead_letter_bytes)
        self.lanes: list[Lane] = []
        self.feed: Feed | None = None
        self.ended = asyncio.Event()
        self._changes = asyncio.Event()
        self._restart = asyncio.Event()
        self._wanted: Cursor | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure = ""
        self._replies: set[asyncio.Task[None]] = set()
        self._replaying = False
        self._saving = threading.Lock()
        """Held by the threads that store the cursor, which go on when the task that waits for one is cancelled."""

    # the life of the process -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write messages until the broker ends."""
        await asyncio.to_thread(self._start)
        upkeep = asyncio.create_task(self._upkeep())
        while not self.ended.is_set():
            self._begin()
            await self._watch()
            await self._stop()
        upkeep.cancel()
        with suppress(asyncio.CancelledError):
            await upkeep
        await self._save()
        tell(status=self.status())

    def _start(self) -> None:
        self.letters.open()
        found = read_cursor(self.folder)
        if found is None or found.log_id != self.log_id:
            found = Cursor(self.log_id, 0)
        elif found.offset > self.end:
            self._tell_ahead(found.offset)
            found = Cursor(self.log_id, self.end, found.generation + 1, True)
        self.cursor = found
        self._store()

    def _tell_ahead(self, offset: int) -> None:
        self.log("warning", "sinks.cursor_ahead", cursor=offset, end=self.end)

    def log(self, level: str, event: str, **fields: object) -> None:
        """Ask the broker to log an event about this sink."""
        tell(log=[level, event, fields])

    def _begin(self) -> None:
        cursor, config = self.cursor, self.config
        loop = asyncio.get_running_loop()
        breaker = Breaker(
            config.retry.failures, min(config.retry.longest, config.retry.first * 2**config.retry.failures) / 8,
            loop.time,
        )  # fmt: skip
        self.lanes = []
        for number in range(config.lanes):
            slot = (
                config.name if config.lanes == 1 else f"{config.name}:{number + 1}/{config.lanes}"
            )
            context = DriverContext(config.name, slot, cursor.name, self.log, self.folder)
            lane = Lane(
                config, context, self._bury, self._changes.set, self.counts, breaker, cursor.offset, cursor.seek,
                self._limit,
            )  # fmt: skip
            lane.paused = self.paused
            self.lanes.append(lane)
        self.feed = Feed(
            LogTail(self.folder / LOG), config.maker(), self.lanes, cursor.name, cursor.offset, self.end,
            config.batch.bytes, self.log,
        )  # fmt: skip
        self._tasks = [asyncio.create_task(one.run()) for one in self.lanes]
        self._tasks.append(asyncio.create_task(self.feed.run()))

    async def _watch(self) -> None:
        """Wait until the broker ends, an operator seeks, or the target turns out to have lost records."""
        waiting = [asyncio.create_task(one.wait()) for one in (self.ended, self._restart)]
        done, _ = await asyncio.wait([*self._tasks, *waiting], return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        for task in done:
            if task in self._tasks and (error := task.exception()) is not None:
                if isinstance(error, TargetAhead):
                    self._go_on_after_loss(error.offset)
                    continue
                if not isinstance(error, TargetBehind):
                    raise error
                self.log(
                    "warning", "sinks.target_behind", held=error.offset, cursor=self.cursor.offset
                )
                self._wanted = replace(self.cursor, offset=error.offset)

    def _limit(self, opened: bool) -> int:
        """Return the highest position that the target can have, assuming that the log has lost no records. `opened`
        says whether the lane has opened the target before.
        """
        return self.end if opened or self._first_end is None else self._first_end

    def _go_on_after_loss(self, offset: int) -> None:
        """Start a new generation, because the log has lost records that the target has."""
        self.log("warning", "sinks.cursor_ahead", cursor=offset, end=self._limit(False))
        start = self.cursor.offset
        if self._first_end is not None and self.config.lanes == 1:
            start = self._first_end  # the target has everything below
        self._wanted = Cursor(self.log_id, start, self.cursor.generation + 1, True)

    async def _stop(self) -> None:
        """End the lanes. If the broker is ending, let them complete their batches."""
        assert self.feed is not None
        for lane in self.lanes:
            lane.stopping = True
            lane.wake()
        lanes, feed = self._tasks[:-1], self._tasks[-1]
        feed.cancel()
        await asyncio.wait(lanes, timeout=GRACE if self.ended.is_set() else 0)
        for task in lanes:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._move()
        self._first_end = None
        self._restart.clear()
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            # The cursor no longer follows this feed: `_upkeep` runs while the new cursor is stored.
            self.feed = None
            self.cursor = wanted
            await self._save()

    async def _bury(self, letters: list[tuple[Record, str]]) -> None:
        before = self.letters.removed
        try:
            new = await asyncio.to_thread(self.letters.add, letters)
        except OSError as error:
            reason = f"dead letters cannot be stored: {error.strerror or error}"
            raise TargetUnavailable(reason, permanent=True) from error
        self.counts.dead_letters += new
        if new:
            self.log(
                "warning",
                "sinks.dead_letters",
                messages=new,
                reason=letters[0][1],
                topic=letters[0][0].topic,
            )
        if self.letters.removed > before:
            self.log("error", "sinks.dead_letters_removed", messages=self.letters.removed - before)

    # cursor and status -------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Move the cursor to the first record that is not done."""
        if self.feed is None or self._wanted is not None:
            return
        low = self.feed.low
        if low != self.cursor.offset:
            self.cursor = Cursor(self.log_id, low, self.cursor.generation)

    async def _save(self) -> None:
        """Store the cursor. Raises OSError."""
        await asyncio.to_thread(self._store)

    def _store(self) -> None:
        with self._saving:
            cursor = self.cursor
            if cursor != self.stored:
                write_cursor(self.folder, cursor, self.sync)
                self.stored = cursor

    async def _upkeep(self) -> None:
        loop = asyncio.get_running_loop()
        told, told_at = "", 0.0
        while True:
            timeout = TELL_EVERY
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changes.wait()
            self._changes.clear()
            self._move()
            moved = self.cursor != self.stored
            try:
                await self._save()
                self._failure = ""
            except OSError as error:
                if not self._failure:
                    self.log("error", "sinks.cursor_not_stored", reason=error.strerror)
                self._failure = f"the cursor cannot be stored: {error.strerror}"
            status = self.status()
            text = json.dumps(status)
            if text != told or loop.time() - told_at >= TELL_EVERY:
                told, told_at = text, loop.time()
                tell(status=status)
            if moved:
                await asyncio.sleep(STORE_EVERY)

    def status(self) -> dict[str, Any]:
        """Return the status for the broker."""
        word, reason = self._state()
        oldest = min((one.oldest for one in self.lanes if one.oldest is not None), default=None)
        own: dict[str, float] = {}
        for lane in self.lanes:
            for name, value in lane.metrics.items():
                own[name] = own.get(name, 0.0) + value
        return {
            "state": word,
            "reason": reason,
            "cursor": self.stored.offset,
            "done": self.cursor.offset,
            "oldest": oldest,
            "counts": asdict(self.counts),
            "dead_letters": self.letters.count,
            "dead_letters_removed": self.letters.removed,
            "missing": self.feed.missing if self.feed is not None else 0,
            "driver": own,
            "lanes": [(*one.state, one.waiting, one.oldest) for one in self.lanes],
        }

    def _state(self) -> tuple[str, str]:
        if self._failure:
            return "failed", self._failure
        if self.feed is not None and self.feed.failure:
            return "failed", self.feed.failure
        found = {one.state.word: one.state.reason for one in self.lanes}
        if self.paused:
            return "paused", next(filter(None, found.values()), "")
        for word in ("failed", "retrying", "starting"):
            if word in found:
                return word, found[word]
        return "active", ""

    # commands --------------------------------------------------------------------------------------------------------

    def take(self, told: dict[str, Any]) -> None:
        """Handle a line from the broker."""
        if "end" in told:
            self.end = max(self.end, int(told["end"]))
            if self.feed is not None:
                self.feed.advance(self.end)
        if "pause" in told:
            self.paused = bool(told["pause"])
            for lane in self.lanes:
                lane.paused = self.paused
                lane.wake()
            self._changes.set()
        if "do" in told:
            task = asyncio.get_running_loop().create_task(self._reply(told))
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)

    async def _reply(self, told: dict[str, Any]) -> None:
        """Carry out an operator's request, and reply."""
        try:
            tell(reply=told["id"], value=await self._do(told))
        except (Refused, OSError) as error:
            tell(reply=told["id"], refused=str(error))

    async def _do(self, told: dict[str, Any]) -> Any:
        if told["do"] == "seek":
            self._wanted = replace(self.cursor, offset=int(told["offset"]), seek=True)
            self._restart.set()
            return None
        if told["do"] == "test":
            return [
                asdict(one) for one in await try_target(self.config, self.cursor.name, self.log)
            ]
        if told["do"] == "purge":
            return await asyncio.to_thread(self._purge)
        if told["do"] == "replay":
            return await self._replay()
        raise Refused(f"cannot {told['do']}")

    def _purge(self) -> int:
        return sum(self.letters.remove(path) for path in self.letters.take())

    async def _replay(self) -> dict[str, int]:
        """Write all dead letters again."""
        if self.paused:
            raise Refused("the sink is paused; resume it first")
        if self._replaying:
            raise Refused("the dead letters are being replayed already")
        self._replaying = True
        written = failed = 0
        try:
            maker = self.config.maker()
            for path in await asyncio.to_thread(self.letters.take):
                good: list[Record] = []
                again: list[tuple[Record, str]] = []
                for letter in await asyncio.to_thread(read_file, path):
                    try:
                        maker.complete(letter.record)
                        good.append(letter.record)
                    except RecordError as error:
                        again.append((letter.record, str(error)))
                size = self.config.batch.messages
                for start in range(0, len(good), size):
                    again += await self.lanes[0].replay(good[start : start + size])
                written += await asyncio.to_thread(self.letters.remove, path, again)
                failed += len(again)
        except asyncio.CancelledError:
            raise Refused("the sink was restarted; replay the dead letters again") from None
        finally:
            self._replaying = False
            self._changes.set()
        return {"written": written, "failed": failed}


async def serve(given: dict[str, Any]) -> int:
    """Run the sink until standard input is closed. Return the exit code."""
    sender = Sender(given)
    loop = asyncio.get_running_loop()
    rest = b""

    def read() -> None:
        nonlocal rest
        data = os.read(0, 65536)
        if not data:
            loop.remove_reader(0)
            sender.ended.set()
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            sender.take(json.loads(line))

    loop.add_reader(0, read)
    await sender.run()
    return 0


def lock(folder: Path) -> int | None:
    """Take the lock for the sink's process. Return None if another process holds it, such as one left over from a
    killed broker.
    """
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if try_lock(file):
        return file
    os.close(file)
    return None


def main() -> int:
    """Run the process. Return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the broker handles signals to the process group. It ends this process by closing the pipe.
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICE)
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            return 0
        line += part
    given = json.loads(line)
    held = lock(Path(given["folder"]))
    until = time.monotonic() + 2 * GRACE
    while held is None and time.monotonic() < until:
        time.sleep(0.05)
        held = lock(Path(given["folder"]))
    if held is None:
        tell(failed="another process writes the messages of this sink")
        return 1
    try:
        # Not `asyncio.run`: it would wait for the threads of a driver that is stuck.
        code = new_event_loop().run_until_complete(serve(given))
    except (StoreError, OSError) as error:
        tell(failed=str(error))
        code = 1
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    raise SystemExit(main())
