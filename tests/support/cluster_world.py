"""A cluster of brokers in one process, on a simulated engine and one virtual clock."""

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from hookmq.cluster_api import Relay, Relaying
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.plugin import Context, Peer, Plugin, Runtime, Scope
from hookmq.server_api import Wire
from hookmq_cluster.cluster import JoinedCluster
from hookmq_cluster.config import ClusterConfig
from hookmq_cluster.engine import Engine
from hookmq_cluster.membership import Member
from hookmq_cluster.plugin import ClusterPlugin
from hookmq_testing import Harness, MemoryClient, PluginInstance
from hookmq_testing.wire import Clock
from hookmq_toolkit.cluster import ClusterManager, ClusterStatus
from simulated_engine import QUIET, Faults, SimulatedEngine, SimulatedLog

SETTLED = 0.2
"""Seconds that a few travels to the log and back take."""
ALLOW = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))


class SimulatedPlugin(ClusterPlugin):
    """The plugin on the simulated engine. Its relay connects the nodes' harnesses directly."""

    world: "ClusterWorld"

    def __init__(self, config: ClusterConfig, context: Context) -> None:
        super().__init__(config, context)
        self.relays_ended: list[str] = []

    def end_relays_to(self, node: str) -> None:
        self.relays_ended.append(node)

    def make_engine(self, runtime: Runtime) -> Engine:
        return self.world.engines[self.node]

    async def open_relay(self, cluster: JoinedCluster) -> str:
        return f"{self.node}:1"

    def relaying(self, member: Member, lane: str) -> Relaying:
        return self.world.relaying(member.node, self.node)


class Unreachable:
    """A relay to a node that does not answer."""

    def feed(self, data: bytes) -> None: ...

    def closed(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class NodeHarness(Harness):
    """A node. Its clients wait for the log too."""

    def settle(self) -> None:
        super().settle()
        if not self._together:
            self.clock.advance(SETTLED)
            super().settle()


class ClusterWorld:
    """Brokers that share a log. Each node is a `Harness`."""

    def __init__(
        self,
        *names: str,
        faults: Faults = QUIET,
        seed: int = 0,
        lease: float = 15.0,
        clients: Mapping[str, str] | None = None,
        redirect: bool = False,
    ) -> None:
        self.clock = Clock(seed)
        self.random = Random(seed)
        self.log = SimulatedLog(self.clock, self.random, faults)
        self.lease = lease
        self.client_addresses = clients or {}
        self.redirect = redirect
        self.engines: dict[str, SimulatedEngine] = {}
        self.nodes: dict[str, Harness] = {}
        self.plugins: dict[str, SimulatedPlugin] = {}
        for name in names:
            self.start(name)

    def start(
        self,
        name: str,
        config: Mapping[str, Mapping[str, Any]] | None = None,
        plugins: Iterable[Plugin | type[Plugin] | PluginInstance] = (),
    ) -> Harness:
        """Start a node with more plugins, and wait until it has joined."""
        self.engines[name] = SimulatedEngine(self.log, self.clock, self.random)
        address = self.client_addresses.get(name, "")
        settings = ClusterConfig(
            node=name, name="test", lease=self.lease, client_address=address, redirect=self.redirect
        )
        plugin = self.plugins[name] = SimulatedPlugin(settings, Context("cluster"))
        plugin.world = self
        node = self.nodes[name] = NodeHarness(
            [plugin, *plugins], ALLOW, config=config, clock=self.clock
        )
        return node

    def kill(self, name: str) -> None:
        """End a node at once, as SIGKILL does."""
        self.engines[name].crash()
        node = self.nodes.pop(name)
        for client in node.clients:
            client.wire.closed = True

    def stop_together(self) -> None:
        """Let all nodes leave at once."""
        for name in self.nodes:
            self.clock.spawn(self.cluster(name).leave(), lambda *_: None)
        self.clock.advance(1.0)
        for name in list(self.nodes):
            self.kill(name)

    def cluster(self, name: str) -> JoinedCluster:
        """Return a node's part of the cluster."""
        joined = self.plugins[name].joined
        assert joined is not None
        return joined

    def manager(self, name: str) -> ClusterManager:
        """Return the service that the plugin of a node offers to operators."""
        found = self.plugins[name].offered_services["cluster"]
        assert isinstance(found, ClusterManager)
        return found

    def status(self, name: str) -> ClusterStatus:
        """Return the cluster as a node shows it."""
        return self.manager(name).show_cluster()

    def complete_drain(self, name: str, seconds: float = 0.0, moved: bool = False) -> None:
        """Drain a node, and wait until it is done."""
        self.manager(name).drain_node(name, seconds, moved)
        self.advance(seconds + 2.0)
        assert (self.status(name).state, self.status(name).problem) == ("drained", "")
        assert self.cluster(name).keeper.open == set()

    def complete_undrain(self, name: str) -> None:
        """Put a node back, and wait until it is done."""
        self.manager(name).undrain_node(name)
        self.advance(3.0)
        assert (self.status(name).state, self.status(name).problem) == ("ready", "")
        assert name in self.cluster(name).keeper.open

    def change_state(self, name: str, **values: bytes | None) -> None:
        """Set or delete keys of the state of a node's plugin, and wait for the commit."""
        state = self.nodes[name].handle("cluster").state
        told: list[object] = []
        for key, value in values.items():
            change = state.delete(key) if value is None else state.put(key, value)
            self.clock.spawn(change, lambda _, error: told.append(error))
        self.advance(1.0)
        assert told == [None] * len(values)

    def read_state(self, name: str) -> list[tuple[str, bytes]]:
        """Return the keys and values of the state of a node's plugin."""
        return list(self.nodes[name].handle("cluster").state.items().items)

    def connect(self, name: str, client_id: str, **options: Any) -> MemoryClient:
        """Connect a client to a node."""
        return self.nodes[name].connect(client_id, **options)

    def advance(self, seconds: float) -> None:
        """Let time pass on all nodes."""
        self.clock.advance(seconds)

    def settle(self) -> None:
        """Let the nodes finish what they do, which takes some travels to the log and back."""
        self.clock.advance(SETTLED)

    def relaying(self, node: str, near: str) -> Relaying:
        """Return how to relay a connection from the node `near` to `node`: without a network."""

        def start(wire: Wire, peer: Peer, scope: Scope) -> Relay:
            if node not in self.nodes:
                wire.close()
                return Unreachable()
            # A connection has the methods of a relay.
            return self.nodes[node].broker.accept(wire, peer, scope, relayed=True)

        return start

    def close(self) -> None:
        """Stop all nodes."""
        for node in self.nodes.values():
            node.close()
