"""The faults of a run: what happens to a cluster, and when. A seed determines both."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from clusterkill.cluster import Cluster
from clusterkill.disks import Disk, DiskError
from clusterkill.network import Cut
from clusterkill.nodes import LEASE

ALWAYS: Final = (
    "kill broker",
    "stop broker",
    "restart broker",
    "kill server",
    "stop server",
    "kill machine",
    "cut broker from servers",
    "cut server from servers",
    "cut machine",
    "cut relay",
    "slow network",
)
"""Faults that are possible on each machine."""
WITH_DISKS: Final = ("cut power", "full disk", "slow disk", "lost disk")
"""Faults that need disks."""
LONG: Final = frozenset({"stop broker", "cut broker from servers", "cut machine"})
"""Faults that usually last longer than a lease."""
ALONE: Final = frozenset({"lost disk"})
"""Faults that must not overlap others. A majority of the disks must have everything at each time."""
CUTS: Final[tuple[Cut, ...]] = ("both", "both", "there", "back", "refuse")
NEW_DISK: Final = 5.0
"""Seconds until a lost disk is replaced. The other servers must have elected a leader before."""
STOP: Final = 10.0
"""Seconds until a broker that was asked to end is killed."""
WRITING: Final = 0.02
"""Seconds for which a slow disk writes between two pauses."""
QUIET: Final = 1.0
"""Seconds before the first fault."""
CATCH_UP: Final = 3.0
"""Seconds before and after the loss of a disk in which nothing else fails."""
Undo = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """A fault of one machine."""

    kind: str
    at: float
    """Seconds since the start of the load."""
    seconds: float
    machine: int
    cut: Cut = "both"
    delay: float = 0.0

    def __str__(self) -> str:
        more = f", {self.cut}" if self.kind.startswith("cut ") and self.kind != "cut power" else ""
        return f"{self.at:.1f}-{self.at + self.seconds:.1f} s {self.kind} {self.machine}{more}"


def plan(seed: int, disks: bool, size: int = 3, count: int = 3, kind: str = "") -> list[Fault]:
    """Return the faults of a seed, all of them of one kind if `kind` is given. Otherwise, the first kind depends on the
    seed alone, so that consecutive seeds have all kinds."""
    kinds = (kind,) if kind else ALWAYS + WITH_DISKS if disks else ALWAYS
    rng = Random(f"faults {seed}")
    faults: list[Fault] = []
    at = QUIET
    free = [0.0] * size  # the time from which each machine has no fault
    for number in range(count):
        kind = kinds[seed % len(kinds)] if not number else rng.choice(kinds)
        seconds = rng.uniform(LEASE, 2 * LEASE) if kind in LONG else rng.uniform(0.3, 1.5 * LEASE)
        if kind in ALONE:
            seconds = NEW_DISK
            at = max(at, max(free) + CATCH_UP)
        elif faults and faults[-1].kind in ALONE:
            at = max(at, max(free) + CATCH_UP)
        at = max(at, min(free))
        machine = rng.choice([one for one in range(size) if free[one] <= at])
        faults.append(Fault(kind, at, seconds, machine, rng.choice(CUTS), rng.uniform(0.02, 0.3)))
        free[machine] = at + seconds
        at += seconds * rng.choice((0.3, 1.0)) + rng.uniform(0.2, 1.0)
    return faults


class Faults:
    """Causes faults in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def cause(self, fault: Fault) -> Undo:
        """Cause a fault and return what ends it."""
        if fault.kind.startswith("cut ") and fault.kind != "cut power":
            return self._part(fault)
        if fault.kind == "slow network":
            return self._delay(fault)
        if "disk" in fault.kind or fault.kind == "cut power":
            return await self._disk(fault)
        return await self._process(fault)

    async def _process(self, fault: Fault) -> Undo:
        machine, kind = fault.machine, fault.kind
        broker, server = self.cluster.brokers[machine], self.cluster.servers[machine]
        if kind == "stop broker":
            broker.pause()
        elif kind == "restart broker":
            self.cluster.down.add(machine)
            await asyncio.to_thread(broker.terminate, STOP)
        elif kind == "stop server":
            if server.runs:
                server.pause()
        else:
            if kind in ("kill broker", "kill machine"):
                self.cluster.down.add(machine)
                broker.kill()
            if kind in ("kill server", "kill machine"):
                await self._kill_server(machine)

        async def undo() -> None:
            server.resume()
            self._start(machine)

        return undo

    async def _kill_server(self, machine: int) -> None:
        server = self.cluster.servers[machine]
        server.resume()
        await asyncio.to_thread(server.kill)

    def _start(self, machine: int) -> None:
        """Start the processes of a machine, if they do not run."""
        cluster = self.cluster
        cluster.down.discard(machine)
        broker, server = cluster.brokers[machine], cluster.servers[machine]
        if not server.runs:
            server.start()
        broker.resume()
        broker.ended()
        if broker.process is None:
            broker.start()

    def _part(self, fault: Fault) -> Undo:
        cluster = self.cluster
        network, broker = cluster.network, cluster.brokers[fault.machine].name
        server = cluster.servers[fault.machine].name
        servers = {one.name for one in cluster.servers}
        if fault.kind == "cut broker from servers":
            some, others = {broker}, servers
        elif fault.kind == "cut server from servers":
            some, others = {server}, servers - {server}
        elif fault.kind == "cut machine":
            some = cluster.names(fault.machine)
            others = cluster.everyone() - some
        else:
            some, others = {""}, {broker}
        network.part(some, others, fault.cut)

        async def undo() -> None:
            network.part(some, others, "")

        return undo

    def _delay(self, fault: Fault) -> Undo:
        cluster = self.cluster
        some = cluster.names(fault.machine)
        links = [
            link for link, _ in cluster.network.between(some, cluster.everyone() - some)
        ]  # fmt: skip
        for link in links:
            link.set(delay=fault.delay)

        async def undo() -> None:
            for link in links:
                link.set()

        return undo

    async def _disk(self, fault: Fault) -> Undo:
        cluster, machine = self.cluster, fault.machine
        disk = cluster.disks[machine]
        over = asyncio.Event()
        slow: asyncio.Task[None] | None = None
        if fault.kind == "full disk":
            await asyncio.to_thread(disk.fill)
        elif fault.kind == "slow disk":
            slow = asyncio.create_task(_stutter(disk, fault.delay, over))
        else:
            if fault.kind == "cut power":
                cluster.down.add(machine)
                disk.thaw()
                disk.cut()
                cluster.brokers[machine].kill()
            await self._kill_server(machine)

        async def undo() -> None:
            if slow is not None:
                over.set()
                await slow
                return
            if fault.kind == "full disk":
                disk.empty()
            # A server whose disk was full does not use it again until its next start.
            await self._kill_server(machine)
            if fault.kind == "cut power":
                await asyncio.to_thread(disk.restore)
            elif fault.kind == "lost disk":
                await asyncio.to_thread(disk.erase)
            self._start(machine)

        return undo


async def _stutter(disk: Disk, delay: float, over: asyncio.Event) -> None:
    """Let the disk write for a small share of the time only."""
    while not over.is_set():
        with suppress(OSError, DiskError):  # its power is cut
            await asyncio.to_thread(disk.freeze)
            await asyncio.sleep(delay * 2)
            disk.thaw()
        await asyncio.sleep(WRITING)
