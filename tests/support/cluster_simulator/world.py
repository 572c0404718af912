"""The simulated cluster: processes with clocks of their own, the log that they share, and their faults."""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, Final

from cluster_world import ALLOW, ClusterWorld, SimulatedPlugin, Unreachable
from hookmq.cluster_api import Relay, RelayedConnection, Relaying
from hookmq.plugin import Context, Peer, Scope
from hookmq.server_api import Wire
from hookmq_cluster.config import ClusterConfig
from hookmq_cluster.draining import DrainState
from hookmq_cluster.membership import Member
from hookmq_testing import Harness
from hookmq_toolkit.cluster import ClusterError
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


class NodePlugin(SimulatedPlugin):
    """The plugin of a node. Its relays take turns of both nodes."""

    world: "World"

    def relaying(self, member: Member, lane: str) -> Relaying:
        return self.world.relay_to(member.node, self.node, lane)

    def end_relays(self, count: int) -> int:
        return self.world.end_relays(self.node, count)

    def end_relays_to(self, node: str) -> None:
        self.world.end_relays_to(self.node, node)


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
        self.crashes = 0
        """How many processes have ended without being told to."""
        self.failures: list[str] = []
        """Why processes have ended by themselves."""
        self.ended: Callable[[str], None] = lambda name: None
        self.relays: dict[SimulatedRelay, None] = {}
        self.drained = 0
        """How many drains have completed."""
        self.remainders: list[str] = []
        """Clients, lanes and relays that a node still had when its drain was complete, as text."""

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
        clock.drained = partial(self._drained, name)
        plugin = self.plugins[name] = NodePlugin(settings, Context("cluster"))
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
        self.crashes += clock not in self.stopping
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

    # operators ---------------------------------------------------------------------------------------------------

    def move(self, name: str, lane: str, to: str) -> bool:
        """Tell a node to give a lane to another one. Return whether it was running."""
        if self.clocks[name].paused:
            return False
        self.clocks[name].spawn(self.manager(name).move_lane(lane, to), lambda *_: None)
        return True

    def drain(self, name: str, seconds: float, moved: bool) -> bool:
        """Tell a node to give its clients and lanes to others. Return whether it does so."""
        return self._told(name, lambda: self.manager(name).drain_node(name, seconds, moved))

    def undrain(self, name: str) -> bool:
        """Tell a drained node to serve again. Return whether it does so."""
        return self._told(name, lambda: self.manager(name).undrain_node(name))

    def _told(self, name: str, command: Callable[[], None]) -> bool:
        if self.clocks[name].paused:
            return False
        try:
            command()
        except ClusterError:
            return False
        return True

    def drain_state(self, name: str) -> DrainState:
        """Return whether a node is drained, or on its way to it or back; an empty string if not."""
        return self.cluster(name).drain.state if self.is_ready(name) else ""

    def is_serving(self, name: str) -> bool:
        """Return whether a node accepts clients, and is not drained."""
        return self.is_ready(name) and not self.drain_state(name)

    def _drained(self, name: str) -> None:
        self.drained += 1
        self.remainders += self.remains(name)
        if any(one.near is self.clocks[name] for one in self.relays):
            self.remainders.append(f"node {name} is drained, and still relays clients")

    def remains(self, name: str) -> Iterator[str]:
        """Yield a line for each thing that the drained node `name` must not have any more."""
        lanes = sorted(self.cluster(name).keeper.open)
        clients = sorted(self.nodes[name].broker.state.sessions)
        if lanes or clients:
            yield f"node {name} is drained, and still has the lanes {lanes} and the clients {clients}"

    # ---------------------------------------------------------------------------------------------------------------

    def is_ready(self, name: str) -> bool:
        """Return whether clients may connect to a node."""
        plugin = self.plugins.get(name)
        joined = plugin.joined if plugin is not None and name in self.nodes else None
        return joined is not None and joined.ready

    def departures(self) -> list[float]:
        """Return the times at which any node regarded another one as dead."""
        return [time for clock in (*self.past, *self.clocks.values()) for time in clock.departures]

    def unsent(self) -> bool:
        """Return whether a node has given a lane away before the others had all messages of its publishers."""
        events = (one[1] for clock in (*self.past, *self.clocks.values()) for one in clock.logged)
        return "cluster.messages_unsent" in events

    def relay_to(self, node: str, near: str, lane: str) -> Relaying:
        """Return how to relay a connection from the node `near` to `node`, which has the sessions of `lane`."""

        def start(wire: Wire, peer: Peer, scope: Scope) -> Relay:
            if not self.is_ready(node):
                wire.close()
                return Unreachable()
            relay = SimulatedRelay(
                self.clocks[near], node, self.clocks[node], wire,
                lambda one: self.relays.pop(one, None),
            )  # fmt: skip
            self.relays[relay] = None
            broker = self.nodes[node].broker

            def accept(back: Wire) -> RelayedConnection | None:
                if not self.cluster(node).owns(lane):
                    return None
                return broker.accept(back, peer, scope, relayed=True)

            relay.open(accept)
            return relay

        return start

    def end_relays(self, near: str, count: int) -> int:
        """Close up to `count` connections that the node `near` relays. Return how many are left."""
        own = [one for one in self.relays if one.near is self.clocks[near]]
        for relay in own[:count]:
            relay.end()
        return max(0, len(own) - count)

    def end_relays_to(self, near: str, node: str) -> None:
        """Close the connections that the node `near` relays to `node`."""
        for relay in [one for one in self.relays if one.near is self.clocks[near]]:
            if relay.node == node:
                relay.end()


def _nothing(_: object) -> None:
    """Do nothing."""


__all__ = ["Process", "Random", "World"]
