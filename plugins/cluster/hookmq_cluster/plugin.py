"""The `cluster` plugin: its settings and hooks."""

import asyncio
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hookmq.cluster_api import Cluster, Redirect, Relaying, Transfer
from hookmq.plugin import (
    BrokerHandle,
    ConfigError,
    Context,
    MetricRegistry,
    Plugin,
    Runtime,
    Store,
    StoreError,
    WorkerRegistry,
    hookimpl,
)
from hookmq_toolkit import cluster as cluster_service
from hookmq_toolkit import shared_facts
from hookmq_toolkit.files import check_regular
from hookmq_toolkit.state_folder import default_folder
from hookmq_toolkit.tls_client import check_tls

from hookmq_cluster.cluster import JoinedCluster
from hookmq_cluster.companions import check_companions
from hookmq_cluster.config import ClusterConfig, default_node
from hookmq_cluster.control import ClusterControl
from hookmq_cluster.engine import Engine
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.facts import ClusterFacts
from hookmq_cluster.membership import Member
from hookmq_cluster.metrics import register
from hookmq_cluster.names import Names
from hookmq_cluster.nats_connection import NatsOptions
from hookmq_cluster.nats_engine import NatsEngine
from hookmq_cluster.nats_sync import check_sync
from hookmq_cluster.relay import Relays
from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.relay_listener import RelayListener
from hookmq_cluster.relay_tls import load_files, relay_contexts
from hookmq_cluster.together import Together
from hookmq_cluster.transfer import Transfers, prepare, socket_path
from hookmq_cluster.transfer_listener import TransferListener
from hookmq_cluster.workers import ClusterWorkers

DEFAULT_SERVERS: Final = ("nats://127.0.0.1:4222",)
_JOINING: Final = 366 * 86400.0
"""Seconds that joining may take: a year, because a node waits for NATS as long as necessary. No timer is infinite."""


class ClusterPlugin(Plugin):
    """A plugin that stores the broker's state in NATS JetStream, and joins it with the other nodes of a cluster."""

    Config = ClusterConfig
    config: ClusterConfig
    timeouts: Mapping[str, float] = MappingProxyType({"on_startup": _JOINING})

    def __init__(self, config: ClusterConfig, context: Context) -> None:
        super().__init__(config, context)
        self.node = config.node or default_node()
        self.options = self._nats_options()
        self.joined: JoinedCluster | None = None
        self._facts = ClusterFacts()
        self.offered_services = {
            cluster_service.SERVICE: ClusterControl(lambda: self.joined),
            shared_facts.SERVICE: self._facts,
        }
        self._engine: Engine | None = None
        self._counters = RelayCounters(self.log)
        self._tls = relay_contexts(config.relay_tls)
        self._relays = Relays(
            config.name,
            self.node,
            "",
            self._counters,
            None if self._tls is None else self._tls.client,
        )
        self._listener: RelayListener | None = None
        self._transfers: Transfers | None = None
        if config.transfers is not None:
            self._transfers = Transfers(config.transfers, config.name, self.node, self._counters)
        self._transfer_listener: TransferListener | None = None

    def _nats_options(self) -> NatsOptions:
        config = self.config
        credentials = ""
        if config.credentials is not None:
            try:
                check_regular(config.credentials)  # a pipe would block
                credentials = config.credentials.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"credentials: {error}") from None
        try:
            return NatsOptions(
                config.servers or DEFAULT_SERVERS,
                name=f"hookmq {config.name} {self.node}",
                user=config.user,
                password=config.password,
                token=config.token,
                credentials=credentials,
                tls=check_tls(config.tls),
            )
        except EngineError as error:
            raise ConfigError(str(error)) from None

    def check_together(self, plugins: Sequence[Plugin]) -> None:
        """Refuse plugins that store the same state, or that work on each node separately."""
        check_companions(self, plugins, self.config.per_node)

    def make_engine(self, runtime: Runtime) -> Engine:
        """Return the engine. Tests replace it with a simulated one."""
        names = Names(self.config.name)
        return NatsEngine(
            self.options, names.stream, names.everything, runtime,
            self.config.replicas, self.config.allow_single_replica, self._nats_options,
        )  # fmt: skip

    def _join(self, broker: BrokerHandle) -> JoinedCluster:
        """Return this node's part of the cluster. The first call creates it."""
        if self.joined is None:
            runtime = broker.runtime
            self._engine = self.make_engine(runtime)
            self.joined = JoinedCluster(
                self.config.name, runtime, self._engine, self.node, runtime.token(8),
                self.config.lease, self.directions, self.config.client_address, self.end_relays, self.end_relays_to,
            )  # fmt: skip
        return self.joined

    def directions(self, member: Member, lane: str) -> Relaying | Redirect | Transfer:
        """Return how a client reaches a node that has a lane."""
        relaying = self.relaying(member, lane)
        found: Relaying | Redirect = relaying
        if self.config.redirect and member.clients:
            found = Redirect(member.clients, relaying)
        if self._transfers is not None and self._transfers.reaches(member.node):
            return self._transfers.transfer(member.node, lane, found)
        return found

    def relaying(self, member: Member, lane: str) -> Relaying:
        """Return how to relay a connection to a node. Tests replace it with calls in one process."""
        return self._relays.relaying(member.node, member.address, lane)

    def end_relays(self, count: int) -> int:
        """Close up to `count` connections that this node relays, and return how many are left. Tests replace it, too."""
        return self._relays.end(count)

    def end_relays_to(self, node: str) -> None:
        """Close the connections that this node relays to a dead node. Tests replace it, too."""
        self._relays.end_to(node)

    async def open_relay(self, cluster: JoinedCluster) -> str:
        """Accept connections of other nodes. Return the address that they use."""
        self._relays.secret = secret = await cluster.secret()
        self._listener = RelayListener(
            self.config.relay, self.config.name, secret, cluster.relay_target, cluster.owns,
            self._counters, None if self._tls is None else self._tls.server,
        )  # fmt: skip
        await self._listener.open()
        return self.config.advertise or self._listener.address

    def open_transfers(self, cluster: JoinedCluster, folder: Path, relays: RelayListener) -> None:
        """Accept the sockets of clients that other nodes on this machine transfer, and transfer clients that belong
        together. Raises ConfigError."""
        prepare(folder)
        self._transfer_listener = TransferListener(
            socket_path(folder, self.node), self.config.name, relays.refusal, relays.take,
            self._counters,
        )  # fmt: skip
        self._transfer_listener.open()
        if self.config.together and self._transfers is not None:
            cluster.claims.newcomer = Together(
                self.config.together, self.node, self._transfers,
                lambda: [member.node for member in cluster.staying()],
            ).place  # fmt: skip

    @hookimpl
    def register_workers(self, registry: WorkerRegistry) -> None:
        """Run the broker as several nodes on this machine, if the configuration says so."""
        config = self.config
        if config.workers:
            folder = None
            if not config.servers:
                folder = config.folder or default_folder("cluster")
            registry.set(config.workers, ClusterWorkers(config.node, folder, self.log))

    @hookimpl
    def provide_store(self, broker: BrokerHandle) -> Store:
        """Return the store. It is empty until the node has joined."""
        return self._join(broker).store

    @hookimpl
    def provide_cluster(self, broker: BrokerHandle) -> Cluster:
        """Return this node's part of the cluster."""
        return self._join(broker)

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Connect to NATS and join the cluster. Clients can connect after that.

        Wait for servers that do not answer. Raise StoreError if it is useless to wait.
        """
        cluster = self._join(broker)
        engine = self._engine
        if isinstance(engine, NatsEngine):
            try:
                await engine.open(inf)
                await self._check_sync()
            except EngineError as error:
                raise StoreError(str(error)) from None
        if engine is not None:
            await self._facts.start(engine, Names(self.config.name), broker.runtime)
        await cluster.join(await self.open_relay(cluster))
        if self.config.transfers is not None and self._listener is not None:
            self.open_transfers(cluster, self.config.transfers, self._listener)

    @hookimpl
    async def on_reload(self) -> None:
        """Use renewed certificates for new connections to other nodes. Files for NATS are read before each connection."""
        try:
            found = await asyncio.to_thread(relay_contexts, self.config.relay_tls)
        except ConfigError as error:
            self.log("error", "cluster.relay_tls_kept", reason=str(error))
            return
        if self._tls is not None and found is not None and self.config.relay_tls is not None:
            self._relays.tls = found.client
            load_files(self._tls.server, self.config.relay_tls)

    async def _check_sync(self) -> None:
        config = self.config
        if config.sync == "always" and config.monitoring:
            await check_sync(config.monitoring, self.log)
        elif config.sync == "always" and not config.workers:
            self.log("info", "cluster.sync_unverified")

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics of `hookmq_cluster.metrics`, and those of relays."""
        register(registry, lambda: self.joined)
        self._counters.register(registry)

    @hookimpl
    async def on_shutdown(self) -> None:
        """Leave the cluster."""
        self._facts.close()
        self._relays.close()
        if self._transfer_listener is not None:
            self._transfer_listener.close()
        if self._listener is not None:
            await self._listener.close()
        if self.joined is not None and self.joined.ready:
            await self.joined.leave()
