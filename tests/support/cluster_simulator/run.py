"""One simulated run: random steps and faults, then a quiet time, then the checks."""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from cluster_world import ClusterWorld
from simulated_engine import QUIET, Faults

from cluster_simulator.clients import Client, Publisher, Subscriber

STEPS = 40
KINDS = (
    "publish", "publish", "publish", "connect", "connect", "drop", "wait", "kill", "start", "cut", "heal", "stop", "go",
)  # fmt: skip
LEASE = 15.0


class Result(NamedTuple):
    """The result of a run: the broken promises, the steps, the messages sent, and the log's last sequence."""

    seed: int
    problems: tuple[str, ...]
    trace: tuple[str, ...]
    sent: int
    sequence: int


class _Run:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.names = "abc"[: random.choice((2, 3))]
        self.world = ClusterWorld(*self.names, seed=seed, lease=LEASE)
        self.trace: list[str] = []
        self.publishers = [Publisher(self.world, f"p{qos}", qos) for qos in (1, 2)]
        self.subscribers = [Subscriber(self.world, f"s{number}") for number in range(2)]
        self.clients: list[Client] = [*self.publishers, *self.subscribers]
        for client in self.clients:
            client.connect(random.choice(self.names))
        for subscriber in self.subscribers:
            subscriber.subscribe()
        self.world.log.faults = Faults.drawn(random)

    def step(self) -> None:
        """Do one random step."""
        random, world = self.random, self.world
        kind = random.choice(KINDS)
        client = random.choice(self.clients)
        name = random.choice(self.names)
        seconds = random.choice((0.01, 1.0, 3 * LEASE))
        count = random.randrange(1, 10)
        self.trace.append(f"{world.clock.now():.3f} {kind} {client.client_id} {name} {seconds}")
        for one in self.clients:
            one.take()
        if kind == "publish":
            for _ in range(count):
                random.choice(self.publishers).publish()
        elif kind == "connect" and name in world.nodes:
            client.connect(name)
        elif kind == "drop":
            client.drop()
        elif kind == "wait":
            world.advance(seconds)
        elif kind == "kill" and len(world.nodes) > 1 and name in world.nodes:
            world.kill(name)
        elif kind == "start" and name not in world.nodes and world.log.available:
            self.start(name)
        elif kind == "cut" and name in world.nodes:
            world.engines[name].cut()
        elif kind == "heal" and name in world.nodes:
            world.engines[name].heal()
        elif kind == "stop":
            world.log.stop()
        elif kind == "go":
            world.log.start()

    def start(self, name: str) -> None:
        """Start a node again, without faults of the log, which would keep it from joining in time."""
        faults, self.world.log.faults = self.world.log.faults, QUIET
        for other in self.world.nodes:
            self.world.engines[other].heal()
        self.world.start(name)
        self.world.log.faults = faults

    def heal(self) -> None:
        """End all faults, start all nodes, and let all clients finish."""
        world = self.world
        world.log.faults = QUIET
        world.log.start()
        for name in world.nodes:
            world.engines[name].heal()
        world.advance(4 * LEASE)
        for name in self.names:
            if name in world.nodes and not world.cluster(name).ready:
                world.kill(name)
            if name not in world.nodes:
                world.start(name)
        world.advance(4 * LEASE)
        for client in self.clients:
            client.drop()
        for client in self.clients:
            client.connect(self.random.choice(self.names))
        world.advance(4 * LEASE)
        for client in self.clients:
            client.take()

    def problems(self) -> Iterator[str]:
        """Yield each broken promise."""
        for client in self.clients:
            if not client.online:
                yield f"{client.client_id} cannot connect"
            if client.lost:
                yield f"{client.client_id} lost its session"
        for publisher in self.publishers:
            if publisher.open:
                yield f"{publisher.client_id} has no acknowledgement of {sorted(publisher.open)}"
            for subscriber in self.subscribers:
                yield from _delivery(publisher, subscriber)


def _delivery(publisher: Publisher, subscriber: Subscriber) -> Iterator[str]:
    """Yield each broken promise about the messages from `publisher` to `subscriber`."""
    way = f"{publisher.client_id} to {subscriber.client_id}:"
    got = subscriber.messages.get(publisher.client_id, [])
    first = list(dict.fromkeys(got))
    missing = publisher.acknowledged - set(got)
    if missing:
        yield f"{way} {sorted(missing)} acknowledged and lost"
    if first != sorted(first):
        yield f"{way} out of order: {first}"
    if publisher.qos == 2 and len(first) != len(got):
        yield f"{way} received twice at QoS 2: {got}"


def run(seed: int) -> Result:
    """Run one seed. The same seed gives the same result."""
    one = _Run(seed)
    for _ in range(STEPS):
        one.step()
    one.heal()
    problems = tuple(one.problems())
    sent = sum(publisher.sent for publisher in one.publishers)
    return Result(seed, problems, tuple(one.trace), sent, one.world.log.sequence)
