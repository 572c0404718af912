"""The broker's side of the writer process: frames go out and answers come in on the event loop, which never blocks."""

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

from hookmq.errors import StoreError

from hookmq_storage.database import Durability, Limits
from hookmq_storage.writer import CLOSE, CLOSED, FAILED, HEADER, frame, receive

_CHUNK = 1 << 18


class Channel:
    """One end of a socket pair: whole values in both directions. `received` is told each, `ended` that there are none
    any more."""

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
        """Begin to receive."""
        self._loop = loop
        self._connection.setblocking(False)
        loop.add_reader(self._connection.fileno(), self._read)

    def send(self, value: Any) -> None:
        """Send a value; what the socket does not take now goes out later."""
        view = memoryview(frame(value))
        if not self._out:
            try:
                view = view[self._connection.send(view) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the other end is gone: reading tells
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
        # All that is there, to the end: where the other end left something unread, the kernel reports an error
        # once, and uvloop looks at such a socket no more: the end would never be heard.
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
            if self._loop is None:  # closed by who was told
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
        """The next value, before `start`; blocks. (False, None) when there is none."""
        return receive(self._connection)

    def close(self) -> None:
        """Let go."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._connection.fileno())
            loop.remove_writer(self._connection.fileno())
        self._connection.close()


class WriterProcess:
    """The writer's process. `committed` is told (number, next message id, seconds, bytes of the database, bytes of its
    log), `answer`
    what was asked for, in the order of asking, `failed` once why nothing more will come."""

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
            # The lock goes along: it holds until the last of the two has let go.
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
        """Wait until the writer has looked at the whole database; what is wrong with it, '' if nothing is."""
        there, answer = self._reads.wait()
        if there:
            problem: str = answer[1]
            return problem
        there, answer = self._commits.wait()
        return str(answer[1]) if there else self._death()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to listen to it."""
        self._commits.start(loop)
        self._reads.start(loop)

    def part(self, batch: list[Any]) -> None:
        """Hand over what is part of the batch that `commit` ends."""
        self._commits.send((batch,))

    def commit(self, batch: list[Any]) -> None:
        """Have a batch committed."""
        self._commits.send(batch)

    def ask(self, *request: Any) -> None:
        """Ask the reading thread for something: what, and its arguments."""
        self._reads.send(request)

    def close(self, done: Callable[[], None]) -> None:
        """Have it end after what it was given."""
        self._closed = done
        self._commits.send(CLOSE)

    def kill(self) -> None:
        """End it at once; for what was never started."""
        self._commits.close()
        self._reads.close()
        self.process.kill()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            pass  # it waits for a disk that hangs, where no signal reaches it

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
        """The process is ending: the other channel tells how."""

    def _death(self) -> str:
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the writer process does not answer any more"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the writer process {how}"
