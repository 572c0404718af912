"""Test shared subscriptions. Each message goes to one member, and none is lost as long as there are members. Members
may leave.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.delivery.shared import ENTRY
from hookmq.mqtt.packets import Puback, Pubcomp, Publish, Pubrel
from hookmq_testing import Harness, MemoryClient

Make = Callable[..., Harness]
VERSIONS = (3, 4, 5)
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 10000}


def payloads(client: MemoryClient) -> list[bytes]:
    """Remove the unread messages and return their payloads."""
    client.harness.settle()
    found = [p.payload for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return found


def join(harness: Harness, name: str, qos: int = 1, **options: Any) -> MemoryClient:
    """Return a client that has joined the shared subscription "g" to t/#."""
    member = harness.connect(name, **options)
    member.subscribe("$share/g/t/#", qos)
    return member


def members(harness: Harness, count: int, qos: int = 1, **options: Any) -> list[MemoryClient]:
    """Connect `count` members named m0, m1, ... and return them."""
    return [join(harness, f"m{n}", qos, **options) for n in range(count)]


def send(client: MemoryClient, numbers: range, qos: int = 1, topic: str = "t/x") -> None:
    for number in numbers:
        client.publish(topic, b"%d" % number, qos, expect=0 if qos else None)


def numbers(*which: int) -> list[bytes]:
    return [b"%d" % n for n in which]


# --- choosing a member ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", VERSIONS)
def test_one_member_each(harness: Harness, version: int, qos: int) -> None:
    """Members take turns. Other subscribers and other shared subscriptions receive their own copy."""
    first = members(harness, 3, 2, version=version)
    other = harness.connect("other")
    other.subscribe(["$share/h/t/#", "t/x"], 2)
    publisher = harness.connect("p")
    send(publisher, range(9), qos)
    assert [payloads(m) for m in first] == [numbers(n, n + 3, n + 6) for n in range(3)]
    assert Counter(payloads(other)) == {b"%d" % n: 2 for n in range(9)}


@pytest.mark.parametrize(
    "strategy", ["round_robin", "random", "sticky", "hash_client", "hash_topic", "least_inflight"]
)
@pytest.mark.parametrize("qos", [0, 1])
def test_every_strategy(broker_harness: Make, strategy: str, qos: int) -> None:
    """With every strategy, exactly one member receives each message. Members that have left receive nothing."""
    harness = broker_harness(config={"broker": {"shared_strategy": strategy}})
    group = members(harness, 4, 2)
    publishers = [harness.connect(f"p{n}") for n in range(8)]
    got: dict[str, set[bytes]] = {m.client_id: set() for m in group}
    for round_ in range(6):
        for number, publisher in enumerate(publishers):
            publisher.publish(f"t/{number}", b"%d %d" % (round_, number), qos)
        for member in group:
            found = payloads(member)
            assert not got[member.client_id].intersection(found)
            got[member.client_id].update(found)
    assert sum(map(len, got.values())) == 48
    shares = [{data.split()[1] for data in found} for found in got.values()]
    if strategy == "round_robin":
        assert [len(found) for found in got.values()] == [12] * 4
    elif strategy == "sticky":
        assert sorted(map(len, got.values())) == [0, 0, 0, 48]
    elif strategy in ("hash_client", "hash_topic"):
        assert sum(map(len, shares)) == 8  # one publisher (one topic) always has the same receiver
        assert max(map(len, shares)) < 8
    elif strategy == "random":
        assert all(got.values())
    chosen = max(group, key=lambda m: len(got[m.client_id]))
    chosen.disconnect()
    for number, publisher in enumerate(publishers):
        publisher.publish(f"t/{number}", b"after", qos)
    assert sum(len(payloads(m)) for m in group if m is not chosen) == 8


def test_least_inflight(broker_harness: Make) -> None:
    harness = broker_harness(config={"broker": {"shared_strategy": "least_inflight"}})
    one, two = members(harness, 2, 1)
    one.auto_ack = False
    publisher = harness.connect("p")
    send(publisher, range(6))
    assert payloads(one) == numbers(0)
    assert payloads(two) == numbers(1, 2, 3, 4, 5)


def test_strategy_by_name(broker_harness: Make) -> None:
    harness = broker_harness(config={"broker": {"shared_groups": {"g": "sticky"}}})
    one, two = members(harness, 2)
    for member in (one, two):
        member.subscribe("$share/other/t/#")
    publisher = harness.connect("p")
    send(publisher, range(4), 0)
    assert sorted(len(payloads(m)) for m in (one, two)) == [2, 6]


def test_the_members_own_qos_and_options(harness: Harness) -> None:
    """[MQTT-4.8.2-3] QoS, RETAIN and identifiers depend on the member's own subscription."""
    group = [harness.connect(f"m{n}") for n in range(3)]
    for qos, member in enumerate(group):
        member.subscribe("$share/g/t", qos, identifier=qos + 1, retain_as_published=qos == 2)
    publisher = harness.connect("p")
    for _ in range(2):
        for qos, member in enumerate(group):
            publisher.publish("t", b"x", 2, retain=True)
            message = member.expect_message("t", b"x", qos, retain=qos == 2)
            assert message.properties.subscription_identifier == (qos + 1,)
    group[0].subscribe("$share/g/t", 2)
    for member in group:
        publisher.publish("t", b"x", 1)
        member.expect_message(qos=1)


def test_dollar_topics(harness: Harness) -> None:
    """[MQTT-4.7.2-1], edge case 33: `$share/g/#` does not match topics that start with $, but `$share/g/$own/#` does."""
    client = harness.connect("m")
    client.subscribe(["$share/g/#", "$share/h/$own/#"])
    publisher = harness.connect("p")
    publisher.publish("$own/x", b"own")
    publisher.publish("own/x", b"x")
    assert payloads(client) == [b"own", b"x"]


def test_groups_are_told_apart(harness: Harness) -> None:
    """Two shared subscriptions are the same only if their names and filters match exactly. This also applies to
    UNSUBSCRIBE (edge case 33).
    """
    client = harness.connect("m")
    filters = ["$share/g/t", "$share/G/t", "$share/g/+", "$share/ /t"]
    client.subscribe(filters)
    publisher = harness.connect("p")
    publisher.publish("t")
    assert len(payloads(client)) == 4
    assert client.unsubscribe(["t", "$share/g", "$share/h/t"]).codes == (0x11,) * 3
    assert client.unsubscribe(filters).codes == (0,) * 4
    publisher.publish("t")
    client.expect_nothing()
    assert harness.broker.state.groups == {}


# --- no room ----------------------------------------------------------------------------------------------------------


def test_the_first_with_room_takes_it(harness: Harness) -> None:
    """[MQTT-3.3.4-9] While every member's window is full, messages wait in order for the first member with room."""
    one, two = members(harness, 2, 2, auto_ack=False, receive_maximum=1)
    publisher = harness.connect("p")
    send(publisher, range(6))
    first, second = one.expect_message(payload=b"0"), two.expect_message(payload=b"1")
    one.expect_nothing()
    two.expect_nothing()
    group = harness.broker.state.groups["g", "t/#"]
    assert group.queued == 4
    two.ack(second)
    second = two.expect_message(payload=b"2")
    two.ack(second)
    two.expect_message(payload=b"3")
    one.ack(first)
    one.expect_message(payload=b"4")
    late = join(harness, "late")
    assert payloads(late) == numbers(5)
    assert (group.queued, group.queued_bytes, harness.broker.state.queued_bytes) == (0, 0, 0)


def test_nobody_overtakes_the_group(harness: Harness) -> None:
    """New messages for a shared subscription wait behind those already waiting."""
    one, two = members(harness, 2, 1, auto_ack=False, receive_maximum=1)
    publisher = harness.connect("p")
    with harness.together():
        for number in range(6):
            publisher.publish("t/x", b"%d" % number, 1)
    one.auto_ack = two.auto_ack = True
    one.ack(one.expect_message())
    two.ack(two.expect_message())
    assert sorted(m.payload for m in [*one.messages, *two.messages]) == numbers(*range(6))
    for member in (one, two):
        found = [m.payload for m in member.messages]
        assert found == sorted(found)


@pytest.mark.parametrize("policy", ["newest", "oldest"])
@pytest.mark.parametrize("bound", ["queue_messages", "queue_bytes", "max_queue_bytes"])
def test_bounds(broker_harness: Make, policy: str, bound: str) -> None:
    size = 3 if bound == "queue_messages" else 3 * (len("t/x0") + ENTRY)
    config: dict[str, dict[str, Any]] = {"session": {"queue_drop": policy}, "broker": {}}
    config["broker" if bound == "max_queue_bytes" else "session"][bound] = size
    harness = broker_harness(config=config)
    (one,) = members(harness, 1, 1, auto_ack=False, receive_maximum=1)
    publisher = harness.connect("p")
    send(publisher, range(6))
    reason = "queue_full" if bound == "queue_messages" else "queue_bytes"
    assert harness.metrics.dropped == {(reason, "out"): 2}
    one.auto_ack = True
    one.ack(one.expect_message())
    expected = numbers(0, 1, 2, 3) if policy == "newest" else numbers(0, 3, 4, 5)
    assert [m.payload for m in one.messages] == expected


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_qos_0_passes_over_slow_members(harness: Harness, qos: int) -> None:
    """QoS 0 messages go to a member that is reading, or wait until there is one. This also applies to messages whose
    QoS is 0 for every member.
    """
    one, two = members(harness, 2, 0, high_water=10)
    publisher = harness.connect("p")
    one.pause()
    send(publisher, range(3), qos, "t/0123456789")
    assert payloads(two) == numbers(1, 2)
    two.pause()
    send(publisher, range(3, 7), qos, "t/0123456789")
    assert harness.broker.state.groups["g", "t/#"].queued == 0
    for member in (one, two):
        member.resume()
    assert sorted(payloads(one) + payloads(two)) == numbers(0, 3, 4, 5, 6)
    assert not harness.metrics.dropped


def test_qos_1_waits_for_a_reader(harness: Harness) -> None:
    one, two = members(harness, 2, 1, high_water=10)
    publisher = harness.connect("p")
    one.pause()
    two.pause()
    send(publisher, range(6), 1, "t/0123456789")
    group = harness.broker.state.groups["g", "t/#"]
    assert group.queued == 4
    two.resume()
    assert payloads(two) == numbers(1, 2, 3, 4, 5)
    one.resume()
    assert payloads(one) == numbers(0)


def test_expired_while_waiting(harness: Harness) -> None:
    """[MQTT-3.3.2-5, 3.3.2-6] Expiry also counts down in the queue of the shared subscription."""
    (one,) = members(harness, 1, 1, auto_ack=False, receive_maximum=1)
    publisher = harness.connect("p")
    send(publisher, range(1))
    publisher.publish("t/x", b"short", 1, message_expiry_interval=5)
    publisher.publish("t/x", b"long", 1, message_expiry_interval=50)
    harness.advance(7)
    one.ack(one.expect_message())
    message = one.expect_message(payload=b"long")
    assert message.properties.message_expiry_interval == 43
    assert harness.metrics.dropped == {("expired", "out"): 1}


# --- members that leave -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("way", ["drop", "disconnect", "takeover"])
def test_unacknowledged_qos_1_goes_to_another(harness: Harness, kept: bool, way: str) -> None:
    """When a member leaves, its unacknowledged messages go to the other members, in order, ahead of queued messages and
    without DUP. Acknowledged messages do not.
    """
    one = join(harness, "m0", auto_ack=False, **(KEPT if kept else {}))
    publisher = harness.connect("p")
    send(publisher, range(4))
    two = join(harness, "m1", auto_ack=False, receive_maximum=1)
    one.ack(one.expect_message(payload=b"0"))
    if way == "drop":
        one.drop()
    elif way == "disconnect":
        one.disconnect()
    else:
        harness.connect("m0", clean_start=True)
    send(publisher, range(5, 6))
    for data in numbers(1, 2, 3, 5):
        message = two.expect_message("t/x", data, 1, dup=False)
        two.expect_nothing()
        two.ack(message)
    assert harness.broker.state.groups["g", "t/#"].queued == 0
    if kept and way != "takeover":
        one.reconnect()
        assert payloads(one) == []
    assert not harness.metrics.dropped


@pytest.mark.parametrize("kept", [False, True])
def test_after_unsubscribing(harness: Harness, kept: bool) -> None:
    """[MQTT-3.10.4-3] Deliveries in flight are completed with a member even if it unsubscribes.

    If the member's session ends first, its messages return to the shared subscription.
    """
    one = join(harness, "m0", auto_ack=False, **(KEPT if kept else {}))
    publisher = harness.connect("p")
    send(publisher, range(3))
    two = join(harness, "m1")
    one.unsubscribe("$share/g/t/#")
    send(publisher, range(3, 5))
    assert payloads(two) == numbers(3, 4)
    one.ack(one.expect_message(payload=b"0"))
    one.drop()
    if kept:
        assert payloads(two) == []
        one.reconnect()
        one.ack(one.expect_message(payload=b"1", dup=True))
        one.drop()
        harness.advance(10_001)
    assert payloads(two) == (numbers(2) if kept else numbers(1, 2))
    assert not harness.metrics.dropped


def test_a_returning_member_takes_what_waits(harness: Harness) -> None:
    """When the only member returns, it receives its messages again with new ids, followed by those queued in the
    meantime. QoS 0 messages are lost.
    """
    one = harness.connect("m0", auto_ack=False, **KEPT)
    one.subscribe("$share/g/t/#", 1)
    publisher = harness.connect("p")
    send(publisher, range(2))
    one.drop()
    send(publisher, range(2, 5))
    publisher.publish("t/x", b"zero")
    one.reconnect(auto_ack=True)
    assert payloads(one) == numbers(0, 1, 2, 3, 4)
    assert harness.metrics.dropped == {("offline_qos0", "out"): 1}
    assert harness.broker.sessions["m0"].inflight == {}
    assert harness.broker.state.queued_bytes == 0


def test_away_members_do_not_hold_what_others_can_take(harness: Harness) -> None:
    """Online members receive messages before offline ones, durable or not. If all members are offline, messages wait
    until one returns.
    """
    away = harness.connect("away", **KEPT)
    away.subscribe("$share/g/t/#", 2)
    away.drop()
    here = harness.connect("here", auto_ack=False)
    here.subscribe("$share/g/t/#", 1)
    publisher = harness.connect("p")
    send(publisher, range(3), 2)
    assert payloads(here) == numbers(0, 1, 2)
    here.ack(here.messages[0])
    here.drop()  # its session ends
    send(publisher, range(3, 5), 2)
    away.reconnect()
    found = away.messages
    assert [m.payload for m in found] == numbers(1, 2, 3, 4)
    assert {m.qos for m in found} == {2}


def test_started_qos_2_stays(harness: Harness) -> None:
    """[MQTT-4.8.2-4] A QoS 2 delivery is completed with the member that it started with, both before and after PUBREC."""
    one = harness.connect("m0", auto_ack=False, **KEPT)
    one.subscribe("$share/g/t/#", 2)
    publisher = harness.connect("p")
    send(publisher, range(2), 2)
    first, second = one.expect_message(), one.expect_message()
    one.ack(first)
    one.drop()
    two = join(harness, "m1", 2)
    two.expect_nothing()
    one.reconnect()
    assert one.next() == Pubrel(first.packet_id)
    assert one.expect_message(payload=b"1", dup=True).packet_id == second.packet_id
    one.send(Pubcomp(first.packet_id))
    one.ack(second)
    one.send(Pubcomp(second.packet_id))
    assert harness.broker.sessions["m0"].inflight == {}
    two.expect_nothing()


@pytest.mark.parametrize("kept", [False, True])
def test_started_qos_2_ends_with_its_session(harness: Harness, kept: bool) -> None:
    """[MQTT-4.8.2-5] If a session ends during a QoS 2 delivery, no other member receives the
    message, and the drop is counted.
    """
    one = harness.connect("m0", auto_ack=False, **(KEPT if kept else {}))
    one.subscribe("$share/g/t/#", 2)
    publisher = harness.connect("p")
    send(publisher, range(1), 2)
    send(publisher, range(1, 2), 1)
    two = join(harness, "m1", 2)
    one.drop()
    harness.advance(10_001)
    assert payloads(two) == numbers(1)
    assert harness.metrics.dropped == {("session_ended", "out"): 1}


@pytest.mark.parametrize("qos", [1, 2])
def test_refused_goes_to_nobody_else(harness: Harness, qos: int) -> None:
    """[MQTT-4.8.2-6], edge case 33: a refused message is not sent to another member."""
    one = harness.connect("m0", auto_ack=False)
    one.subscribe("$share/g/t/#", 2)
    publisher = harness.connect("p")
    send(publisher, range(1), qos)
    two = join(harness, "m1", 2)
    one.ack(one.expect_message(), 0x83)
    one.drop()
    two.expect_nothing()
    assert harness.metrics.dropped == {("refused", "out"): 1}


@pytest.mark.parametrize("kept", [False, True])
def test_the_last_member_leaves(harness: Harness, kept: bool) -> None:
    """When the last member leaves, queued messages are counted as dropped with the reason
    `session_ended`, and no state remains.
    """
    one = harness.connect("m0", auto_ack=False, receive_maximum=1, **(KEPT if kept else {}))
    one.subscribe("$share/g/t/#", 1)
    publisher = harness.connect("p")
    send(publisher, range(4))
    one.drop()
    if kept:
        assert harness.broker.state.groups["g", "t/#"].queued == 4
        assert not harness.metrics.dropped
        harness.advance(10_001)
    assert harness.metrics.dropped == {("session_ended", "out"): 4}
    assert harness.broker.state.groups == {}
    assert harness.broker.state.queued_bytes == 0
    assert len(harness.broker.state.router) == 0
    publisher.publish("t/x", b"", 1, expect=0x10)


def test_the_last_member_unsubscribes(harness: Harness) -> None:
    """[MQTT-3.10.4-2, 3.10.4-3] When the last member unsubscribes, deliveries in flight are
    completed, and queued messages are dropped.
    """
    one = harness.connect("m0", auto_ack=False, receive_maximum=1, **KEPT)
    one.subscribe("$share/g/t/#", 1)
    publisher = harness.connect("p")
    send(publisher, range(3))
    one.unsubscribe("$share/g/t/#")
    assert harness.metrics.dropped == {("session_ended", "out"): 2}
    one.reconnect()
    one.send(Puback(one.expect_message(payload=b"0", dup=True).packet_id))
    one.expect_nothing()
    assert harness.broker.sessions["m0"].inflight == {}
    assert harness.broker.state.queued_bytes == 0


def test_a_message_comes_back_after_others_were_done_with_it(harness: Harness) -> None:
    """A message returns to its group after its last queue entry has been removed, and the store has deleted the message
    with it. The message is stored again, and the commit does not fail.
    """
    plain = harness.connect("plain", **KEPT)
    plain.subscribe("t/#", 1)
    one = harness.connect("m0", auto_ack=False)
    one.subscribe("$share/g/t/#", 1)
    away = harness.connect("away", **KEPT)
    away.subscribe("$share/g/t/#", 1)
    away.drop()
    publisher = harness.connect("p")
    send(publisher, range(3))
    assert payloads(plain) == numbers(0, 1, 2)
    one.drop()
    away.reconnect()
    assert payloads(away) == numbers(0, 1, 2)
    assert harness.logged("store.failed") == []
    publisher.publish("t/x", b"goes on", 1, expect=0)


def test_taken_from_a_volatile_group_by_a_durable_member(harness: Harness) -> None:
    """A durable member takes over messages from a volatile queue. The store has already deleted these messages, so they
    are stored again.
    """
    plain = harness.connect("plain", **KEPT)
    plain.subscribe("t/#", 1)
    one = harness.connect("m0", auto_ack=False, receive_maximum=1)
    one.subscribe("$share/g/t/#", 1)
    publisher = harness.connect("p")
    send(publisher, range(4))
    assert payloads(plain) == numbers(0, 1, 2, 3)
    two = harness.connect("m1", **KEPT)
    two.subscribe("$share/g/t/#", 1)
    assert payloads(two) == numbers(1, 2, 3)
    assert harness.logged("store.failed") == []


def test_a_member_of_several_groups(harness: Harness) -> None:
    """A client that belongs to several shared subscriptions has one window for all of them."""
    one = harness.connect("m0", auto_ack=False, receive_maximum=1)
    one.subscribe(["$share/g/t/#", "$share/h/t/#", "t/x"], 1)
    publisher = harness.connect("p")
    send(publisher, range(2))
    one.auto_ack = True
    one.ack(one.expect_message())
    assert Counter(m.payload for m in one.messages) == {b"0": 3, b"1": 3}
    assert harness.broker.state.queued_bytes == 0
