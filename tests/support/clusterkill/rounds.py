"""Break a new cluster under a load that uses all of its state, and judge the history of its clients.

Publishers use QoS 0, 1 and 2, with and without a session, in MQTT 3.1.1 and 5.0. Two publish retained messages and clear
some of them. Subscribers with a session stay, come and go, or are mostly offline. Three have no session. A group shares a
subscription. Clients with wills lose their connections. All of them connect to random brokers.

Each seed has its own faults. At the end, everything is healed. Each acknowledged message must then have arrived.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from killing.ledger import Stream

from clusterkill.checker import Verdict, check
from clusterkill.clients import (
    ChaosClient,
    Publisher,
    Subscriber,
    World,
    leave_a_will,
    read_retained,
)
from clusterkill.cluster import Cluster
from clusterkill.faults import WITH_DISKS, Fault, Faults, plan
from clusterkill.history import FAULTS, Event, History
from clusterkill.stream import copy_stream

JOIN: Final = 60.0
SETTLE: Final = 45.0
"""Seconds after which everything must have arrived once the cluster is healed."""
AFTERWARDS: Final = 1.0
"""Seconds between the end of the last fault and the end of the load."""
CLOSING: Final = 0.05
"""Seconds for connections to end."""
POLL: Final = 0.3
READING: Final = 20.0
"""Seconds after which the retained messages must be the same everywhere."""
LATE: Final = 0.5
"""Seconds in which repeated messages may still arrive."""
PASSING: Final = frozenset({"lost", "stuck", "will lost"})
"""Findings that may pass while a cluster recovers."""
WILLS: Final = (("dropped", 0, False), ("delayed", 2, False), ("taken-back", 3600, True))
"""Name, delay and whether the client returns in time, for the clients with wills."""


class Broken(Exception):
    """Raised if a cluster does not start, or if a client cannot go on."""


@dataclass
class Outcome:
    """The result of a seed."""

    seed: int
    faults: list[Fault]
    history: History
    verdict: Verdict
    refusals: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    settled: float = 0.0
    """Seconds from the end of all faults until everything had arrived."""
    seconds: float = 0.0
    without: str = ""
    """Why faults of disks were impossible, or ''."""


class Run:
    """A cluster and its clients."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int, faults: list[Fault]) -> None:
        self.cluster = cluster
        self.folder = folder
        self.seed = seed
        self.faults = faults
        self.history = History()
        self.world = World(self.history, [node.port for node in cluster.brokers], seed)
        rng = Random(f"load {seed}")
        self.publishers: list[Publisher] = []
        for number, (qos, level, durable) in enumerate(
            ((1, 5, True), (1, 4, True), (2, 5, True), (2, 4, True), (1, 5, False), (0, 5, False))
        ):
            streams = [Stream(f"d/{number}/{topic}", qos) for topic in range(2)]
            streams.append(Stream(f"s/{number}", qos))
            self._publisher(f"publisher-{number}", streams, level, durable, rng.uniform(10, 50))
        for qos, level in ((1, 5), (2, 4)):
            streams = [Stream(f"r/{qos}/{topic}", qos, True, topic % 2 == 1) for topic in range(4)]
            self._publisher(f"retainer-{qos}", streams, level, True, rng.uniform(5, 20))
        self.retained = [topic for topic, one in self.world.streams.items() if one.retained]
        mains = ("d/#", "w/#")
        self.subscribers = [
            Subscriber(self.world, "online", mains),
            Subscriber(self.world, "coming", mains, 5, True, _visit, _absence),
            Subscriber(self.world, "offline", mains, 4, True, lambda rng: 0.0, lambda rng: 3600.0),
        ]
        for number in range(3):
            name = f"volatile-{number}"
            self.subscribers.append(Subscriber(self.world, name, ("d/#",), 5, durable=False))
        for member in range(3):
            visit = _visit if member == 2 else _always
            self.subscribers.append(
                Subscriber(
                    self.world, f"member-{member}", ("$share/g/s/#",), 5, True, visit, _absence
                )
            )
        self.tasks: list[asyncio.Task[None]] = []

    def _publisher(
        self, name: str, streams: list[Stream], level: int, durable: bool, rate: float
    ) -> None:
        self.publishers.append(Publisher(self.world, name, streams, level, durable, rate))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def run(self) -> float:
        """Run the load and the faults. Return the seconds that the cluster needed until everything had arrived."""
        await self.cluster.start()
        try:
            self._start(self.cluster.supervise())
            for subscriber in self.subscribers:
                self._start(subscriber.run())
            await self._reach(lambda: all(one.joined for one in self.subscribers), JOIN)
            for publisher in self.publishers:
                self._start(publisher.run())
            start = time.monotonic()
            await asyncio.gather(*(self._fault(fault, start) for fault in self.faults))
            await asyncio.sleep(AFTERWARDS)
            healed = time.monotonic()
            await self.cluster.heal()
            self.world.finished.set()
            await self._settle(healed)
            settled = time.monotonic() - healed
            await asyncio.sleep(LATE)
            await self._read_retained()
            if not check(self.history).ok:
                await copy_stream(self.cluster.servers[0].url, self.folder / "log.jsonl")
            return settled
        finally:
            await self._end()

    async def _fault(self, fault: Fault, start: float) -> None:
        await asyncio.sleep(max(0, start + fault.at - time.monotonic()))
        wills = [
            asyncio.create_task(
                leave_a_will(self.world, f"{kind}-{fault.machine}-{fault.at:.3f}", delay, returns)
            )
            for kind, delay, returns in WILLS
        ]
        await asyncio.sleep(0.2)
        name = f"{fault.machine} {fault.at:.3f}"
        self.history.add(FAULTS, "invoke", "fault", name, detail=fault.kind)
        undo = await Faults(self.cluster).cause(fault)
        await asyncio.sleep(fault.seconds)
        await undo()
        self.history.add(FAULTS, "ok", "fault", name, detail=fault.kind)
        await asyncio.gather(*wills)

    async def _reach(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until `done` returns True. Raise the error of a client that failed."""
        end = time.monotonic() + seconds
        while not done():
            for task in self.tasks:
                if task.done():
                    task.result()
            if time.monotonic() > end:
                return False
            await asyncio.sleep(POLL)
        return True

    async def _settle(self, healed: float) -> None:
        durable = [one for one in self.subscribers if one.durable]

        def arrived() -> bool:
            if not all(one.idle for one in self.publishers):
                return False
            if not all(one.connected for one in durable):
                return False
            return not PASSING & check(self.history).findings.keys()

        await self._reach(arrived, SETTLE + healed - time.monotonic())

    async def _read_retained(self) -> None:
        """Read the retained messages from each broker until they are right, for some seconds."""
        end = time.monotonic() + READING
        while True:
            at = self.history.now()
            reads: list[Event] = []
            for node in self.cluster.brokers:
                found = await read_retained(self.world, node.name, node.port, self.retained)
                for topic, number in (found or {}).items():
                    client = f"reader-{node.name}"
                    reads.append(Event(at, client, "ok", "read", topic, number, detail=node.name))
            verdict = check([*self.history, *reads])
            right = not any("retained" in finding for finding in verdict.findings)
            complete = len(reads) == len(self.retained) * len(self.cluster.brokers)
            if (right and complete) or time.monotonic() > end:
                if not complete:
                    raise Broken("a broker does not accept a client at the end")
                self.history.events += reads
                return
            await asyncio.sleep(POLL)

    async def _end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        everyone: list[ChaosClient] = [*self.publishers, *self.subscribers]
        for client in everyone:
            client.mqtt.drop()
        for client in everyone:
            await client.mqtt.until(lambda client=client: client.mqtt.closed)  # type: ignore[misc]
        self.cluster.network.close()
        await asyncio.sleep(CLOSING)


def _visit(rng: Random) -> float:
    return rng.uniform(0.2, 3)


def _absence(rng: Random) -> float:
    return rng.uniform(0.1, 2)


def _always(rng: Random) -> float:
    return 3600.0


def break_cluster(folder: Path, seed: int, count: int = 3, kind: str = "") -> Outcome:
    """Run a seed in a new cluster whose files are in `folder`, with `count` faults, which may all be of one kind."""
    start = time.monotonic()
    cluster = Cluster(folder)
    try:
        if kind in WITH_DISKS and not cluster.disks:
            raise Broken(f"{kind} is impossible: {cluster.without}")
        faults = plan(seed, bool(cluster.disks), count=count, kind=kind)
        run = Run(cluster, folder, seed, faults)
        try:
            settled = asyncio.run(run.run())
        finally:
            run.history.write(folder / "history.jsonl")
        return Outcome(
            seed, faults, run.history, check(run.history), run.world.refusals, cluster.restarts, settled,
            time.monotonic() - start, cluster.without,
        )  # fmt: skip
    finally:
        cluster.keep_logs(folder)
        cluster.close()
