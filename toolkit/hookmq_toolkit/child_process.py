"""Run a process for the broker: start it, watch it, and restart it if it dies or gets stuck."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from hookmq_toolkit.channel import Channel, Refused

SHORTEST: Final = 0.1
LONGEST: Final = 30.0
"""Seconds before a process that keeps dying is started again."""
HEALTHY: Final = 10.0
"""Seconds that a process must run until the next restart is immediate again."""
SILENT: Final = 30.0
"""Seconds without a sign of life after which a process is killed."""
ENDS: Final = 2.0
"""How long a process may take to exit before it is killed, in seconds."""


class ChildProcess:
    """Runs ``python -P -m MODULE FD``, where FD is the number of a socket; see `hookmq_toolkit.channel`.

    `begin` is called for each new process, before anything else is sent to it. `take` receives the values that the
    process sends, and `answer` carries out its requests. `ended` is called when a process has died, with its exit code
    (None if it could not be started), a reason, and the seconds until the next start. Call all methods on the event loop.
    """

    def __init__(
        self,
        module: str,
        begin: Callable[[], None],
        take: Callable[[Any], None],
        ended: Callable[[int | None, str, float], None],
        answer: Callable[[Any], Awaitable[Any]] | None = None,
    ) -> None:
        self.restarts = 0
        """Number of processes that were started to replace one that died."""
        self.pid = 0
        """The id of the running process, or 0."""
        self.patience = SILENT
        """Seconds without a sign of life after which a process that has begun is killed."""
        self._module = module
        self._begin = begin
        self._take = take
        self._ended = ended
        self._answer = answer
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    @property
    def running(self) -> bool:
        """Whether the process can receive values."""
        return self._channel is not None and self._channel.open

    @property
    def backlog(self) -> int:
        """Number of bytes that the process has not read yet."""
        return self._channel.backlog if self._channel is not None else 0

    def start(self) -> None:
        """Start the process, and keep it running. Does nothing if it already runs."""
        if self._task is None:
            self._stopping = False
            self._task = asyncio.get_running_loop().create_task(self._run())

    def write(self, value: Any) -> None:
        """Send a value to the process. It is dropped if no process is running."""
        if self._channel is not None:
            self._channel.write(value)

    async def ask(self, request: Any, seconds: float) -> Any:
        """Send a request to the process, and return its result. Raises `Refused`, also if there is no result in time."""
        channel = self._channel
        if channel is None:
            raise Refused("the process is not running")
        try:
            async with asyncio.timeout(seconds):
                return await channel.ask(request)
        except TimeoutError:
            raise Refused(f"no reply from the process within {seconds:g} s") from None

    async def stop(self) -> None:
        """End the process."""
        self._stopping = True
        task, self._task = self._task, None
        if task is None:
            return
        if self._channel is not None:
            self._channel.close()
        await asyncio.wait([task], timeout=ENDS + 1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _run(self) -> None:
        delay = SHORTEST
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code: int | None = None
            reason = ""
            try:
                code = await self._live()
            except OSError as error:
                reason = str(error.strerror or error)
            finally:
                self._channel, self.pid, self._process = None, 0, None
            if self._stopping:
                return
            if loop.time() - began >= HEALTHY:
                delay = SHORTEST
            self.restarts += 1
            self._ended(code, reason, delay)
            await asyncio.sleep(delay)
            delay = min(LONGEST, delay * 2)

    async def _live(self) -> int:
        """Start a process, and return its exit code after it has ended. Raises OSError."""
        loop = asyncio.get_running_loop()
        mine, other = socket.socketpair()
        try:
            process = await asyncio.to_thread(_popen, self._module, other)
        except BaseException:
            mine.close()
            raise
        finally:
            other.close()
        channel: Channel | None = None
        try:
            _, channel = await loop.create_unix_connection(
                lambda: Channel(self._take, self._answer), sock=mine
            )
            self._process, self._channel, self.pid = process, channel, process.pid
            self._begin()
            await self._watch(channel, process)
        finally:
            if channel is not None:
                channel.close()
            code = await asyncio.shield(asyncio.to_thread(_exit_code, process))
        return code

    async def _watch(self, channel: Channel, process: "subprocess.Popen[bytes]") -> None:
        """Wait until the channel closes. Kill a process that is suspended or stuck."""
        while not channel.closed.done():
            before, patience = channel.frames, self.patience if channel.frames else SILENT
            asked = channel.ask(None)
            asked.add_done_callback(_ignore)
            await asyncio.wait(
                [channel.closed, asked],
                timeout=patience,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if channel.frames == before and channel.open:  # any frame is a sign of life
                process.kill()
                self._ended(None, "stuck", patience)
                await channel.closed
            await asyncio.wait([channel.closed], timeout=self.patience)


def _ignore(future: "asyncio.Future[Any]") -> None:
    """Mark the future's exception as seen."""
    if not future.cancelled():
        future.exception()


def _popen(module: str, other: socket.socket) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(other.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(other.fileno(),),
    )
    if sys.platform == "linux":
        # When a batch process wakes up, it does not preempt other processes, such as the broker and its clients.
        with suppress(OSError):
            os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
    return process


def _exit_code(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the process to exit, and return its exit code. Kill it after `ENDS` seconds. This call blocks."""
    try:
        return process.wait(ENDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


__all__ = ["ChildProcess", "Refused"]
