"""The clients of one run, drawn at random."""

from random import Random
from typing import Final

from cluster_simulator.clients import FOREVER, Client, Publisher, Subscriber
from cluster_simulator.wills import Watcher, WillClient
from cluster_simulator.world import World

SHORT: Final = 10
"""A session expiry in seconds that a run reaches."""


class Workload:
    """All clients of a run, by kind. Each kind but the first publishers and subscribers may be absent."""

    def __init__(self, world: World, random: Random) -> None:
        self.publishers = [Publisher(world, f"p{qos}", qos) for qos in self._levels(random)]
        self.retaining: list[Publisher] = []
        if random.random() < 0.3:
            clear = random.random() < 0.5
            qos = random.choice((1, 1, 2))
            self.retaining = [
                Publisher(world, f"r{number}", qos, keys=3, clear=clear)
                for number in range(random.choice((1, 2)))
            ]
        numbered = self.publishers
        self.subscribers = [
            Subscriber(world, f"s{number}", numbered, qos=random.choice((1, 2, 2)))
            for number in range(random.choice((1, 1, 2)))
        ]
        self.volatile: list[Subscriber] = []
        if random.random() < 0.5:
            self.volatile = [
                Subscriber(world, f"v{number}", numbered, qos=random.randrange(3), expiry=0)
                for number in range(random.choice((1, 2)))
            ]
        self.members: list[Subscriber] = []
        if random.random() < 0.4:
            mixed = random.random() < 0.3
            self.members = [
                Subscriber(
                    world, f"m{number}", numbered, "$share/g/t/#", random.choice((1, 2, 2)),
                    0 if mixed and number else FOREVER,
                )
                for number in range(random.choice((2, 2, 3)))
            ]  # fmt: skip
        self.expiring: list[Subscriber] = []
        if random.random() < 0.2:
            self.expiring = [Subscriber(world, "e0", numbered, expiry=SHORT)]
        self.watcher: Watcher | None = None
        self.wills: list[WillClient] = []
        if random.random() < 0.4:
            self.watcher = Watcher(world)
            self.wills = [
                WillClient(
                    world, f"w{number}", random.choice((0, SHORT, FOREVER)),
                    random.choice((0, 0, 3, SHORT)),
                )
                for number in range(random.choice((1, 2)))
            ]  # fmt: skip

    @staticmethod
    def _levels(random: Random) -> list[int]:
        return random.choice(([1, 2], [1, 2], [0, 1, 2], [1], [2]))

    @property
    def writers(self) -> list[Publisher]:
        """All clients that publish numbers."""
        return [*self.publishers, *self.retaining]

    @property
    def permanent(self) -> list[Client]:
        """All clients that must be online at the end."""
        watchers = [self.watcher] if self.watcher is not None else []
        return [
            *self.writers, *self.subscribers, *self.volatile, *self.members, *watchers,
        ]  # fmt: skip

    @property
    def everyone(self) -> list[Client]:
        """All clients."""
        return [*self.permanent, *self.expiring, *self.wills]

    @property
    def acknowledged(self) -> int:
        """The number of messages that the broker has acknowledged."""
        return sum(len(one.acknowledged) for one in self.writers)
