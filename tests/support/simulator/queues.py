"""Queues in a simulated world: the real plugin with in-memory files, its clients, and disk faults.

Each write to a queue's log is a single call, as it would be in a thread. If the broker crashes before the call, the disk
holds none, some or all of the data. `trouble` makes the next write fail: ``error`` (nothing written) or ``unknown``.
"""

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from hookmq.plugin import Cancel, Context, Done, Plugin
from hookmq_queues.config import QueueConfig, QueuesConfig
from hookmq_queues.plugin import QueuesPlugin
from hookmq_queues.storage import QueueLog

from simulator.queue_clients import Feeder, QueueClient, Worker, World
from simulator.queue_ledger import QueueLedger

SEED: Final = 0x71756575
"""A seed offset that separates the random numbers of queues from all others."""
PLUGIN: Final = "queues"
TOPICS: Final = ("$queue/jobs", "$queue/jobs/x", "qc/1")
WORKERS: Final = 3
MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Queues:
    """The queues of one world. The plugin has a queue `jobs` and a dead-letter queue."""

    def __init__(
        self,
        world: World,
        seed: int,
        crashed_between: Callable[[float, float], bool],
    ) -> None:
        self.world = world
        self.random = Random(seed ^ SEED)
        self.trouble = ""
        self.plugin: QueuesPlugin | None = None
        self.ledger = QueueLedger(world.complain, crashed_between)
        self.folder = Path(tempfile.mkdtemp(prefix="simulator-", dir=MEMORY))
        random = self.random
        self.groups = random.choice((("a",), ("a", "b")))
        limit = random.choice((0, 3))
        self.config = QueuesConfig(
            self.folder,
            (
                QueueConfig(
                    "jobs",
                    bindings=("qc/#",),
                    groups=self.groups,
                    prefetch=random.choice((1, 3, 10)),
                    visibility_timeout=random.choice((2.0, 1000.0)),
                    delivery_limit=limit,
                    dead_letter="dead" if limit else "",
                    memory=random.choice((1 << 20, 0)),
                    max_messages=random.choice((100_000, 15)),
                ),
                QueueConfig("dead"),
            ),
        )
        self.feeder = Feeder(world, self.ledger, random.getrandbits(64))
        hold = random.choice((0.1, 0.5))
        self.workers = [
            self._worker(f"worker{number}", f"$share/{self.groups[number % len(self.groups)]}/$queue/jobs", hold)
            for number in range(WORKERS)
        ]  # fmt: skip
        self.workers.append(self._worker("undertaker", "$queue/dead", 0.1))
        self.workers[-1].alone = True
        self.workers[1].alone = len(self.groups) == 2
        self._depths: dict[str, int] = {}
        """The number of messages of each queue at the last check of the running broker."""
        self._writes: dict[Any, Callable[[], Any]] = {}
        """The pending write of each log."""

    def _worker(self, name: str, filter: str, hold: float) -> Worker:
        random = self.random
        window = random.choice((1, 3, 20))
        return Worker(self.world, self.ledger, name, random.getrandbits(64), window, filter, hold)

    @property
    def clients(self) -> list[QueueClient]:
        """All clients."""
        return [self.feeder, *self.workers]

    # the broker's process --------------------------------------------------------------------------------------------

    def make(self) -> Plugin:
        """Return a plugin for a broker that is starting now, or the plugin of the running broker."""
        if self.plugin is None:
            self.plugin = QueuesPlugin(self.config, Context(PLUGIN))
        return self.plugin

    def watch(self, journals: tuple[Any, ...]) -> None:
        """Inject faults between a new broker's logs and their files."""
        for one in journals:
            if isinstance(one, QueueLog):
                log = one.log
                log._run_blocking = partial(self._run_blocking, log, log._run_blocking)

    def _run_blocking(
        self, log: Any, run: Callable[[Callable[[], Any], Done], Cancel], call: Callable[[], Any], done: Done
    ) -> Cancel:  # fmt: skip
        trouble, self.trouble = self.trouble, ""

        def write() -> Any:
            self._writes.pop(log, None)
            if trouble:
                if trouble == "unknown":
                    self._write_part(log, call)
                raise OSError("input/output error")
            return call()

        self._writes[log] = call
        return run(write, done)

    def _write_part(self, log: Any, call: Callable[[], Any]) -> None:
        """Run the write, but keep only a random part of the data."""
        before = {one.path: one.path.stat().st_size for one in log.segments}
        call()
        last = log.segments[-1].path
        size = last.stat().st_size
        if last in before and self.random.random() < 0.7:
            with last.open("r+b") as file:
                file.truncate(self.random.randrange(before[last], size + 1))

    def crash(self, journals: tuple[Any, ...]) -> None:
        """End the process. The disk may keep part of each write in progress."""
        writes, self._writes = self._writes, {}
        for log, call in writes.items():
            if self.random.random() < 0.6:
                self._write_part(log, call)
        for one in journals:
            if isinstance(one, QueueLog):
                one.close()
        self.plugin = None
        self.trouble = ""
        self._depths.clear()

    def check_step(self) -> None:
        """Check that the running broker's queues stay within their limits."""
        plugin = self.plugin
        for queue in plugin.queues.values() if plugin is not None else ():
            name, depth = queue.config.name, queue.depth
            before = self._depths.get(name, depth)  # a crash may undo acknowledgements
            self._depths[name] = depth
            if depth > max(before, queue.config.max_messages):
                self.world.complain("queue limits", f"{name} has {depth} messages")

    # the run ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect all clients."""
        for one in self.clients:
            one.connect()

    def heal(self) -> None:
        """Stop injecting faults. All consumers connect and acknowledge everything."""
        self.trouble = ""
        for one in self.clients:
            if one.link is not None:
                one.link.unstall()
            one.connect()
        for worker in self.workers:
            worker.calm()

    def check_settled(self) -> None:
        """Check, long after the last fault, that no messages are left."""
        self.ledger.check_settled(self.groups)
        plugin = self.plugin
        for queue in plugin.queues.values() if plugin is not None else ():
            if queue.depth:
                self.world.complain(
                    "queue lost", f"{queue.config.name} still has {queue.depth} messages"
                )

    def depart(self) -> None:
        """Let all clients leave."""
        for one in self.clients:
            one.leave(False)

    def close(self) -> None:
        """Delete the files."""
        shutil.rmtree(self.folder, ignore_errors=True)
