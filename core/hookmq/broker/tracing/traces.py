"""All running traces of a broker. While no trace is running, this module does not change what the broker does."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from hookmq.broker.connection import ClientConnection, Table
from hookmq.broker.connection_state import Phase
from hookmq.broker.state import BrokerState
from hookmq.broker.tracing.connection_tap import ConnectionTap
from hookmq.broker.tracing.running_trace import RunningTrace, shortened
from hookmq.broker.tracing.timed_calls import timed_chains, topic_of
from hookmq.broker.tracing.visit import Visit
from hookmq.hooks.chain import Chains, HookImplementation, any_matches
from hookmq.hooks.instance import KeptState, PluginInstance
from hookmq.hooks.stats import HookStats
from hookmq.hooks.traces import TraceKind, TraceRequest
from hookmq.model.client import ClientInfo
from hookmq.model.errors import PluginError
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import Connect, Packet
from hookmq.mqtt.reason_codes import PacketType, ReasonCode
from hookmq.mqtt.topics import validate_filter

MAX_TRACES: Final = 8
"""Maximum number of traces that run at the same time."""
MAX_CONNECTIONS: Final = 100
"""Maximum number of connections that one trace follows."""
_CONNECT: Final = (Phase.NEW, PacketType.CONNECT)
_SHOWN: Final = 20
"""Maximum number of recipients to list in an event."""
_WATCHED: Final = frozenset(
    {"on_published", "on_denied", "on_auth_failed", "on_subscribed", "on_unsubscribed", "on_session", "on_disconnect"}
)  # fmt: skip
"""Observer hooks that are also reported to traces."""


class Traces:
    """The traces of one broker. `connections` contains all open connections."""

    def __init__(
        self, state: BrokerState, connections: Mapping[ClientConnection, ClientConnection]
    ) -> None:
        self._state = state
        self._connections = connections
        self._running: list[RunningTrace] = []
        self._taps: dict[ClientConnection, ConnectionTap] = {}
        self._refolding: Visit | None = None
        """The running visit that gives every connection its new chains, or None."""
        self._visits: dict[RunningTrace, Visit] = {}
        """The running visits that look for the clients of newly started traces."""
        self._next_on_drop = state.on_drop

    def start(self, instance: PluginInstance, request: TraceRequest) -> RunningTrace:
        """Start a trace for a plugin. The trace ends when the plugin stops. Raises PluginError.

        Connections that open from now on are traced at once. Connections that are already open are visited in slices.
        """
        if len(self._running) >= MAX_TRACES:
            raise PluginError(instance.id, f"{MAX_TRACES} traces are running, which is the limit")
        if request.filter:
            try:
                validate_filter(request.filter, self._state.settings.broker.max_topic_levels)
            except ProtocolError as error:
                raise PluginError(instance.id, f"cannot trace: {error.detail}") from error
        kept = instance.kept
        trace = RunningTrace(self._state.runtime, request, partial(self._ending, kept))
        kept.farewells.append(partial(trace.stop, "the plugin has ended"))
        first = not self._running
        self._running.append(trace)
        if first:
            self._next_on_drop = self._state.on_drop
            self._state.on_drop = self._dropped
            self._state.on_accept = self._accepted
            self._state.wrap_chains = self._wrapped
        self._watch()
        if request.selects_clients:
            visit = Visit(
                self._state.runtime,
                self._connections,
                partial(self._consider, trace),
                partial(self._visits.pop, trace),
            )
            self._visits[trace] = visit
            visit.run()
        else:
            self._refold()
        return trace

    def _ending(self, kept: KeptState, trace: RunningTrace) -> None:
        self._running.remove(trace)
        visit = self._visits.pop(trace, None)
        if visit is not None:
            visit.cancel()
        kept.farewells = [
            one for one in kept.farewells
            if not (isinstance(one, partial) and one.func == trace.stop)
        ]  # fmt: skip
        for connection, tap in tuple(self._taps.items()):
            if trace in tap.traces:
                tap.traces.remove(trace)
            if not tap.traces:
                del self._taps[connection]
                tap.remove()
        if not trace.request.selects_clients:
            self._refold()
        if not self._running:
            state = self._state
            state.on_drop = self._next_on_drop
            state.on_accept = None
            state.wrap_chains = None
        self._watch()

    # connections -------------------------------------------------------------------------------------------------

    def _consider(self, trace: RunningTrace, connection: ClientConnection) -> None:
        """Trace an open connection if the trace selects it. If the client is not known yet, watch for its CONNECT."""
        if connection.in_process or connection.phase is Phase.CLOSED:
            return
        client = connection.client
        if client is None:
            self._accepted(connection)
        elif trace.selects(client.client_id, client.username, connection.peer):
            self._tap(connection, trace)

    def _accepted(self, connection: ClientConnection) -> None:
        """Watch for a connection's CONNECT, which names the client."""
        original = connection.table
        if connection.in_process or isinstance(original[_CONNECT], _Watch):
            return
        connection.table = {**original, _CONNECT: _Watch(self, original)}

    def connecting(self, connection: ClientConnection, packet: Connect) -> None:
        """Trace a connection whose CONNECT has arrived, if a trace selects it."""
        for trace in tuple(self._running):
            if trace.selects(packet.client_id, packet.username, connection.peer):
                self._tap(connection, trace)

    def _tap(self, connection: ClientConnection, trace: RunningTrace) -> None:
        tap = self._taps.get(connection)
        if trace.connections >= MAX_CONNECTIONS or (tap is not None and trace in tap.traces):
            return
        trace.connections += 1
        if tap is not None:
            tap.traces.append(trace)
            return
        tap = self._taps[connection] = ConnectionTap(self._state, connection, self._gone)
        tap.traces.append(trace)
        tap.insert()

    def _gone(self, connection: ClientConnection) -> None:
        tap = self._taps.pop(connection, None)
        for trace in tap.traces if tap is not None else ():
            trace.connections -= 1

    def _wrapped(self, connection: Any, chains: Chains) -> Chains:
        tap = self._taps.get(connection)
        return chains if tap is None else tap.wrapped(chains)

    # the whole broker --------------------------------------------------------------------------------------------

    def _wide(self) -> list[RunningTrace]:
        return [trace for trace in self._running if not trace.request.selects_clients]

    def _refold(self) -> None:
        """Rebuild the chains of all clients, with or without recorded calls. Connections that open from now on get the
        new chains."""
        if self._refolding is not None:
            self._refolding.cancel()
        self._state.hooks.wrap(self._recorded_chains if self._wide() else None)
        self._refolding = Visit(
            self._state.runtime, self._connections, _renew_chains, self._refolded
        )
        self._refolding.run()

    def _refolded(self) -> None:
        """Compile the routes again, because they contain each connection's old calls to `on_deliver`."""
        self._refolding = None
        self._state.router.clear_cache()

    def _recorded_chains(self, chains: Chains) -> Chains:
        found = timed_chains(self._state.runtime, chains, self._called)
        slow = tuple(
            _slow_call(trace.request.filter) for trace in self._wide() if trace.request.filter
        )
        found.on_publish = slow + found.on_publish
        return found

    def _called(
        self, call: HookImplementation, args: tuple[Any, ...], fields: dict[str, object]
    ) -> None:
        if call.hook == "authorize":
            fields["action"] = str(args[1])
        fields["plugin"] = call.plugin_id
        client: ClientInfo | None = args[0]
        client_id = client.client_id if client is not None else None
        topic = topic_of(call, args)
        for trace in self._wide():
            if trace.wants(TraceKind.HOOK, topic, call.plugin_id) and trace.take():
                trace.add(TraceKind.HOOK, call.hook, client_id, topic, fields)

    # events of observer hooks --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Report observers' events to the running traces, if any. This is also called after a reload."""
        state = self._state
        state.watch(self._observed if self._running else None, _WATCHED, self._watch)

    def _concerned(self, *client_ids: str | None) -> list[RunningTrace]:
        """Return the traces of the whole broker and the traces of these clients."""
        found = self._wide()
        for client_id in client_ids:
            session = self._state.sessions.get(client_id) if client_id is not None else None
            connection: Any = session.connection if session is not None else None
            tap = self._taps.get(connection)
            if tap is not None:
                found += [trace for trace in tap.traces if trace not in found]
        return found

    def _observed(self, hook: str, client: ClientInfo | None, args: tuple[Any, ...]) -> None:
        client_id = client.client_id if client is not None else None
        traces = self._concerned(client_id)
        if not traces:
            return
        kind, topic, fields = TraceKind.EVENT, None, {}
        if hook == "on_published":
            message, matched = args
            kind, topic = TraceKind.ROUTE, message.topic
            fields = self._route_fields(message, matched)
            hook = "published"
        elif hook == "on_denied":
            action, topic, code, rule = args
            fields = {"action": str(action), "code": int(code), "rule": rule}
        elif hook == "on_auth_failed":
            fields = {"code": int(args[0]), "reason": args[1]}
        else:
            for one in args:
                if isinstance(one, Subscription):
                    topic = one.topic_filter
                    fields = {"filter": one.filter, "qos": one.qos}
                elif hook == "on_session":
                    fields = {"event": str(one)}
                elif isinstance(one, ReasonCode):
                    fields["code"] = int(one)
        for trace in traces:
            if trace.wants(kind, topic, "") and trace.take():
                trace.add(kind, hook, client_id, topic, fields)

    def _route_fields(self, message: Message, matched: int) -> dict[str, Any]:
        route = self._state.router.lookup(message.topic)
        recipients = [
            {
                "client_id": one.session.client_id,
                "filter": shortened(one.subscription.filter),
                "qos": min(one.qos, message.qos),
                "online": one.session.connection is not None,
            }
            for one in route.recipients[:_SHOWN]
        ]
        groups = [
            shortened(f"$share/{one.share}/{one.topic_filter}") for one in route.groups[:_SHOWN]
        ]
        return {
            "matched": matched,
            "qos": message.qos,
            "retain": message.retain,
            "origin": message.origin,
            "payload_bytes": len(message.payload),
            "recipients": recipients,
            "groups": groups,
            "journals": [one.name for one in route.journals],
        }

    def _dropped(
        self,
        message: Message | None,
        client: ClientInfo | None,
        reason: DropReason,
        direction: Direction,
        detail: str,
    ) -> None:
        if self._next_on_drop is not None:
            self._next_on_drop(message, client, reason, direction, detail)
        client_id = client.client_id if client is not None else None
        sender = message.sender if message is not None else None
        topic = message.topic if message is not None else None
        fields = {"direction": str(direction), "detail": detail, "sender": sender}
        for trace in self._concerned(client_id, sender):
            if trace.wants(TraceKind.DROP, topic, "") and trace.take():
                trace.add(TraceKind.DROP, str(reason), client_id, topic, fields)


class _Watch:
    """Handles the CONNECT of a connection while traces are running."""

    def __init__(self, traces: Traces, table: Table) -> None:
        self._traces = traces
        self._table = table

    def __call__(self, connection: ClientConnection, packet: Packet) -> None:
        connection.table = self._table
        assert isinstance(packet, Connect)
        self._traces.connecting(connection, packet)
        connection.table[_CONNECT](connection, packet)


def _renew_chains(connection: ClientConnection) -> None:
    connection.rechain()
    connection.forget_decisions()  # cached publishes contain the calls of the old chains


def _slow_call(filter: str) -> HookImplementation:
    """Return a call that does nothing. It keeps topics that match `filter` off the fast path, which does not report
    routes.
    """
    return HookImplementation(
        "",  # no plugin, so that the call is not recorded
        "on_publish",
        _abstain,
        stats=HookStats("", "on_publish"),
        is_async=True,
        topic=any_matches((filter,)),
    )


def _abstain(client: object, message: object) -> None:
    pass
