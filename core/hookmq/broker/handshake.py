"""From CONNECT to CONNACK: who is it, may it come in, which session is its own.

    check -> [AUTH exchange] -> on_connect -> authorize the will -> take over or resume or create -> commit -> CONNACK

While a plugin decides, everything the client pipelined is held [MQTT-3.1.4-6].
"""

from collections import deque
from dataclasses import replace
from functools import partial
from math import inf

from hookmq.broker.authorizer import authorize
from hookmq.broker.connection import Connection, Phase
from hookmq.broker.deliver import pump, settle_state
from hookmq.broker.revoke import revoke
from hookmq.broker.sessions import (
    create,
    end,
    expired,
    record,
    set_will,
)
from hookmq.codec import Auth, Connack, Connect, Packet, encode
from hookmq.codec.header import legal_headers
from hookmq.errors import ProtocolError
from hookmq.hooks.run import run_auth, run_connect
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Limits
from hookmq.properties import EMPTY, In, Properties
from hookmq.reason import ReasonCode
from hookmq.session import BEHIND, CLEAN, Session
from hookmq.topics import validate_topic
from hookmq.types import (
    Action,
    ClientInfo,
    EndedBy,
    Message,
    SessionEvent,
    Will,
)

FOREVER = 0xFFFFFFFF
"""A session expiry interval that never ends."""
_WINDOW = 60.0


def on_connect(connection: Connection, packet: Packet) -> None:
    """CONNECT, the first packet of a connection."""
    assert isinstance(packet, Connect)
    core = connection.core
    connection.version = packet.version
    connection.legal = legal_headers(packet.version, True)
    connection.due.cancel()
    properties = packet.properties
    connection.problem_information = properties.request_problem_information != 0
    connection.max_packet_size = properties.maximum_packet_size or connection.max_packet_size
    connection.connect = packet
    connection.bridge = packet.bridge
    refusal = _check(connection, packet)
    if refusal is not None:
        connection.refuse(*refusal)
        return
    client_id = packet.client_id
    if not client_id:  # [MQTT-3.1.3-6, 3.1.3-7]
        client_id = _unused_id(connection)
        connection.assigned_id = True
    username = packet.username
    scope = connection.scope
    if scope.identity:
        username = _certified(connection)
        if not username:
            connection.refuse(ReasonCode.NOT_AUTHORIZED, "no client certificate")
            return
    connection.client = ClientInfo(
        client_id,
        packet.version,
        username,
        connection.peer,
        scope,
        packet.clean_start,
        packet.keep_alive,
        core.runtime.time(),
    )
    connection.phase = Phase.DECIDING
    # A deadline again: an authentication exchange may not last for ever either.
    connection.due = core.deadlines.after(
        scope.connect_timeout + _slowest(connection), partial(_too_slow, connection)
    )
    if properties.authentication_method is not None:
        _ask_auth(connection, Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties.only(In.AUTH)))
    else:
        _decide(connection, Accept())


def _slowest(connection: Connection) -> float:
    """Seconds that the plugins may take by their own deadlines; the core does not cut them short."""
    chains = connection.chains
    return sum(call.timeout for call in (*chains.on_auth, *chains.on_connect)) + sum(
        call.timeout for call in chains.authorize[Action.WILL]
    )


def _too_slow(connection: Connection) -> None:
    if connection.phase in (Phase.DECIDING, Phase.CHALLENGED):
        connection.refuse(ReasonCode.SERVER_UNAVAILABLE, "took too long to connect")


def _check(connection: Connection, packet: Connect) -> tuple[ReasonCode, str] | None:
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
    elif known.connection is not None and limits.second_client == "reject":
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id is in use"
    return None


def _unused_id(connection: Connection) -> str:
    """A client id that no session has [MQTT-3.2.2-16]."""
    core = connection.core
    while True:
        client_id = "auto-" + core.runtime.token(11)
        if client_id not in core.sessions:
            return client_id


def _certified(connection: Connection) -> str:
    """The identity that the listener takes from the client's certificate."""
    certificate = connection.peer.certificate
    if certificate is None:
        return ""
    if connection.scope.identity == "fingerprint":
        return certificate.fingerprint
    if connection.scope.identity == "san":
        return certificate.sans[0] if certificate.sans else ""
    return certificate.common_name


# --- enhanced authentication --------------------------------------------------------------------------------------------


def on_auth(connection: Connection, packet: Packet) -> None:
    """AUTH before CONNACK: the client's answer to a challenge [MQTT-4.12.0-3]."""
    assert isinstance(packet, Auth)
    _check_method(connection, packet)
    if packet.code != ReasonCode.CONTINUE_AUTHENTICATION:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"AUTH 0x{packet.code:02X} before CONNACK")
    connection.phase = Phase.DECIDING
    _ask_auth(connection, packet)


def _check_method(connection: Connection, packet: Auth) -> None:
    connect = connection.connect
    assert isinstance(connect, Connect)
    method = connect.properties.authentication_method
    if method is None:  # [MQTT-4.12.0-7]
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH without a method in CONNECT")
    if packet.properties.authentication_method != method:  # [MQTT-4.12.0-5, 4.12.1-1]
        raise ProtocolError(
            ReasonCode.PROTOCOL_ERROR, "another authentication method than in CONNECT"
        )


def _ask_auth(connection: Connection, packet: Auth) -> None:
    step = run_auth(
        connection.core.runtime,
        connection.chains.on_auth,
        (connection.client, packet),
        partial(_auth_answered, connection),
    )
    if step is not None:
        connection.wait(step)


def _auth_answered(
    connection: Connection, verdict: Challenge | Accept | Deny | None, by: str
) -> None:
    waited = connection.waiting
    if connection.phase is Phase.CLOSED:
        return
    if isinstance(verdict, Challenge):
        connection.phase = Phase.CHALLENGED
        connection.send(_auth_packet(connection, ReasonCode.CONTINUE_AUTHENTICATION, verdict.data))
        if waited:
            connection.go_on()
    elif isinstance(verdict, Accept):
        _decide(connection, verdict)
    elif verdict is None:  # [MQTT-4.12.0-1]
        _deny(connection, Deny(ReasonCode.BAD_AUTHENTICATION_METHOD), by)
    else:
        _deny(connection, verdict, by)  # [MQTT-4.12.0-4]


def _auth_packet(connection: Connection, code: ReasonCode, data: bytes = b"") -> bytes:
    """AUTH of ours [MQTT-4.12.0-2, 4.12.0-5]."""
    connect = connection.connect
    assert isinstance(connect, Connect)
    properties = Properties(
        authentication_method=connect.properties.authentication_method,
        authentication_data=data or None,
    )
    return encode(Auth(code, properties), 5)


def on_re_auth(connection: Connection, packet: Packet) -> None:
    """AUTH on an open connection: re-authentication, while other traffic goes on [MQTT-4.12.1-1]."""
    assert isinstance(packet, Auth)
    _check_method(connection, packet)
    begun = connection.re_authenticating
    expected = ReasonCode.CONTINUE_AUTHENTICATION if begun else ReasonCode.RE_AUTHENTICATE
    if packet.code != expected:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"AUTH 0x{packet.code:02X} out of turn")
    connection.re_authenticating = True

    def answered(verdict: Challenge | Accept | Deny | None, by: str) -> None:
        connection.re_authentication = None
        if connection.phase is not Phase.OPEN:
            return
        if isinstance(verdict, Challenge):
            connection.send(
                _auth_packet(connection, ReasonCode.CONTINUE_AUTHENTICATION, verdict.data)
            )
        elif isinstance(verdict, Accept):
            connection.re_authenticating = False
            _renew(connection, verdict)
            connection.send(_auth_packet(connection, ReasonCode.SUCCESS))
        else:  # [MQTT-4.12.1-2]
            denied = verdict or Deny(ReasonCode.BAD_AUTHENTICATION_METHOD)
            _tell_failed(connection, denied, by)
            connection.disconnect(denied.code, denied.reason or "")

    step = run_auth(
        connection.core.runtime,
        connection.chains.on_auth,
        (connection.client, packet),
        answered,
    )
    if step is not None:
        connection.re_authentication = step


def _renew(connection: Connection, accept: Accept) -> None:
    client = connection.client
    assert client is not None
    _identify(client, accept)
    connection.forget_decisions()
    watch_credential(connection)


# --- the decision -------------------------------------------------------------------------------------------------------


def _decide(connection: Connection, accept: Accept) -> None:
    """Ask `on_connect`; `accept` is what enhanced authentication found."""
    core = connection.core
    client = connection.client
    assert client is not None
    _identify(client, accept)
    authenticated = accept.identity is not None or _method(connection) is not None
    step = run_connect(
        core.runtime,
        connection.chains.on_connect,
        (client, connection.connect),
        authenticated or core.settings.auth.default == "allow",
        partial(_decided, connection, accept.limits),
    )
    if step is not None:
        connection.wait(step)


def _method(connection: Connection) -> str | None:
    connect = connection.connect
    assert isinstance(connect, Connect)
    return connect.properties.authentication_method


def _identify(client: ClientInfo, accept: Accept) -> None:
    if accept.identity is not None:
        client.identity = accept.identity
    if accept.claims is not None:
        client.claims = accept.claims
    if accept.expires_at is not None:
        client.expires_at = accept.expires_at


def _decided(
    connection: Connection, limits: Limits | None, verdict: Accept | Deny, by: str
) -> None:
    if connection.phase is Phase.CLOSED:
        return
    if isinstance(verdict, Deny):
        _deny(connection, verdict, by)
        return
    client = connection.client
    assert client is not None
    _identify(client, verdict)
    if verdict.limits is not None:
        limits = verdict.limits if limits is None else limits.tighten(verdict.limits)
    _authorize_will(connection, limits or Limits())


def _deny(connection: Connection, verdict: Deny, by: str) -> None:
    _tell_failed(connection, verdict, by)
    connection.refuse(verdict.code, verdict.reason or "")


def _tell_failed(connection: Connection, verdict: Deny, by: str) -> None:
    core = connection.core
    client = connection.client
    assert client is not None
    core.runtime.log(
        "info",
        "auth.failed",
        client_id=client.client_id,
        peer=str(client.peer),
        code=f"0x{verdict.code:02X}",
        plugin=by or "default",
    )
    core.observe("on_auth_failed", client, verdict.code, verdict.reason)


def _authorize_will(connection: Connection, limits: Limits) -> None:
    """A will that may not be published is refused now, and asked about again when it fires."""
    connect = connection.connect
    client = connection.client
    assert isinstance(connect, Connect)
    assert client is not None
    will = _will(connection, connect, client)
    if will is None:
        _settle(connection, limits, None)
        return

    def decided(verdict: Allow | Deny, by: str) -> None:
        if connection.phase is Phase.CLOSED:
            return
        if isinstance(verdict, Deny):
            connection.core.denied(client, Action.WILL, will.message.topic, verdict.code, by)
            connection.refuse(verdict.code, verdict.reason or "the will is not allowed")
        else:
            _settle(connection, limits, will)

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


def _will(connection: Connection, connect: Connect, client: ClientInfo) -> Will | None:
    fields = connect.will
    if fields is None:
        return None
    properties = fields.properties
    delay = properties.will_delay_interval or 0
    if properties is not EMPTY:
        properties = properties.only(In.PUBLISH)
    message = Message(
        client.scope.mount_point + fields.topic,
        fields.payload,
        fields.qos,
        fields.retain,
        properties,
        client.client_id,
        "will",
        connection.core.runtime.time(),
    )
    return Will(message, delay)


# --- the session --------------------------------------------------------------------------------------------------------


def _settle(connection: Connection, limits: Limits, will: Will | None) -> None:
    """The client is welcome: find its session, after a pause if its id flaps between two connections."""
    core = connection.core
    client = connection.client
    assert client is not None
    known = core.sessions.get(client.client_id)
    if known is not None and known.connection is not None:
        if core.settings.broker.second_client == "reject":
            connection.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id is in use")
            return
        if _flaps(connection, known):
            delay = core.settings.broker.flapping_delay
            pause = core.deadlines.after(delay, partial(_enter, connection, limits, will))
            connection.wait(pause.cancel)
            return
    _enter(connection, limits, will)


def _flaps(connection: Connection, known: Session) -> bool:
    now = connection.core.runtime.now()
    times = known.takeovers
    if times is None:
        times = known.takeovers = deque()
    times.append(now)
    while times and times[0] < now - _WINDOW:
        times.popleft()
    return len(times) > connection.core.settings.broker.flapping_takeovers


def _enter(connection: Connection, limits: Limits, will: Will | None) -> None:
    """Take over, resume or create the session, and answer when that is committed."""
    core = connection.core
    connect = connection.connect
    client = connection.client
    assert isinstance(connect, Connect)
    assert client is not None
    if connection.phase is Phase.CLOSED:
        return
    session = core.sessions.get(client.client_id)
    if session is not None and session.connection is not None:
        _take_over(connection, session, connect.clean_start)
        session = core.sessions.get(client.client_id)
    if session is not None and (connect.clean_start or expired(core, session)):
        # [MQTT-3.1.2-4] [MQTT-3.1.4-4]; the old session's will is due now at the latest
        event = SessionEvent.EXPIRED if expired(core, session) else SessionEvent.ENDED
        end(core, session, event)
        session = None
    present = session is not None  # [MQTT-3.1.2-5, 3.1.2-6, 3.2.2-2, 3.2.2-3]
    was_durable = session is not None and session.durable
    if session is None:
        session = create(core, client)
    _attach(connection, session, connect, limits, will)
    if session.durable or was_durable:
        core.committer.add(record(session))
    answer = partial(_accepted, connection, session, session.epoch, present, limits)
    if session.durable or was_durable:
        connection.wait(None)
        core.committer.then(answer)
        core.schedule()
    else:
        answer()


def _take_over(connection: Connection, session: Session, clean: bool) -> None:
    """The client id is connected already: the older connection goes [MQTT-3.1.4-3] [MQTT311-3.1.4-2]."""
    core = connection.core
    core.metrics.takeovers += 1
    old = session.connection
    assert isinstance(old, Connection)
    core.observe("on_session", session.client, SessionEvent.TAKEN_OVER)
    old.disconnect(
        ReasonCode.SESSION_TAKEN_OVER, "another connection took over", by=EndedBy.TAKEOVER
    )


def _attach(
    connection: Connection, session: Session, connect: Connect, limits: Limits, will: Will | None
) -> None:
    """Make `connection` the session's own."""
    core = connection.core
    client = connection.client
    assert client is not None
    settings = core.settings.session
    broker = core.settings.broker
    properties = connect.properties
    if session.expiry_due is not None:
        session.expiry_due.cancel()
        session.expiry_due = None
    session.ended_at = None
    old_scope = session.client.scope
    session.client = client
    session.epoch += 1
    session.connection = connection
    connection.session = session
    connection.epoch = session.epoch
    session.out = []
    session.expiry = _expiry(connect, settings.max_expiry, limits)
    session.durable = session.expiry > 0 or session.durable
    set_will(session, will)
    session.window = min(properties.receive_maximum or 65535, settings.max_inflight, 65534)
    session.queue_messages = _lower(settings.queue_messages, limits.queue_messages)
    session.max_subscriptions = _lower(settings.max_subscriptions, limits.max_subscriptions)
    connection.receive_maximum = _lower(broker.receive_maximum, limits.receive_maximum)
    connection.carried = len(session.received) if session.received else 0
    if limits.max_packet_size is not None:
        most = max(256, _lower(broker.max_packet_size, limits.max_packet_size))
        connection.limits = replace(connection.limits, max_packet_size=most)
    if client.version == 5:
        offered = properties.topic_alias_maximum or 0
        connection.alias_maximum = min(offered, broker.outbound_topic_alias)
        connection.aliases = {} if connection.alias_maximum else None
    kind = kind_of(connection)
    if (kind != session.kind or old_scope.name != client.scope.name) and session.subscriptions:
        session.kind = kind
        core.reroute(session)
    session.kind = kind
    for group in session.groups:
        group.enter(session)
    session.resend = deque(session.inflight.values()) if session.inflight else None


def _lower(configured: int, given: int | None) -> int:
    return configured if given is None else min(configured, given)


def _expiry(connect: Connect, ceiling: float, limits: Limits) -> float:
    """The session expiry granted, seconds."""
    if connect.version == 5:
        asked = connect.properties.session_expiry_interval or 0
        expiry = inf if asked == FOREVER else float(asked)
    else:
        expiry = 0.0 if connect.clean_start else inf
    expiry = min(expiry, ceiling if ceiling < FOREVER else inf)
    return expiry if limits.session_expiry is None else min(expiry, float(limits.session_expiry))


def kind_of(connection: Connection) -> int:
    """Whether this client takes bytes that it shares with others, and of which version."""
    core = connection.core
    if (
        connection.scope.mount_point
        or connection.alias_maximum
        or connection.max_packet_size < core.settings.broker.max_packet_size
        or "on_delivered" in core.observed
        or core.settings.session.retry_interval
    ):
        return 0
    return 5 if connection.version == 5 else 3


def _accepted(
    connection: Connection, session: Session, epoch: int, present: bool, limits: Limits
) -> None:
    """Everything CONNACK relies on is committed: say it, send again what was unfinished, go on with what was held."""
    if connection.phase is Phase.CLOSED or session.epoch != epoch:
        return
    core = connection.core
    client = connection.client
    connect = connection.connect
    assert isinstance(connect, Connect)
    assert client is not None
    connection.phase = Phase.OPEN
    connection.due.cancel()
    session.state = CLEAN if connection.writable else BEHIND
    connection.send(_connack(connection, session, connect, present))
    connection.connect = _without_secrets(connect)
    connection.seen = core.runtime.now()
    connection.watch_keep_alive()
    watch_credential(connection)
    core.metrics.connections_accepted += 1
    core.runtime.log(
        "info",
        "client.connected",
        client_id=client.client_id,
        peer=str(client.peer),
        listener=client.listener,
        version=client.version,
        session="resumed" if present else "created",
    )
    if present:
        core.metrics.sessions_resumed += 1
    core.observe("on_session", client, SessionEvent.RESUMED if present else SessionEvent.CREATED)
    settle_state(session)
    if present:
        pump(core, session)
        if connection.chains.authorize[Action.SUBSCRIBE]:
            # A right may have been taken away while the client was.
            revoke(core, client.client_id, None)
    core.schedule()
    if connection.waiting or connection.held:
        connection.go_on()


def _without_secrets(connect: Connect) -> Connect | None:
    """What later packets are checked against; the password is not kept."""
    method = connect.properties.authentication_method
    if method is None:
        return _NO_METHOD
    kept = Properties(authentication_method=method)
    return replace(connect, password=None, will=None, properties=kept)


_NO_METHOD = Connect("", 5, True, 0)


def _connack(connection: Connection, session: Session, connect: Connect, present: bool) -> bytes:
    version = connection.version
    core = connection.core
    broker = core.settings.broker
    keep_alive = connect.keep_alive
    if version < 5:
        connection.keep_alive = float(keep_alive)
        # 3.1 knows no session present flag: that byte is reserved
        return encode(Connack(0, present and version == 4), version)
    imposed: int | None = None
    if broker.server_keep_alive:
        imposed = broker.server_keep_alive
    elif broker.max_keep_alive < 65535 and not 0 < keep_alive <= broker.max_keep_alive:
        imposed = broker.max_keep_alive
    connection.keep_alive = float(keep_alive if imposed is None else imposed)  # [MQTT-3.2.2-22]
    asked = connect.properties
    granted = FOREVER if session.expiry == inf else int(session.expiry)
    most = connection.limits.max_packet_size
    method = asked.authentication_method
    wants_response = asked.request_response_information == 1  # [MQTT-3.1.2-28]
    client = connection.client
    assert client is not None
    given = Properties(
        session_expiry_interval=granted
        if granted != (asked.session_expiry_interval or 0)
        else None,
        receive_maximum=connection.receive_maximum if connection.receive_maximum < 65535 else None,
        maximum_qos=broker.max_qos if broker.max_qos < 2 else None,  # [MQTT-3.2.2-9]
        retain_available=None if broker.retain_available else 0,
        maximum_packet_size=most if most < 268435460 else None,
        assigned_client_identifier=client.client_id if connection.assigned_id else None,
        topic_alias_maximum=broker.topic_alias_maximum or None,
        wildcard_subscription_available=None if broker.wildcard_available else 0,
        subscription_identifier_available=(
            None if broker.subscription_identifiers_available else 0
        ),
        shared_subscription_available=None if broker.shared_available else 0,
        server_keep_alive=imposed,
        response_information=(broker.response_information or None) if wants_response else None,
        authentication_method=method,
    )
    return encode(Connack(ReasonCode.SUCCESS, present, given), 5)


def watch_credential(connection: Connection) -> None:
    """Disconnect with 0xA0 when the client's credential ends."""
    client = connection.client
    assert client is not None
    if connection.credential_due is not None:
        connection.credential_due.cancel()
        connection.credential_due = None
    if client.expires_at is None:
        return
    left = max(0.0, client.expires_at - connection.core.runtime.time())

    def over() -> None:
        connection.disconnect(ReasonCode.MAXIMUM_CONNECT_TIME, "credential expired")

    connection.credential_due = connection.core.deadlines.after(left, over)
