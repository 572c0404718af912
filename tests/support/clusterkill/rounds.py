"""Break a cluster repeatedly under a load that uses all of its state.

Four publishers (QoS 1 and 2, MQTT 3.1.1 and 5.0) each use three topics. Two more publish retained messages and clear some
of them. One subscriber is always online, one comes and goes, and one is mostly offline. All of them have durable
sessions, and connect to a random broker each time. Each round adds clients with wills.

Each round has one fault, which lasts some seconds: a broker or a NATS server is killed, or stopped for longer than a
lease. At the end, everything is healed, and every message that was acknowledged must have arrived.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from killing.client import Checker, Client, Publisher, Subscriber
from killing.ledger import Counts, Ledger, Stream
from killing.rounds import Broken

from clusterkill.nodes import LEASE, Brokers

EACH: Final = 200
"""Messages that each publisher may send in each round."""
STUCK: Final = 90.0
"""Seconds within which an awaited event must happen."""
RETRY: Final = 0.2
FAULTS: Final = (
    "kill broker",
    "stop broker",
    "kill server",
    "stop server",
    "kill broker and server",
)
PASSING: Final = frozenset({0x88, 0x89, 0x8B, 0x8E, 0x97, 0x9C, 3})
"""Codes with which a cluster may refuse or disconnect a client for some time."""
Say = Callable[[str], None]


@dataclass
class Recovery:
    """Seconds without an acknowledgement, by fault."""

    gaps: dict[str, list[float]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return a line for each fault."""
        found = []
        for fault, gaps in sorted(self.gaps.items()):
            ordered = sorted(gaps)
            median, worst = ordered[len(ordered) // 2], ordered[-1]
            found.append(
                f"{fault}: {len(gaps)}, longest pause p50 {median:.1f} s, worst {worst:.1f} s"
            )
        return found


class ClusterLedger(Ledger):
    """A ledger that also measures pauses between acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0.0
        self._last = time.monotonic()
        self._acknowledged = 0

    def changed(self) -> None:
        """Note the time of each acknowledgement."""
        if self.counts.acknowledged != self._acknowledged:
            now = time.monotonic()
            self.longest = max(self.longest, now - self._last)
            self._last = now
            self._acknowledged = self.counts.acknowledged
        super().changed()

    def restart(self) -> None:
        """Begin to measure again."""
        self.longest = 0.0
        self._last = time.monotonic()


def _tolerate(client: Client) -> None:
    """Do not count refusals that pass."""
    count = client._refused

    def refused(packet: str, code: int) -> None:
        if code not in PASSING:
            count(packet, code)

    client._refused = refused  # type: ignore[method-assign]


class ClusterRun:
    """A cluster that is broken repeatedly, with all its clients."""

    def __init__(self, brokers: Brokers, seed: int, say: Say | None = None) -> None:
        self.brokers = brokers
        self.rng = random.Random(seed)
        self.seed = seed
        self.say = say
        self.recovery = Recovery()
        ledger = self.ledger = ClusterLedger()
        ledger.dying = True
        self.round = 0
        self.publishers: list[Publisher] = []
        for number, (qos, level) in enumerate(((1, 5), (1, 4), (2, 5), (2, 4))):
            streams = [ledger.stream(f"d/{number}/{topic}", qos) for topic in range(3)]
            self.publishers.append(Publisher(ledger, f"publisher-{number}", streams, level))
        self.messages = list(ledger.streams.values())
        for qos, level in ((1, 5), (2, 4)):
            streams = [
                ledger.stream(f"r/{qos}/{topic}", qos, True, topic % 2 == 1) for topic in range(4)
            ]
            self.publishers.append(Publisher(ledger, f"retainer-{qos}", streams, level, 8))
        self.retained = [stream for stream in ledger.streams.values() if stream.retained]
        filters = ("d/#", "w/#")
        self.online = Subscriber(ledger, "online", 5, filters)
        self.coming = Subscriber(ledger, "coming", 5, filters)
        self.offline = Subscriber(ledger, "offline", 4, filters)
        for client in (*self.publishers, self.online, self.coming, self.offline):
            _tolerate(client)
        self.over = False

    @property
    def counts(self) -> Counts:
        """Return the counts so far."""
        return self.ledger.counts

    async def run(self, faults: int) -> Counts:
        """Cause `faults` faults and return the counts. Raise Broken at the first broken guarantee."""
        await asyncio.to_thread(self.brokers.start)
        for client in (self.online, self.coming, self.offline):
            await self._until(partial(client.join, streams=self.messages))
        self.offline.disconnect()
        await self.offline.ended()
        tasks = [asyncio.create_task(self._keep(client)) for client in self.publishers]
        tasks.append(asyncio.create_task(self._keep(self.online)))
        tasks.append(asyncio.create_task(self._come_and_go()))
        try:
            for self.round in range(1, faults + 1):
                await self._fault(tasks)
                self._check()
            self.over = True
            await asyncio.to_thread(self.brokers.heal)
            await self._reach(lambda: all(one.idle for one in self.publishers), tasks)
            for client in (self.coming, self.offline):
                if not client.connected:
                    await self._until(client.come)
            await self._settle()
            await self._compare_retained()
            self._check()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            everyone = [*self.publishers, self.online, self.coming, self.offline]
            for one in everyone:
                one.abort()
            await asyncio.gather(*(one.ended() for one in everyone), return_exceptions=True)
        return self.counts

    async def _fault(self, tasks: list["asyncio.Task[None]"]) -> None:
        counts = self.counts
        for publisher in self.publishers:
            publisher.allow(EACH)
        target = counts.acknowledged + self.rng.randrange(1, EACH * len(self.publishers) // 2)
        beside = [asyncio.create_task(self._mourned(kind)) for kind in ("dropped", "taken back")]
        await self._reach(lambda: counts.acknowledged >= target or self._idle(), tasks)
        fault = self.rng.choice(FAULTS)
        self.ledger.restart()
        undo = self._cause(fault)
        counts.kills += 1
        lasting = self.rng.uniform(0.2, 3 * LEASE)
        before = counts.acknowledged
        await asyncio.sleep(lasting)
        await asyncio.to_thread(undo)
        for publisher in self.publishers:
            publisher.allow(EACH // 4)
        await self._reach(lambda: counts.acknowledged > before + EACH // 4, tasks)
        await asyncio.gather(*beside)
        self.recovery.gaps.setdefault(fault, []).append(self.ledger.longest)
        if self.say is not None:
            self.say(
                f"round {self.round}: {fault} for {lasting:.1f} s, longest pause {self.ledger.longest:.1f} s; "
                f"{counts.acknowledged} acknowledged, {counts.repeated} repeated"
            )

    def _idle(self) -> bool:
        return all(one.idle for one in self.publishers)

    def _cause(self, fault: str) -> Callable[[], None]:
        """Cause a fault, and return what ends it."""
        node = self.rng.choice(self.brokers.nodes)
        server = self.rng.choice(self.brokers.nats.nodes)
        if "kill broker" in fault:
            node.kill()
        elif fault == "stop broker":
            node.pause()
        if "server" in fault:
            if fault.startswith("stop"):
                server.pause()
            else:
                server.kill()
        return self.brokers.heal

    async def _until(self, step: Callable[[int], "asyncio.Future[bool] | object"]) -> None:
        """Repeat a step of a client, each time with another broker, until it returns True."""
        end = time.monotonic() + STUCK
        while not await step(self.brokers.port(self.rng)):  # type: ignore[misc]
            if time.monotonic() > end:
                raise Broken(f"seed {self.seed}, round {self.round}: {step} does not succeed")
            await asyncio.sleep(RETRY)

    async def _reach(self, done: Callable[[], bool], tasks: list["asyncio.Task[None]"]) -> None:
        while not await self.ledger.until(lambda: done() or any(t.done() for t in tasks), STUCK):
            states = {one.name: (one.connected, one.sent, one.allowed) for one in self.publishers}
            raise Broken(f"seed {self.seed}, round {self.round}: no progress: {states}")
        for task in tasks:
            if task.done():
                task.result()

    def _check(self) -> None:
        seen = [
            one
            for client in (self.online, self.coming, self.offline)
            for one in client.seen.values()
        ]
        counts = self.counts
        counts.reordered = sum(one.reordered for one in seen)
        counts.duplicated = sum(one.again() for one in seen if one.stream.qos == 2)
        counts.repeated = sum(one.again() for one in seen if one.stream.qos == 1)
        if counts.broken():
            raise Broken(
                f"seed {self.seed}, round {self.round}: {counts.broken()} {self.ledger.refusals}"
            )

    # clients

    async def _keep(self, client: Publisher | Subscriber) -> None:
        while True:
            come = client.come if isinstance(client, Subscriber) else client.connect
            if client.connected or await come(self.brokers.port(self.rng)):
                await self.ledger.until(lambda: not client.connected, 3600)
            await client.ended()
            await asyncio.sleep(RETRY)

    async def _come_and_go(self) -> None:
        client = self.coming
        while not self.over:
            if client.connected or await client.come(self.brokers.port(self.rng)):
                enough = client.got + self.rng.randrange(500)
                await self.ledger.until(partial(self._has, enough), STUCK)
            if self.rng.random() < 0.5 and client.connected:
                client.disconnect()
            else:
                client.abort()
            await client.ended()
            await asyncio.sleep(RETRY)
        await asyncio.sleep(86400)

    def _has(self, enough: int) -> bool:
        return self.over or self.coming.got >= enough or not self.coming.connected

    async def _mourned(self, kind: str) -> None:
        """Run a client that leaves a will when its connection ends."""
        topic = f"w/{kind}/{self.round}"
        client = Client(self.ledger, topic, 5)
        _tolerate(client)
        delay = 3600 if kind == "taken back" else 0
        if not await client.connect(self.brokers.port(self.rng), (topic, b"gone", 2, delay)):
            client.abort()
            await client.ended()
            return
        if kind == "dropped":
            self.ledger.wills[topic] = True
        client.abort()
        await client.ended()
        if kind == "taken back" and await client.connect(self.brokers.port(self.rng)):
            self.ledger.wills[topic] = False
            client.disconnect()
            await client.ended()

    # the end

    async def _settle(self) -> None:
        mains = (self.online, self.coming, self.offline)
        for client in mains:
            await self.ledger.until(partial(_connected, client), STUCK)
        await self.ledger.until(lambda: not any(one.owed() for one in mains), STUCK)
        counts = self.counts
        for client in mains:
            for seen in client.seen.values():
                counts.due += sum(1 for _ in seen.due())
                counts.lost += seen.lost()
            for topic, due in self.ledger.wills.items():
                times = client.wills.get(topic, 0)
                counts.wills += due
                counts.wills_lost += due and not times
                counts.wills_wrong += max(0, times - due)

    async def _compare_retained(self) -> None:
        """Read the retained messages from every broker."""
        for node in self.brokers.nodes:
            checker = Checker(self.ledger, f"checker-{node.name}")
            assert await checker.connect(node.port)
            assert await checker.subscribe("r/#")
            last = {stream: stream.last for stream in self.retained}
            needed = [one for one in self.retained if not _may_be_absent(one, last[one])]
            found = checker.found
            await self.ledger.until(lambda: all(one.topic in found for one in needed), 10.0)  # noqa: B023
            for stream in self.retained:
                self.counts.retained_checks += 1
                there = found.get(stream.topic)
                if there is None:
                    wrong = not _may_be_absent(stream, last[stream])
                else:
                    wrong = not last[stream] <= there <= stream.sent
                self.counts.retained_wrong += wrong
            checker.abort()
            await checker.ended()


def _connected(client: Client) -> bool:
    return client.connected


def _may_be_absent(stream: Stream, last: int) -> bool:
    return not last or any(stream.clears(number) for number in range(last, stream.sent + 1))


def break_cluster(
    folder: Path, faults: int, seed: int, say: Say | None = None, brokers: int = 3, servers: int = 3
) -> ClusterRun:
    """Cause faults in a new cluster. Raise Broken if it breaks a guarantee."""
    cluster = Brokers(folder, brokers, servers)
    try:
        run = ClusterRun(cluster, seed, say)
        asyncio.run(run.run(faults))
        return run
    finally:
        cluster.close()
