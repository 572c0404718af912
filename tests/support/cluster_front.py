"""A cluster behind the interface of one `Harness`: each connection goes to a random node.

The conformance tests run on it if HOOKMQ_CLUSTER is the number of nodes. The nodes are whole brokers with the plugin
`cluster`, on a simulated log.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any, cast

from cluster_world import ClusterWorld
from hookmq.broker import PacketReader
from hookmq.plugin import Peer, Plugin, Scope
from hookmq.server_api import Wire
from hookmq.session.session import Session
from hookmq_testing import Harness
from simulated_engine import Faults

NEAR = Faults(latency=1e-5)
"""A log that answers at once, so that the time which passes is the time of the test."""
LEASE = 1e6
"""Seconds of a lease. Tests let years pass, in which no node must write a million leases."""
SETTLED = 0.005
"""Seconds that some travels to the log and back take."""


def nodes_wanted() -> int:
    """Return the number of nodes that the environment asks for, or 0."""
    return int(os.environ.get("HOOKMQ_CLUSTER") or 0)


class AnyBroker:
    """The brokers of all nodes, as far as the tests use a broker."""

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        self._world = world
        self._random = Random(seed)

    def accept(self, wire: Wire, peer: Peer, scope: Scope) -> PacketReader:
        """Connect to a random node."""
        node = self._random.choice(list(self._world.nodes.values()))
        return node.broker.accept(wire, peer, scope)

    @property
    def sessions(self) -> dict[str, Session]:
        """The sessions of all nodes. No client has sessions on two of them."""
        found: dict[str, Session] = {}
        for node in self._world.nodes.values():
            assert not found.keys() & node.broker.sessions.keys()
            found |= node.broker.sessions
        return found

    def drain(self, reference: str, done: Callable[[], None]) -> None:
        """Drain all nodes."""
        waiting = set(self._world.nodes)

        def drained(name: str) -> None:
            waiting.discard(name)
            if not waiting:
                done()

        for name, node in self._world.nodes.items():
            node.broker.drain(reference, partial(drained, name))


class ClusterFront:
    """A cluster with `count` nodes, which have the same settings and plugins."""

    def __init__(
        self,
        count: int,
        plugins: Iterable[Plugin | type[Plugin]] = (),
        config: Mapping[str, Mapping[str, Any]] | None = None,
        seed: int = 0,
    ) -> None:
        self._config = config
        self._plugins = tuple(plugins)
        self._names = [chr(ord("a") + number) for number in range(count)]
        self.world = ClusterWorld(faults=NEAR, seed=seed, lease=LEASE)
        self.clock = self.world.clock
        self.allow_errors = False
        self._start_all()
        self.broker = AnyBroker(self.world, seed)

    def _start_all(self) -> None:
        for name in self._names:
            self.world.start(name, self._config, self._plugins)

    def settle(self) -> None:
        """Let all nodes finish their work."""
        self.clock.run_until_idle()
        self.clock.advance(SETTLED)

    def advance(self, seconds: float) -> None:
        """Advance virtual time."""
        self.clock.advance(seconds)

    def wait(self, step: Callable[[Callable[[Any], None]], object]) -> Any:
        """Wait for a callback; see `Harness.wait`."""
        return next(iter(self.world.nodes.values())).wait(step)

    @property
    def logs(self) -> list[tuple[str, str, dict[str, object]]]:
        """All log events."""
        return self.clock.logged

    def restart(self) -> None:
        """Kill all nodes, and start them again."""
        for name in self._names:
            self.world.kill(name)
        self._start_all()

    def close(self) -> None:
        """Stop all nodes."""
        for node in self.world.nodes.values():
            node.allow_errors = self.allow_errors
        self.world.close()


def cluster_harness(*args: Any, **options: Any) -> Harness:
    """Return a cluster in place of a harness."""
    return cast(Harness, ClusterFront(nodes_wanted(), *args, **options))
