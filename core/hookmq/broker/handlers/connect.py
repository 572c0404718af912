"""Handle CONNECT until the client is accepted or refused. Then `session_open` opens its session.

    check -> [locate] -> [AUTH exchange] -> on_connect -> authorize the will -> open_session

While a plugin decides, further packets from the client are held [MQTT-3.1.4-6] [MQTT311-3.1.4-5].
"""

from functools import partial

from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.broker.handlers.auth import check_method, send_auth
from hookmq.broker.handlers.established import client_of, connect_of
from hookmq.broker.handlers.locate import locate
from hookmq.broker.handlers.session_open import identify, open_session, report_failed
from hookmq.broker.handlers.session_owner import id_in_use, voucher
from hookmq.broker.publish.authorize import authorize
from hookmq.hooks.call import merge_accepts, run_auth, run_connect
from hookmq.hooks.chain import Chains
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Limits
from hookmq.model.client import ClientInfo
from hookmq.model.events import Action, DisconnectReason, EndedBy
from hookmq.model.message import Message, Will
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import legal_headers
from hookmq.mqtt.packets import Auth, Connect, Disconnect, Packet, WillFields
from hookmq.mqtt.properties import EMPTY, In
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import validate_topic

_NOTHING_FOUND = Accept()
"""The result of enhanced authentication for clients that do not use it."""
_NO_LIMITS = Limits()


def on_connect(connection: ClientConnection, packet: Packet) -> None:
    """Handle CONNECT, the first packet of a connection."""
    assert isinstance(packet, Connect)
    state = connection.state
    connection.version = packet.version
    connection.legal = legal_headers(packet.version, True)
    properties = packet.properties
    if properties is not EMPTY:
        connection.problem_information = properties.request_problem_information != 0
        connection.max_packet_size = properties.maximum_packet_size or connection.max_packet_size
    connection.connect = packet
    connection.bridge = packet.bridge
    username = _username(connection, packet)
    connection.client = client = ClientInfo(
        packet.client_id,
        packet.version,
        username,
        connection.peer,
        connection.scope,
        packet.clean_start,
        packet.keep_alive,
        state.runtime.time(),
    )
    try:
        _check(connection, packet, username)
    except ProtocolError as error:
        connection.refuse(error.code, error.detail)
        return
    # Any string is a valid client id, regardless of its length and characters [MQTT-3.1.3-5] [MQTT311-3.1.3-5].
    if not packet.client_id:  # [MQTT-3.1.3-6, 3.1.3-7] [MQTT311-3.1.3-6]
        client.client_id = _unused_id(connection)
        connection.assigned_id = True
    connection.phase = Phase.DECIDING
    if connection.assigned_id or client.client_id in state.sessions:
        here = True
    else:
        here = locate(
            connection, client.client_id, partial(_authenticate, connection, client, packet)
        )
    if here:
        connection.relay = None
        _authenticate(connection, client, packet)


def _authenticate(connection: ClientConnection, client: ClientInfo, packet: Connect) -> None:
    """Let plugins decide on a client whose session is not on another node."""
    properties = packet.properties
    if properties is not EMPTY and properties.authentication_method is not None:
        # [MQTT-4.12.0-6]
        auth = Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties.only(In.AUTH))
        _ask_auth(connection, client, auth)
    else:
        _decide(connection, client, _NOTHING_FOUND, "")
    if connection.phase is Phase.DECIDING or connection.phase is Phase.CHALLENGED:
        # Restart the deadline: an authentication exchange must not last forever either.
        connection.due.cancel()
        limit = connection.scope.connect_timeout + _plugin_timeouts(connection)
        connection.due = connection.state.deadlines.after(limit, connection.overdue)


def _username(connection: ClientConnection, packet: Connect) -> str | None:
    """Return the user name that hooks and logs may see. The listener may take it from the certificate. Return None if
    the client has no user name, or if a plugin hides it as a credential."""
    if connection.scope.identity:
        return _certified(connection) or None
    return visible_username(connection.chains, packet.username)


def visible_username(chains: Chains, username: str | None) -> str | None:
    """Return a user name, or None if a plugin hides it as a credential."""
    if username is not None:
        for hides in chains.hides_username:
            try:
                if hides(username):
                    return None
            except Exception:
                return None
    return username


def _certified(connection: ClientConnection) -> str:
    """Return the identity that the listener reads from the client's certificate."""
    certificate = connection.peer.certificate
    if certificate is None:
        return ""
    if connection.scope.identity == "fingerprint":
        return certificate.fingerprint
    if connection.scope.identity == "san":
        return certificate.sans[0] if certificate.sans else ""
    return certificate.common_name


def _plugin_timeouts(connection: ClientConnection) -> float:
    """Return the total time in seconds that the plugins' own deadlines allow."""
    chains = connection.chains
    calls = (*chains.on_auth, *chains.on_connect, *chains.authorize[Action.WILL])
    return sum((call.timeout for call in calls), 0.0)


def _check(connection: ClientConnection, packet: Connect, username: str | None) -> None:
    """Raise ProtocolError if the broker itself refuses the CONNECT."""
    state = connection.state
    limits = state.settings.broker
    if packet.version not in connection.scope.versions:
        raise ProtocolError(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "this listener does not accept this version"
        )
    if state.draining or state.failed is not None:
        raise ProtocolError(ReasonCode.SERVER_UNAVAILABLE, "shutting down")
    if not packet.client_id and (
        packet.version == 3 or (packet.version == 4 and not packet.clean_start)
    ):
        # [MQTT311-3.1.3-7, 3.1.3-8]; MQTT 3.1 does not allow an empty client id at all
        raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "empty client id")
    if packet.will is not None:
        _check_will(connection, packet.will)
    known = state.sessions.get(packet.client_id)
    if known is not None:
        if id_in_use(state, known):
            raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id is in use")
    elif len(state.sessions) >= limits.max_sessions:
        raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "too many sessions")
    elif state.session_bytes + _size(packet) > limits.max_session_bytes:
        raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "too many bytes of sessions")
    if connection.scope.identity and not username:
        raise ProtocolError(ReasonCode.NOT_AUTHORIZED, "no client certificate")


def _check_will(connection: ClientConnection, will: WillFields) -> None:
    limits = connection.state.settings.broker
    if will.qos > limits.max_qos:  # [MQTT-3.2.2-12]
        raise ProtocolError(ReasonCode.QOS_NOT_SUPPORTED, f"QoS {will.qos} is not offered")
    if will.retain and not limits.retain_available:  # [MQTT-3.2.2-13]
        raise ProtocolError(ReasonCode.RETAIN_NOT_SUPPORTED, "retained messages are not offered")
    validate_topic(will.topic, limits.max_topic_levels)
    validate_topic(connection.scope.mount_point + will.topic, limits.max_topic_levels)
    if limits.check_payload_format and will.properties.payload_format_indicator == 1:
        try:
            will.payload.decode()
        except UnicodeDecodeError:
            raise ProtocolError(
                ReasonCode.PAYLOAD_FORMAT_INVALID, "will payload is not UTF-8"
            ) from None


def _size(packet: Connect) -> int:
    """Return how many bytes of a CONNECT the session would keep."""
    size = len(packet.client_id) + len(packet.username or "")
    will = packet.will
    if will is not None:
        size += len(will.topic) + len(will.payload) + will.properties.extent()
    return size


def _unused_id(connection: ClientConnection) -> str:
    """Return a client id that no session uses [MQTT-3.2.2-16]."""
    state = connection.state
    while True:
        client_id = "auto-" + state.runtime.token(11)
        if client_id not in state.sessions:
            return client_id


def on_early_disconnect(connection: ClientConnection, packet: Packet) -> None:
    """Handle a DISCONNECT sent instead of a response to a challenge."""
    assert isinstance(packet, Disconnect)
    connection.end(DisconnectReason(ReasonCode(packet.code), EndedBy.CLIENT))


def on_auth(connection: ClientConnection, packet: Packet) -> None:
    """Handle AUTH before CONNACK: the response to a challenge [MQTT-4.12.0-3]."""
    assert isinstance(packet, Auth)
    check_method(connection, packet)
    if packet.code != ReasonCode.CONTINUE_AUTHENTICATION:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"AUTH 0x{packet.code:02X} before CONNACK")
    connection.phase = Phase.DECIDING
    _ask_auth(connection, client_of(connection), packet)


def _ask_auth(connection: ClientConnection, client: ClientInfo, packet: Auth) -> None:
    step = run_auth(
        connection.state.runtime,
        connection.chains.on_auth,
        (client, packet),
        partial(_auth_answered, connection, client),
    )
    if step is not None:
        connection.wait(step)


def _auth_answered(
    connection: ClientConnection,
    client: ClientInfo,
    verdict: Challenge | Accept | Deny | None,
    by: str,
) -> None:
    waited = connection.waiting
    if connection.phase is Phase.CLOSED:
        return
    if isinstance(verdict, Challenge):
        connection.phase = Phase.CHALLENGED
        send_auth(connection, ReasonCode.CONTINUE_AUTHENTICATION, verdict.data)
        if waited:
            connection.go_on()
    elif isinstance(verdict, Accept):
        connection.authentication_data = verdict.data
        _decide(connection, client, verdict, by)
    else:  # [MQTT-4.12.0-1, 4.12.0-4]
        denied = verdict or Deny(ReasonCode.BAD_AUTHENTICATION_METHOD)
        _deny(connection, client, denied, by)


def _decide(connection: ClientConnection, client: ClientInfo, accept: Accept, by: str) -> None:
    """Call the `on_connect` chain. `accept` is the result of enhanced authentication, and `by` the plugin that returned
    it."""
    state = connection.state
    connect = connect_of(connection)
    own = connection.own_admission()
    if own is not None:
        _decided(connection, client, connect, accept, by, own[0], own[1])
        return
    identify(client, accept)
    authenticated = accept is not _NOTHING_FOUND
    step = run_connect(
        state.runtime,
        connection.chains.on_connect,
        (client, connect),
        authenticated or state.settings.auth.default == "allow",
        partial(_decided, connection, client, connect, accept, by),
    )
    if step is not None:
        connection.wait(step)


def _decided(
    connection: ClientConnection,
    client: ClientInfo,
    connect: Connect,
    accept: Accept,
    found_by: str,
    verdict: Accept | Deny,
    by: str,
) -> None:
    if connection.phase is Phase.CLOSED:
        return
    if isinstance(verdict, Deny):
        _deny(connection, client, verdict, by)
        return
    if accept.identity is not None or (found_by and verdict.identity is None):
        by = found_by
    client.vouched_by = voucher(client, by)
    # The result of enhanced authentication takes precedence, as if its plugin had accepted first.
    if accept is not _NOTHING_FOUND:
        verdict = merge_accepts(accept, verdict)
    identify(client, verdict)
    limits = verdict.limits or _NO_LIMITS
    if connect.will is None:
        open_session(connection, client, connect, limits, None)
    else:
        will = _make_will(connection, client, connect.will)
        _authorize_will(connection, client, connect, limits, will)


def _deny(connection: ClientConnection, client: ClientInfo, verdict: Deny, by: str) -> None:
    report_failed(connection, client, verdict, by)
    connection.refuse(verdict.code, verdict.reason or "", told=True)


def _authorize_will(
    connection: ClientConnection, client: ClientInfo, connect: Connect, limits: Limits, will: Will
) -> None:
    """Refuse a client whose will may not be published. The will is authorized again when it is published."""
    message = will.message

    def decided(verdict: Allow | Deny, by: str) -> None:
        if connection.phase is Phase.CLOSED:
            return
        if isinstance(verdict, Deny):
            code, reason = verdict.code, verdict.reason or "the will is not allowed"
        elif verdict.max_qos is not None and verdict.max_qos < message.qos:
            # It would be refused at publication, when it is too late to notify the client.
            code = ReasonCode.QOS_NOT_SUPPORTED
            reason = f"a will of QoS above {verdict.max_qos} is not allowed here"
        else:
            open_session(connection, client, connect, limits, will)
            return
        connection.state.denied(client, Action.WILL, message.topic, code, by)
        connection.refuse(code, reason, told=True)

    step = authorize(
        connection.state, client, connection.chains, None,
        Action.WILL, message.topic, message.qos, message.retain, message, None, decided,
    )  # fmt: skip
    if step is not None:
        connection.wait(step)


def _make_will(connection: ClientConnection, client: ClientInfo, fields: WillFields) -> Will:
    properties = fields.properties
    message = Message(
        client.scope.mount_point + fields.topic,
        fields.payload,
        fields.qos,
        fields.retain,  # [MQTT-3.1.2-14, 3.1.2-15] [MQTT311-3.1.2-16, 3.1.2-17]
        properties.only(In.PUBLISH) if properties is not EMPTY else properties,
        client.client_id,
        "will",
        connection.state.runtime.time(),
    )
    return Will(message, properties.will_delay_interval or 0)
