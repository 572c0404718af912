"""The broker's side of the process that sends: the event loop hands events over and hears what became of them. JSON,
compression, signatures, TLS and HTTP never hold up a client."""

import asyncio
import marshal
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, cast

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.queues import Numbered
from hookmq_webhook.sender import context_of

HEADER: Final = struct.Struct("<I")
LIVES: Final = 3
"""Processes that may die over the same events before that counts as an attempt."""
LONGEST: Final = 30.0
"""Seconds between two starts of a process that dies again and again."""
SILENT: Final = 30.0
"""Seconds beyond the longest request after which a process that answers nothing is taken to be stuck, and killed."""
ENDS: Final = 2.0
"""Seconds that a process has to end before it is killed."""


class Died(Exception):
    """The process ended before it answered."""


def frame(value: Any) -> bytes:
    """A value as it crosses the socket. Both ends run the same Python."""
    data = marshal.dumps(value)
    return HEADER.pack(len(data)) + data


def given(config: WebhookConfig, plugin_id: str) -> bytes:
    """What a process is told first. By the socket, since what is on a command line is for all to see."""
    plain = replace(config, headers=dict(config.headers))  # a read-only view cannot be pickled
    return frame(pickle.dumps((plain, plugin_id)))


def wired(serial: int, events: Sequence[Numbered]) -> bytes:
    """Events as they cross the socket."""
    rows = [(n, (*e[:5], dict(e.data), e.payload, e.trace), size, id) for n, e, size, id in events]
    return frame((serial, rows))


class Frames:
    """Cuts a stream into the values that `frame` put into it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The values that are whole now."""
        buffer = self._buffer
        buffer += data
        found = []
        start = 0
        while len(buffer) - start >= HEADER.size:
            (size,) = HEADER.unpack_from(buffer, start)
            end = start + HEADER.size + size
            if len(buffer) < end:
                break
            found.append(marshal.loads(memoryview(buffer)[start + HEADER.size : end]))
            start = end
        if start:
            del buffer[:start]
        return found


class _Life(asyncio.Protocol):
    """One process, from its start to its end."""

    def __init__(self, process: "subprocess.Popen[bytes]", count: Callable[[Any], None]) -> None:
        self.process = process
        self.ended = asyncio.get_running_loop().create_future()
        self.waiting: dict[int, asyncio.Future[Answer]] = {}
        self.answers = 0
        self._count = count
        self._frames = Frames()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are of no such class

    def data_received(self, data: bytes) -> None:
        for serial, verdict, reason, after, counts in self._frames.feed(data):
            self.answers += 1
            self._count(counts)
            promise = self.waiting.pop(serial, None)
            if promise is not None and not promise.done():
                promise.set_result(Answer(Verdict(verdict), reason, after))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        waiting, self.waiting = self.waiting, {}
        for promise in waiting.values():
            if not promise.done():
                promise.set_exception(Died())

    @property
    def alive(self) -> bool:
        return self.transport is not None and not self.ended.done()


class SenderProcess:
    """As `hookmq_webhook.sender.Sender`, with a process that does the work. It is started by the first events and started
    again when it died; what it had is sent again, with the same ids. `log` is told of that. Raises OSError and
    ssl.SSLError for files of `tls` that cannot be used."""

    def __init__(self, config: WebhookConfig, plugin_id: str, log: Callable[..., None]) -> None:
        self.config = config
        self.sent = 0
        """Requests so far."""
        self.bytes = 0
        self.statuses: dict[int, int] = {}
        """Answers by status."""
        self.restarts = 0
        """Processes that took the place of one that died."""
        if config.tls is not None:
            context_of(config.tls)
        self._plugin_id = plugin_id
        self._log = log
        self._serial = 0
        self._life: _Life | None = None
        self._starting: asyncio.Task[_Life] | None = None
        self._delay = 0.0
        self._closed = False
        self.patience = SILENT
        """Seconds for `SILENT`."""

    async def start(self) -> None:
        """Have the process there before the first events. Raises OSError."""
        if self._life is None and not self._closed:
            await self._start()

    def use(self, config: WebhookConfig) -> None:
        """Send what comes from now on as `config` says. Raises as the constructor, and changes nothing then."""
        if config.tls is not None:
            context_of(config.tls)
        self.config = config
        life = self._life
        if life is not None and life.alive:
            assert life.transport is not None
            life.transport.write(given(config, self._plugin_id))

    async def send(self, events: Sequence[Numbered]) -> Answer:
        """As `Sender.send`."""
        for _ in range(LIVES):
            if self._closed:
                break
            life = self._life
            if life is None or not life.alive:
                try:
                    life = await self._start()
                except OSError as error:
                    self._log("error", "webhook.sender_not_started", reason=str(error))
                    continue
            try:
                return await self._ask(life, events)
            except Died:
                continue
        return Answer(Verdict.AGAIN, "the process that sends ended")

    async def _ask(self, life: _Life, events: Sequence[Numbered]) -> Answer:
        if life.transport is None or not life.alive:
            raise Died  # before anybody waited for it
        self._serial += 1
        serial = self._serial
        try:
            data = wired(serial, events)
        except ValueError:
            # JSON does not have it either: no further attempt makes it better.
            return Answer(Verdict.REFUSED, "it cannot be sent: ValueError")
        promise: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        life.waiting[serial] = promise
        life.transport.write(data)
        try:
            seconds = (
                self._longest()
            )  # as the process has it now: with another timeout it goes on with this one
            while not promise.done():
                answers = life.answers
                await asyncio.wait((promise,), timeout=seconds)
                if not promise.done() and life.answers == answers and life.process.poll() is None:
                    # Stopped, or stuck: its own timeouts are no help then, and nothing would ever be sent again.
                    self._log("error", "webhook.sender_stuck", seconds=seconds)
                    life.process.kill()
            return promise.result()
        finally:
            life.waiting.pop(serial, None)

    def _longest(self) -> float:
        """Seconds within which a process answers something: a token, a request, and what that is redirected to."""
        return (self.config.redirects + 2) * self.config.timeout + self.patience

    async def _start(self) -> _Life:
        """The process that all who wait for one share. Raises OSError."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._spawn())
            self._starting.add_done_callback(self._started)
        return await asyncio.shield(self._starting)

    def _started(self, task: "asyncio.Task[_Life]") -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # who waited has it; nobody may have

    async def _spawn(self) -> _Life:
        loop = asyncio.get_running_loop()
        before, self._life = self._life, None
        if before is not None:
            code = await asyncio.to_thread(_ended, before.process)
            if before.answers:
                self._delay = 0.0
            self.restarts += 1
            self._log("warning", "webhook.sender_died", code=code, again_in=self._delay)
        if self._delay:
            await asyncio.sleep(self._delay)
        self._delay = min(LONGEST, max(0.1, self._delay * 2))
        mine, other = socket.socketpair()
        try:
            process = await asyncio.to_thread(_popen, other)
        except BaseException:
            mine.close()
            raise
        finally:
            other.close()
        _, life = await loop.create_unix_connection(lambda: _Life(process, self._count), sock=mine)
        assert life.transport is not None
        life.transport.write(given(self.config, self._plugin_id))
        self._life = life
        return life

    def _count(self, counts: tuple[int, int, dict[int, int]]) -> None:
        sent, size, statuses = counts
        self.sent += sent
        self.bytes += size
        for status, count in statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count

    async def close(self) -> None:
        """End the process; what it is sending is given up."""
        self._closed = True
        starting = self._starting
        if starting is not None:
            starting.cancel()
            await asyncio.wait((starting,))
        life, self._life = self._life, None
        if life is not None:
            if life.transport is not None:
                life.transport.close()
            await asyncio.to_thread(_ended, life.process)


def _popen(other: socket.socket) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "hookmq_webhook.child", str(other.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(other.fileno(),),
    )
    if sys.platform == "linux":
        # Woken by an event, it waits until a core is free or its share is due: it takes none from the broker, nor from
        # who was just acknowledged.
        with suppress(OSError):
            os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
    return process


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """Its code; it is killed if it takes too long. Blocks."""
    try:
        return process.wait(ENDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
