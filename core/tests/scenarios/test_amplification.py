"""Test that a few bytes of any packet make the broker store only a few bytes, and do only a little work per turn.

The tests count bytes, packets and turns, but never measure time.
"""

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.routing.route import Recipient
from hookmq_testing import Harness, MemoryClient, will

Make = Callable[..., Harness]

ROOM = 65536
"""`broker.max_write_buffer`, which is also the transport's high-water mark."""
PACKET = 61_000
"""The largest packet in these tests."""
HELD = 2 * ROOM + PACKET
"""Bytes that may wait in the transport of a client that does not read: its buffer plus one more write."""
LONG = "t/" + "x" * 60_000


def narrow(make: Make, **options: Any) -> Harness:
    config = options.pop("config", {})
    config = {**config, "broker": {"max_write_buffer": ROOM, **config.get("broker", {})}}
    return make(config=config, **options)


def silent(harness: Harness, name: str = "victim", **options: Any) -> MemoryClient:
    """Return a client that stops reading when `pause` is called."""
    return harness.connect(name, high_water=ROOM, **options)


def send(client: MemoryClient, *packets: bytes) -> int:
    """Send packets in one segment, and return the number of bytes sent."""
    data = b"".join(packets)
    client.wire.send(data)
    return len(data)


def publish(topic: str, payload: bytes = b"", version: int = 5, **fields: Any) -> bytes:
    return encode(Publish(topic, payload, **fields), version)


def subscribe(*filters: str, qos: int = 0) -> bytes:
    return encode(Subscribe(7, tuple(SubscribeRequest(one, qos) for one in filters)), 5)


def most_unsent(harness: Harness, client: MemoryClient) -> int:
    """Run the event loop until nothing is left to do. Return the largest number of unsent bytes in the client's
    transport.
    """
    most = client.wire.unsent
    while harness.clock.turn():
        most = max(most, client.wire.unsent)
    return max(most, client.wire.unsent)


# --- every way out --------------------------------------------------------------------------------------------------


def test_retained_messages_asked_for_again_and_again(broker_harness: Make) -> None:
    harness = narrow(broker_harness)
    pub = harness.connect("pub")
    for number in range(20):
        pub.publish(f"a/{number}", bytes(60_000), retain=True)
    victim = silent(harness)
    victim.pause()
    levels = ["#", "a/#", "+/#", "a/+", "+/+"]
    send(victim, *(subscribe(levels[n % 5]) for n in range(800)))
    assert most_unsent(harness, victim) <= HELD
    session = harness.broker.state.sessions["victim"]
    assert len(session.backlog or ()) <= len(levels)
    assert session.queued_bytes <= harness.settings.session.queue_bytes
    assert len(session.queue_qos0 or ()) <= 2


def test_small_retained_messages_for_a_client_that_reads(broker_harness: Make) -> None:
    """A client that keeps reading eventually receives all messages, because the limit applies to each turn."""
    harness = narrow(broker_harness)
    pub = harness.connect("pub")
    for number in range(600):
        pub.publish(f"a/{number}", b"x", retain=True)
    sub = harness.connect("sub")
    with harness.together():
        send(sub, subscribe("a/#"), subscribe("+/#"), subscribe("#"))
    assert len(sub.messages) == 1800


def test_an_alias_for_a_long_topic(broker_harness: Make) -> None:
    harness = narrow(broker_harness)
    victim = silent(harness)
    victim.subscribe("t/#")
    victim.pause()
    pub = harness.connect("pub")
    alias = Properties(topic_alias=1)
    send(pub, publish(LONG, properties=alias), publish("", properties=alias) * 3000)
    assert most_unsent(harness, victim) <= HELD
    session = harness.broker.state.sessions["victim"]
    assert session.queued_bytes <= harness.settings.session.queue_bytes


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_wills_of_many(broker_harness: Make, qos: int) -> None:
    harness = narrow(broker_harness)
    victim = silent(harness, auto_ack=False)
    victim.subscribe("w", qos)
    victim.pause()
    many = [harness.connect(f"c{n}", will=will("w", bytes(60_000), qos)) for n in range(50)]
    for one in many:
        one.wire.lose()
    assert most_unsent(harness, victim) <= HELD


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_fast_path_of_many_publishers(broker_harness: Make, qos: int, version: int) -> None:
    """Each publisher stays within its own limit per turn, although all publishers together exceed it."""
    harness = narrow(broker_harness, config={"session": {"max_inflight": 65535}})
    victim = silent(harness, version=5, auto_ack=False)
    victim.subscribe("t", qos)
    many = [harness.connect(f"p{n}", version=version) for n in range(30)]
    for one in many:
        for _ in range(2):
            one.publish("t", b"", qos)
    victim.pause()
    packet = publish("t", bytes(1000), version, qos=qos, packet_id=1 if qos else 0)
    for one in many:
        send(one, packet * 50)
    assert most_unsent(harness, victim) <= HELD + ROOM


def test_a_large_fan_out(broker_harness: Make) -> None:
    """A large fan-out is sent in slices that each cover several messages."""
    harness = narrow(broker_harness, config={"broker": {"fan_out_batch": 4}})
    victims = [silent(harness, f"v{n}") for n in range(8)]
    for one in victims:
        one.subscribe("t")
        one.pause()
    many = [harness.connect(f"p{n}") for n in range(50)]
    for one in many:
        send(one, publish("t", bytes(60_000)))
    assert most_unsent(harness, victims[0]) <= HELD + ROOM


def test_slow_receivers_share_one_message(broker_harness: Make) -> None:
    harness = narrow(broker_harness)
    victims = [silent(harness, f"v{n}") for n in range(5)]
    for one in victims:
        one.subscribe("t")
        one.pause()
    pub = harness.connect("pub")
    for _ in range(8):
        pub.publish("t", bytes(30_000))
    sessions = harness.broker.state.sessions
    waiting = [list(sessions[f"v{n}"].queue_qos0 or ()) for n in range(5)]
    assert len(waiting[0]) > 2
    assert len({id(queue[-1].outgoing) for queue in waiting}) == 1


# --- overlapping filters and groups -----------------------------------------------------------------------------------


def overlapping(levels: int) -> list[str]:
    """Return all filters with `levels` levels that match ``a/a/...``."""
    return ["/".join(parts) for parts in product("a+", repeat=levels)]


def test_identifiers_are_merged_once(broker_harness: Make) -> None:
    """The work for a route is proportional to the number of its subscriptions, not to the square of that number."""
    harness = broker_harness()
    sub = harness.connect("sub")
    filters = overlapping(11)
    for number, one in enumerate(filters):
        send(sub, encode(Subscribe(1, (SubscribeRequest(one, 0),), identified(number + 1)), 5))
    harness.settle()
    session = harness.broker.state.sessions["sub"]
    assert len(session.subscriptions) == 2048
    merged = Recipient(session, next(iter(session.subscriptions.values())))
    held = []
    for subscription in list(session.subscriptions.values())[1:]:
        merged.merge(subscription)
        held.append(len(merged.identifiers))
    assert sum(held) == len(held)  # no merge copied the identifiers collected earlier
    merged.complete()
    assert sorted(merged.identifiers) == list(range(1, 2049))
    harness.connect("pub").publish("/".join("a" * 11), b"x")
    [message] = sub.messages
    found = message.properties.subscription_identifier
    assert sorted(found or ()) == list(range(1, 2049))


def identified(number: int) -> Properties:
    return Properties(subscription_identifier=(number,))


def test_publishes_to_many_overlapping_filters_yield(broker_harness: Make) -> None:
    harness = broker_harness()
    sub = harness.connect("sub")
    for number, one in enumerate(overlapping(12)):
        send(sub, encode(Subscribe(1, (SubscribeRequest(one, 0),), identified(number + 1)), 5))
    harness.settle()
    topic = "/".join("a" * 12)
    pub = harness.connect("pub")
    send(pub, publish(topic, b"x") * 60)
    seen = [harness.metrics.messages_received]
    while harness.clock.turn():
        seen.append(harness.metrics.messages_received)
    assert max(after - before for before, after in pairwise(seen)) <= 8
    assert len(sub.messages) == 60


def test_subscription_identifiers_count_against_the_queue_limit(broker_harness: Make) -> None:
    harness = narrow(broker_harness, config={"session": {"queue_bytes": 20_000}})
    sub = silent(harness, auto_ack=False, receive_maximum=1)
    for number, one in enumerate(overlapping(10)):
        send(sub, encode(Subscribe(1, (SubscribeRequest(one, 1),), identified(number + 1)), 5))
    harness.settle()
    pub = harness.connect("pub")
    for _ in range(20):
        pub.publish("/".join("a" * 10), b"x", 1)
    assert harness.broker.state.sessions["victim"].queued <= 4


def test_a_message_for_many_groups_goes_in_slices(broker_harness: Make) -> None:
    """A message for many shared subscriptions is delivered in slices. The second and third messages each wait until the
    previous one is complete.
    """
    harness = broker_harness()
    idle = harness.connect("idle", session_expiry_interval=60)
    for first in range(0, 2000, 500):
        idle.subscribe([f"$share/g{n}/t" for n in range(first, first + 500)], 1)
    idle.disconnect()
    pub = harness.connect("pub")
    core = harness.broker.state
    groups = list(core.groups.values())
    pub.wire.send(b"".join(publish("t", b"x", qos=1, packet_id=n) for n in (1, 2, 3)))
    seen = [0]
    while harness.clock.turn():
        seen.append(sum(group.queued for group in groups))
    assert seen[-1] == 6000
    assert max(after - before for before, after in pairwise(seen)) <= 300
    assert [pub.expect(Puback).packet_id for _ in range(3)] == [1, 2, 3]


def test_a_client_in_many_groups_is_at_rest(broker_harness: Make) -> None:
    """For a client in many shared subscriptions, checking whether a message is waiting takes many steps. If none is
    waiting, this result is cached.
    """
    harness = broker_harness(config={"session": {"max_subscriptions": 10_000}})
    harness.connect("pub").publish("kept", b"x", retain=True)
    member = harness.connect("member")
    names = [f"$share/g{n}/s" for n in range(10_000)]
    send(member, *(subscribe(*names[at : at + 500]) for at in range(0, 10_000, 500)))
    send(member, subscribe("other"))
    send(member, encode(Unsubscribe(8, ("$share/g0/s",)), 5), subscribe("kept"))
    for _ in range(1000):
        if not harness.clock.turn():
            break
    assert not harness.clock.turn()
    assert len(harness.broker.state.sessions["member"].groups) == 9999
    assert [message.topic for message in member.messages] == ["kept"]


def test_the_groups_of_a_client_share_its_bounds(broker_harness: Make) -> None:
    harness = broker_harness(config={"session": {"queue_messages": 500, "queue_bytes": 50_000}})
    idle = harness.connect("idle", session_expiry_interval=60)
    idle.subscribe([f"$share/g{n}/t" for n in range(100)], 1)
    idle.disconnect()
    pub = harness.connect("pub")
    for _ in range(20):
        pub.publish("t", b"x", 1)
    core = harness.broker.state
    assert sum(group.queued for group in core.groups.values()) * 160 <= 50_000
    assert core.queued_bytes <= 50_000
    # If the payer leaves, the next payer is charged. If the last member leaves, the waiting messages are dropped.
    other = harness.connect("other", auto_ack=False, receive_maximum=1)
    other.subscribe([f"$share/g{n}/t" for n in range(100)], 1)
    idle.reconnect(auto_ack=False, receive_maximum=1)
    idle.unsubscribe([f"$share/g{n}/t" for n in range(100)])
    sessions = core.sessions
    assert sessions["idle"].shared_queued == sessions["idle"].shared_bytes == 0
    assert sessions["other"].shared_bytes == sum(g.queued_bytes for g in core.groups.values()) > 0
    other.disconnect()
    assert core.queued_bytes == 0


# --- what sessions hold -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", ["id", "username", "will"])
def test_sessions_are_bounded_in_bytes(broker_harness: Make, large: str) -> None:
    harness = broker_harness(config={"broker": {"max_session_bytes": 200_000}})
    core = harness.broker.state
    codes = []
    for number in range(10):
        one = harness.connect(
            f"{number}" + "c" * (40_000 if large == "id" else 0),
            username="u" * 40_000 if large == "username" else None,
            will=will("w", bytes(40_000)) if large == "will" else None,
            session_expiry_interval=60,
            expect=None,
        )
        harness.settle()
        codes.append(one.connack.code if one.connack is not None else None)
    assert codes[:4] == [0] * 4
    assert codes[5:] == [ReasonCode.QUOTA_EXCEEDED] * 5
    assert core.session_bytes <= 200_000
    harness.clients[0].disconnect(session_expiry_interval=0)
    harness.connect("small")
    for one in harness.clients:
        if not one.closed:
            one.disconnect(session_expiry_interval=0)
    assert core.session_bytes == 0


def test_filters_are_bounded_in_bytes(broker_harness: Make) -> None:
    harness = broker_harness(config={"session": {"subscription_bytes": 100_000}})
    client = harness.connect("client")
    codes = [client.subscribe(f"{n}/" + "x" * 30_000).codes[0] for n in range(5)]
    assert codes == [0, 0, 0, ReasonCode.QUOTA_EXCEEDED, ReasonCode.QUOTA_EXCEEDED]
    assert client.subscribe("0/" + "x" * 30_000, 1).codes == (1,)  # an existing filter
    client.unsubscribe("0/" + "x" * 30_000)
    assert client.subscribe("9/" + "x" * 30_000).codes == (0,)
    client.disconnect()
    assert harness.broker.state.session_bytes == 0


# --- work of one turn -----------------------------------------------------------------------------------------------


def served_within(harness: Harness, data: bytes, hostile: MemoryClient, most: int) -> int:
    """Return how many turns pass until another client, which sends its packet after `data`, gets a response."""
    other = harness.connect("other")
    hostile.wire.send(data)
    other.wire.send(encode(Pingreq(), 5))
    done = 0
    for turn in range(most):
        harness.clock.turn()
        done = turn + 1
        if any(isinstance(packet, Pingresp) for packet in other.received):
            break
    return done


HOSTILE = {
    "pings": encode(Pingreq(), 5) * 30_000,
    "the same filter": subscribe("#") * 8000,
    "retained": publish("r", b"", retain=True) * 8000,
    "new topics": b"".join(publish(f"n/{n}") for n in range(5000)),
    "deep topics": b"".join(publish(f"{'d/' * 198}{n}") for n in range(500)),
    "deep topics, retained": b"".join(
        publish(f"{'d/' * 198}{n}", b"x", retain=True) for n in range(250)
    ),
    "an alias of a long topic": publish(LONG, properties=Properties(topic_alias=1))
    + publish("", properties=Properties(topic_alias=1)) * 1000,
    "aliases of long topics": publish(LONG, properties=Properties(topic_alias=1))
    + publish(LONG + "y", properties=Properties(topic_alias=2))
    + b"".join(publish("", properties=Properties(topic_alias=n)) for n in (1, 2)) * 500,
    "known topic, one receiver": publish("known") * 30_000,
    "known topic, QoS 1": publish("known", qos=1, packet_id=1) * 10_000,
}


LEAST = {
    "pings": (513, 50), "the same filter": (513, 15), "retained": (513, 15),
    "new topics": (513, 9), "an alias of a long topic": (513, 3), "aliases of long topics": (20, 50),
    "deep topics": (50, 10), "deep topics, retained": (30, 8),
    "known topic, one receiver": (8000, 3), "known topic, QoS 1": (8000, 2),
}  # fmt: skip
"""For each kind of traffic, the maximum number of packets per turn and the minimum number of turns."""


@pytest.mark.parametrize("kind", HOSTILE)
def test_others_have_their_turn(broker_harness: Make, kind: str) -> None:
    """However much a client sends at once, the work per turn is limited. The rest waits until other
    clients have been served.
    """
    harness = broker_harness()
    harness.connect("reader", auto_ack=False).subscribe("known", 1)
    hostile = harness.connect("hostile")
    hostile.publish("known")
    data = HOSTILE[kind]
    hostile.wire.send(data)
    seen = [harness.metrics.packets_received]
    while harness.clock.turn():
        seen.append(harness.metrics.packets_received)
    read = [after - before for before, after in pairwise(seen)]
    most, turns = LEAST[kind]
    assert max(read) <= most
    assert sum(1 for count in read if count) >= turns
    assert hostile.wire.reading
    if kind == "pings":
        assert sum(isinstance(one, Pingresp) for one in hostile.received) == 30_000
    if kind == "the same filter":
        assert sum(isinstance(one, Suback) for one in hostile.received) == 8000


def test_a_large_subscribe_is_cut(broker_harness: Make) -> None:
    """A large SUBSCRIBE is processed in slices, one per turn. SUBACK and later packets follow once all filters are
    done.
    """
    harness = broker_harness()
    client = harness.connect("client")
    filters = [f"a/{n}/+" for n in range(1000)]
    session = harness.broker.state.sessions["client"]
    send(client, subscribe(*filters), encode(Pingreq(), 5), subscribe(*filters))
    seen = [0]
    while harness.clock.turn():
        seen.append(len(session.subscriptions))
    assert max(after - before for before, after in pairwise(seen)) <= 300
    assert [type(one).__name__ for one in client.received[1:]] == ["Pingresp", "Suback", "Suback"]
    assert len(session.subscriptions) == 1000


def test_a_client_that_leaves_during_its_subscribe(broker_harness: Make) -> None:
    harness = broker_harness()
    client = harness.connect("client")
    send(client, subscribe(*(f"a/{n}/+" for n in range(1000))))
    harness.clock.turn()
    harness.clock.turn()
    client.drop()
    assert "client" not in harness.broker.state.sessions
    assert len(harness.broker.state.router) == 0


def test_held_packets_are_processed_in_slices(broker_harness: Make) -> None:
    """Held packets are processed one slice per turn, no faster than other packets."""
    harness = broker_harness()
    sub = harness.connect("sub")
    sub.subscribe("n/#")
    client = harness.connect("client")
    filters = (f"a/{n}/+" for n in range(1000))
    send(client, subscribe(*filters), *(publish(f"n/{n}") for n in range(2000)))
    seen = [0]
    while harness.clock.turn():
        seen.append(harness.metrics.messages_received)
    assert max(after - before for before, after in pairwise(seen)) <= 513
    assert [message.topic for message in sub.messages] == [f"n/{n}" for n in range(2000)]


def test_a_client_waits_two_turns_at_most(broker_harness: Make) -> None:
    harness = broker_harness()
    hostile = harness.connect("hostile")
    assert served_within(harness, HOSTILE["pings"], hostile, 100) <= 4


def test_packets_before_the_end_of_a_connection_are_read(broker_harness: Make) -> None:
    """If a client sends a lot of data and a DISCONNECT before it closes the connection, no message is lost and its will
    is not published.
    """
    harness = broker_harness()
    sub = harness.connect("sub")
    sub.subscribe("#")
    pub = harness.connect("pub", will=will("gone"))
    with harness.together():
        send(pub, *(publish(f"n/{n}") for n in range(3000)), b"\xe0\x00")
        pub.wire.lose()
    assert len(sub.messages) == 3000
    assert "pub" not in harness.broker.state.sessions


def test_a_reset_while_bytes_wait(broker_harness: Make) -> None:
    """If the transport ends while received bytes are still waiting, they are processed before the connection ends."""
    harness = broker_harness()
    sub = harness.connect("sub")
    sub.subscribe("#")
    pub = harness.connect("pub", will=will("gone"))
    pub.wire.send(b"".join(publish(f"n/{n}") for n in range(3000)))
    harness.clock.turn()
    assert pub.connection.rest is not None
    pub.connection.closed("reset")
    harness.settle()
    assert len(sub.messages) == 3001
    assert sub.messages[-1].topic == "gone"


def test_a_reset_of_a_client_that_does_not_read(broker_harness: Make) -> None:
    """If a client does not read and its connection is reset, bytes it has already sent are processed at once and its
    session ends.
    """
    harness = narrow(broker_harness)
    sub = harness.connect("sub")
    sub.subscribe("gone")
    victim = silent(harness, will=will("gone"))
    victim.pause()
    victim.connection.pause_writing()
    victim.connection.feed(encode(Pingreq(), 5) * 120_000)
    assert victim.connection.rest is not None
    victim.connection.closed("reset")
    harness.settle()
    assert [message.topic for message in sub.messages] == ["gone"]
    assert "victim" not in harness.broker.state.sessions


def test_bytes_that_come_while_others_wait(broker_harness: Make) -> None:
    """Bytes that arrive while others are waiting are kept, because a transport may have decrypted more data before it
    was paused.
    """
    harness = broker_harness()
    sub = harness.connect("sub")
    sub.subscribe("#")
    pub = harness.connect("pub")
    data = b"".join(publish(f"n/{n}") for n in range(3000))
    pub.connection.feed(data[:-5])
    assert pub.connection.rest is not None
    pub.connection.feed(data[-5:])
    harness.settle()
    assert [message.topic for message in sub.messages] == [f"n/{n}" for n in range(3000)]
