"""Forward messages of a plugin client's batch on the fast path, as `packet_reader` forwards packets of one read."""

from typing import Final

from hookmq.broker.connection import ClientConnection
from hookmq.broker.fast_path import forward_raw
from hookmq.broker.plain_receivers import deliver_to_one
from hookmq.broker.plugin_batch import Batch
from hookmq.mqtt.encoder import encode_varint
from hookmq.mqtt.properties import EMPTY
from hookmq.routing.route import CachedPublish
from hookmq.session.inflight import Outgoing
from hookmq.session.session import IDLE, PENDING, QUEUEING

_EMPTY: Final = EMPTY  # compiled code reads a module's own constants directly
_BYTES: Final = 65536
"""The most bytes of packets in one run, like those of one read."""


def forward_run(
    connection: ClientConnection, cached: CachedPublish, batch: Batch, enough: int
) -> int:
    """Forward the messages of `batch` from index `Batch.at` on that have the topic and QoS of `cached`, until
    `BrokerState.work` exceeds `enough`. Return the index of the first message that was not forwarded.

    Call this only if `cached` is valid, may be forwarded as raw packets and is not observed. The first message must have
    its topic and QoS. All messages of equal size share the start of their packet.
    """
    # Long on purpose: a call for each message or receiver would cost more than the work itself.
    state = connection.state
    session = connection.session
    assert session is not None
    route = cached.route
    writes = state.writes
    topics, payloads, levels, special = batch.topics, batch.payloads, batch.levels, batch.special
    topic = route.topic
    qos = cached.header >> 1 & 3
    count = len(topics)
    at = batch.at
    size = -1
    start5 = start3 = b""
    name = topic.encode()
    name = len(name).to_bytes(2, "big") + name
    five, three = route.plain5, route.plain3
    raw_five = bool(five) or not three
    delivered = total = 0
    while at < count:
        if (
            levels[at] != qos
            or state.work > enough
            or total > _BYTES
            or not route.valid
            or topics[at] != topic
            or (special and at in special)
        ):
            break
        payload = payloads[at]
        if len(payload) != size:
            size = len(payload)
            body = name + b"\0\0" if qos else name
            start5 = b"%c%b%b\0" % (cached.header, encode_varint(len(body) + 1 + size), body)
            start3 = b"%c%b%b" % (cached.header, encode_varint(len(body) + size), body)
        at += 1
        state.work += 1
        if qos:
            start = start5 if raw_five else start3
            packet = start + payload
            end = len(packet)
            first = len(start) - (3 if raw_five else 2)
            forward_raw(
                connection, session, cached, packet, 0, first, len(start), end, qos, _EMPTY, None, raw_five,
            )  # fmt: skip
            total += end
            continue
        behind: Outgoing | None = None
        if five:
            packet = start5 + payload
            for receiver in five:
                write_state = receiver.state
                if write_state == IDLE:
                    receiver.state = PENDING
                    writes.dirty.append(receiver)
                elif write_state == QUEUEING:
                    behind = deliver_to_one(connection, receiver, route, payload, _EMPTY, behind)
                    continue
                receiver.out.append(packet)
                delivered += 1
            state.work += len(five) >> 4
        if three:
            packet = start3 + payload
            for receiver in three:
                write_state = receiver.state
                if write_state == IDLE:
                    receiver.state = PENDING
                    writes.dirty.append(receiver)
                elif write_state == QUEUEING:
                    behind = deliver_to_one(connection, receiver, route, payload, _EMPTY, behind)
                    continue
                receiver.out.append(packet)
                delivered += 1
            state.work += len(three) >> 4
        total += size + len(start5)
    done = at - batch.at
    metrics = state.metrics
    metrics.messages_received += done
    metrics.received_qos_sum += qos * done
    metrics.messages_delivered += delivered
    writes.share(total)
    return at
