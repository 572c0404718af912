"""The calls that plugins use to open clients in the broker's process, and to test credentials."""

from collections.abc import Awaitable
from functools import partial

from hookmq.broker.handlers.connect import visible_username
from hookmq.broker.plugin_api.base import HandleBase
from hookmq.broker.plugin_api.decisions import Decided, Explained, Survey
from hookmq.broker.plugin_client import PluginClient
from hookmq.broker.plugin_connection import PluginConnection
from hookmq.hooks.call import own_notes, run_connect
from hookmq.hooks.chain import Calls
from hookmq.hooks.clients import ClientHandle, ClientRequest
from hookmq.hooks.verdicts import Accept, Deny
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.errors import ConnectRefused, PluginError
from hookmq.model.events import DisconnectReason
from hookmq.model.message import Will
from hookmq.model.runtime import Promise
from hookmq.mqtt.connect_packet import decode_connect, encode_connect
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import Connect, WillFields
from hookmq.mqtt.reason_codes import PacketType, clamp
from hookmq.mqtt.topics import validate_topic


class Clients(HandleBase):
    """The methods of a plugin's handle that connect plugin clients."""

    __slots__ = ()

    def connect(self, request: ClientRequest) -> Awaitable[ClientHandle]:
        """Connect a client in a later turn. Awaiting raises ConnectRefused."""
        self._only_on_loop("connect()")
        if self._instance.kept.left:
            raise PluginError(self._plugin, "cannot connect: the plugin has ended")
        packet = self._connect_packet(request)
        name = request.listener or self._plugin
        scope = Scope(name, request.mount_point, frozenset({5}))
        peer = request.peer or Peer("", 0, "plugin")
        state = self._state
        result = self._promise()
        connection: PluginConnection = state.open_client(self._instance, peer, scope)
        if request.accept is not None:
            connection.admitted = own_notes(request.accept, self._plugin)
        connection.on_accepted = partial(self._client_accepted, connection, result)
        connection.on_over = partial(self._client_refused, result)
        state.runtime.call_soon(partial(connection.start, packet))
        return result

    def explain_connect(self, request: ClientRequest) -> Awaitable[Explained]:
        """Ask each plugin separately, in a later turn, whether that plugin would accept a client."""
        self._only_on_loop("explain_connect()")
        packet = self._connect_packet(request)
        return self._result_of(partial(self._explain_connect, request, packet))

    def _explain_connect(self, request: ClientRequest, packet: Connect, result: Promise) -> None:
        state = self._state
        scope = Scope(request.listener or self._plugin, request.mount_point, frozenset({5}))
        chains = state.chains(scope.name)
        client = ClientInfo(
            packet.client_id, 5, visible_username(chains, packet.username),
            request.peer or Peer("", 0, "plugin"), scope, packet.clean_start,
            connected_at=state.runtime.time(),
        )  # fmt: skip
        allows = state.settings.auth.default == "allow"

        def ask(call: Calls, decided: Decided) -> object:
            return run_connect(state.runtime, call, (client, packet), True, decided)

        default = Accept() if allows else Deny()
        Survey(chains.on_connect, default, partial(self._give, result)).run(ask)

    def _client_accepted(self, connection: PluginConnection, result: Promise) -> None:
        connection.on_over = None
        if result.done():
            # The caller has stopped waiting, so nobody would ever end this client.
            self._state.runtime.call_soon(
                partial(connection.closed, "nobody waited for the client")
            )
        else:
            result.set_result(PluginClient(connection))

    def _client_refused(self, result: Promise, over: DisconnectReason) -> None:
        if not result.done():
            code = clamp(PacketType.CONNACK, over.code)
            result.set_exception(ConnectRefused(self._plugin, code, over.error))

    def _connect_packet(self, request: ClientRequest) -> Connect:
        """Return the CONNECT for `request`, with the same checks as for a received CONNECT."""
        if not isinstance(request, ClientRequest):
            raise self._cannot_connect(f"{type(request).__name__} is not a ClientRequest")
        properties = request.properties
        if not isinstance(request.accept, Accept | None):
            raise self._cannot_connect(f"accept is {type(request.accept).__name__}, not Accept")
        try:
            if properties.authentication_method is not None:
                raise self._cannot_connect("a plugin client does not answer challenges")
            if request.mount_point:
                validate_topic(request.mount_point, self._state.settings.broker.max_topic_levels)
            expiry, receive = request.session_expiry, request.receive_maximum
            properties = properties.replace(
                session_expiry_interval=expiry or None,
                receive_maximum=None if receive == 65535 else receive,
                topic_alias_maximum=None,
            )
            will = None if request.will is None else _will_fields(request.will)
            packet = Connect(
                request.client_id, 5, bool(request.clean_start), 0, request.username,
                request.password, will, False, properties,
            )  # fmt: skip
            return decode_connect(encode_connect(packet), self._state.limits)
        except (ProtocolError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise self._cannot_connect(str(error)) from error

    def _cannot_connect(self, why: str) -> PluginError:
        return PluginError(self._plugin, f"cannot connect: {why}")


def _will_fields(will: Will) -> WillFields:
    message = will.message
    properties = message.properties.replace(will_delay_interval=will.delay or None)
    return WillFields(message.topic, message.payload, message.qos, message.retain, properties)
