"""Run a sink's process for the broker: start it, restart it if it dies, and tell it up to which offset messages are
committed.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from hookmq_toolkit.sinks import SinkError, SinkState

from hookmq_sinks.plain import plain_value
from hookmq_sinks.sink_log import SinkLog

SHORTEST: Final = 0.1
LONGEST: Final = 30.0
HEALTHY: Final = 10.0
"""Seconds that a process must run until the next restart is immediate again."""
TELL_EVERY: Final = 0.02
"""Seconds between two lines that tell the process up to which offset messages are committed."""
LINE: Final = 1 << 20
"""Maximum size of a line from the process, in bytes."""
_BACKLOG: Final = 1 << 16


class SenderProcess:
    """Manages the process of one sink. Call `start` and `stop` on a running event loop.

    `status` is the last status that the process reported. `on_status` is called when it changes. `before` is the stopped
    process that this one replaces after a change of the settings; its counters are continued.
    """

    def __init__(self, sink: SinkLog, sync: bool, before: "SenderProcess | None" = None) -> None:
        self.sink = sink
        self.status: dict[str, Any] = {"state": "starting", "reason": ""}
        self.on_status: Callable[[dict[str, Any]], None] = _ignore
        self.last_error = ""
        self.last_error_at: float | None = None
        self.restarts: int = 0 if before is None else before.restarts
        self.pid = 0
        self.paused = False
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._sync = sync
        self._before: dict[str, float] = {} if before is None else before.counts
        self._first = before is None
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._told = 0
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def counts(self) -> dict[str, float]:
        """The process's counters, summed over all restarts."""
        now = {**self.status.get("counts", {}), "missed": self.status.get("missing", 0)}
        return {
            name: self._before.get(name, 0) + now.get(name, 0)
            for name in (
                "written",
                "batches",
                "failures",
                "dead_letters",
                "write_seconds",
                "missed",
            )
        }

    @property
    def state(self) -> SinkState:
        """The sink's state. Reports that the process sent before it was paused or resumed do not count for this."""
        state: SinkState = self.status["state"]
        if self.paused:
            return state if state == "failed" else "paused"
        return "starting" if state == "paused" else state

    def __repr__(self) -> str:
        return f"<SenderProcess of {self.sink.config.name}>"

    def start(self) -> None:
        """Start the process, and keep it running."""
        self.sink.on_committed = self._advance
        self._task = asyncio.get_running_loop().create_task(self._run())

    def _given(self) -> dict[str, Any]:
        config = self.sink.config
        return {
            "sink": plain_value(config),
            "folder": str(self.sink.folder.absolute()),
            "log_id": self.sink.log.id,
            "end": self.sink.log.readable,
            "sync": self._sync,
            "paused": self.paused,
            "first": self._first,
        }

    async def _run(self) -> None:
        delay = SHORTEST
        while True:
            began = time.monotonic()
            try:
                reason = await self._live()
            except OSError as error:
                reason = f"its process cannot be started: {error.strerror}"
            self.pid, self._process = 0, None
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(SinkError("failed", "the sink's process ended"))
            self._asked.clear()
            if self._stopping:
                return
            self._before, self._first = self.counts, False
            self.status = {
                **self.status,
                "state": "failed",
                "reason": reason,
                "counts": {},
                "missing": 0,
            }
            self._note_error(reason)
            self.sink.tell("error", "sinks.process_ended", reason=reason)
            self.restarts += 1
            if time.monotonic() - began >= HEALTHY:
                delay = SHORTEST
            await asyncio.sleep(delay)
            delay = min(LONGEST, delay * 2)

    async def _live(self) -> str:
        """Start a process and handle its output until it ends. Return why it ended."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "hookmq_sinks.sender",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE,
        )  # fmt: skip
        self._process, self.pid = process, process.pid
        assert process.stdout is not None
        self._told = self.sink.log.readable
        self._write(self._given())
        reason = ""
        with suppress(ValueError):  # a line that is too long
            while line := await process.stdout.readline():
                reason = self._take(line) or reason
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        code = await process.wait()
        return reason or f"its process ended with code {code}"

    def _take(self, line: bytes) -> str:
        """Handle a line from the process. Return the reason if the process reports a failure, or '' otherwise."""
        try:
            told = json.loads(line)
        except ValueError:
            return ""  # a library printed something
        if not isinstance(told, dict):
            return ""
        if "log" in told:
            level, event, fields = told["log"]
            self.sink.tell(level, event, **fields)
        if "status" in told:
            self.status = told["status"]
            self._note_error(self.status["reason"])
            self.sink.move_done(self.status["cursor"])
            self.on_status(self.status)
        if (
            "reply" in told
            and (future := self._asked.pop(told["reply"], None)) is not None
            and not future.done()
        ):
            if "refused" in told:
                future.set_exception(SinkError("conflict", told["refused"]))
            else:
                future.set_result(told.get("value"))
        return str(told.get("failed", ""))

    def _note_error(self, reason: str) -> None:
        """Remember `reason` as the last error, unless it is empty."""
        if reason:
            self.last_error, self.last_error_at = reason, time.time()

    # to the process --------------------------------------------------------------------------------------------------

    def _write(self, told: dict[str, Any]) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(json.dumps(told).encode() + b"\n")

    def _advance(self) -> None:
        """Schedule a line that tells the process up to which offset messages are committed."""
        if self._timer is None and self._process is not None:
            self._timer = asyncio.get_running_loop().call_later(TELL_EVERY, self._tell_end)

    def _tell_end(self) -> None:
        self._timer = None
        process = self._process
        if process is None or process.stdin is None:
            return
        end = self.sink.log.readable
        if process.stdin.transport.get_write_buffer_size() > _BACKLOG:
            self._advance()  # the process is not reading: send only the newest position, later
        elif end != self._told:
            self._told = end
            process.stdin.write(b'{"end":%d}\n' % end)  # the most frequent line

    def pause(self, paused: bool) -> None:
        """Pause the sink, or resume it."""
        self.paused = paused
        self._write({"pause": paused})

    async def ask(self, what: str, seconds: float, **values: Any) -> Any:
        """Send a request to the process, and return its reply. Raises SinkError."""
        if self._process is None:
            raise SinkError("failed", f"the sink's process does not run: {self.status['reason']}")
        self._number += 1
        number = self._number
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._write({"do": what, "id": number, **values})
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise SinkError(
                "failed", f"no reply from the sink's process within {seconds:g} s"
            ) from None
        finally:
            self._asked.pop(number, None)

    async def stop(self, deadline: float) -> None:
        """End the process, giving it `deadline` seconds to complete its batch."""
        self.sink.on_committed = lambda: None
        if self._timer is not None:
            self._timer.cancel()
        process, task = self._process, self._task
        self._task = None
        if task is None:
            return
        self._stopping = True
        if process is not None and process.stdin is not None:
            self._tell_end()
            process.stdin.close()
            await asyncio.wait([task], timeout=deadline)  # it reads the last status
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _ignore(status: dict[str, Any]) -> None:
    """Do nothing. This is the initial `on_status`."""
