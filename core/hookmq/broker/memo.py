"""Remember a connection's topics, so that its next PUBLISH to one of them may take the fast path.

`fast_path` and `packet_reader` read the memo; `ConnectionState.forget_decisions` clears it.
"""

from collections.abc import Sequence
from math import inf

from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import NO_MEMO, Phase
from hookmq.hooks.chain import narrow
from hookmq.hooks.inline import inline_calls
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.mqtt.packets import Publish
from hookmq.mqtt.properties import EMPTY
from hookmq.routing.route import CachedPublish, Route
from hookmq.routing.subscription_tree import LONG_TOPIC
from hookmq.storage.cluster_packets import RemotePackets


def remember(connection: ClientConnection, packet: Publish, message: Message, route: Route) -> None:
    """Let the next PUBLISH like `packet` take the fast path along `route`. Call this if every plugin that decided on
    this packet permitted it without a time limit and left it unchanged."""
    state = connection.state
    session = connection.session
    topic = message.topic
    qos = packet.qos
    if session is None or connection.phase is not Phase.OPEN or not route.valid:
        return
    if packet.retain or packet.dup or topic != packet.topic or len(topic) > LONG_TOPIC:
        return
    if packet.properties is not EMPTY and packet.properties.topic_alias is not None:
        return
    chain = connection.chains.authorize[Action.PUBLISH]
    if chain and narrow(chain, topic):
        if connection.decisions is None:
            return
        known = connection.decisions.get((Action.PUBLISH, topic, qos, False))
        if known is None or known[2] != inf:
            return
    calls = connection.chains.on_publish
    if calls:
        applying = inline_calls(calls, topic)
        if applying is None or (applying and connection.in_process):
            return  # the shortcut of a plugin client calls no hooks
        calls = applying
    told = "on_published" in state.observed and state.hooks.observers.wants(
        "on_published", connection.scope.name, topic
    )
    raw = topic not in state.fan_outs
    durable = False
    remotes: Sequence[RemotePackets] | None = () if route.simple else None
    if qos == 0:
        unseen = route.local and not (calls or route.asked or connection.in_process)
        if unseen and state.cluster is not None and route.remotes is not None:
            remotes = state.cluster.packets(route.remotes)
        raw = raw and remotes is not None
    else:
        raw = raw and state.settings.session.inflight_overflow == "pending"
        durable = raw and route.single_durable and qos == 1 and state.recording
        raw = raw and route.volatile and not (qos == 2 and session.durable)
    key: bytes | str = topic if connection.in_process else topic.encode()
    if len(key) <= LONG_TOPIC and _make_room(connection, key):
        limiter = connection.rate_limiter
        limit = limiter.publish_limit(route.topic) if limiter is not None else None
        connection.memo[key] = CachedPublish(
            0x30 | qos << 1, route, connection.version == 5, raw, limit, durable, calls, told, remotes or (),
        )  # fmt: skip


def _make_room(connection: ClientConnection, topic: bytes | str) -> bool:
    """Return whether there is room to remember one more topic. If necessary, drop this connection's oldest topic
    first.
    """
    state = connection.state
    memo = connection.memo
    if topic not in memo:
        if len(memo) >= state.settings.broker.authz_cache:
            if not memo:
                return False
            del memo[next(iter(memo))]
        elif state.remembered >= state.settings.broker.authz_cache_total:
            return False
        else:
            state.remembered += 1
    if memo is NO_MEMO:
        connection.memo = {}
    return True
