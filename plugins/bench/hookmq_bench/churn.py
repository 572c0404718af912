"""One process of a connection run. The process holds connections open (connect) or keeps reopening them (churn)."""

import asyncio
import time
from typing import Final

from hookmq.plugin import Properties

from hookmq_bench.address import BenchError, Refused
from hookmq_bench.connection import Connection
from hookmq_bench.flow import Flow
from hookmq_bench.outcome import Account, Connects, FlowSum, Mark, Sample
from hookmq_bench.plan import SECOND, STAMP, share
from hookmq_bench.process import Process, calm
from hookmq_bench.subscriber import Subscriber

BREATH: Final = 0.05
"""Seconds a client waits after a failure, so that it does not flood a broker that is down."""


class Client:
    """A client that connects and disconnects repeatedly."""

    __slots__ = ("closes", "connection", "name", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"c{number}"
        self.connection: Connection | None = None
        self.closes = 0
        """How often this client closed its connection without DISCONNECT."""


class Churn:
    """All clients that run in one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        plan = self.plan = process.plan
        self.clients = [
            Client(number)
            for number in range(plan.clients)
            if number % plan.processes == process.index
        ]
        self.counts = Connects()
        self._sending = True
        self._wills: dict[int, Flow] = {}
        self._watcher = Subscriber(
            process.turn, plan.target.version, process.tally, self._wills, process.offset
        )

    async def run(self) -> Account:
        """Run each phase when the parent tells it to, and return this process's account."""
        process, plan = self.process, self.plan
        if self._watches:
            await self._open_watcher()
        calm()
        process.tell("ready")
        start: int = await process.wait_for("go")
        tasks = [
            process.sampling(self._look),
            process.keep_alive_of(self._connections),
        ]
        process.tally.since = start
        await process.until(start)
        begin = process.mark()
        try:
            end = await (self._connect() if plan.scenario == "connect" else self._churn(start))
            self._sending = False
            while (await process.told.get())[0] != "finish":
                pass
        finally:
            for task in tasks:
                task.cancel()
        self.counts.wills_due = sum(one.closes for one in self.clients) if self._watches else 0
        self.counts.wills_came = sum(one.received for one in self._wills.values())
        account = Account(process.tally, begin, end, connections=self.counts)
        account.flows = {
            key: FlowSum(1, one.received, one.missing, one.duplicates)
            for key, one in self._wills.items()
        }
        await self._clean_up()
        return account

    def _connections(self) -> list[Connection]:
        return [one.connection for one in self.clients if one.connection is not None]

    # wills

    @property
    def _watches(self) -> bool:
        """Whether this run expects the broker to publish wills."""
        return self.plan.target.will is not None and self.plan.abrupt

    async def _open_watcher(self) -> None:
        plan, will = self.plan, self.plan.target.will
        assert will is not None
        for client in self.clients:
            self._wills[plan.key(client.number)] = Flow()
        name = f"w{self.process.index}"
        packet = self.process.connect_packet(name, clean=True, will=None)
        try:
            await self.process.open(self._watcher, packet)
            await self._watcher.subscribe(will.topic.replace("{i}", "+"), will.qos, Properties())
        except BenchError as error:
            raise BenchError(f"the subscriber to wills: {error}") from None

    def _will_of(self, client: Client) -> bytes:
        return STAMP.pack(self.plan.key(client.number), client.closes, 0)

    # connections

    async def _open(self, client: Client) -> bool:
        """Connect a client, and return whether it succeeded. Failures are counted by reason."""
        process = self.process
        connection = Connection(process.turn, self.plan.target.version)
        will = self._will_of(client) if self._watches else b""
        try:
            await process.open(connection, process.connect_packet(client.name, will=will))
        except BenchError as error:
            kind = "refused: " if isinstance(error, Refused) else ""
            process.tally.refused[f"{kind}{error}"] += 1
            self.counts.failed += 1
            return False
        self.counts.opened += 1
        self.counts.resumed += connection.resumed
        client.connection = connection
        return True

    def _shut(self, client: Client, abrupt: bool) -> None:
        connection, client.connection = client.connection, None
        if connection is None or connection.closed:
            return
        if abrupt:
            client.closes += 1
            connection.abort()
        else:
            connection.close()

    async def _connect(self) -> Mark:
        """Open all connections and hold them. Return the counts at the moment when the last connection opened."""
        process, plan = self.process, self.plan

        async def one(client: Client) -> None:
            await self._open(client)

        await process.each(self.clients, one)
        end = process.mark()
        await self._pause(plan.duration)
        return end

    async def _churn(self, start: int) -> Mark:
        plan, process = self.plan, self.process
        until = start + int(plan.duration * SECOND) if plan.duration else 1 << 62
        if plan.storm:
            return await self._storms(until)
        count = share(plan.count, plan.processes, process.index) if plan.count else 1 << 62
        rate = plan.connect_rate / plan.processes
        gate = asyncio.Semaphore(max(1, share(plan.connecting, plan.processes, process.index)))
        begun = 0
        began = process.loop.time()

        async def again(client: Client) -> None:
            nonlocal begun
            while begun < count and time.monotonic_ns() < until and process.told.empty():
                number, begun = begun, begun + 1
                if rate:
                    at = began + number / rate
                    if at > began + (until - start) / SECOND:
                        return
                    await asyncio.sleep(at - process.loop.time())
                async with gate:
                    if await self._open(client):
                        self._shut(client, plan.abrupt)
                    else:
                        await asyncio.sleep(BREATH)

        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(again(client))
        return process.mark()

    async def _storms(self, until: int) -> Mark:
        """Cut all connections at once and reconnect as fast as possible. Repeat this at every `--storm` interval."""
        plan, process = self.plan, self.process
        count = share(plan.count, plan.processes, process.index) if plan.count else 1 << 62

        async def back(client: Client) -> None:
            while not await self._open(client):
                if time.monotonic_ns() >= until:
                    return
                await asyncio.sleep(BREATH)

        await process.each(self.clients, back)
        while await self._pause(min(plan.storm, (until - time.monotonic_ns()) / SECOND)):
            if time.monotonic_ns() >= until or self.counts.opened >= count:
                break
            began = time.monotonic_ns()
            for client in self.clients:
                self._shut(client, plan.abrupt)
            await process.each(self.clients, back)
            self.counts.storms.append(time.monotonic_ns() - began)
        return process.mark()

    async def _pause(self, seconds: float) -> bool:
        """Sleep for `seconds`. Return False immediately if the parent ends the run."""
        told = self.process.told
        waiting = asyncio.create_task(told.get())
        done, _ = await asyncio.wait([waiting], timeout=max(0.0, seconds))
        if done:
            told.put_nowait(waiting.result())
            return False
        waiting.cancel()
        return True

    def _look(self) -> Sample:
        process = self.process
        return Sample(
            at=time.monotonic_ns(),
            connected=sum(
                one.connection is not None and not one.connection.closed for one in self.clients
            ),
            connects=self.counts.opened,
            received=process.tally.received,
            progress=sum(one.received for one in self._wills.values()),
            missing=self.counts.failed,
            sent=sum(one.closes for one in self.clients) if self._watches else 0,
            lost_connections=process.tally.lost_connections.total(),
            cpu=time.process_time_ns(),
            sending=self._sending,
            latencies=process.latencies(),
        )

    async def _clean_up(self) -> None:
        plan, process = self.plan, self.process
        for client in self.clients:
            self._shut(client, abrupt=False)
        self._watcher.close()
        if plan.target.clean_start or plan.keep:
            return

        async def forget(client: Client) -> None:
            connection = Connection(process.turn, plan.target.version)
            await process.open(connection, process.connect_packet(client.name, clean=True))
            connection.close()

        await process.each(self.clients, forget)
