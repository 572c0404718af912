"""Run a source's process for the broker: start it, restart it if it dies, and publish the messages that it hands over."""

import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hookmq_toolkit.sinks import SinkError

from hookmq_sinks.intake import Intake
from hookmq_sinks.plain import plain_value
from hookmq_sinks.source_wire import MESSAGES, decode_messages, encode_json, read_frame

SHORTEST: Final = 0.1
LONGEST: Final = 30.0
HEALTHY: Final = 10.0
"""Seconds that a process must run until the next restart is immediate again."""
_BUFFER: Final = 1 << 20


class SourceProcess:
    """Manages the process of one source. Call `start` and `stop` on a running event loop.

    `status` is the last status that the process reported. `on_status` is called when it changes.
    """

    def __init__(self, intake: Intake, folder: Path, log: Callable[..., None]) -> None:
        self.intake = intake
        self.folder = folder
        self.status: dict[str, Any] = {"state": "starting", "reason": ""}
        self.on_status: Callable[[dict[str, Any]], None] = lambda status: None
        self.restarts = 0
        self.pid = 0
        self.received = self.refused = 0
        """The numbers of messages that were published here, and that got a code of 0x80 or above, since the start."""
        self.paused = False
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.intake.config.name

    def start(self) -> None:
        """Start the process, and keep it running."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        delay = SHORTEST
        while not self._stopping:
            began = time.monotonic()
            try:
                reason = await self._live()
            except OSError as error:
                reason = f"its process cannot be started: {error.strerror}"
            self.pid, self._process, self._writer = 0, None, None
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(SinkError("failed", "the source's process ended"))
            self._asked.clear()
            if self._stopping:
                return
            self.restarts += 1
            self._set({"state": "failed", "reason": reason})
            self.tell("error", "sources.process_ended", reason=reason)
            if time.monotonic() - began >= HEALTHY:
                delay = SHORTEST
            await asyncio.sleep(delay)
            delay = min(LONGEST, delay * 2)

    async def _live(self) -> str:
        """Start a process and serve it until it ends. Return why it ended."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "hookmq_sinks.source_runner", str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._process, self.pid = process, process.pid
        reader, writer = await asyncio.open_connection(sock=ours, limit=_BUFFER)
        self._writer = writer
        self._say(self._given())
        reason = ""
        try:
            while True:
                kind, data = await read_frame(reader)
                if kind == MESSAGES:
                    codes = await self._publish(data)
                    self._say({"codes": codes, "reasons": self.intake.reasons})
                else:
                    reason = await self._take(json.loads(data)) or reason
        except (EOFError, OSError, ValueError):
            pass
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self.tell("error", "sources.intake_failed", reason=reason)
        finally:
            writer.close()
            if process.returncode is None and not self._stopping:
                with suppress(ProcessLookupError):
                    process.kill()
            code = await process.wait()
        return reason or f"its process ended with code {code}"

    def _given(self) -> dict[str, Any]:
        config = self.intake.config
        return {
            "source": plain_value(config),
            "folder": str(self.folder.absolute()),
            "marks": self.intake.marks(),
            "paused": self.paused,
        }

    async def _publish(self, data: bytes) -> list[int]:
        codes = await self.intake.publish(list(decode_messages(data)))
        refused = sum(code >= 0x80 for code in codes)
        self.refused += refused
        self.received += len(codes) - refused
        return codes

    async def _take(self, told: dict[str, Any]) -> str:
        """Handle a JSON frame. Return the reason if the process reports a failure, or '' otherwise."""
        if "log" in told:
            level, event, fields = told["log"]
            self.tell(level, event, **fields)
        if "status" in told:
            self._set(told["status"])
        if "forget" in told:
            await self.intake.forget(told["forget"])
            self._say({"forgotten": True})
        future = self._asked.pop(told.get("reply", 0), None)
        if future is not None and not future.done():
            if "refused" in told:
                future.set_exception(SinkError("conflict", told["refused"]))
            else:
                future.set_result(told.get("value"))
        return str(told.get("failed", ""))

    def _set(self, status: dict[str, Any]) -> None:
        self.status = status
        self.on_status(status)

    def _say(self, value: dict[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode_json(value))

    def tell(self, level: str, event: str, **fields: object) -> None:
        """Log an event about this source."""
        self._log(level, event, source=self.name, **fields)

    def pause(self, paused: bool) -> None:
        """Pause the source, or resume it."""
        self.paused = paused
        self._say({"pause": paused})

    async def ask(self, what: str, seconds: float) -> Any:
        """Send a request to the process, and return its reply. Raises SinkError."""
        if self._writer is None:
            reason = self.status["reason"]
            raise SinkError("failed", f"the source's process does not run: {reason}")
        self._number += 1
        number = self._number
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._say({"do": what, "id": number})
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise SinkError(
                "failed", f"no reply from the source's process within {seconds:g} s"
            ) from None
        finally:
            self._asked.pop(number, None)

    async def stop(self, deadline: float) -> None:
        """End the process, giving it `deadline` seconds to acknowledge the committed messages."""
        self._stopping = True
        task, process = self._task, self._process
        self._task = None
        if task is None:
            return
        self._say({"stop": True})
        await asyncio.wait([task], timeout=deadline)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self.intake.close()
