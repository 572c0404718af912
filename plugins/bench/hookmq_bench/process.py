"""What all processes of a run share: an event loop, a pipe to the parent, and code to manage many connections."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

from hookmq.plugin import Connect, Properties, WillFields

from hookmq_bench.address import Address, BenchError
from hookmq_bench.connection import Connection, Turn
from hookmq_bench.outcome import Mark, Sample
from hookmq_bench.plan import SECOND, Plan, share
from hookmq_bench.tally import Tally

SAMPLE: Final = 0.25
"""Seconds between two samples during the run."""
ENDING: Final = 0.05
"""Seconds between two samples after the last message was sent, while the parent waits for messages to arrive."""


class Process:
    """The part of `plan` that process number `index` runs. Add `offset` to a monotonic time to get the stamp time."""

    def __init__(self, plan: Plan, index: int, address: Address, pipe: Pipe, offset: int) -> None:
        self.plan = plan
        self.index = index
        self.offset = offset
        self.tally = Tally()
        self.loop = asyncio.get_running_loop()
        self.turn = Turn(self.loop)
        self.told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.connects = 0
        self.keep_alive = plan.target.keep_alive
        self._address = address
        self._pipe = pipe
        self._seen = list(self.tally.latency.counts)
        self.loop.add_reader(pipe.fileno(), self._read)
        self.loop.set_exception_handler(self._failed)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the run after an error in a callback. Its results would be worthless."""
        error = context.get("exception")
        if not isinstance(error, OSError):
            self.tell("failed", f"{context['message']}: {error!r}")

    def _read(self) -> None:
        try:
            while self._pipe.poll():
                self.told.put_nowait(self._pipe.recv())
        except (EOFError, OSError):
            self.loop.remove_reader(self._pipe.fileno())
            self.told.put_nowait(("finish", None))

    def tell(self, what: str, more: Any = None) -> None:
        """Send a report to the parent."""
        with contextlib.suppress(OSError):  # the parent has exited, so this process will too
            self._pipe.send((what, more))

    async def wait_for(self, what: str) -> Any:
        """Wait until the parent orders `what`, and return the order's argument. Raises Ended if the parent ends the run
        instead.
        """
        word, more = await self.told.get()
        if word != what:
            raise Ended
        return more

    # connections

    def connect_packet(
        self, name: str, clean: bool | None = None, will: bytes | None = b""
    ) -> Connect:
        """Build a client's CONNECT. `will` is the will's payload. b"" means the payload from the options, and None
        means no will.
        """
        target = self.plan.target
        properties = self.plan.properties_of("connect")
        if target.session_expiry is not None:
            properties = properties.replace(session_expiry_interval=target.session_expiry)
        fields = None
        if target.will is not None and will is not None:
            fields = WillFields(
                target.will.topic.replace("{i}", name.rpartition("-")[2].lstrip("psc")),
                will or target.will.payload,
                target.will.qos,
                target.will.retain,
                self.plan.properties_of("will"),
            )
        return Connect(
            f"{self.plan.prefix}-{name}",
            target.version,
            target.clean_start if clean is None else clean,
            target.keep_alive,
            target.username,
            None if target.password is None else target.password.encode(),
            fields,
            properties=properties,
        )

    async def open(self, connection: Connection, packet: Connect) -> Properties:
        """Open a connection, count it, and return the CONNACK's properties. Raises BenchError."""
        began = time.monotonic_ns()
        connection.patience = self.plan.timeout
        connack = await connection.open(self._address, packet)
        self.tally.connected.add(time.monotonic_ns() - began)
        self.connects += 1
        connection.lost = self._lost
        if connack.properties.server_keep_alive is not None:
            self.keep_alive = min(self.keep_alive or 65_535, connack.properties.server_keep_alive)
        return connack.properties

    def _lost(self, reason: str) -> None:
        self.tally.lost_connections[reason] += 1

    async def each(self, things: Sequence[Any], work: Callable[[Any], Awaitable[None]]) -> None:
        """Run `work` on each of `things`, at the plan's rate and concurrency. The first failure cancels the rest."""
        processes = self.plan.processes
        gate = asyncio.Semaphore(max(1, share(self.plan.connecting, processes, self.index)))
        rate = self.plan.connect_rate / processes
        began = self.loop.time()

        async def one(thing: Any) -> None:
            try:
                await work(thing)
            finally:
                gate.release()

        async with asyncio.TaskGroup() as group:
            for number, thing in enumerate(things):
                if rate:
                    await asyncio.sleep(began + number / rate - self.loop.time())
                await gate.acquire()
                group.create_task(one(thing))

    def keep_alive_of(
        self, connections: Callable[[], Sequence[Connection]]
    ) -> "asyncio.Task[None]":
        """Start a task that keeps the given connections alive by sending PINGREQs. Return the task."""

        async def pinging() -> None:
            while self.keep_alive:
                # Check each connection twice within its keep alive [MQTT-3.1.2-20].
                await asyncio.sleep(self.keep_alive / 2.5)
                for connection in connections():
                    connection.keep_alive()

        return asyncio.create_task(pinging())

    # samples

    def latencies(self) -> dict[int, int]:
        """Return the latencies counted since the last call, by bucket."""
        latency = self.tally.connected if self.plan.kind.connects else self.tally.latency
        since = latency.since(self._seen)
        self._seen = list(latency.counts)
        return since

    def sampling(self, look: Callable[[], Sample]) -> "asyncio.Task[None]":
        """Start a task that regularly calls `look` and sends the sample to the parent. Return the task."""

        async def sampling() -> None:
            while True:
                sample = look()
                self.tell("sample", sample)
                await asyncio.sleep(SAMPLE if sample.sending else ENDING)

        return asyncio.create_task(sampling())

    def mark(self) -> Mark:
        """Return the counts at this moment."""
        tally = self.tally
        return Mark(
            time.monotonic_ns(),
            time.process_time_ns(),
            tally.sent,
            tally.acked,
            tally.received,
            self.connects,
        )

    async def until(self, at: int) -> None:
        """Sleep until monotonic time `at` (nanoseconds)."""
        await asyncio.sleep((at - time.monotonic_ns()) / SECOND)


class Ended(Exception):
    """The parent ended the run before it began."""


def calm() -> None:
    """Exclude all existing objects from garbage collection, and make collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def words(error: BaseException) -> str:
    """Return an error's text. For a group of errors, return the first one's text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, BenchError) else repr(error)
