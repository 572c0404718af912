"""The simulated cluster: processes with clocks of their own, the log that they share, and their faults."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from cluster_world import ALLOW, ClusterWorld, SimulatedPlugin, Unreachable
from hookmq.cluster_api import Relay, Relaying
from hookmq.plugin import Context, Peer, Scope
from hookmq.server_api import Wire
from hookmq_cluster.config import ClusterConfig
from hookmq_testing import Harness
from simulated_engine import SimulatedEngine

from cluster_simulator.clock import NodeClock
from cluster_simulator.relays import SimulatedRelay

STOPPING: Final = 30.0
"""Seconds after which a process that stops is killed."""


class Process(Harness):
    """The process of a node. Nothing waits for it: the simulation advances the clock."""

    clock: NodeClock

    def settle(self) -> None:
        """Do nothing."""


class World(ClusterWorld):
    """A cluster with faults. `skew` is the largest error of a wall clock in seconds, `drift` that of a clock's speed.

    `ended` is called with each process that has ended.
    """

    def __init__(self, seed: int, lease: float, skew: float = 0.0, drift: float = 0.0) -> None:
        super().__init__(seed=seed, lease=lease)
        self.skew = skew
        self.drift = drift
        self.clocks: dict[str, NodeClock] = {}
        self.past: list[NodeClock] = []
        """The clocks of processes that have ended."""
        self.stopping: list[NodeClock] = []
        """The clocks of processes that were told to stop, which takes some time."""
        self.failures: list[str] = []
        """Why processes have ended by themselves."""
        self.ended: Callable[[str], None] = lambda name: None
        self.relays: set[SimulatedRelay] = set()

    def boot(self, name: str) -> None:
        """Start the process of a node. It joins the cluster later."""
        random = self.random
        clock = self.clocks[name] = NodeClock(
            self.clock,
            random.getrandbits(32),
            random.uniform(-self.skew, self.skew),
            1.0 + random.uniform(-self.drift, self.drift),
        )
        self.engines[name] = SimulatedEngine(self.log, clock, random)
        settings = ClusterConfig(node=name, name="test", lease=self.lease)
        plugin = self.plugins[name] = SimulatedPlugin(settings, Context("cluster"))
        plugin.world = self
        node = Process([plugin], ALLOW, clock=clock, start=False)
        self.nodes[name] = node
        broker = node.broker
        broker.on_failure = lambda reason: clock.call_soon(
            partial(self._failed, clock, name, reason)
        )

        def then(step: Callable[[Callable[[Any], None]], object], error: object) -> None:
            if error is not None:
                self._failed(clock, name, str(error))
            else:
                step(partial(then, steps.pop(0)) if steps else _nothing)

        steps = [
            node.hooks.startup,
            broker.start,
            lambda done: node.hooks.ready(lambda: done(None)),
        ]
        clock.call_soon(partial(broker.load, partial(then, steps.pop(0))))

    def _failed(self, clock: NodeClock, name: str, reason: str) -> None:
        """End a process that cannot go on."""
        if not clock.ended:
            self.failures.append(f"{name}: {reason}")
            self.kill(name)

    def kill(self, name: str) -> None:
        """End a node at once, as SIGKILL does."""
        clock = self.clocks.pop(name)
        clock.end()
        self.past.append(clock)
        clients = self.nodes[name].clients
        super().kill(name)
        for client in clients:
            client._ended()
        for relay in [one for one in self.relays if clock in (one.near, one.far)]:
            relay.lose(clock)
        self.ended(name)

    def stop(self, name: str) -> None:
        """Stop a node, as SIGTERM does."""
        node, clock = self.nodes[name], self.clocks[name]
        self.stopping.append(clock)

        def end() -> None:
            if not clock.ended:
                self.kill(name)

        def stopped() -> None:
            node.broker.commit(end)

        def drained() -> None:
            node.hooks.shutdown(STOPPING, stopped)

        clock.call_soon(lambda: node.broker.drain("", drained))
        self.clock.call_later(STOPPING, end)

    def give(self, name: str, lane: str, to: str) -> None:
        """Move a lane from one node to another one."""
        joined = self.cluster(name)
        member = joined.membership.others.get(to)
        if member is not None:
            self.clocks[name].spawn(joined.give_lane(lane, member), lambda *_: None)

    def is_ready(self, name: str) -> bool:
        """Return whether clients may connect to a node."""
        plugin = self.plugins.get(name)
        joined = plugin.joined if plugin is not None and name in self.nodes else None
        return joined is not None and joined.ready

    def departures(self) -> list[float]:
        """Return the times at which any node regarded another one as dead."""
        return [time for clock in (*self.past, *self.clocks.values()) for time in clock.departures]

    def relaying(self, node: str, near: str) -> Relaying:
        """Return how to relay a connection from the node `near` to `node`."""

        def start(wire: Wire, peer: Peer, scope: Scope) -> Relay:
            if not self.is_ready(node):
                wire.close()
                return Unreachable()
            relay = SimulatedRelay(self.clocks[near], self.clocks[node], wire, self.relays.discard)
            self.relays.add(relay)
            broker = self.nodes[node].broker
            relay.open(lambda back: broker.accept(back, peer, scope, relayed=True))
            return relay

        return start


def _nothing(_: object) -> None:
    """Do nothing."""


__all__ = ["Process", "Random", "World"]
