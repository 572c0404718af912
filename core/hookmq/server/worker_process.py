"""One worker, as the supervisor sees it: its process, its log, and the messages that it sends to its service manager."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from signal import SIGKILL, Signals
from typing import IO, Final

LONGEST_LINE: Final = 1 << 20
"""Longer lines of a worker's log are split."""
_WRITING = threading.Lock()


class WorkerProcess:
    """A worker. It may run several processes, one after the other.

    `notify_path` is the path of the socket on which the process reports its state, as to systemd. `changed` is called
    when it has reported that it is ready, and `spawned` with the id of each process. Its log is written to `stream`,
    with the worker's name.
    """

    def __init__(
        self,
        name: str,
        notify_path: str,
        changed: Callable[[], None],
        stream: IO[bytes] | None = None,
        spawned: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self.name = name
        self.notify_path = notify_path
        self.ready = False
        self.beat = 0.0
        """When the process has last shown that it is alive, in the loop's time."""
        self.started = 0.0
        self._changed = changed
        self._spawned = spawned
        self._stream = stream or sys.stderr.buffer
        self._process: asyncio.subprocess.Process | None = None
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._socket.bind(notify_path)
        self._loop.add_reader(self._socket, self._reported)

    @property
    def pid(self) -> int:
        """The process id, or 0 if no process runs."""
        return 0 if self._process is None else self._process.pid

    async def run(
        self, command: Sequence[str], environ: Mapping[str, str], pass_fds: Sequence[int]
    ) -> int:
        """Run a process until it ends. Return its exit code, or the negative number of the signal that ended it. Raises
        OSError if it cannot be started.
        """
        reading, writing = os.pipe()
        self.ready = False
        self.beat = self.started = self._loop.time()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=dict(environ), stdin=asyncio.subprocess.DEVNULL, stderr=writing,
                pass_fds=pass_fds,
                start_new_session=True,  # a terminal's Ctrl-C reaches only the supervisor, which passes it on
            )  # fmt: skip
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._spawned(self._process.pid)
        log = threading.Thread(
            target=self._copy_log, args=(reading,), name=f"hookmq-{self.name}", daemon=True
        )
        log.start()
        code = await self._process.wait()
        self._process = None
        self.ready = False
        # A child of the worker may keep the log open.
        await self._loop.run_in_executor(None, log.join, 1.0)
        return code

    def signal(self, number: Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self._process is not None:
            # `Process.send_signal` may take the exit code away from asyncio, which then reports 255.
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.signal(SIGKILL)

    def close(self) -> None:
        """Release the socket."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        with suppress(OSError):
            os.unlink(self.notify_path)

    def _reported(self) -> None:
        while True:
            try:
                data = self._socket.recv(4096)
            except (BlockingIOError, InterruptedError):
                return
            self.beat = self._loop.time()
            if b"READY=1" in data.split(b"\n") and not self.ready:
                self.ready = True
                self._changed()

    def _copy_log(self, reading: int) -> None:
        """Copy the process's stderr, line by line. This runs in a thread, so a log without a reader delays nothing."""
        name = self.name.encode()
        with os.fdopen(reading, "rb") as source:
            while line := source.readline(LONGEST_LINE):
                if line.startswith(b"{") and len(line) > 3:
                    line = b'{"worker":"' + name + b'",' + line[1:]
                else:
                    line = name + b" " + line
                if not line.endswith(b"\n"):
                    line += b"\n"
                with suppress(OSError, ValueError), _WRITING:  # the log has no reader
                    self._stream.write(line)
                    self._stream.flush()
