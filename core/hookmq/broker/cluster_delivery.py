"""Deliver messages of other nodes to the sessions of this one, and offer waiting messages to other nodes."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from hookmq.broker.delivery.shared import dequeue_shared, offer_group
from hookmq.broker.fan_out_job import FanOutJob
from hookmq.broker.publish.fan_out import ALL, cut, serve, serve_slice
from hookmq.broker.state import BrokerState
from hookmq.model.message import Message, make_message
from hookmq.mqtt.decoder import decode_publish
from hookmq.mqtt.framing import frame
from hookmq.mqtt.packets import Publish
from hookmq.mqtt.primitives import malformed
from hookmq.routing.route import GROUP_STEPS, Recipient, Route
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.inflight import Outgoing
from hookmq.session.session import IDLE, PENDING, QUEUEING, Session
from hookmq.storage.cluster import Wanted

_PUBLISH: Final = 0x30
_HANDED_ON: Final = 256
"""How many waiting messages go to other nodes in one turn."""


def deliver_to(
    state: BrokerState,
    route: Route,
    message: Message,
    recipients: Sequence[Recipient],
    groups: Sequence[SharedSubscription],
) -> None:
    """Deliver another node's message to some recipients of `route`, the current route of its topic.

    The other node has already authorized, retained, journaled and acknowledged the message. Everything that must be
    stored becomes part of the next commit.
    """
    outgoing = Outgoing(message)
    topic = message.topic
    sender = state.sessions.get(message.sender) if message.sender is not None else None
    large = len(recipients) + GROUP_STEPS * len(groups) > state.settings.broker.fan_out_batch
    collecting = state.collecting
    if collecting is not None and (large or collecting.outgoing.message.topic == topic):
        serve_slice(state, [collecting], collecting.kept, ALL)
    waiting = state.fan_outs.get(topic)
    if waiting is not None or large:
        job = FanOutJob(outgoing, route, sender, None, None)
        cut(state, job, recipients, groups, spread=collecting is None and waiting is None)
        return
    for recipient in recipients:
        serve(state, recipient, outgoing, sender, None)
    for group in groups:
        offer_group(state, group, outgoing)


def chosen(recipients: Sequence[Recipient], wanted: Wanted) -> tuple[Recipient, ...]:
    """Return the recipients that are `wanted`."""
    return tuple(x for x in recipients if wanted(x.session.client_id, x.session.durable, x.qos))


def deliver_packets(
    state: BrokerState, sender: str, five: bool, data: bytes, wanted: Wanted | None
) -> None:
    """Deliver another node's QoS 0 packets to the sessions of this node, or to those that are `wanted`. Raises
    ProtocolError for a damaged packet; those before it are delivered."""
    known = b""
    route: Route | None = None
    receivers: list[Session] = []
    pos = 0
    while pos < len(data):
        framed = frame(data, pos)
        if framed is None or framed[1] > len(data) or data[pos] != _PUBLISH:
            raise malformed("not a packet of another node")
        body, after = framed
        topic = data[body : body + 2 + (data[body] << 8 | data[body + 1])]
        if route is None or topic != known or not route.valid:
            known = topic
            route = state.router.lookup(topic[2:].decode())
            receivers = route.plain5 if five else route.plain3
        packet = data[pos:after]
        pos = after
        left = route.recipients
        if wanted is not None:
            left = chosen(left, wanted)
        elif len(receivers) == len(left) and not (
            route.large or state.fan_outs or len(packet) > state.largest_packet
        ):
            left = ()
            for receiver in receivers:
                if receiver.state == QUEUEING:
                    left += tuple(one for one in route.recipients if one.session is receiver)
                    continue
                if receiver.state == IDLE:
                    receiver.state = PENDING
                    state.writes.dirty.append(receiver)
                receiver.out.append(packet)
                state.metrics.messages_delivered += 1
        if left:
            publish = decode_publish(_PUBLISH, data[body:after], 5 if five else 4, state.limits)
            deliver_to(state, route, _message_of(state, sender, publish), left, ())
    state.writes.share(len(data))


def _message_of(state: BrokerState, sender: str, packet: Publish) -> Message:
    now = state.runtime.time()
    interval = packet.properties.message_expiry_interval
    expires = None if interval is None else now + interval
    return make_message(
        packet.topic, packet.payload, 0, False, packet.properties, sender, "client", now, expires
    )


def hand_on(state: BrokerState, group: SharedSubscription) -> None:
    """Let members on other nodes of a cluster have the waiting messages of `group`, if no member is online here. A group
    without members here gives all of them away at once, because it is about to end."""
    cluster = state.cluster
    if cluster is None or group.online or not group.queue:
        return
    total = left = _HANDED_ON if group.members else len(group.queue)
    while group.queue and left and cluster.hand_on(group.owner, group.queue[0].outgoing.message):
        dequeue_shared(state, group, group.queue.popleft())
        left -= 1
    if left < total:
        state.committer.stored()
        state.writes.schedule()
    if not left:
        state.runtime.call_soon(partial(state.guarded, partial(hand_on, state, group)))
