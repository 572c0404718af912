"""Test chapters 4.9 and 3.3.4: Receive Maximum in both directions."""

from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from bytememory import in_memory, join
from hookmq_testing import Harness
from statements import edge, statement


def fill(harness: Harness, quota: int, qos: int, count: int, **options: Any) -> ByteClient:
    """Return a client with a Receive Maximum of `quota`, to which `count` messages were published."""
    properties = m.receive_maximum(quota) + m.session_expiry(100)
    client = join(harness, properties=properties, **options)
    client.subscribe(("t", qos), ("zero", 0))
    sender = join(harness, "sender")
    for number in range(1, count + 1):
        sender.publish("t", bytes((number,)), qos, number)
    return client


def sent(first: int, last: int, qos: int) -> list[bytes]:
    return [m.publish("t", bytes((n,)), qos, n) for n in range(first, last + 1)]


@statement("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2")
@edge(18)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("quota", [1, 2, 5])
def test_no_more_than_receive_maximum(harness: Harness, qos: int, quota: int) -> None:
    client = fill(harness, quota, qos, 8)
    client.expect(*sent(1, quota, qos))
    for number in range(1, 9 - quota):
        if qos == 1:
            client.send(m.puback(number))
        else:
            client.send(m.pubrec(number))
            client.expect(m.pubrel(number))  # a good PUBREC frees nothing
            client.send(m.pubcomp(number))
        client.expect(*sent(number + quota, number + quota, qos))


@statement("MQTT-3.3.4-9", "MQTT-4.4.0-2")
@edge(18, 40)
def test_a_pubrec_that_refuses_frees_a_slot(harness: Harness) -> None:
    client = fill(harness, 1, 2, 3)
    client.expect(*sent(1, 1, 2))
    client.send(m.pubrec(1, 0x80))
    client.expect(*sent(2, 2, 2))


@edge(18)
@statement("MQTT-3.3.4-9")
def test_extra_acknowledgements_do_not_raise_the_quota(harness: Harness) -> None:
    client = fill(harness, 2, 1, 0)
    client.send(*map(m.pubcomp, range(1, 9)), *map(m.puback, range(1, 9)))
    sender = join(harness, "sender2")
    for number in range(1, 6):
        sender.publish("t", bytes((number,)), 1, number)
    client.expect(*sent(1, 2, 1))


@statement("MQTT-3.3.4-10", "MQTT-4.9.0-3", "MQTT-4.9.0-2")
@edge(18)
@pytest.mark.parametrize("qos", [1, 2])
def test_everything_else_flows_at_quota_0(harness: Harness, qos: int) -> None:
    client = fill(harness, 1, qos, 3)
    client.expect(*sent(1, 1, qos))
    client.send(m.PINGREQ)
    client.expect(m.PINGRESP)
    client.send(m.subscribe(5, ("u", 1)))
    client.expect(m.suback(5, 1))
    client.send(m.unsubscribe(6, "u"))
    client.expect(m.unsuback(6, 0))
    client.send(m.publish("x", b"", 1, 7))
    client.expect(m.puback(7, 0x10))
    client.send(m.publish("x", b"", 2, 8))
    client.expect(m.pubrec(8, 0x10))
    client.send(m.pubrel(8))
    client.expect(m.pubcomp(8))
    client.send(m.publish("zero", b"q0"))
    client.expect(m.publish("zero", b"q0"))


@statement("MQTT-4.9.0-1")
@edge(17, 18)
def test_the_quota_is_of_the_connection(harness: Harness) -> None:
    """Each connection has its own quota, and retransmitted messages count against it."""
    client = fill(harness, 4, 1, 6)
    client.expect(*sent(1, 4, 1))
    client.close()
    properties = m.receive_maximum(2) + m.session_expiry(100)
    client = join(harness, clean=False, present=True, properties=properties)
    again = [m.publish("t", bytes((n,)), 1, n, dup=True) for n in range(1, 5)]
    client.expect(*again[:2])
    client.send(m.puback(1))
    client.expect(again[2])
    client.send(m.puback(2), m.puback(3))
    client.expect(again[3], *sent(5, 5, 1))
    client.close()
    client = join(harness, clean=False, present=True, properties=m.session_expiry(100))
    client.expect(
        again[3], m.publish("t", b"\x05", 1, 5, dup=True), *sent(6, 6, 1)
    )  # 65535 by default


@statement("MQTT-3.3.4-9", "MQTT-4.9.0-2")
@edge(18)
def test_retained_messages_keep_to_it(harness: Harness) -> None:
    sender = join(harness, "sender")
    for number in range(5):
        sender.publish(f"r/{number}", b"", 1, 1, retain=True)
        sender.publish(f"r/{number}", b"x", 1, 1, retain=True)
    client = fill(harness, 2, 1, 0)
    client.subscribe(("r/+", 1))
    topics = set()
    for step in range(1, 6):
        frames = client.take_frames()
        assert len(frames) == (2 if step == 1 else 1 if step < 5 else 0)
        topics |= {m.split_publish(frame)[1] for frame in frames}
        client.send(m.puback(step))
    assert len(topics) == 5


@edge(17)
def test_receive_maximum_0(harness: Harness) -> None:
    in_memory(harness).connect(properties=m.receive_maximum(0)).not_accepted(0x82)


@statement("MQTT-3.3.4-7", "MQTT-4.9.0-1")
@edge(19)
@pytest.mark.parametrize("most", [1, 3])
def test_a_client_that_exceeds_our_receive_maximum(broker_harness: Any, most: int) -> None:
    harness = broker_harness(config={"broker": {"receive_maximum": most}})
    client = in_memory(harness).connect()
    assert m.receive_maximum(most) in client.accepted()
    for number in range(1, most + 1):
        client.publish("t", b"", 2, number)
        client.expect(m.pubrec(number, 0x10))
    client.publish("t", b"", 2, 1, dup=True)  # no new slot
    client.expect(m.pubrec(1))
    client.publish("t", b"", 0)
    client.expect()
    client.send(m.pubrel(1))
    client.expect(m.pubcomp(1))
    client.publish("t", b"", 2, 100)  # that slot is free
    client.expect(m.pubrec(100, 0x10))
    client.publish("t", b"", 2, 101)
    client.refused(0x93)


@statement("MQTT-3.3.4-7")
@edge(19)
def test_qos_1_that_is_answered_at_once_is_never_too_many(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"receive_maximum": 1}})
    client = join(harness)
    client.send(*(m.publish("t", b"", 1, number) for number in range(1, 50)))
    client.expect(*(m.puback(number, 0x10) for number in range(1, 50)))


@edge(17)
def test_receive_maximum_is_not_part_of_the_session(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"receive_maximum": 2}})
    keep: dict[str, Any] = {"clean": False, "properties": m.session_expiry(100)}
    client = join(harness, **keep)
    client.publish("t", b"", 2, 1)
    client.publish("t", b"", 2, 2)
    client.expect(m.pubrec(1, 0x10), m.pubrec(2, 0x10))
    client.close()
    client = join(harness, present=True, **keep)
    client.publish("t", b"", 2, 3)
    client.publish("t", b"", 2, 4)
    client.expect(m.pubrec(3, 0x10), m.pubrec(4, 0x10))
    client.publish("t", b"", 2, 5)
    client.refused(0x93)
