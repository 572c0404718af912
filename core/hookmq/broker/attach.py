"""The session of a client that may come in: taken over, resumed or created, and the CONNACK when that is committed."""

from collections import deque
from dataclasses import replace
from functools import partial
from math import inf

from hookmq.aliases import Aliases
from hookmq.broker.channel import LARGEST_PACKET, Phase
from hookmq.broker.connack import FOREVER, connack, seconds
from hookmq.broker.core import Core
from hookmq.broker.deliver import pump
from hookmq.broker.link import Link
from hookmq.broker.revoke import drop_revoked, revoke
from hookmq.broker.send import settle_state
from hookmq.broker.sessions import (
    create,
    end,
    expired,
    record,
    set_will,
    weigh,
)
from hookmq.broker.wills import ask_now
from hookmq.codec import Connect
from hookmq.hooks.meter import Meter, Meters
from hookmq.hooks.verdicts import Accept, Deny, Limits
from hookmq.hooks.waiting import failure, nonsense
from hookmq.properties import EMPTY, Properties
from hookmq.reason import ReasonCode
from hookmq.session import BEHIND, CLEAN, Session
from hookmq.types import (
    Action,
    ClientInfo,
    EndedBy,
    SessionEvent,
    Will,
    json_value,
)

_WINDOW = 60.0


def find_session(connection: Link, limits: Limits, will: Will | None) -> None:
    """The client is welcome: find its session, after a pause if its id flaps between two connections."""
    core = connection.core
    client = connection.client
    assert client is not None
    known = core.sessions.get(client.client_id)
    if known is not None and _refused(connection, known):
        return
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


def _elsewhere(connection: Link, known: Session) -> bool:
    """Whether a session belongs to another part of the topic tree, so that it is not this client's to take over, to
    resume or to end. A listener that was given another mount point starts its clients anew instead."""
    mine, others = connection.scope, known.client.scope
    return others.mount_point != mine.mount_point and others.name != mine.name


def _user(client: ClientInfo) -> str | None:
    """Whose session it is: as rules understand ``%u``."""
    return client.username if client.identity is None else client.identity


def voucher(client: ClientInfo, by: str) -> str:
    """Return who vouches for `client`, as `ClientInfo.vouched_by`: `by` is the plugin that did, or ''. A listener that
    takes the user name from the certificate vouches by itself, whatever plugins it asks besides."""
    if client.scope.identity:
        return f"listener:{client.listener}"
    return f"plugin:{by}" if by else ""


def _same_owner(core: Core, owner: ClientInfo, client: ClientInfo) -> bool:
    """Whether a session of `owner` is also `client`'s: the same user, in the same realm."""
    if _user(owner) != _user(client):
        return False
    realm = core.settings.session.realm
    if realm == "none":
        return True
    if realm == "listener" or owner.vouched_by is None:
        return owner.listener == client.listener
    return owner.vouched_by == client.vouched_by


def _refused(connection: Link, known: Session) -> bool:
    """Refuse the client if the session is of another part of the topic tree, or of another owner: then it is not this
    client's to take over, to resume or to end. A session that nobody vouched for is not protected."""
    core = connection.core
    client = connection.client
    owner = known.client
    assert client is not None
    if _elsewhere(connection, known):
        connection.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id is in use")
        return True
    vouched = owner.identity if owner.vouched_by is None else owner.vouched_by
    if (
        not vouched
        or core.settings.session.other_owner == "replace"
        or expired(core, known)
        or _same_owner(core, owner, client)
    ):
        return False
    connection.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id belongs to another client")
    return True


def _flaps(connection: Link, known: Session) -> bool:
    now = connection.core.runtime.now()
    times = known.takeovers
    if times is None:
        times = known.takeovers = deque()
    times.append(now)
    while times and times[0] < now - _WINDOW:
        times.popleft()
    return len(times) > connection.core.settings.broker.flapping_takeovers


def _enter(connection: Link, limits: Limits, will: Will | None) -> None:
    """Take over, resume or create the session, and answer when that is committed."""
    core = connection.core
    connect = connection.connect
    client = connection.client
    assert isinstance(connect, Connect)
    assert client is not None
    if connection.phase is Phase.CLOSED:
        return
    if not measure(connection):
        connection.refuse(ReasonCode.SERVER_UNAVAILABLE, "its limits could not be found")
        return
    broker = connection.offered = core.settings.broker
    connection.receive_maximum = lower(broker.receive_maximum, limits.receive_maximum)
    if limits.max_packet_size is not None:
        most = max(256, lower(broker.max_packet_size, limits.max_packet_size))
        connection.limits = replace(connection.limits, max_packet_size=most)
    connection.max_expiry = _max_expiry(core.settings.session.max_expiry, limits)
    if connection.max_packet_size < LARGEST_PACKET:
        granted = _expiry(connect, connection.max_expiry)
        if len(connack(connection, granted, connect, False)) > connection.max_packet_size:
            # [MQTT-3.1.2-24]: what CONNACK must tell does not fit, so that nothing can be granted
            connection.refuse(ReasonCode.PACKET_TOO_LARGE, "CONNACK exceeds Maximum Packet Size")
            return
    added = core.committer.added
    session = core.sessions.get(client.client_id)  # [MQTT-3.1.3-2] [MQTT311-3.1.3-2]
    if session is not None and _refused(connection, session):  # created while this one waited
        return
    takeovers = session.takeovers if session is not None else None
    if session is not None and session.connection is not None:
        _take_over(connection, session, connect.clean_start)
        session = core.sessions.get(client.client_id)
    if session is not None and (
        connect.clean_start
        or expired(core, session)
        or session.client.scope.mount_point != connection.scope.mount_point
        or not _same_owner(core, session.client, client)
    ):
        # [MQTT-3.1.2-4, 3.1.4-4] [MQTT311-3.1.2-6, 3.1.4-3]; the old session's will is due now at the latest. A session
        # is its owner's: a client that knows an id must not fetch what waits for another.
        event = SessionEvent.EXPIRED if expired(core, session) else SessionEvent.ENDED
        end(core, session, event)
        session = None
    # [MQTT-3.1.2-5, 3.1.2-6, 3.2.2-2, 3.2.2-3] [MQTT311-3.2.2-1 to 3]
    present = session is not None
    if session is None:
        session = create(core, client)
        session.takeovers = takeovers  # who starts clean each time flaps as well
    _attach(connection, session, connect, limits, will)
    if session.recorded:
        core.committer.add(record(session))
    if core.committer.added == added and client.client_id not in core.ending:
        accepted(connection, session, session.epoch, present, limits)
        return
    # Also the end of an older session, be it one that ended a moment ago, is to be on record: it must not come back after
    # a crash.
    connection.wait(None)
    core.committer.then(partial(accepted, connection, session, session.epoch, present, limits))
    core.schedule()


def _take_over(connection: Link, session: Session, clean: bool) -> None:
    """The client id is connected already: the older connection goes [MQTT-3.1.4-3] [MQTT311-3.1.4-2]."""
    core = connection.core
    core.metrics.takeovers += 1
    old = session.connection
    assert isinstance(old, Link)
    core.observe("on_session", session.client, SessionEvent.TAKEN_OVER)
    old.disconnect(
        ReasonCode.SESSION_TAKEN_OVER, "another connection took over", by=EndedBy.TAKEOVER
    )


def _attach(
    connection: Link, session: Session, connect: Connect, limits: Limits, will: Will | None
) -> None:
    """Make `connection` the session's own."""
    core = connection.core
    client = connection.client
    assert client is not None
    settings = core.settings.session
    broker = core.settings.broker
    properties = connect.properties
    if session.expiry_due is not None:
        session.expiry_due.cancel()  # [MQTT-4.1.0-1] [MQTT311-4.1.0-2]
        session.expiry_due = None
    session.ended_at = None
    old_scope = session.client.scope
    session.client = client
    session.epoch += 1
    session.connection = connection
    connection.session = session
    # Nothing may precede CONNACK [MQTT-3.2.0-1] [MQTT311-3.2.0-1]: messages wait until it is sent.
    connection.opening = True
    session.paused += 1
    connection.epoch = session.epoch
    session.out = []
    session.expiry = _expiry(connect, connection.max_expiry)
    session.durable = session.expiry > 0 or session.durable
    # [MQTT-3.1.2-7, 3.1.2-8] [MQTT311-3.1.2-8]: a will is published also if it is the broker that dies
    session.recorded = session.durable or (will is not None and core.recording)
    set_will(session, will)
    weigh(core, session)
    # [MQTT-4.9.0-1]: of this connection alone
    receive_maximum = properties.receive_maximum if properties is not EMPTY else None
    session.window = min(receive_maximum or 65535, settings.max_inflight, 65534)
    session.queue_messages = lower(settings.queue_messages, limits.queue_messages)
    session.max_subscriptions = lower(settings.max_subscriptions, limits.max_subscriptions)
    connection.carried = len(session.received) if session.received else 0
    if client.version == 5:
        offered = properties.topic_alias_maximum or 0
        # [MQTT-3.1.2-27]: 0 or absent offers none
        connection.alias_maximum = min(offered, broker.outbound_topic_alias)
        most = connection.alias_maximum
        connection.aliases = Aliases(most) if most else None
    # Those of its first packet may be out of date: a plugin may ask about more by now.
    connection.rechain()
    kind = kind_of(connection)
    if (kind != session.kind or old_scope.name != client.scope.name) and session.subscriptions:
        session.kind = kind
        core.reroute(session)
    session.kind = kind
    for group in session.groups:
        group.enter(session)
    if session.revoked:
        drop_revoked(core, session, session.inflight)
        if not session.inflight and not session.stored:
            session.revoked = None
    # [MQTT-4.4.0-1] [MQTT311-4.4.0-1]
    session.resend = deque(session.inflight.values()) if session.inflight else None


def measure(connection: Link) -> bool:
    """Have plugins say what the client is measured by; False when one of them failed to."""
    client = connection.client
    assert client is not None
    meters: list[Meter] = []
    for call in connection.chains.provide_meter:
        try:
            meter = call.function(client)
        except Exception as error:
            failure(call, error)
            return False
        if isinstance(meter, Meter):
            meters.append(meter)
        elif meter is not None:
            nonsense(call, meter)
            return False
        call.stats.ok += 1
    connection.use_meter(Meters(meters) if len(meters) > 1 else meters[0] if meters else None)
    return True


def lower(configured: int, given: int | None) -> int:
    return configured if given is None else min(configured, given)


def _max_expiry(configured: float, limits: Limits) -> float:
    ceiling = configured if configured < FOREVER else inf
    return ceiling if limits.session_expiry is None else min(ceiling, float(limits.session_expiry))


def _expiry(connect: Connect, ceiling: float) -> float:
    """The session expiry granted, seconds."""
    if connect.version == 5:
        return min(seconds(connect.properties.session_expiry_interval or 0), ceiling)
    return 0.0 if connect.clean_start else ceiling


_GROWTH = 2
"""By how many bytes a PUBLISH may grow on its way from 3.x to 5.0: its property length, and its own length for that."""


def kind_of(connection: Link) -> int:
    """Whether this client takes bytes that it shares with others, and of which version."""
    core = connection.core
    session = connection.session
    assert session is not None
    if (
        connection.scope.mount_point
        or connection.alias_maximum
        or connection.max_packet_size < core.largest_packet + _GROWTH
        or (session.durable and core.settings.session.queue_qos0)
        or connection.pace is not None
        or "on_delivered" in core.observed
        or core.settings.session.retry_interval
    ):
        return 0
    return 5 if connection.version == 5 else 3


def accepted(connection: Link, session: Session, epoch: int, present: bool, limits: Limits) -> None:
    """Everything CONNACK relies on is committed: say it, send again what was unfinished, go on with what was held."""
    if connection.phase is Phase.CLOSED or session.epoch != epoch:
        return
    core = connection.core
    client = connection.client
    connect = connection.connect
    assert isinstance(connect, Connect)
    assert client is not None
    connection.phase = Phase.OPEN
    connection.opening = False
    session.paused -= 1
    session.state = CLEAN if connection.writable and not session.paused else BEHIND
    # [MQTT-3.1.4-5, 3.2.0-2] [MQTT311-3.1.4-4]
    connection.send(connack(connection, session.expiry, connect, present))
    connection.connect = _without_secrets(connect)
    connection.seen = core.runtime.now()
    connection.watch_keep_alive()
    watch_credential(connection)
    core.metrics.connections_accepted += 1
    if core.runtime.logs("info"):
        core.runtime.log(
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
    if "on_session" in core.observed:
        event = SessionEvent.RESUMED if present else SessionEvent.CREATED
        core.observe("on_session", client, event)
    if core.undecided_wills:
        ask_now(core, client.client_id)
    if present:
        core.metrics.sessions_resumed += 1
        if connection.chains.authorize[Action.SUBSCRIBE] or core.settings.authz.default != "allow":
            # A right may have been taken away while the client was: nothing is sent before that is known.
            revoke(core, client.client_id, None)
        settle_state(session)
        pump(core, session)
    core.schedule()
    if connection.waiting or connection.held:
        connection.go_on()


def _without_secrets(connect: Connect) -> Connect | None:
    """What later packets are checked against; the password is not kept."""
    properties = connect.properties
    method = properties.authentication_method if properties is not EMPTY else None
    if method is None:
        return _NO_METHOD
    kept = Properties(authentication_method=method)
    return replace(connect, password=None, will=None, properties=kept)


_NO_METHOD = Connect("", 5, True, 0)


def watch_credential(connection: Link) -> None:
    """Disconnect when the client's credential ends."""
    client = connection.client
    assert client is not None
    if connection.credential_due is not None:
        connection.credential_due.cancel()
        connection.credential_due = None
    if client.expires_at is None:
        return
    left = max(0.0, client.expires_at - connection.core.runtime.time())

    def over() -> None:
        connection.disconnect(client.expiry_code, "credential expired")

    connection.credential_due = connection.core.deadlines.after(left, over)


def identify(client: ClientInfo, accept: Accept) -> None:
    client._publisher = None  # another one, perhaps
    if accept.identity is not None:
        client.identity = accept.identity
    if accept.claims is not None:
        # As a restart will restore them: a rule must not change its mind because a set became a list.
        client.claims = json_value(accept.claims)
    if accept.expires_at is not None:
        client.expires_at = accept.expires_at
        client.expiry_code = accept.expiry_code


def tell_failed(connection: Link, verdict: Deny, by: str) -> None:
    core = connection.core
    client = connection.client
    assert client is not None
    core.runtime.log(
        "info",
        "auth.failed",
        client_id=client.client_id,
        username=client.username,
        peer=str(client.peer),
        code=f"0x{verdict.code:02X}",
        plugin=by or "default",
    )
    core.observe("on_auth_failed", client, verdict.code, verdict.reason or "")
