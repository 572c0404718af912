"""Run and supervise the sending process from the broker.

The event loop passes events to the process and receives verdicts. JSON, compression, signatures, TLS and HTTP therefore
never delay a client.
"""

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

from hookmq_toolkit.tls_client import client_context

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.queues import Numbered

HEADER: Final = struct.Struct("<I")
LIVES: Final = 3
"""Number of processes that may die while sending the same events before this counts as a failed attempt."""
LONGEST: Final = 30.0
"""Longest delay in seconds before restarting a process that keeps dying."""
SILENT: Final = 30.0
"""Seconds to wait beyond the longest possible request before killing a silent process."""
ENDS: Final = 2.0
"""How long a process may take to exit before it is killed, in seconds."""


class Died(Exception):
    """The process ended before it returned a verdict."""


def frame(value: Any) -> bytes:
    """Encode a value for the socket. Both ends run the same Python version."""
    data = marshal.dumps(value)
    return HEADER.pack(len(data)) + data


def given(config: WebhookConfig, plugin_id: str) -> bytes:
    """Encode the configuration for the socket. On the command line, all users could see it."""
    plain = replace(config, headers=dict(config.headers))  # a read-only view cannot be pickled
    return frame(pickle.dumps((plain, plugin_id)))


def wired(serial: int, events: Sequence[Numbered]) -> bytes:
    """Encode events for the socket."""
    rows = [(n, (*e[:5], dict(e.data), e.payload, e.trace), size, id) for n, e, size, id in events]
    return frame((serial, rows))


class Frames:
    """Splits a stream into the values that `frame` encoded."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add `data`, and return the values that are now complete."""
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
    """One sending process, from start to end."""

    def __init__(self, process: "subprocess.Popen[bytes]", count: Callable[[Any], None]) -> None:
        self.process = process
        self.ended = asyncio.get_running_loop().create_future()
        self.waiting: dict[int, asyncio.Future[Answer]] = {}
        self.answers = 0
        self._count = count
        self._frames = Frames()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's class is unrelated

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
    """A `hookmq_webhook.sender.Sender` that runs in a separate process.

    The first `send` starts the process. If the process dies, it is restarted, and its events are resent with the same
    ids; `log` records the restart. The constructor raises OSError if a TLS file cannot be used.
    """

    def __init__(self, config: WebhookConfig, plugin_id: str, log: Callable[..., None]) -> None:
        self.config = config
        self.sent = 0
        """Number of requests sent."""
        self.bytes = 0
        """Total size of the request bodies sent, in bytes."""
        self.statuses: dict[int, int] = {}
        """Number of responses by status."""
        self.restarts = 0
        """Number of processes started to replace one that died."""
        if config.tls is not None:
            client_context(config.tls)
        self._plugin_id = plugin_id
        self._log = log
        self._serial = 0
        self._life: _Life | None = None
        self._starting: asyncio.Task[_Life] | None = None
        self._delay = 0.0
        self._closed = False
        self.patience = SILENT
        """Initially `SILENT`; lowered by tests."""

    async def start(self) -> None:
        """Start the process before any event arrives. Raises OSError if it cannot be started."""
        if self._life is None and not self._closed:
            await self._start()

    def use(self, config: WebhookConfig) -> None:
        """Use `config` for all further events. If a TLS file cannot be used, raises OSError and changes nothing."""
        if config.tls is not None:
            client_context(config.tls)
        self.config = config
        life = self._life
        if life is not None and life.alive:
            assert life.transport is not None
            life.transport.write(given(config, self._plugin_id))

    async def send(self, events: Sequence[Numbered]) -> Answer:
        """Send one request with `events`, like `Sender.send`."""
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
        return Answer(Verdict.AGAIN, "the sending process died")

    async def _ask(self, life: _Life, events: Sequence[Numbered]) -> Answer:
        if life.transport is None or not life.alive:
            raise Died
        self._serial += 1
        serial = self._serial
        try:
            data = wired(serial, events)
        except ValueError:
            # The events cannot be encoded, and another attempt would not change that.
            return Answer(Verdict.REFUSED, "cannot be sent: ValueError")
        loop = asyncio.get_running_loop()
        promise: asyncio.Future[Answer] = loop.create_future()
        life.waiting[serial] = promise
        life.transport.write(data)
        # Requests in progress keep their original timeout, even after `use`.
        seconds = self._longest()
        watch: asyncio.TimerHandle

        def look(answers: int) -> None:
            nonlocal watch
            if life.answers == answers and life.process.poll() is None:
                # The process is suspended or stuck, so its own timeouts have no effect.
                self._log("error", "webhook.sender_stuck", seconds=seconds)
                life.process.kill()
            else:
                watch = loop.call_later(seconds, look, life.answers)

        watch = loop.call_later(seconds, look, life.answers)
        try:
            return await promise
        finally:
            watch.cancel()
            life.waiting.pop(serial, None)

    def _longest(self) -> float:
        """Return the longest time in seconds that a working process needs for a token, a request and its redirects."""
        return (self.config.redirects + 2) * self.config.timeout + self.patience

    async def _start(self) -> _Life:
        """Start a process and return it. Concurrent callers share the same process. Raises OSError."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._spawn())
            self._starting.add_done_callback(self._started)
        return await asyncio.shield(self._starting)

    def _started(self, task: "asyncio.Task[_Life]") -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # callers also receive the exception; if there are none, asyncio would warn

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
        """End the process, and cancel requests in progress."""
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
        # When a batch process wakes up, it does not preempt other processes, such as the broker and its clients.
        with suppress(OSError):
            os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
    return process


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the process to exit, and return its exit code. Kill it after `ENDS` seconds. This call blocks."""
    try:
        return process.wait(ENDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
