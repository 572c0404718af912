"""Open an accepted client's session: take over, resume or create it, and send CONNACK once the change is committed."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

from hookmq.broker.cluster_sessions import claim
from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.delivery.delivery_pause import use_rate_limiter
from hookmq.broker.delivery.transmit import update_write_state
from hookmq.broker.handlers.connack import FOREVER, connack, seconds
from hookmq.broker.handlers.session_owner import id_in_use, refuse_other_owner, same_owner
from hookmq.broker.sessions.due_will import ask_now
from hookmq.broker.sessions.lifecycle import (
    account_connect,
    cancel_end,
    create,
    end_session,
    expired,
)
from hookmq.broker.sessions.revocation import drop_revoked, revoke
from hookmq.broker.sessions.session_record import record
from hookmq.broker.sessions.subscriptions import enter
from hookmq.broker.sessions.wills import set_will
from hookmq.hooks.async_calls import failure, nonsense
from hookmq.hooks.rate_limit import RateLimiter, RateLimiters
from hookmq.hooks.verdicts import Accept, Deny, Limits
from hookmq.model.client import ClientInfo, json_value
from hookmq.model.events import Action, EndedBy, SessionEvent
from hookmq.model.message import Will
from hookmq.mqtt.packet_limits import LARGEST_PACKET
from hookmq.mqtt.packets import Connect
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.session import IDLE, QUEUEING, UNENCODED, Session
from hookmq.session.topic_aliases import TopicAliases

_WINDOW = 60.0
"""How long a session's takeovers count towards `broker.flapping_takeovers`, in seconds."""
_GROWTH = 2
"""How many bytes longer a PUBLISH may be in MQTT 5 than in MQTT 3. The difference is a property length and a longer
header."""
_NO_METHOD = Connect("", 5, True, 0)
"""The CONNECT that an open connection keeps if there is no authentication method."""


def open_session(
    connection: ClientConnection,
    client: ClientInfo,
    connect: Connect,
    limits: Limits,
    will: Will | None,
) -> None:
    """Open an accepted client's session. Pause first if two connections keep taking over its client id from each
    other. In a cluster, then make sure that no other node has the client."""
    state = connection.state
    durable = _expiry(connect, _ceiling(connection, limits)) > 0
    open_now = partial(_enter, connection, client, connect, limits, will)
    known = state.sessions.get(client.client_id)
    if known is not None:
        if _refuse_owner(connection, client, known):
            return
        if known.connection is not None and _flaps(connection, known):
            again = partial(_claim, connection, client, durable, open_now)
            pause = state.deadlines.after(state.settings.broker.flapping_delay, again)
            connection.wait(pause.cancel)
            return
    _claim(connection, client, durable, open_now)


def _refuse_owner(connection: ClientConnection, client: ClientInfo, known: Session) -> bool:
    """Refuse the client and return True if it may not take over session `known` now."""
    if refuse_other_owner(connection, client, known):
        return True
    if id_in_use(connection.state, known):
        connection.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id is in use")
        return True
    return False


def _claim(
    connection: ClientConnection, client: ClientInfo, durable: bool, open_now: Callable[[], None]
) -> None:
    """Call `open_now` once the cluster, if there is one, has made this node the only one that has the client."""
    if connection.state.cluster is None:
        open_now()
    elif connection.phase is not Phase.CLOSED:
        claim(connection, client, durable, open_now)


def _flaps(connection: ClientConnection, known: Session) -> bool:
    """Count a takeover. Return whether the session has been taken over too often recently."""
    now = connection.state.runtime.now()
    times = known.takeovers
    if times is None:
        times = known.takeovers = deque()
    times.append(now)
    while times and times[0] < now - _WINDOW:
        times.popleft()
    return len(times) > connection.state.settings.broker.flapping_takeovers


def _enter(
    connection: ClientConnection,
    client: ClientInfo,
    connect: Connect,
    limits: Limits,
    will: Will | None,
) -> None:
    """Take over, resume or create the session, and open the connection once the change is committed."""
    state = connection.state
    if connection.phase is Phase.CLOSED or not _grant(connection, client, connect, limits):
        return
    added = state.committer.added
    session = state.sessions.get(client.client_id)  # [MQTT-3.1.3-2] [MQTT311-3.1.3-2]
    # The session may have been created while this connection waited.
    if session is not None and _refuse_owner(connection, client, session):
        return
    takeovers = session.takeovers if session is not None else None
    if session is not None and session.connection is not None:
        _take_over(connection, session)
        session = state.sessions.get(client.client_id)
    if session is not None and (
        connect.clean_start
        or expired(state, session)
        or session.client.scope.mount_point != connection.scope.mount_point
        or not same_owner(state, session.client, client)
    ):
        # [MQTT-3.1.2-4, 3.1.4-4] [MQTT311-3.1.2-6, 3.1.4-3]; this publishes the old session's will. A client that
        # merely knows the client id must not receive the session owner's messages.
        event = SessionEvent.EXPIRED if expired(state, session) else SessionEvent.ENDED
        end_session(state, session, event)
        session = None
    # [MQTT-3.1.2-5, 3.1.2-6, 3.2.2-2, 3.2.2-3] [MQTT311-3.2.2-1 to 3]
    present = session is not None
    if session is None:
        session = create(state, client)
        session.takeovers = takeovers  # clients with Clean Start can flap as well
    _attach(connection, client, session, connect, limits, will)
    if session.recorded:
        state.committer.add(record(session))
    opened = partial(
        session_opened, connection, client, session, session.generation, connect, present
    )
    if state.committer.added == added and client.client_id not in state.ending:
        opened()
        return
    # Also wait if an older session's end is not recorded yet: a crash must not bring that session back.
    connection.wait(None)
    state.committer.after_commit(opened)
    state.writes.schedule()


def _grant(
    connection: ClientConnection, client: ClientInfo, connect: Connect, limits: Limits
) -> bool:
    """Set the limits that CONNACK grants. If that fails, refuse the client and return False."""
    if not apply_rate_limits(connection, client):
        connection.refuse(ReasonCode.SERVER_UNAVAILABLE, "rate limits could not be determined")
        return False
    settings = connection.state.settings
    broker = connection.offered = settings.broker
    connection.receive_maximum = _at_most(broker.receive_maximum, limits.receive_maximum)
    if limits.max_packet_size is not None:
        size = max(256, _at_most(broker.max_packet_size, limits.max_packet_size))
        connection.limits = replace(connection.limits, max_packet_size=size)
    connection.max_expiry = ceiling = _ceiling(connection, limits)
    if connection.max_packet_size < LARGEST_PACKET:
        expiry = _expiry(connect, ceiling)
        if len(connack(connection, client, expiry, connect, False)) > connection.max_packet_size:
            # [MQTT-3.1.2-24]
            connection.refuse(ReasonCode.PACKET_TOO_LARGE, "CONNACK exceeds Maximum Packet Size")
            return False
    return True


def _ceiling(connection: ClientConnection, limits: Limits) -> float:
    """Return the longest session expiry that the client may get, in seconds."""
    longest = connection.state.settings.session.max_expiry
    ceiling = longest if longest < FOREVER else inf
    if limits.session_expiry is not None:
        ceiling = min(ceiling, float(limits.session_expiry))
    return ceiling


def _take_over(connection: ClientConnection, session: Session) -> None:
    """Disconnect the session's older connection [MQTT-3.1.4-3] [MQTT311-3.1.4-2]."""
    state = connection.state
    state.metrics.takeovers += 1
    old = session.connection
    assert isinstance(old, ClientConnection)
    state.observe("on_session", session.client, SessionEvent.TAKEN_OVER)
    old.disconnect(
        ReasonCode.SESSION_TAKEN_OVER, "another connection took over", by=EndedBy.TAKEOVER
    )


def _attach(
    connection: ClientConnection,
    client: ClientInfo,
    session: Session,
    connect: Connect,
    limits: Limits,
    will: Will | None,
) -> None:
    """Attach `session` to its new connection."""
    state = connection.state
    settings = state.settings.session
    properties = connect.properties
    cancel_end(session)  # [MQTT-4.1.0-1] [MQTT311-4.1.0-2]
    session.ended_at = None
    old_scope = session.client.scope
    session.client = client
    session.generation += 1
    session.connection = connection
    connection.session = session
    # Messages wait until CONNACK is sent [MQTT-3.2.0-1] [MQTT311-3.2.0-1].
    connection.opening = True
    session.paused += 1
    connection.generation = session.generation
    session.out = []
    session.expiry = _expiry(connect, connection.max_expiry)
    session.durable = session.expiry > 0 or session.durable
    # [MQTT-3.1.2-7, 3.1.2-8] [MQTT311-3.1.2-8]: the will is published even if the broker crashes
    session.recorded = session.durable or (will is not None and state.recording)
    set_will(session, will)
    account_connect(state, session)
    # [MQTT-4.9.0-1]: for this connection only
    receive_maximum = properties.receive_maximum if properties is not EMPTY else None
    session.window = min(receive_maximum or 65535, settings.max_inflight, 65534)
    session.queue_messages = _at_most(settings.queue_messages, limits.queue_messages)
    session.max_subscriptions = _at_most(settings.max_subscriptions, limits.max_subscriptions)
    connection.carried = len(session.received) if session.received else 0
    if client.version == 5:
        # [MQTT-3.1.2-27]: if it is 0 or absent, the client accepts no aliases
        offered = properties.topic_alias_maximum or 0
        aliases = min(offered, state.settings.broker.outbound_topic_alias)
        connection.alias_maximum = aliases
        connection.aliases = TopicAliases(aliases) if aliases else None
    # A plugin may have changed its `authorize_actions` since CONNECT was received.
    connection.rechain()
    version = shared_encoding(connection, session)
    moved = version != session.encoding_version or old_scope.name != client.scope.name
    session.encoding_version = version
    if moved and session.subscriptions:
        state.reroute(session)
    for group in session.groups:
        enter(state, group, session)
    if session.revoked:
        drop_revoked(state, session, session.inflight)
        if not session.inflight and not session.stored:
            session.revoked = None
    # [MQTT-4.4.0-1] [MQTT311-4.4.0-1]
    session.resend = deque(session.inflight.values()) if session.inflight else None


def apply_rate_limits(connection: ClientConnection, client: ClientInfo) -> bool:
    """Apply the rate limits that plugins set for the client. Return False if a plugin failed."""
    limiters: list[RateLimiter] = []
    for call in connection.chains.provide_rate_limiter:
        try:
            limiter = call.function(client)
        except Exception as error:
            failure(call, error)
            return False
        if isinstance(limiter, RateLimiter):
            limiters.append(limiter)
        elif limiter is not None:
            nonsense(call, limiter)
            return False
        call.stats.ok += 1
    use_rate_limiter(
        connection,
        RateLimiters(limiters) if len(limiters) > 1 else limiters[0] if limiters else None,
    )
    return True


def _at_most(configured: int, given: int | None) -> int:
    return configured if given is None else min(configured, given)


def _expiry(connect: Connect, ceiling: float) -> float:
    """Return the session expiry to grant, in seconds."""
    if connect.version == 5:
        return min(seconds(connect.properties.session_expiry_interval or 0), ceiling)
    return 0.0 if connect.clean_start else ceiling


def shared_encoding(connection: ClientConnection, session: Session) -> int:
    """Return the version (3 or 5) of the encoded packets that the client can share with others, or 0 if it needs packets
    of its own. Return `UNENCODED` for a plugin client that needs no packets.
    """
    state = connection.state
    if (
        connection.scope.mount_point
        or connection.alias_maximum
        or connection.max_packet_size < state.largest_packet + _GROWTH
        or (session.durable and state.settings.session.queue_qos0)
        or connection.delivery_limit is not None
        or "on_delivered" in state.observed
        or state.settings.session.retry_interval
    ):
        return 0
    if connection.in_process:
        return UNENCODED
    return 5 if connection.version == 5 else 3


def session_opened(
    connection: ClientConnection,
    client: ClientInfo,
    session: Session,
    generation: int,
    connect: Connect,
    present: bool,
) -> None:
    """Open the connection: send CONNACK, resend the messages in flight, and handle held packets. Everything that CONNACK
    promises has already been committed.
    """
    if connection.phase is Phase.CLOSED or session.generation != generation:
        return
    state = connection.state
    connection.phase = Phase.OPEN
    connection.opening = False
    session.paused -= 1
    session.state = IDLE if connection.writable and not session.paused else QUEUEING
    # [MQTT-3.1.4-5, 3.2.0-2] [MQTT311-3.1.4-4]
    connection.send(connack(connection, client, session.expiry, connect, present))
    connection.opened(present)
    connection.connect = _without_secrets(connect)
    connection.seen = state.runtime.now()
    connection.watch_keep_alive()
    watch_credential(connection, client)
    state.metrics.connections_accepted += 1
    if state.runtime.logs("info"):
        state.runtime.log(
            "info",
            "client.connected",
            client_id=client.client_id,
            username=client.username,
            identity=client.identity,
            peer=str(client.peer),
            listener=client.listener,
            version=client.version,
            session="resumed" if present else "created",
        )
    if "on_session" in state.observed:
        event = SessionEvent.RESUMED if present else SessionEvent.CREATED
        state.observe("on_session", client, event)
    if state.undecided_wills:
        ask_now(state, client.client_id)
    if present:
        state.metrics.sessions_resumed += 1
        if connection.chains.authorize[Action.SUBSCRIBE] or state.settings.authz.default != "allow":
            # Permissions may have been revoked while the client was offline: check them before anything is sent.
            revoke(state, client.client_id, None)
        update_write_state(session)
        drain_queue(state, session)
    state.writes.schedule()
    if connection.waiting or connection.held:
        connection.go_on()


def _without_secrets(connect: Connect) -> Connect:
    """Return a copy of a CONNECT without the password. It has only the fields that later packets are checked against."""
    properties = connect.properties
    method = properties.authentication_method if properties is not EMPTY else None
    if method is None:
        return _NO_METHOD
    kept = Properties(authentication_method=method)
    return replace(connect, password=None, will=None, properties=kept)


def watch_credential(connection: ClientConnection, client: ClientInfo) -> None:
    """Disconnect the client when its credential expires."""
    if connection.credential_due is not None:
        connection.credential_due.cancel()
        connection.credential_due = None
    if client.expires_at is None:
        return
    left = max(0.0, client.expires_at - connection.state.runtime.time())

    def expire() -> None:
        connection.disconnect(client.expiry_code, "credential expired")

    connection.credential_due = connection.state.deadlines.after(left, expire)


def identify(client: ClientInfo, accept: Accept) -> None:
    """Store the identity and claims from `accept` in the client."""
    client._publisher = None  # the publisher's record may differ now
    if accept.identity is not None:
        client.identity = accept.identity
    if accept.claims is not None:
        # Use the form that a restart restores: a rule must not decide differently because a set became a list.
        client.claims = json_value(accept.claims)
    if accept.expires_at is not None:
        client.expires_at = accept.expires_at
        client.expiry_code = accept.expiry_code


def report_failed(connection: ClientConnection, client: ClientInfo, verdict: Deny, by: str) -> None:
    """Log a failed authentication and report it to `on_auth_failed`."""
    state = connection.state
    state.runtime.log(
        "info",
        "auth.failed",
        client_id=client.client_id,
        username=client.username,
        peer=str(client.peer),
        code=f"0x{verdict.code:02X}",
        plugin=by or "default",
    )
    state.observe("on_auth_failed", client, verdict.code, verdict.reason or "")
