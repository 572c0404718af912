"""The broker as the server sees it: start, accept connections, reload, drain."""

from collections.abc import Callable, Sequence
from functools import partial

from hookmq.broker.client_relay import ClientRelay
from hookmq.broker.cluster_node import ClusterNode
from hookmq.broker.connection import ClientConnection
from hookmq.broker.core_metrics import register_core
from hookmq.broker.delivery.queue_expiry import watch_expiry
from hookmq.broker.delivery.retransmit import watch_retries
from hookmq.broker.dispatch import DISPATCH
from hookmq.broker.handlers.session_open import apply_rate_limits, shared_encoding
from hookmq.broker.packet_reader import PacketReader
from hookmq.broker.plugin_api import PluginBroker
from hookmq.broker.plugin_connection import PluginConnection
from hookmq.broker.publish.retained import expire
from hookmq.broker.recovery import Groups, begin, recover
from hookmq.broker.retained_expiry import Expiries
from hookmq.broker.sessions.lifecycle import detach
from hookmq.broker.sessions.revocation import revoke
from hookmq.broker.state import BrokerState
from hookmq.broker.tracing.traces import Traces
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.instance import KeptState, PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.drain import Disconnectable, Drainer
from hookmq.model.events import DisconnectReason, EndedBy
from hookmq.model.log_events import EventLog
from hookmq.model.metrics import Metrics, traffic_of
from hookmq.model.reload_report import ConfigCheck, Reloader
from hookmq.model.runtime import Runtime, Wire
from hookmq.model.settings import Settings
from hookmq.model.snapshots import ListenerSnapshot
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.cluster import RelayTarget
from hookmq.storage.protocols import Journal, Store


class Broker:
    """An MQTT broker. Call its methods only from the event loop's thread. No method blocks; a long operation takes a
    callback.

    If `store` or `journals` is None, plugins provide them. If no plugin does, no state survives the process. Raises
    PluginError if a plugin fails to provide one.

    Set `on_failure` to be notified once if the store or a journal fails. From then on nothing is acknowledged. The
    server should disconnect all clients (`drain`) and end the process with an error.
    """

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        hooks: Hooks | None = None,
        store: Store | None = None,
        journals: Sequence[Journal] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        state = BrokerState(
            settings,
            runtime,
            hooks or Hooks(),
            store,
            journals,
            metrics or Metrics(),
            _plugin_brokers,
        )
        state.open_client = self._open_client
        state.expiries = Expiries(runtime, state.deadlines, partial(expire, state))
        self.state = state
        self.metrics = state.metrics
        self.store = state.store
        """The store that holds the broker's state. Its creator closes it after the drain."""
        self.sessions = state.sessions
        """Every session by client id."""
        self.connections: dict[ClientConnection, ClientConnection] = {}
        """Every open connection, oldest first; the values are not used. A set would be ordered by memory address, and
        simulator runs would not be repeatable."""
        self._drained: Callable[[], None] | None = None
        self._orphans: Groups | None = None
        """Shared subscriptions with a queue but no members. None until the state has been loaded, and again after
        `start`."""
        self._log_full_at = 0.0
        """The earliest time at which to log again that the connection limit is reached."""
        self._unlogged = 0
        self._on_end: Callable[[ClientConnection, DisconnectReason], None] = self._ended
        """One bound method that all connections share, to save memory."""
        self._core_metrics: MetricRegistry | None = None
        if state.cluster is not None:
            state.cluster.attach(ClusterNode(state))
        state.counters = self.counters
        state.start_trace = Traces(state, self.connections).start

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self.state.settings

    @property
    def on_failure(self) -> Callable[[str], None] | None:
        """The function to call when a commit fails."""
        return self.state.on_failure

    @on_failure.setter
    def on_failure(self, call: Callable[[str], None] | None) -> None:
        self.state.on_failure = call

    @property
    def listeners(self) -> Callable[[], tuple[ListenerSnapshot, ...]]:
        """The function that returns the server's listeners."""
        return self.state.listeners

    @listeners.setter
    def listeners(self, call: Callable[[], tuple[ListenerSnapshot, ...]]) -> None:
        self.state.listeners = call

    @property
    def relay_target(self) -> Callable[[str], RelayTarget | None]:
        """The function that returns a listener by name, for connections that other nodes relay."""
        return self.state.relay_target

    @relay_target.setter
    def relay_target(self, call: Callable[[str], RelayTarget | None]) -> None:
        self.state.relay_target = call

    @property
    def reloader(self) -> Reloader | None:
        """The function that starts a reload for a plugin, or None if there is nothing to reload."""
        return self.state.reloader

    @reloader.setter
    def reloader(self, call: Reloader | None) -> None:
        self.state.reloader = call

    @property
    def configuration(self) -> Callable[[], str]:
        """The function that returns the configuration in force, without secrets."""
        return self.state.configuration

    @configuration.setter
    def configuration(self, call: Callable[[], str]) -> None:
        self.state.configuration = call

    @property
    def check_config(self) -> Callable[[str], ConfigCheck] | None:
        """The function that checks a configuration document in a thread, or None if there is no configuration."""
        return self.state.check_config

    @check_config.setter
    def check_config(self, call: Callable[[str], ConfigCheck] | None) -> None:
        self.state.check_config = call

    @property
    def drainer(self) -> Drainer | None:
        """The object that drains the server for plugins, or None if there is no server."""
        return self.state.drainer

    @drainer.setter
    def drainer(self, drainer: Drainer | None) -> None:
        self.state.drainer = drainer

    @property
    def event_log(self) -> EventLog | None:
        """The process's log for plugins to follow, or None if they cannot."""
        return self.state.event_log

    @event_log.setter
    def event_log(self, log: EventLog | None) -> None:
        self.state.event_log = log

    def report(self, event: str, listener: str, fields: dict[str, object]) -> None:
        """Report an event on a listener, before the client is known, to the observers of `on_event`."""
        self.state.report(event, listener, None, fields)

    def counters(self) -> dict[str, float]:
        """Return the core's metrics by name. The exporter shows the same metrics with the prefix ``hookmq_``."""
        metrics = self._core_metrics
        if metrics is None:
            metrics = self._core_metrics = MetricRegistry()
            register_core(metrics, self)
        return metrics.values()

    def accept(self, wire: Wire, peer: Peer, scope: Scope, relayed: bool = False) -> PacketReader:
        """Return a new connection from `peer` on the listener of `scope`. Close it at once if it exceeds the
        connection limit. If another node of the cluster has `relayed` it to this one, it will not be relayed again.
        """
        connection = PacketReader(self.state, wire, peer, scope, DISPATCH, self._on_end)
        connection.traffic = traffic_of(self.metrics, scope.name)
        if self.state.cluster is not None:
            connection.relay = ClientRelay(connection, relayed)
        self._admit(connection, peer, scope)
        return connection

    def _open_client(self, plugin: PluginInstance, peer: Peer, scope: Scope) -> PluginConnection:
        """Return a new connection for a client of `plugin`. When the plugin ends, the connection ends as if its network
        had failed."""
        kept = plugin.kept
        if not kept.ends_clients:
            kept.ends_clients = True
            kept.farewells.append(partial(self._end_clients, kept))
        connection = PluginConnection(
            self.state, plugin.id, kept, peer, scope, DISPATCH, self._on_end
        )
        self._admit(connection, peer, scope)
        return connection

    def _end_clients(self, owner: KeptState) -> None:
        for connection in list(self.connections):
            if isinstance(connection, PluginConnection) and connection.owner is owner:
                connection.closed("the plugin has ended")
        self.state.writes.schedule()

    def _admit(self, connection: ClientConnection, peer: Peer, scope: Scope) -> None:
        state = self.state
        full = len(self.connections) >= state.settings.broker.max_connections
        if state.draining or full:
            state.metrics.connections_refused += 1
            if full and not state.draining:
                self._report_full(peer, scope)
            connection.end(DisconnectReason(ReasonCode.SERVER_BUSY, EndedBy.SERVER))
        else:
            self.connections[connection] = connection
            if state.on_accept is not None:
                state.on_accept(connection)

    def _report_full(self, peer: Peer, scope: Scope) -> None:
        """Log and report a refused connection, at most once a second, because an attacker could cause any number of them.
        The client has not sent CONNECT, so only its address is known.
        """
        state = self.state
        now = state.runtime.now()
        if now < self._log_full_at:
            self._unlogged += 1
            return
        unlogged, self._unlogged = self._unlogged, 0
        self._log_full_at = now + 1.0
        state.runtime.log(
            "warning",
            "listener.refused",
            listener=scope.name,
            why="broker.max_connections",
            peer=str(peer),
            unsaid=unlogged or None,
        )
        client = ClientInfo("", 0, None, peer, scope, connected_at=state.runtime.time())
        state.observe("on_auth_failed", client, ReasonCode.SERVER_BUSY, "too many connections")

    def _ended(self, connection: ClientConnection, reason: DisconnectReason) -> None:
        self.connections.pop(connection, None)
        state = self.state
        session = connection.session
        if session is not None and session.connection is connection:
            client = session.client
            normal = reason.by is EndedBy.CLIENT and (
                reason.code is ReasonCode.SUCCESS or connection.version < 5
            )  # [MQTT-3.14.4-3] [MQTT311-3.14.4-3]: only a normal DISCONNECT discards the will
            if state.runtime.logs("info"):
                state.runtime.log(
                    "info",
                    "client.disconnected",
                    client_id=client.client_id,
                    code=f"0x{reason.code:02X}",
                    by=reason.by.value,
                    error=reason.error or None,
                )
            if "on_disconnect" in state.observed:
                will = session.will is not None and not normal
                report = DisconnectReason(reason.code, reason.by, will, reason.error)
                state.observe("on_disconnect", client, report)
            if state.sessions.get(client.client_id) is session:  # otherwise another node has it
                detach(state, session, not normal)
        self._check_drained()

    def load(self, done: Callable[[BaseException | None], None]) -> None:
        """Load the state from the store. Then call `done` with None, or with the StoreError that prevents the broker
        from starting.

        Call it once, before plugins start, so that they find the state in `on_startup`. No hook is called.
        """

        def recovered(error: BaseException | None, orphans: Groups) -> None:
            if error is None:
                self._orphans = orphans
                self.state.writes.schedule()
            done(error)

        recover(self.state, recovered)

    def start(self, done: Callable[[BaseException | None], None]) -> None:
        """Load the state unless `load` has already done so. Then expire sessions, publish wills and run timers that
        came due while the broker was down.

        `done` is called as in `load`. Call this method once the plugins have started.
        """

        def loaded(error: BaseException | None) -> None:
            orphans, self._orphans = self._orphans, None
            if error is None and orphans is not None:
                state = self.state
                begin(state, orphans)
                state.plugin_timers.wake()
                watch_retries(state)
                watch_expiry(state)
                state.writes.schedule()
            done(error)

        if self._orphans is None:
            self.load(loaded)
        else:
            loaded(None)

    def commit(self, done: Callable[[], None]) -> None:
        """Call `done` once everything recorded before this call is committed, or at once if the store has failed."""
        state = self.state
        if state.failed is not None:
            done()
        else:
            state.committer.after_commit(done)
            state.writes.schedule()

    def end(self) -> None:
        """Stop recording changes, and fail all promises that plugins still await. Call this after the last commit,
        before the store is closed.
        """
        self.state.committer.end()
        self.state.promises.fail("the broker has ended")

    def reload(self, settings: Settings, hooks: Hooks) -> None:
        """Continue with new settings and hooks. Clients stay connected and keep the limits that CONNACK announced.
        Discard cached decisions and ask plugins to authorize all subscriptions again."""
        state = self.state
        hooks.bind(state.runtime, _plugin_brokers(state))
        state.use(settings, hooks)
        for connection in self.connections.values():
            connection.use_chains(state.chains(connection.scope.name))
            session = connection.session
            if session is not None and session.connection is connection:
                if not apply_rate_limits(connection, session.client):
                    # A client whose limits are unknown must not continue without limits.
                    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
                    state.runtime.call_soon(partial(connection.disconnect, code, "no limits"))
                session.encoding_version = shared_encoding(connection, session)
        revoke(state, None, None)

    def unready(self) -> str:
        """Return why new clients should use another node of the cluster, or an empty string."""
        return self.state.cluster.unready() if self.state.cluster is not None else ""

    def network_clients(self) -> list[ClientConnection]:
        """Return all connections of listeners, oldest first, excluding plugin clients."""
        return [one for one in self.connections if not isinstance(one, PluginConnection)]

    def disconnect_clients(
        self, clients: Sequence[Disconnectable], code: ReasonCode, reference: str
    ) -> None:
        """Disconnect `clients` with `code` and the server `reference`. Skip connections that have already ended."""
        for connection in clients:
            self.state.guarded(partial(connection.disconnect, code, "", reference))
        self.state.writes.schedule()

    def drain(self, reference: str, done: Callable[[], None]) -> None:
        """Refuse new connections, disconnect every client, commit the remaining changes, then call `done`. If
        `reference` is given, ask clients to use that server."""
        state = self.state
        state.draining = True
        self._drained = done
        code = ReasonCode.USE_ANOTHER_SERVER if reference else ReasonCode.SERVER_SHUTTING_DOWN
        for connection in list(self.connections):
            connection.disconnect(code, "", reference)
        self._check_drained()

    def _check_drained(self) -> None:
        """Finish the drain when the last connection has ended."""
        if self._drained is None or self.connections:
            return
        done, self._drained = self._drained, None
        self.commit(done)


def _plugin_brokers(state: BrokerState) -> Callable[[PluginInstance], BrokerHandle]:
    return partial(PluginBroker, state)
