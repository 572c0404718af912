"""From CONNECT to the decision: is it well made, who is it, may it come in; `attach` then finds its session.

    check -> [AUTH exchange] -> on_connect -> authorize the will -> attach

While a plugin decides, everything the client pipelined is held [MQTT-3.1.4-6] [MQTT311-3.1.4-5].
"""

from functools import partial

from hookmq.broker.attach import find_session, identify, tell_failed, voucher
from hookmq.broker.authenticate import check_method, send_auth
from hookmq.broker.authorizer import authorize
from hookmq.broker.channel import Phase
from hookmq.broker.link import Link
from hookmq.codec import Auth, Connect, Packet
from hookmq.codec.header import legal_headers
from hookmq.errors import ProtocolError
from hookmq.hooks.run import merge_accepts, run_auth, run_connect
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Limits
from hookmq.properties import EMPTY, In
from hookmq.reason import ReasonCode
from hookmq.topics import validate_topic
from hookmq.types import (
    Action,
    ClientInfo,
    Message,
    Will,
)


def on_connect(connection: Link, packet: Packet) -> None:
    """CONNECT, the first packet of a connection."""
    assert isinstance(packet, Connect)
    core = connection.core
    connection.version = packet.version
    connection.legal = legal_headers(packet.version, True)
    properties = packet.properties
    if properties is not EMPTY:
        connection.problem_information = properties.request_problem_information != 0
        connection.max_packet_size = properties.maximum_packet_size or connection.max_packet_size
    connection.connect = packet
    connection.bridge = packet.bridge
    refusal = _check(connection, packet)
    if refusal is not None:
        _refuse(connection, packet, *refusal)
        return
    # Any string will do, of any length and letters [MQTT-3.1.3-5] [MQTT311-3.1.3-5].
    client_id = packet.client_id
    if not client_id:  # [MQTT-3.1.3-6, 3.1.3-7] [MQTT311-3.1.3-6]
        client_id = _unused_id(connection)
        connection.assigned_id = True
    scope = connection.scope
    username = _username(connection, packet)
    if scope.identity and not username:
        _refuse(connection, packet, ReasonCode.NOT_AUTHORIZED, "no client certificate")
        return
    connection.client = _client(connection, packet, client_id, username)
    connection.phase = Phase.DECIDING
    if properties is not EMPTY and properties.authentication_method is not None:
        # [MQTT-4.12.0-6]
        _ask_auth(connection, Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties.only(In.AUTH)))
    else:
        _decide(connection, _NOTHING_FOUND, "")
    if connection.phase is Phase.DECIDING or connection.phase is Phase.CHALLENGED:
        # A deadline again: an authentication exchange may not last for ever either.
        connection.due.cancel()
        connection.due = core.deadlines.after(
            scope.connect_timeout + _slowest(connection), connection.overdue
        )


_NOTHING_FOUND = Accept()
"""What enhanced authentication found of a client that did not ask for it."""
_NO_LIMITS = Limits()


def _refuse(connection: Link, packet: Connect, code: ReasonCode, reason: str) -> None:
    """Refuse a CONNECT before any plugin is asked. Logs and observers learn whose it was."""
    username = _username(connection, packet)
    connection.client = _client(connection, packet, packet.client_id, username)
    connection.refuse(code, reason)


def _client(connection: Link, packet: Connect, client_id: str, username: str | None) -> ClientInfo:
    return ClientInfo(
        client_id,
        packet.version,
        username,
        connection.peer,
        connection.scope,
        packet.clean_start,
        packet.keep_alive,
        connection.core.runtime.time(),
    )


def _username(connection: Link, packet: Connect) -> str | None:
    """The user name that hooks and logs may see: the certificate's identity if the listener takes it from there. None
    if the client has none, or if a plugin says that it is a credential."""
    if connection.scope.identity:
        return _certified(connection) or None
    username = packet.username
    if username is not None and _is_secret(connection, username):
        return None
    return username


def _is_secret(connection: Link, username: str) -> bool:
    """Whether a plugin takes the user name for a credential, which nobody else is to see."""
    for hides in connection.chains.hides_username:
        try:
            if hides(username):
                return True
        except Exception:
            return True
    return False


def _slowest(connection: Link) -> float:
    """Seconds that the plugins may take by their own deadlines; the core does not cut them short."""
    chains = connection.chains
    calls = (*chains.on_auth, *chains.on_connect, *chains.authorize[Action.WILL])
    return sum((call.timeout for call in calls), 0.0)


def _check(connection: Link, packet: Connect) -> tuple[ReasonCode, str] | None:
    """What the core itself has against a CONNECT."""
    core = connection.core
    limits = core.settings.broker
    if packet.version not in connection.scope.versions:
        return ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "this protocol version is off here"
    if core.draining or core.failed is not None:
        return ReasonCode.SERVER_UNAVAILABLE, "shutting down"
    if not packet.client_id and (
        packet.version == 3 or (packet.version == 4 and not packet.clean_start)
    ):
        # [MQTT311-3.1.3-7, 3.1.3-8]; 3.1 knows no empty client id
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "empty client id"
    will = packet.will
    if will is not None:
        if will.qos > limits.max_qos:  # [MQTT-3.2.2-12]
            return ReasonCode.QOS_NOT_SUPPORTED, f"QoS {will.qos} is not offered"
        if will.retain and not limits.retain_available:  # [MQTT-3.2.2-13]
            return ReasonCode.RETAIN_NOT_SUPPORTED, "retained messages are not offered"
        try:
            validate_topic(will.topic, limits.max_topic_levels)
            validate_topic(connection.scope.mount_point + will.topic, limits.max_topic_levels)
        except ProtocolError as error:
            return error.code, error.detail
        if limits.check_payload_format and will.properties.payload_format_indicator == 1:
            try:
                will.payload.decode()
            except UnicodeDecodeError:
                return ReasonCode.PAYLOAD_FORMAT_INVALID, "will payload is not UTF-8"
    known = core.sessions.get(packet.client_id)
    if known is None:
        if len(core.sessions) >= limits.max_sessions:
            return ReasonCode.QUOTA_EXCEEDED, "too many sessions"
        if core.session_bytes + _size(packet) > limits.max_session_bytes:
            return ReasonCode.QUOTA_EXCEEDED, "too many bytes of sessions"
    elif known.connection is not None and limits.second_client == "reject":
        # [MQTT-3.1.3-8] [MQTT311-3.1.3-9]
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id is in use"
    return None


def _size(packet: Connect) -> int:
    """Return the bytes of a CONNECT that its session would hold."""
    size = len(packet.client_id) + len(packet.username or "")
    will = packet.will
    if will is not None:
        size += len(will.topic) + len(will.payload) + will.properties.extent()
    return size


def _unused_id(connection: Link) -> str:
    """A client id that no session has [MQTT-3.2.2-16]."""
    core = connection.core
    while True:
        client_id = "auto-" + core.runtime.token(11)
        if client_id not in core.sessions:
            return client_id


def _certified(connection: Link) -> str:
    """The identity that the listener takes from the client's certificate."""
    certificate = connection.peer.certificate
    if certificate is None:
        return ""
    if connection.scope.identity == "fingerprint":
        return certificate.fingerprint
    if connection.scope.identity == "san":
        return certificate.sans[0] if certificate.sans else ""
    return certificate.common_name


def on_auth(connection: Link, packet: Packet) -> None:
    """AUTH before CONNACK: the client's answer to a challenge [MQTT-4.12.0-3]."""
    assert isinstance(packet, Auth)
    check_method(connection, packet)
    if packet.code != ReasonCode.CONTINUE_AUTHENTICATION:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"AUTH 0x{packet.code:02X} before CONNACK")
    connection.phase = Phase.DECIDING
    _ask_auth(connection, packet)


def _ask_auth(connection: Link, packet: Auth) -> None:
    step = run_auth(
        connection.core.runtime,
        connection.chains.on_auth,
        (connection.client, packet),
        partial(_auth_answered, connection),
    )
    if step is not None:
        connection.wait(step)


def _auth_answered(connection: Link, verdict: Challenge | Accept | Deny | None, by: str) -> None:
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
        _decide(connection, verdict, by)
    elif verdict is None:  # [MQTT-4.12.0-1]
        _deny(connection, Deny(ReasonCode.BAD_AUTHENTICATION_METHOD), by)
    else:
        _deny(connection, verdict, by)  # [MQTT-4.12.0-4]


def _decide(connection: Link, accept: Accept, found_by: str) -> None:
    """Ask `on_connect`; `accept` is what enhanced authentication found, and `found_by` the plugin that did."""
    core = connection.core
    client = connection.client
    assert client is not None
    identify(client, accept)
    authenticated = accept.identity is not None or _method(connection) is not None
    step = run_connect(
        core.runtime,
        connection.chains.on_connect,
        (client, connection.connect),
        authenticated or core.settings.auth.default == "allow",
        partial(_decided, connection, accept, found_by),
    )
    if step is not None:
        connection.wait(step)


def _method(connection: Link) -> str | None:
    connect = connection.connect
    assert isinstance(connect, Connect)
    properties = connect.properties
    return properties.authentication_method if properties is not EMPTY else None


def _decided(
    connection: Link, accept: Accept, found_by: str, verdict: Accept | Deny, by: str
) -> None:
    if connection.phase is Phase.CLOSED:
        return
    if isinstance(verdict, Deny):
        _deny(connection, verdict, by)
        return
    client = connection.client
    assert client is not None
    if accept.identity is not None or (found_by and verdict.identity is None):
        by = found_by
    client.vouched_by = voucher(client, by)
    # What enhanced authentication found stays, as if it had been the first to accept.
    if accept is not _NOTHING_FOUND:
        verdict = merge_accepts(accept, verdict)
    identify(client, verdict)
    limits = verdict.limits or _NO_LIMITS
    connect = connection.connect
    assert isinstance(connect, Connect)
    if connect.will is None:
        find_session(connection, limits, None)
    else:
        _authorize_will(connection, limits)


def _deny(connection: Link, verdict: Deny, by: str) -> None:
    tell_failed(connection, verdict, by)
    connection.refuse(verdict.code, verdict.reason or "", told=True)


def _authorize_will(connection: Link, limits: Limits) -> None:
    """A will that may not be published is refused now, and asked about again when it fires."""
    connect = connection.connect
    client = connection.client
    assert isinstance(connect, Connect)
    assert client is not None
    will = _will(connection, connect, client)

    def decided(verdict: Allow | Deny, by: str) -> None:
        if connection.phase is Phase.CLOSED:
            return
        if isinstance(verdict, Deny):
            connection.core.denied(client, Action.WILL, will.message.topic, verdict.code, by)
            connection.refuse(verdict.code, verdict.reason or "the will is not allowed", told=True)
        elif verdict.max_qos is not None and verdict.max_qos < message.qos:
            # It would be refused when it fires, and nobody told.
            code = ReasonCode.QOS_NOT_SUPPORTED
            connection.core.denied(client, Action.WILL, message.topic, code, by)
            reason = f"a will of QoS above {verdict.max_qos} is not allowed here"
            connection.refuse(code, reason, told=True)
        else:
            find_session(connection, limits, will)

    message = will.message
    step = authorize(
        connection.core,
        client,
        connection.chains,
        None,
        Action.WILL,
        message.topic,
        message.qos,
        message.retain,
        message,
        None,
        decided,
    )
    if step is not None:
        connection.wait(step)


def _will(connection: Link, connect: Connect, client: ClientInfo) -> Will:
    fields = connect.will
    assert fields is not None
    properties = fields.properties
    delay = properties.will_delay_interval or 0
    if properties is not EMPTY:
        properties = properties.only(In.PUBLISH)
    message = Message(
        client.scope.mount_point + fields.topic,
        fields.payload,
        fields.qos,
        fields.retain,  # [MQTT-3.1.2-14, 3.1.2-15] [MQTT311-3.1.2-16, 3.1.2-17]
        properties,
        client.client_id,
        "will",
        connection.core.runtime.time(),
    )
    return Will(message, delay)
