"""Run the writer process for the broker. Frames are sent and responses are received on the event loop, without
blocking.
"""

import asyncio
import json
import marshal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookmq.plugin import StoreError

from hookmq_storage.database import Durability, Limits
from hookmq_storage.writer import CLOSE, CLOSED, FAILED, HEADER, frame, receive

_CHUNK = 1 << 18


class Channel:
    """One end of a socket pair that carries values. Calls `received` with each value, and `ended` once the other end
    has closed.
    """

    def __init__(
        self,
        connection: socket.socket,
        received: Callable[[Any], None],
        ended: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._received = received
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in = bytearray()
        self._out: deque[memoryview] = deque()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start receiving values."""
        self._loop = loop
        self._connection.setblocking(False)
        loop.add_reader(self._connection.fileno(), self._read)

    def send(self, value: Any) -> None:
        """Send a value. Data that the socket cannot accept yet is sent later."""
        view = memoryview(frame(value))
        if not self._out:
            try:
                view = view[self._connection.send(view) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the other end has closed: `_read` reports this
            if view:
                assert self._loop is not None
                self._loop.add_writer(self._connection.fileno(), self._write)
        if view:
            self._out.append(view)

    def _write(self) -> None:
        while self._out:
            view = self._out[0]
            try:
                sent = self._connection.send(view)
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
                break
            if sent < len(view):
                self._out[0] = view[sent:]
                return
            self._out.popleft()
        if self._loop is not None:
            self._loop.remove_writer(self._connection.fileno())

    def _read(self) -> None:
        # Read until nothing is left. If the other end closed with unread data, the kernel reports an error once. uvloop
        # then ignores the socket, and the end of the connection would go unnoticed.
        while True:
            try:
                data = self._connection.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                self._ended()
                return
            self._take(data)
            if self._loop is None:  # closed by `received`
                return

    def _take(self, data: bytes) -> None:
        buffer = self._in
        buffer += data
        start = 0
        while len(buffer) - start >= HEADER.size:
            (size,) = HEADER.unpack_from(buffer, start)
            end = start + HEADER.size + size
            if len(buffer) < end:
                break
            value = marshal.loads(bytes(memoryview(buffer)[start + HEADER.size : end]))
            start = end
            self._received(value)
        del buffer[:start]

    def wait(self) -> tuple[bool, Any]:
        """Return (True, value) for the next value, or (False, None) if the other end has closed. This call blocks, so
        use it only before `start`.
        """
        return receive(self._connection)

    def close(self) -> None:
        """Close the socket."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._connection.fileno())
            loop.remove_writer(self._connection.fileno())
        self._connection.close()


class WriterProcess:
    """Starts the writer process and communicates with it.

    `committed` is called with the commit's number, the id of the next message, the duration in seconds, and the sizes
    of the database and its log in bytes. `answer` is called with each response, in the order of the requests. `failed`
    is called once, with the reason, when no further responses can arrive.
    """

    def __init__(
        self,
        folder: Path,
        durability: Durability,
        limits: Limits,
        verify: bool,
        lock: int,
        committed: Callable[[int, int, float, int, int], None],
        answer: Callable[[Any], None],
        failed: Callable[[str], None],
    ) -> None:
        self._committed = committed
        self._answer = answer
        self._failed = failed
        self._closed: Callable[[], None] | None = None
        self._reason = ""
        mine, commits = socket.socketpair()
        other, reads = socket.socketpair()
        config = {
            "folder": str(folder.absolute()),
            "durability": durability,
            "limits": limits._asdict(),
            "verify": verify,
            "commits": commits.fileno(),
            "reads": reads.fileno(),
        }
        try:
            # The writer inherits the lock, so the folder remains locked until both processes have ended.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hookmq_storage.writer", json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(commits.fileno(), reads.fileno(), lock),
            )
        except OSError as error:
            mine.close()
            other.close()
            raise StoreError(f"the writer process cannot be started: {error}") from error
        finally:
            commits.close()
            reads.close()
        self._commits = Channel(mine, self._answered, self._ended)
        self._reads = Channel(other, self._read, self._reader_ended)

    def verdict(self) -> str:
        """Wait until the writer has checked the whole database. Return a description of the problem, or '' if the
        database is intact.
        """
        there, answer = self._reads.wait()
        if there:
            problem: str = answer[1]
            return problem
        there, answer = self._commits.wait()
        return str(answer[1]) if there else self._death()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start receiving responses."""
        self._commits.start(loop)
        self._reads.start(loop)

    def part(self, batch: list[Any]) -> None:
        """Send one part of a batch. Use `commit` for the last part."""
        self._commits.send((batch,))

    def commit(self, batch: list[Any]) -> None:
        """Commit a batch."""
        self._commits.send(batch)

    def ask(self, *request: Any) -> None:
        """Send a request to the reading thread. A request consists of a name and its arguments."""
        self._reads.send(request)

    def close(self, done: Callable[[], None]) -> None:
        """End the process after it has finished its pending work, then call `done`."""
        self._closed = done
        self._commits.send(CLOSE)

    def kill(self) -> None:
        """Kill the process. Use this for a store that was never started."""
        self._commits.close()
        self._reads.close()
        self.process.kill()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            pass  # a process that waits for a hanging disk does not react to signals

    def _answered(self, answer: Any) -> None:
        if answer[0] == FAILED:
            self._reason = answer[1]
        elif answer[0] != CLOSED:
            self._committed(*answer[1:])

    def _read(self, answer: Any) -> None:
        if answer[0] == FAILED:
            self._failed(answer[1])
        else:
            self._answer(answer[1])

    def _ended(self) -> None:
        self._reads.close()
        done, self._closed = self._closed, None
        if done is None or self._reason:
            self._failed(self._reason or self._death())
        else:
            self.process.wait()
        if done is not None:
            done()

    def _reader_ended(self) -> None:
        """Do nothing, because the process is ending and the commit channel reports the reason."""

    def _death(self) -> str:
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the writer process no longer answers"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the writer process {how}"
