"""What every process of a run has: its loop, the pipe to the parent, opening and closing many connections."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

from hookmq.codec import Connect, WillFields
from hookmq.properties import Properties

from hookmq_bench.address import Address, BenchError
from hookmq_bench.connection import Connection, Turn
from hookmq_bench.outcome import Mark, Sample
from hookmq_bench.plan import SECOND, Plan, share
from hookmq_bench.tally import Tally

SAMPLE: Final = 0.25
"""Seconds between two samples."""
ENDING: Final = 0.05
"""Likewise when nothing is sent any more, and the parent waits for what is still to come."""


class Process:
    """The part of `plan` that falls to process `index`. `offset` makes the monotonic clock that of stamps."""

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
        """A fault of ours in a callback: a run that goes on would tell anything."""
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
        """Tell the parent."""
        with contextlib.suppress(OSError):  # it is gone, and so shall we
            self._pipe.send((what, more))

    async def wait_for(self, what: str) -> Any:
        """What the parent tells with `what`. Raises Ended when it wants an end instead."""
        word, more = await self.told.get()
        if word != what:
            raise Ended
        return more

    # connections

    def connect_packet(
        self, name: str, clean: bool | None = None, will: bytes | None = b""
    ) -> Connect:
        """A client's CONNECT; `will` is the payload of its will: b"" for the one that was given, None for no will."""
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
        """Open a connection and count it; the properties of the CONNACK. Raises BenchError."""
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
        """Do `work` with all things, as many at once and so many in a second as the plan has it. The first that fails
        fails all."""
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
        """A task that keeps alive what `connections` gives."""

        async def pinging() -> None:
            while self.keep_alive:
                # Each is looked at twice in the time that it may be quiet [MQTT-3.1.2-20].
                await asyncio.sleep(self.keep_alive / 2.5)
                for connection in connections():
                    connection.keep_alive()

        return asyncio.create_task(pinging())

    # looking at it

    def latencies(self) -> dict[int, int]:
        """Those since this was last called."""
        latency = self.tally.connected if self.plan.kind.connects else self.tally.latency
        since = latency.since(self._seen)
        self._seen = list(latency.counts)
        return since

    def sampling(self, look: Callable[[], Sample]) -> "asyncio.Task[None]":
        """A task that tells the parent what `look` sees."""

        async def sampling() -> None:
            while True:
                sample = look()
                self.tell("sample", sample)
                await asyncio.sleep(SAMPLE if sample.sending else ENDING)

        return asyncio.create_task(sampling())

    def mark(self) -> Mark:
        """The counts of now."""
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
        """Sleep until `at`, nanoseconds of the monotonic clock."""
        await asyncio.sleep((at - time.monotonic_ns()) / SECOND)


class Ended(Exception):
    """The parent wants an end before anything began."""


def calm() -> None:
    """Keep the garbage collector from looking at what stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def words(error: BaseException) -> str:
    """An error, or the first of a group, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, BenchError) else repr(error)
