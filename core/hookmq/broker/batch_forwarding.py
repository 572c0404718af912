"""Forward the messages of a plugin client's batch on the fast path, as `packet_reader` forwards the packets of one
read."""

from typing import Final

from hookmq.broker.connection import ClientConnection
from hookmq.broker.fast_path import forward_raw
from hookmq.broker.plain_receivers import (
    deliver_to_one,
    forward_unencoded,
    hand_over,
    hand_over_payloads,
    packet_start,
)
from hookmq.mqtt.properties import EMPTY
from hookmq.routing.route import CachedPublish
from hookmq.session.inflight import Outgoing
from hookmq.session.session import IDLE, PENDING, QUEUEING, Session

_EMPTY: Final = EMPTY  # compiled code reads a module's own constants directly
_BYTES: Final = 65536
"""The size in bytes of packets that may follow the first one in a run: about as much as one read returns."""


def forward_run(
    connection: ClientConnection,
    cached: CachedPublish,
    payloads: list[bytes],
    at: int,
    enough: int,
) -> int:
    """Forward messages with these payloads, from index `at` on, until `BrokerState.work` exceeds `enough`. Return the
    index of the first message that was not forwarded.

    `cached` must be valid, have the topic and QoS of the messages, allow raw packets and not be observed.
    """
    state = connection.state
    route = cached.route
    qos = cached.header >> 1 & 3
    five, three = route.plain5, route.plain3
    cost = 1 + (len(five) >> 4) + (len(three) >> 4) + len(route.plugin_clients)
    end = min(len(payloads), at + 1 + max(0, enough - state.work) // cost)
    if not five and not three:
        end = _hand_over(connection, cached, payloads, at, end)
        state.metrics.messages_received += end - at
        state.metrics.received_qos_sum += qos * (end - at)
        return end
    packets, total = _encode(cached, payloads, at, end, bool(five) or not three)
    end = at + len(packets)
    if qos:
        end = _forward_acknowledged(connection, cached, payloads, packets, at, enough)
    else:
        others = _encode(cached, payloads, at, end, False)[0] if five and three else packets
        if _mark(connection, five) or _mark(connection, three) or route.plugin_clients:
            end = _forward_each(connection, cached, payloads, packets, others, at, enough)
        else:
            for receiver in five:
                receiver.out.extend(packets)
            for receiver in three:
                receiver.out.extend(others)
            state.work += cost * len(packets)
            state.metrics.messages_delivered += len(packets) * (len(five) + len(three))
    done = end - at
    state.metrics.messages_received += done
    state.metrics.received_qos_sum += qos * done
    state.writes.share(total if done == len(packets) else sum(map(len, packets[:done])))
    return end


def _encode(
    cached: CachedPublish, payloads: list[bytes], at: int, end: int, five: bool
) -> tuple[list[bytes], int]:
    """Return the packets for MQTT 5 or 3 receivers, with packet id 0, and their total size. Packets of equal size share
    their header.
    """
    packets: list[bytes] = []
    size = -1
    total = 0
    start = b""
    while at < end and total <= _BYTES:
        payload = payloads[at]
        if len(payload) != size:
            size = len(payload)
            start = packet_start(cached, size, five)
        packet = start + payload
        total += len(packet)
        packets.append(packet)
        at += 1
    return packets, total


def _mark(connection: ClientConnection, receivers: list[Session]) -> bool:
    """Schedule the ready receivers to be written in this turn. Return whether any receiver is offline or slow."""
    slow = False
    dirty = connection.state.writes.dirty
    for receiver in receivers:
        if receiver.state == IDLE:
            receiver.state = PENDING
            dirty.append(receiver)
        elif receiver.state == QUEUEING:
            slow = True
    return slow


def _forward_each(
    connection: ClientConnection,
    cached: CachedPublish,
    payloads: list[bytes],
    packets: list[bytes],
    others: list[bytes],
    at: int,
    enough: int,
) -> int:
    """Forward QoS 0 messages one by one, because a receiver is offline or slow."""
    state = connection.state
    route = cached.route
    for index in range(len(packets)):
        if index and (state.work > enough or not route.valid):
            return at + index
        state.work += 1
        behind: Outgoing | None = None
        for receivers, packet in ((route.plain5, packets[index]), (route.plain3, others[index])):
            state.work += len(receivers) >> 4
            for receiver in receivers:
                if receiver.state == QUEUEING:
                    payload = payloads[at + index]
                    behind = deliver_to_one(connection, receiver, route, payload, _EMPTY, behind)
                    continue
                state.writes.mark(receiver)
                receiver.out.append(packet)
                state.metrics.messages_delivered += 1
        if route.plugin_clients:
            hand_over(connection, route, payloads[at + index], _EMPTY, behind)
    return at + len(packets)


def _hand_over(
    connection: ClientConnection,
    cached: CachedPublish,
    payloads: list[bytes],
    at: int,
    end: int,
) -> int:
    """Pass messages with these payloads to recipients that are all plugin clients. Return the index of the first
    message that was not passed on because the route was no longer valid.
    """
    state = connection.state
    route = cached.route
    qos = cached.header >> 1 & 3
    if not qos:
        return hand_over_payloads(connection, route, payloads, at, end)
    first = at
    while at < end and (at == first or route.valid):
        state.work += 1
        forward_unencoded(connection, route, payloads[at], qos)
        at += 1
    return at


def _forward_acknowledged(
    connection: ClientConnection,
    cached: CachedPublish,
    payloads: list[bytes],
    packets: list[bytes],
    at: int,
    enough: int,
) -> int:
    """Forward QoS 1 and QoS 2 messages, each with its receiver's packet id."""
    state = connection.state
    route = cached.route
    session = connection.session
    assert session is not None
    qos = cached.header >> 1 & 3
    five = bool(route.plain5) or not route.plain3
    for index, packet in enumerate(packets):
        if index and (state.work > enough or not route.valid):
            return at + index
        state.work += 1
        end = len(packet)
        start = end - len(payloads[at + index])
        stop = start - (3 if five else 2)
        forward_raw(
            connection, session, cached, packet, 0, stop, start, end, qos, _EMPTY, None, five
        )
    return at + len(packets)
