"""One simulated run: a cluster at work, random steps and faults, then a quiet time, then the checks."""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, NamedTuple

from simulated_engine import QUIET, Faults

from cluster_simulator import checks
from cluster_simulator.clients import Client, Publisher
from cluster_simulator.faults import FaultMaker
from cluster_simulator.wills import WillClient
from cluster_simulator.workload import SHORT, Workload
from cluster_simulator.world import World

STEPS: Final = 30
FIRST: Final = 6
"""Steps before the first fault."""
LEAST: Final = 10
"""The acknowledged messages that a run must have."""
PAUSES: Final = (0.0, 0.0, 0.001, 0.01, 0.1, 1.0)
"""How long a step lasts, in seconds."""


class Result(NamedTuple):
    """The result of a run: the broken promises, the steps, and the numbers of faults by kind, of completed drains, and of
    messages. `meaningful` says whether it had a fault and enough messages.
    """

    seed: int
    problems: tuple[str, ...]
    trace: tuple[str, ...]
    faults: Counter[str]
    drained: int
    sent: int
    acknowledged: int
    sequence: int

    @property
    def meaningful(self) -> bool:
        """Whether the run had a fault and enough messages."""
        return bool(self.faults) and self.acknowledged >= LEAST


class _Run:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.names = "abcde"[: random.choice((2, 2, 3, 3, 3, 4, 5))]
        skewed = random.random() < 0.3
        lease = random.choice((5.0, 5.0, 15.0))
        self.world = World(
            seed, lease, random.choice((0.5, 3.0)) * skewed, random.choice((0.0, 0.001)) * skewed
        )
        self.faults = FaultMaker(self.world, random, self.names)
        self.trace: list[str] = []
        self.problems: list[str] = []
        self.work = Workload(self.world, random)
        for subscriber in (*self.work.subscribers, *self.work.volatile, *self.work.members):
            subscriber.subscribed = self._publish_at_once

    # parts of a run --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the nodes and connect the clients, without faults."""
        for name in self.names:
            self.world.boot(name)
        self._until(self._all_ready, 60.0, "the nodes do not join")
        self._connect(self.work.everyone)
        self.world.log.faults = Faults.drawn(self.random)

    def steps(self) -> None:
        """Do random steps."""
        for number in range(STEPS):
            text = self._step(number >= FIRST)
            if text:
                self.trace.append(f"{self.world.clock.now():.3f} {text}")
            pause = self.random.choice(PAUSES)
            if number >= FIRST and self.random.random() < 0.15:
                pause = self.world.lease * self.random.uniform(0.3, 3.0)
            self.world.advance(pause * self.random.random())
            self._look_at_drained()
        for _ in range(STEPS):
            if self.faults.counts:
                break
            self.faults.start()  # a node may have ended by itself
            self.trace.append(f"{self.world.clock.now():.3f} {self.faults.begin()}")
            self.world.advance(self.random.random() * self.world.lease)

    def _step(self, faulty: bool) -> str:
        random, world = self.random, self.world
        dice = random.random()
        if dice < 0.5:
            publisher = random.choice(self.work.writers)
            count = sum(publisher.publish() for _ in range(random.randrange(1, 6)))
            return f"{publisher.client_id} publishes up to {publisher.sent}" if count else ""
        if faulty and dice < 0.65:
            return self.faults.begin()
        if faulty and dice < 0.75:
            return self.faults.operate()
        client = random.choice(self.work.everyone)
        ready = [name for name in self.names if world.is_ready(name)]
        if dice < 0.9:
            if not ready:
                return ""
            name = random.choice(ready)
            if client.connection is not None and random.random() < 0.7:
                client.drop()
            client.connect(name)
            return f"{client.client_id} connects to {name}"
        if isinstance(client, WillClient) and dice < 0.95:
            client.leave()
            return f"{client.client_id} leaves"
        client.drop()
        return f"{client.client_id} drops"

    def heal(self) -> None:
        """End all faults, start all nodes, and let all clients finish."""
        world, work = self.world, self.work
        world.log.faults = QUIET
        self.faults.end()
        self.trace.append(f"{world.clock.now():.3f} heal")
        for ended in (*work.expiring, *work.wills):
            ended.drop()
        quiet = world.clock.now()
        for name in self.names:
            if name not in world.nodes:
                world.boot(name)
        world.ended = self._restart
        # A node that was paused or cut off may find out only now that others regard it as dead.
        world.advance(0.4 * world.lease)
        self._until(self._all_ready, 120.0, "the nodes do not join")
        self._undrain()
        self._connect(work.permanent)
        self._take_over()
        for writer in work.writers:
            writer.final = writer.sent
        for _ in range(LEAST):
            for writer in work.writers:
                writer.publish()
            self._until(self._all_acknowledged, 60.0, "no acknowledgement")
            if work.acknowledged >= LEAST or self.problems:
                break
        if work.wills or work.expiring:
            over = quiet + SHORT + 2 * world.skew + 3 * world.lease
            world.advance(max(0.0, over - world.clock.now()))
            self._expired()
        world.advance(1.0)
        self._return()

    def _return(self) -> None:
        """Connect clients again whose session has moved: a node that ended late has got its lane back, or one that was
        put back has got a lane while it was drained, and opens it when it next looks."""
        world = self.world
        self._until(self._all_ready, 120.0, "the nodes do not join")
        self._until(lambda: not any(checks.owners(world)), world.lease, "a lane has no open owner")
        away = [one for one in self.work.permanent if not one.online]
        if away:
            self._connect(away)
            world.advance(1.0)

    def _undrain(self) -> None:
        """Put drained nodes back into service, except some of them."""
        world = self.world
        kept = {
            name
            for name in self.names
            if world.drain_state(name) == "drained" and self.random.random() < 0.5
        }
        if len(kept) == len(self.names):
            kept.remove(self.names[0])

        def done() -> bool:
            for name in self.names:
                if name not in kept and world.drain_state(name):
                    world.undrain(name)
            return all(
                world.is_serving(name) or (name in kept and world.drain_state(name) == "drained")
                for name in self.names
            )

        self._until(done, 120.0, "a drained node does not return")
        if kept:
            self.trace.append(f"{world.clock.now():.3f} {sorted(kept)} stay drained")

    def _take_over(self) -> None:
        """Let some clients connect once more, while they are connected."""
        clients = [one for one in self.work.permanent if self.random.random() < 0.3]

        def online() -> bool:
            for client in clients:
                node = self.random.choice(self.names)
                if self.world.is_serving(node) and not client.online and not client.waits:
                    client.connect(node)
            return all(one.online for one in clients)

        for client in clients:
            node = self.random.choice(self.names)
            if self.world.is_serving(node):
                client.connect(node)
        self._until(online, 60.0, "no takeover")
        self._subscribed()

    def _restart(self, name: str) -> None:
        """Start a node again that has ended by itself."""
        self.world.clock.call_later(1.0, lambda: self.world.boot(name))

    def _expired(self) -> None:
        """Find sessions that should have expired."""
        serving = next(filter(self.world.is_serving, self.names))
        for client in self.work.expiring:
            client.since = {}
            client.connect(serving)
        self._until(lambda: all(one.online for one in self.work.expiring), 60.0, "no CONNACK")
        for client in self.work.expiring:
            connection = client.connection
            if connection is not None and connection.session_present:
                self.problems.append(f"the session of {client.client_id} did not expire")

    def _publish_at_once(self) -> None:
        """Publish a message as soon as a subscription is acknowledged."""
        self.random.choice(self.work.publishers).publish()

    # waiting ---------------------------------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool], seconds: float, problem: str) -> bool:
        """Let time pass until `condition` is true. Note the problem if that takes too long."""
        end = self.world.clock.now() + seconds
        while not condition():
            if self.world.clock.now() >= end:
                self.problems.append(problem)
                return False
            self.world.advance(0.1)
        return True

    def _all_ready(self) -> bool:
        world = self.world
        return all(
            world.is_ready(name)
            and world.clocks[name] not in world.stopping
            and not world.cluster(name).drain.running
            for name in self.names
        )

    def _all_acknowledged(self) -> bool:
        return not any(one.open for one in self.work.writers)

    def _connect(self, clients: list[Client]) -> None:
        """Connect clients, and try again those that are refused."""
        for client in clients:
            client.drop()
        self.world.advance(0.1)
        for _ in range(40):
            waiting = [one for one in clients if not one.online]
            for client in waiting:
                client.drop()
                serving = [name for name in self.names if self.world.is_serving(name)]
                if serving:
                    client.connect(self.random.choice(serving))
            self.world.advance(0.3 if waiting else 0.0)
            if not waiting:
                break
            for _ in range(10):
                if all(one.online for one in clients):
                    break
                self.world.advance(0.2)
        self._subscribed()

    def _subscribed(self) -> None:
        """Wait until all subscribers have a SUBACK."""
        work = self.work
        waiting = [*work.subscribers, *work.volatile, *work.members]
        self._until(lambda: all(one.since is not None for one in waiting), 60.0, "no SUBACK")

    # checks ----------------------------------------------------------------------------------------------------------

    def _look_at_drained(self) -> None:
        """Find clients and lanes of nodes that are drained."""
        world = self.world
        for name in self.names:
            if name in world.nodes and world.drain_state(name) == "drained":
                self.problems += checks.drained(world, name, self.work.everyone)

    def check(self) -> Iterator[str]:
        """Yield each broken promise."""
        work, world = self.work, self.world
        self._look_at_drained()
        yield from self.problems
        yield from world.remainders
        yield from checks.connections(work.permanent)
        for publisher in work.writers:
            if publisher.open:
                name = publisher.client_id
                yield f"{name} has no acknowledgement of {sorted(publisher.open)}"
        for publisher in work.publishers:
            for subscriber in (*work.subscribers, *work.volatile):
                yield from checks.delivery(publisher, subscriber)
            yield from checks.group(publisher, work.members)
        if not self.problems:
            yield from checks.retained(world, work.retaining)
            yield from checks.lanes(world)
        if work.watcher is not None:
            for client in work.wills:
                yield from client.problems(work.watcher)
        yield from checks.events(world)


def run(seed: int) -> Result:
    """Run one seed. The same seed gives the same result."""
    one = _Run(seed)
    one.begin()
    one.steps()
    one.heal()
    problems = tuple(one.check())
    work = one.work
    sent = sum(publisher.sent for publisher in work.writers)
    return Result(
        seed, problems, tuple(one.trace), one.faults.counts, one.world.drained, sent,
        work.acknowledged, one.world.log.sequence,
    )  # fmt: skip


__all__ = ["Publisher", "Result", "run"]
