"""Test chapter 4.8.2: shared subscriptions."""

from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from bytememory import LEVELS, join
from hookmq_testing import Harness
from statements import edge, statement

KEEP: dict[str, Any] = {"clean": False, "properties": m.session_expiry(100)}


@statement("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@edge(33)
@pytest.mark.parametrize(
    "name",
    [
        "$share//x",
        "$share/g",
        "$share/g/",
        "$share/",
        "$share/+/x",
        "$share/#/x",
        "$share/a+b/x",
        "$share/a#/x",
        "$share/g/a#",
    ],
)
def test_bad_shared_filters(harness: Harness, name: str) -> None:
    client = join(harness, properties=m.problem_information(0))
    client.send(m.subscribe(1, (name, 0), ("ok", 0)))
    client.expect(m.suback(1, 0x8F, 0))
    client.publish("x", b"x")
    client.expect()


@edge(33)
def test_a_shared_filter_is_matched_without_its_prefix(harness: Harness) -> None:
    client = join(harness)
    client.subscribe(("$share/g/#", 0), ("$share/h//x", 0), ("$share/i/$x/#", 0))
    client.publish("$x/a", b"1")  # "#" does not match what begins with "$"
    client.expect(m.publish("$x/a", b"1"))
    client.publish("/x", b"2")
    client.expect(*[m.publish("/x", b"2")] * 2)
    client.publish("$share/g/x", b"3")
    client.expect()


def members(harness: Harness, *granted: int) -> list[ByteClient]:
    found = []
    for number, qos in enumerate(granted):
        client = join(harness, f"member{number}", **KEEP)
        client.subscribe(("$share/g/t", qos))
        found.append(client)
    return found


@statement("MQTT-4.8.2-3")
@LEVELS
def test_each_message_goes_to_one_at_its_granted_qos(harness: Harness, level: int) -> None:
    group = members(harness, 0, 1, 2)
    sender = join(harness, "sender", level)
    for number in range(1, 10):
        sender.publish("t", bytes((number,)), 2, number)
    seen = []
    for qos, client in enumerate(group):
        for frame in client.take_frames():
            first, topic, packet_id, _, payload = m.split_publish(frame)
            assert (first, topic, packet_id > 0) == (0x30 | qos << 1, b"t", qos > 0)
            seen.append(payload[0])
    assert sorted(seen) == list(range(1, 10))


def started(harness: Harness, qos: int) -> tuple[ByteClient, ByteClient]:
    """Publish a message while both members are online. Return (the member that received it, the other member)."""
    one, two = members(harness, qos, qos)
    join(harness, "sender").publish("t", b"x", qos, 1)
    whole = m.publish("t", b"x", qos, 1)
    if not one.arrived:
        one, two = two, one
    one.expect(whole)
    two.expect()
    return one, two


def client_id(harness: Harness, client: ByteClient) -> str:
    found = client.connection.client
    assert found is not None
    return found.client_id


@statement("MQTT-4.8.2-4")
@edge(33)
@pytest.mark.parametrize("released", [False, True])
def test_qos_2_that_was_started_stays_with_its_client(harness: Harness, released: bool) -> None:
    chosen, other = started(harness, 2)
    name = client_id(harness, chosen)
    if released:
        chosen.send(m.pubrec(1))
        chosen.expect(m.pubrel(1))
    chosen.close()
    other.expect()
    chosen = join(harness, name, present=True, **KEEP)
    chosen.expect(m.pubrel(1) if released else m.publish("t", b"x", 2, 1, dup=True))
    if not released:
        chosen.send(m.pubrec(1))
        chosen.expect(m.pubrel(1))
    chosen.send(m.pubcomp(1))
    chosen.expect()
    other.expect()


@statement("MQTT-4.8.2-5")
@edge(33)
@pytest.mark.parametrize("how", ["expires", "starts clean"])
def test_qos_2_that_was_started_goes_to_nobody_else(harness: Harness, how: str) -> None:
    chosen, other = started(harness, 2)
    name = client_id(harness, chosen)
    chosen.close()
    if how == "expires":
        harness.advance(101)
    else:
        join(harness, name).expect()
    assert how == "starts clean" or name not in harness.broker.sessions
    other.expect()
    harness.advance(1000)
    other.expect()


@statement("MQTT-4.8.2-6", "MQTT-4.4.0-2")
@edge(33)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("code", [0x80, 0x87, 0x97])
def test_a_refusal_discards_the_message(harness: Harness, qos: int, code: int) -> None:
    chosen, other = started(harness, qos)
    name = client_id(harness, chosen)
    chosen.send(m.puback(1, code) if qos == 1 else m.pubrec(1, code))
    chosen.expect()
    other.expect()
    chosen.close()
    other.expect()
    join(harness, name, present=True, **KEEP).expect()


@edge(20)
def test_another_member_takes_what_is_too_large_for_one(harness: Harness) -> None:
    """A message that is too large for one member is delivered to another member."""
    small = join(harness, "small", properties=m.packet_size(60))
    small.subscribe(("$share/g/t", 1))
    large = join(harness, "large")
    large.subscribe(("$share/g/t", 1))
    sender = join(harness, "sender")
    for number in range(1, 5):
        sender.publish("t", bytes(200), 1, number)
    small.expect()
    for frame in large.take_frames():
        assert m.split_publish(frame)[4] == bytes(200)
    sender.publish("t", b"x", 1, 9)
    sender.publish("t", b"x", 1, 10)
    assert len(small.take_frames()) + len(large.take_frames()) == 2


@statement("MQTT-4.8.2-3")
def test_qos_1_is_acknowledged_and_gone(harness: Harness) -> None:
    chosen, other = started(harness, 1)
    chosen.send(m.puback(1))
    chosen.close()
    other.expect()
