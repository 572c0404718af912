"""Repeatedly kill a broker with queues, and the processes of its consumers, under load.

Publishers fill three queues, at QoS 1 and 2 and through a binding. Three processes run the consumers of six groups; some
of the consumers leave messages unacknowledged. One queue sends a message to the queue `dead` after three deliveries, and
one delivers the messages of each topic in order.

Each round ends by killing the broker (with or without its storage writer), and often a consumer process as well. One
seed determines all choices, but the exact moment of a kill also depends on the machine.
"""

import asyncio
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from killing.brokers import HookMQ
from killing.client import Publisher
from killing.ledger import Ledger, Stream
from killing.rounds import EARLY, STUCK, Broken

from queuekill.evidence import Evidence, QueueCounts

EACH: Final = 60
"""Maximum number of messages that each publisher sends between two kills."""
BEHIND: Final = 600
"""Publishers wait for consumers once the groups have this many unsettled messages."""
SOON: Final = 1.0
"""How long a round waits for consumers, in seconds."""
LIMIT: Final = 3
QUEUES: Final = """\
  - use: queues
    config:
      path: "{path}"
      queues:
        - {{name: jobs, bindings: ["cap/#"], groups: [default, audit, old], prefetch: 8, memory: 2KiB,
            visibility_timeout: 10s}}
        - {{name: fragile, prefetch: 8, visibility_timeout: 10s, delivery_limit: {limit}, dead_letter: dead}}
        - {{name: keyed, order: by_key, order_key: "${{topic}}", prefetch: 8, visibility_timeout: 60s}}
        - {{name: dead}}
"""
WORKERS: Final[tuple[tuple[dict[str, Any], ...], ...]] = (
    (
        {"name": "jobs-1", "filter": "$queue/jobs/#", "hold": 0.02, "durable": True},
        {"name": "fragile-1", "filter": "$queue/fragile/#", "hold": 0.3},
        {"name": "keyed-1", "filter": "$queue/keyed/#"},
        {"name": "old", "filter": "$share/old/$queue/jobs/#", "level": 4},
    ),
    (
        {"name": "jobs-2", "filter": "$queue/jobs/#", "hold": 0.02},
        {"name": "fragile-2", "filter": "$queue/fragile/#", "hold": 0.3},
        {"name": "keyed-2", "filter": "$queue/keyed/#"},
    ),
    (
        {"name": "audit", "filter": "$share/audit/$queue/jobs/#"},
        {"name": "undertaker", "filter": "$queue/dead/#", "hold": 0.05},
    ),
)
"""The consumers of each process."""
Say = Callable[[str], None]


class Worker:
    """A process with consumers, which is restarted after each kill."""

    def __init__(
        self, consumers: tuple[dict[str, Any], ...], port: int, take: Callable[[bytes], None]
    ) -> None:
        self.kills = 0
        self._consumers = consumers
        self._port = port
        self._take = take
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.returncode is None

    async def start(self, seed: int) -> None:
        """Start the process. It connects as soon as a broker is listening."""
        named = [{**one, "name": f"{one['name']}-{self.kills}"} for one in self._consumers]
        for one, own in zip(named, self._consumers, strict=True):
            if own.get("durable"):
                one["name"] = own["name"]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name("worker.py")), str(self._port), str(seed), json.dumps(named),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):
                self._take(line)

    async def kill(self) -> None:
        """Send SIGKILL, and read everything that the process has written."""
        assert self._process is not None
        assert self._reader is not None
        if self._process.returncode is not None:
            raise Broken(f"{self._consumers[0]['name']}: the consumers ended by themselves")
        self._process.kill()
        await self._process.wait()
        await self._reader
        self.kills += 1


class QueueRun:
    """A broker with queues that is killed repeatedly, with its publishers and consumers.

    At the end, messages count as lost after `patience` seconds without an acknowledgement.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        durability: str = "group",
        patience: float = 30.0,
        say: Say | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.patience = patience
        self.say = say
        more = QUEUES.format(path=folder / "queues", limit=LIMIT)
        self.broker = HookMQ(folder, durability, more)
        ledger = self.ledger = Ledger()
        self.jobs = [
            ledger.stream("$queue/jobs/one", 1), ledger.stream("$queue/jobs/two", 2), ledger.stream("cap/one", 1),
            ledger.stream("cap/two", 2),
        ]  # fmt: skip
        self.fragile = [
            ledger.stream("$queue/fragile/one", 1),
            ledger.stream("$queue/fragile/two", 2),
        ]
        self.keyed = [ledger.stream(f"$queue/keyed/{number}", 2) for number in range(3)]
        self.owed: list[tuple[str, str, list[Stream]]] = [
            *(("jobs", group, self.jobs) for group in ("default", "audit", "old")),
            ("fragile", "default", self.fragile),
            ("keyed", "default", self.keyed),
        ]
        self.publishers = [
            Publisher(ledger, "five", [*self.jobs[:2], *self.fragile], 5),
            Publisher(ledger, "four", [*self.jobs[2:], *self.keyed], 4),
        ]
        self.evidence = Evidence([("jobs", "audit")], {"fragile": LIMIT}, ["keyed"])
        self._lines = (folder / "evidence.jsonl").open("ab")

        def take(line: bytes) -> None:
            self._lines.write(line)
            self.evidence.take(json.loads(line))
            ledger.changed()

        self.workers = [Worker(one, self.broker.port, take) for one in WORKERS]
        self.kill = 0

    @property
    def counts(self) -> QueueCounts:
        """The counts so far."""
        return self.evidence.counts

    async def run(self, kills: int) -> QueueCounts:
        """Kill the broker `kills` times and return the counts. Raises Broken at the first broken guarantee."""
        await self._start()
        for worker in self.workers:
            await worker.start(self.rng.randrange(1 << 32))
        tasks = [asyncio.create_task(self._keep(one)) for one in self.publishers]
        began = time.monotonic()
        try:
            for self.kill in range(1, kills + 1):
                await self._round(tasks)
                self._check()
                if self.say is not None:
                    self._progress(kills, time.monotonic() - began)
            assert await self._reach(lambda: all(one.idle for one in self.publishers), tasks)
            await self._drain()
        except BaseException:
            self.broker.kill(self.rng)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in self.publishers:
                one.abort()
                await one.ended()
            for worker in self.workers:
                await worker.kill()
            self._lines.close()
        self.evidence.judge(self.owed)
        self._check()
        if self.broker.stop():
            raise Broken("the broker did not end well")
        return self.counts

    async def _start(self) -> None:
        self.evidence.lives.append(time.monotonic())
        self.broker.spawn()
        if self.kill and self.rng.random() < EARLY:
            await asyncio.sleep(self.rng.random() * 0.6)
            self.broker.kill(self.rng)
            self.ledger.counts.early += 1
            self.evidence.lives.append(time.monotonic())
            self.broker.spawn()
        await asyncio.to_thread(self.broker.ready)
        self.ledger.dying = False
        self.ledger.changed()

    async def _round(self, tasks: list["asyncio.Task[None]"]) -> None:
        counts, rng = self.ledger.counts, self.rng
        behind = self._behind()
        for publisher in self.publishers:
            publisher.allow(EACH if behind < BEHIND else 1)
        target = counts.acknowledged + rng.randrange(1, EACH * len(self.publishers))
        pause = rng.random() * 0.05
        assert await self._reach(
            lambda: counts.acknowledged >= target or all(one.idle for one in self.publishers), tasks
        )
        if behind >= BEHIND or rng.random() < 0.6:
            await self._consume(rng.randrange(1, 200), SOON if behind < BEHIND else STUCK)
        await asyncio.sleep(pause)
        victim = rng.choice(self.workers) if rng.random() < 0.5 else None
        if victim is not None and rng.random() < 0.5:
            await victim.kill()  # the broker notices
            await asyncio.sleep(pause)
        self.ledger.dying = True
        self.broker.kill(rng)
        counts.kills += 1
        if victim is not None:
            if victim.alive:
                await victim.kill()
            await victim.start(rng.randrange(1 << 32))
        await self._start()

    async def _keep(self, client: Publisher) -> None:
        """Keep a publisher connected whenever the broker is up."""
        while True:
            if await client.connect(self.broker.port):
                await client.ended(seconds=math.inf)
            await asyncio.sleep(0.05)

    async def _reach(self, done: Callable[[], bool], tasks: list["asyncio.Task[None]"]) -> bool:
        """Wait until `done()` is true. Return False if progress stops. Raise the error of a failed publisher."""
        while True:
            before = self.ledger.counts.acknowledged
            if await self.ledger.until(lambda: done() or any(t.done() for t in tasks), STUCK):
                for task in tasks:
                    if task.done():
                        task.result()
                return True
            if before == self.ledger.counts.acknowledged:
                return False

    def _behind(self) -> int:
        """Return approximately how many messages the groups have not settled."""
        return sum(
            sum(stream.sent for stream in streams)
            - len(self.evidence.acked[queue, group] | self.evidence.dead[queue])
            for queue, group, streams in self.owed
        )

    async def _consume(self, count: int, seconds: float) -> None:
        """Wait until consumers have acknowledged `count` messages."""
        target = self.counts.acknowledged + count
        await self.ledger.until(
            lambda: self.counts.acknowledged >= target or not self._behind(), seconds
        )

    async def _drain(self) -> None:
        """Wait until each group has settled everything or no more messages are acknowledged."""
        counts, until = self.counts, self.ledger.until
        while any(self.evidence.missing(*one) for one in self.owed):
            target = counts.acknowledged + 1
            if not await until(partial(self._have_acknowledged, target), self.patience):
                return
        await asyncio.sleep(0.5)  # the last acknowledgements arrive

    def _have_acknowledged(self, count: int) -> bool:
        return self.counts.acknowledged >= count

    def _check(self) -> None:
        broken = {**self.counts.broken(), **self.ledger.counts.broken()}
        if broken:
            notes = [*self.evidence.notes, *self.ledger.refusals]
            raise Broken(f"seed {self.seed}, kill {self.kill}: {broken} {notes}")

    def _progress(self, kills: int, seconds: float) -> None:
        assert self.say is not None
        left = seconds / self.kill * (kills - self.kill)
        consumers = sum(one.kills for one in self.workers)
        self.say(
            f"kill {self.kill}/{kills} (and {consumers} of consumers): {self.ledger.counts.acknowledged} published, "
            f"{self.counts.deliveries} deliveries, nothing broken; {left:.0f} s left"
        )


def kill_queues(
    folder: Path,
    kills: int,
    seed: int | None = None,
    say: Say | None = None,
    durability: str = "group",
) -> QueueRun:
    """Kill a broker with queues `kills` times, and return the completed run. Raises Broken if a guarantee is broken."""
    if seed is None:
        seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"{kills} kills, SEED={seed}", file=sys.stderr, flush=True)
    run = QueueRun(folder, seed, durability, say=say)
    asyncio.run(run.run(kills))
    return run
