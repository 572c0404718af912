"""Trace a connection: its packets in both directions, and hook calls about it.

A tap replaces the connection's handlers, transport and chains, and turns the fast path off for this connection. Other
connections are not affected. `remove` restores everything.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from hookmq.broker.connection import ClientConnection, Handler
from hookmq.broker.connection_state import Phase
from hookmq.broker.state import BrokerState
from hookmq.broker.tracing.packet_fields import packet_fields
from hookmq.broker.tracing.running_trace import RunningTrace
from hookmq.broker.tracing.timed_calls import timed_chains, topic_of
from hookmq.hooks.chain import Chains, HookImplementation
from hookmq.hooks.traces import TraceKind
from hookmq.model.events import DisconnectReason
from hookmq.model.runtime import Wire
from hookmq.mqtt.decoder import decode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import frame
from hookmq.mqtt.packets import Connack, Connect, Packet, Publish
from hookmq.mqtt.reason_codes import PacketType


class ConnectionTap:
    """Records what happens on one connection for one or more traces."""

    def __init__(
        self,
        state: BrokerState,
        connection: ClientConnection,
        ended: Callable[[ClientConnection], None],
    ) -> None:
        self.connection = connection
        self.traces: list[RunningTrace] = []
        self._state = state
        self._ended = ended
        self._named: str | None = None
        self._aliases: dict[int, str] = {}
        self._table = connection.table
        self._wire = connection.wire
        self._on_end = connection.on_end

    def insert(self) -> None:
        """Start recording."""
        connection = self.connection
        connection.shortcuts = False
        connection.forget_decisions()
        connection.table = {
            key: partial(self._handle, handler) for key, handler in self._table.items()
        }
        connection.wire = TapWire(self._wire, self)
        connection.on_end = self._end
        self._use_chains()

    def remove(self) -> None:
        """Stop recording, and restore the connection."""
        connection = self.connection
        connection.table = self._table
        connection.wire = self._wire
        connection.on_end = self._on_end
        connection.shortcuts = self._state.shortcuts
        connection.forget_decisions()  # cached publishes contain recorded calls
        self._use_chains()

    def wrapped(self, chains: Chains) -> Chains:
        """Return a copy of `chains` whose calls are recorded."""
        return timed_chains(self._state.runtime, chains, self._called)

    def record(
        self,
        kind: TraceKind,
        name: str,
        topic: str | None,
        fields: Callable[[bool], dict[str, object]],
        plugin: str = "",
    ) -> None:
        """Add an event to the traces that want it. `fields` is called with True if payloads are wanted."""
        client = self.connection.client
        client_id = client.client_id if client is not None else self._named
        for trace in tuple(self.traces):
            if trace.wants(kind, topic, plugin) and trace.take():
                trace.add(kind, name, client_id, topic, fields(trace.request.payloads))

    def _use_chains(self) -> None:
        """Look up the chains. They record calls only while the tap is inserted."""
        connection = self.connection
        connection.use_chains(self._state.chains(connection.scope.name))
        self._reroute()

    def _reroute(self) -> None:
        """Compile the routes to the client again, because they contain the client's calls to `on_deliver`."""
        session = self.connection.session
        if session is not None and self.connection.delivers:
            self._state.reroute(session)

    def _called(
        self, call: HookImplementation, args: tuple[Any, ...], fields: dict[str, object]
    ) -> None:
        if call.hook == "authorize":
            fields["action"] = str(args[1])
        fields["plugin"] = call.plugin_id
        topic = topic_of(call, args)
        self.record(TraceKind.HOOK, call.hook, topic, lambda _: fields, call.plugin_id)

    def _handle(self, handler: Handler, connection: ClientConnection, packet: Packet) -> None:
        self.received(packet)
        try:
            handler(connection, packet)
        except ProtocolError as error:
            fields = {"code": int(error.code), "detail": error.detail}
            self.record(TraceKind.EVENT, "protocol_error", None, lambda _: fields)
            raise

    def received(self, packet: Packet) -> None:
        """Record a packet from the client."""
        topic: str | None = None
        if isinstance(packet, Publish):
            topic = packet.topic
            if not topic and packet.properties.topic_alias is not None:
                aliases = self.connection.inbound_aliases or {}
                topic = aliases.get(packet.properties.topic_alias, "")
            topic = self.connection.scope.mount_point + topic
        name = type(packet).__name__.upper()
        more: dict[str, object] = {"bytes": self.connection.size}
        if isinstance(packet, Connect):
            more["peer"] = str(self.connection.peer)
            self._named = packet.client_id
        self.record(TraceKind.RECEIVED, name, topic, lambda p: {**packet_fields(packet, p), **more})

    def sent(self, data: bytes) -> None:
        """Record the packets that are written to the client. The packets of a relayed client are traced by the node that
        sends them, because they may arrive here in pieces.
        """
        if self.connection.phase is Phase.RELAYED:
            return
        pos = 0
        while pos < len(data):
            framed = frame(data, pos)
            if framed is None or framed[1] > len(data):
                return
            body, after = framed
            self._sent_packet(data[pos], data[body:after], after - pos)
            pos = after

    def _sent_packet(self, header: int, body: bytes, size: int) -> None:
        version = self.connection.version or 5
        kind = header >> 4
        name = PacketType(kind).name if kind else "?"
        topic: str | None = None
        packet: Packet | None = None
        try:
            packet = decode(header, body, version, server=False)
        except ProtocolError:
            pass  # a packet within limits that are not those of a client
        if isinstance(packet, Publish):
            alias = packet.properties.topic_alias
            topic = packet.topic
            if alias is not None:
                if topic:
                    self._aliases[alias] = topic
                else:
                    topic = self._aliases.get(alias, "")
            topic = self.connection.scope.mount_point + topic
        found = packet
        self.record(
            TraceKind.SENT,
            name,
            topic,
            lambda p: {**(packet_fields(found, p) if found is not None else {}), "bytes": size},
        )
        if isinstance(packet, Connack):
            self._state.runtime.call_soon(self._reroute)  # the session is open then

    def _end(self, connection: ClientConnection, reason: DisconnectReason) -> None:
        fields: dict[str, object] = {
            "code": int(reason.code), "by": reason.by.value, "reason": reason.error,
        }  # fmt: skip
        self.record(TraceKind.EVENT, "closed", None, lambda _: fields)
        self._ended(connection)
        self._on_end(connection, reason)


class TapWire:
    """A transport that records the data written to it, and passes it on."""

    def __init__(self, wire: Wire, tap: ConnectionTap) -> None:
        self._wire = wire
        self._tap = tap
        self.close = wire.close
        self.abort = wire.abort
        self.pause_reading = wire.pause_reading
        self.resume_reading = wire.resume_reading

    def write(self, data: bytes) -> None:
        """Send `data`."""
        self._tap.sent(data)
        self._wire.write(data)
