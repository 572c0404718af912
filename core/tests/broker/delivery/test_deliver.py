"""Test deliveries at QoS 0 and to slow readers: which messages are sent, queued or dropped."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from hookmq.session.session import QUEUEING
from hookmq_testing import Harness
from numbered import nothing_left, numbers, payloads, send

Make = Callable[..., Harness]
VERSIONS = (3, 4, 5)
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100_000}


# --- towards the client -------------------------------------------------------------------------------------------------


# --- towards the broker -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learned", [0, 3])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_brokers_receive_maximum(broker_harness: Make, learned: int, qos: int) -> None:
    """[MQTT-3.3.4-7], edge case 19: a QoS 2 message in flight counts against the maximum until PUBREL.
    Its retransmission does not count again.
    """
    harness = broker_harness(config={"broker": {"receive_maximum": 2}})
    client = harness.connect("c", auto_ack=False)
    assert client.connack is not None
    assert client.connack.properties.receive_maximum == 2
    for _ in range(learned):
        client.publish("t", b"", qos, expect=0x10)
    for number in (1, 2, 1, 2):
        client.publish("t", b"", 2, packet_id=number)
        client.expect(Pubrec)
    client.send(Pubrel(1))
    client.expect(Pubcomp)
    client.publish("t", b"", 1, expect=0x10)
    client.publish("t", b"", 2, packet_id=3)
    client.expect(Pubrec)
    client.publish("t", b"", 0)
    client.expect_nothing()
    client.publish("t", b"", qos, packet_id=4)
    client.expect_disconnect(0x93)
    assert harness.metrics.receive_maximum_exceeded == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_tolerated(broker_harness: Make, version: int) -> None:
    """MQTT 3 clients may exceed the broker's Receive Maximum. MQTT 5 clients may do so if configured. The broker only
    counts the excess messages.
    """
    config = {"broker": {"receive_maximum": 1, "receive_maximum_policy": "tolerant"}}
    if version < 5:
        del config["broker"]["receive_maximum_policy"]
    harness = broker_harness(config=config)
    client = harness.connect("c", version, auto_ack=False)
    for number in range(1, 5):
        client.publish("t", b"", 2, packet_id=number)
        assert client.next().packet_id == number  # type: ignore[union-attr]
    client.expect_nothing()
    assert harness.metrics.receive_maximum_exceeded == 3


def test_publishes_of_an_earlier_connection_do_not_count_against_receive_maximum(
    broker_harness: Make,
) -> None:
    """Receive Maximum applies to one connection (edge case 17). A client may still complete or repeat messages from an
    earlier connection.
    """
    harness = broker_harness(config={"broker": {"receive_maximum": 2}})
    client = harness.connect("c", auto_ack=False, **KEPT)
    for number in (1, 2):
        client.publish("t", b"", 2, packet_id=number)
    client.reconnect()
    for number in (1, 2):
        client.publish("t", b"", 2, packet_id=number, dup=True)
        assert client.next() == Pubrec(number)
    for number in (3, 4):
        client.publish("t", b"", 2, packet_id=number)
        assert client.next() == Pubrec(number, 0x10)
    client.publish("t", b"", 2, packet_id=5)
    client.expect_disconnect(0x93)


# --- bounds of a queue --------------------------------------------------------------------------------------------------


# --- QoS 0 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["newest", "oldest", "disconnect"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_qos_0_to_a_slow_reader(
    broker_harness: Make, policy: str, learned: bool, version: int
) -> None:
    """QoS 0 messages for a slow reader wait within the limits. They stay in order when the reader pauses and resumes."""
    harness = broker_harness(config={"session": {"queue_drop": policy, "queue_messages": 5}})
    client = harness.connect("c", 4, high_water=10)
    client.subscribe("t")
    harness.connect("p", version)
    if learned:
        send(harness, range(1000, 1003), 0)
        payloads(client)
    client.pause()
    # Fills the buffer: 101 is written, or is the first message to wait.
    send(harness, range(100, 102), 0)
    before = [p for w in client.wire.writes for p in [w.data]][-1]
    assert before.endswith((b"100", b"101"))
    send(harness, range(102, 110), 0)
    dropped = harness.metrics.dropped
    if policy == "disconnect":
        client.resume()
        assert client.closed
        assert dropped["queue_full", "out"] == 1
        return
    lost = dropped["queue_full", "out"]
    client.resume()
    send(harness, range(110, 112), 0)
    found = payloads(client)
    assert len(found) + lost == 12
    assert found == sorted(found)
    assert found[-2:] == numbers(110, 111)
    assert (b"109" in found) == (policy == "oldest")
    assert harness.broker.state.queued_bytes == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_order_across_pauses(harness: Harness, qos: int, kept: bool) -> None:
    """[MQTT-4.6.0-5] Messages stay in order however often a reader pauses, even if live messages arrive in the same
    turn in which it resumes.
    """
    client = harness.connect("c", high_water=20, **(KEPT if kept else {}))
    client.subscribe("t", qos)
    publisher = harness.connect("p")
    number = 0
    for round_ in range(8):
        with harness.together():
            for _ in range(round_ * 5):
                publisher.publish("t", b"%d" % number, qos)
                number += 1
            if round_ % 2:
                client.pause()
            else:
                client.resume()
            for _ in range(7):
                publisher.publish("t", b"%d" % number, qos)
                number += 1
    client.resume()
    assert payloads(client) == numbers(*range(number))
    assert nothing_left(harness)


def test_a_slow_reader_is_not_read_from_for_ever(broker_harness: Make) -> None:
    """The broker stops reading from a slow reader, and later closes the connection. Otherwise, responses to this client
    would accumulate without limit.
    """
    harness = broker_harness(config={"broker": {"max_write_buffer": 1024, "hold_timeout": 30}})
    client = harness.connect("c", high_water=10)
    client.pause()
    for _ in range(2000):
        client.send(Pingreq())
    assert not client.wire.reading
    assert client.wire.unsent < 2200
    harness.advance(20)
    client.resume()
    assert client.wire.reading
    harness.settle()
    assert sum(isinstance(p, Pingresp) for p in client.received) == 2000
    client.pause()
    for _ in range(2000):
        client.send(Pingreq())
    harness.advance(31)
    client.resume()
    client.expect_disconnect(0x89)


def test_qos_0_for_one_who_is_away(broker_harness: Make) -> None:
    """QoS 0 messages for an offline client are dropped by default. With `queue_qos0`, they are
    queued in order and count against the limits.
    """
    for queued in (False, True):
        harness = broker_harness(config={"session": {"queue_qos0": queued, "queue_messages": 6}})
        client = harness.connect("c", auto_ack=False, receive_maximum=1, **KEPT)
        client.subscribe("t", 1)
        send(harness, range(100, 103), 0)
        assert payloads(client) == numbers(100, 101, 102)
        client.drop()
        for number in range(8):
            send(harness, range(number, number + 1), number % 2)
        if not queued:
            assert harness.metrics.dropped == {("offline_qos0", "out"): 4}
            client.reconnect(auto_ack=True)
            assert payloads(client) == numbers(1, 3, 5, 7)
            continue
        assert harness.metrics.dropped == {("queue_full", "out"): 2}
        client.reconnect()
        assert payloads(client) == numbers(0, 1)
        send(harness, range(8, 9), 0)  # does not overtake messages of the same QoS
        client.auto_ack = True
        client.ack(client.messages[-1])
        assert payloads(client) == numbers(2, 3, 4, 5, 8)
        send(harness, range(9, 10), 0)
        assert payloads(client) == numbers(9)
        assert nothing_left(harness)


# --- pages --------------------------------------------------------------------------------------------------------------


# --- in the same segment ----------------------------------------------------------------------------------------------


def test_acknowledgements_in_one_segment(harness: Harness) -> None:
    """Acknowledging a whole window at once makes room for another window."""
    client = harness.connect("c", auto_ack=False, receive_maximum=10)
    client.subscribe("t", 1)
    publisher = harness.connect("p", 4)
    with harness.together():
        for number in range(30):
            publisher.publish("t", b"%d" % number, 1)
    for round_ in range(3):
        found = [p for p in list(client.unread) if isinstance(p, Publish)]
        client.unread.clear()
        assert [m.payload for m in found] == numbers(*range(round_ * 10, round_ * 10 + 10))
        client.send(*(Puback(m.packet_id) for m in found))
    client.expect_nothing()


def test_acknowledged_and_gone(harness: Harness) -> None:
    """A message acknowledged in the same segment as DISCONNECT is not sent again."""
    client = harness.connect("c", auto_ack=False, **KEPT)
    client.subscribe("t", 1)
    send(harness, range(2))
    first = client.expect_message(payload=b"0")
    client.send(Puback(first.packet_id), Disconnect())
    client.reconnect()
    client.expect_message(payload=b"1", dup=True)
    client.expect_nothing()


def test_a_client_that_caught_up_is_sent_to_directly_again(broker_harness: Make) -> None:
    harness = broker_harness()
    client = harness.connect("c")
    client.subscribe("t", 1)
    client.pause()
    publisher = harness.connect("p")
    for _ in range(3):
        publisher.publish("t", b"x" * 100_000, 1)
    session = harness.broker.sessions["c"]
    assert session.state == QUEUEING
    client.resume()
    harness.settle()
    assert len(client.messages) == 3
    assert session.state != QUEUEING
