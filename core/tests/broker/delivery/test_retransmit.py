"""Test retransmission when a session is resumed and, if configured, within a connection."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.packets import (
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from hookmq_testing import Harness, MemoryClient, SlowStore

Make = Callable[..., Harness]


VERSIONS = (3, 4, 5)


def kept(version: int) -> dict[str, Any]:
    """Return CONNECT options for a session that outlives its connection."""
    return {"clean_start": False, **({"session_expiry_interval": 10000} if version == 5 else {})}


def unread(client: MemoryClient) -> list[Packet]:
    """Remove the unread packets and return them."""
    client.harness.settle()
    packets = list(client.unread)
    client.unread.clear()
    return packets


def flow(packets: list[Packet]) -> list[tuple[Any, ...]]:
    """Return (kind, id, payload, DUP) for each PUBLISH and (kind, id) for each acknowledgement."""
    return [
        (type(p), p.packet_id, p.payload, p.dup) if isinstance(p, Publish) else (type(p), p.packet_id)
        for p in packets
        if isinstance(p, Publish | Puback | Pubrec | Pubrel | Pubcomp)
    ]  # fmt: skip


@pytest.mark.parametrize("to", VERSIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_resumed(harness: Harness, version: int, to: int) -> None:
    """[MQTT-4.4.0-1, 3.3.1-1, 4.3.2-3, 4.3.3-3, 4.3.3-5, 4.3.3-6] [MQTT311-4.4.0-1, 3.3.1-1, 4.6.0-1], edge case 43

    Unfinished messages are sent again in order, with the same ids and DUP set, or as PUBREL if PUBREC was received.
    Queued messages follow. The same applies if the client returns with another MQTT version.
    """
    client = harness.connect("c", version, auto_ack=False, **kept(version))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    for number, qos in enumerate((1, 2, 1, 2, 2, 1)):
        publisher.publish("t", b"%d" % number, qos, expect=0)
    messages = [p for p in unread(client) if isinstance(p, Publish)]
    ids = [m.packet_id for m in messages]
    assert len(set(ids)) == 6
    client.ack(messages[0])  # acknowledged, so it is not sent again [MQTT-4.4.0-2]
    client.ack(messages[1])  # PUBREC received, so only PUBREL is sent again
    client.drop()
    publisher.publish("t", b"waited", 1)
    client.reconnect(version=to, properties={"session_expiry_interval": 100} if to == 5 else {})
    assert flow(unread(client)) == [
        (Pubrel, ids[1]),
        (Publish, ids[2], b"2", True),
        (Publish, ids[3], b"3", True),
        (Publish, ids[4], b"4", True),
        (Publish, ids[5], b"5", True),
        (Publish, 7, b"waited", False),
    ]
    client.send(Pubcomp(ids[1]), Puback(ids[2]), Pubrec(ids[3]), Pubrec(ids[4]), Puback(ids[5]))
    assert unread(client) == [Pubrel(ids[3]), Pubrel(ids[4])]
    client.send(Pubcomp(ids[3]), Puback(7))
    client.reconnect()
    assert flow(unread(client)) == [(Pubrel, ids[4])]
    client.send(Pubcomp(ids[4]))
    client.reconnect()
    assert flow(unread(client)) == []
    assert harness.broker.sessions["c"].inflight == {}


def test_qos_and_flags_of_what_comes_again(harness: Harness) -> None:
    """[MQTT-3.3.1-1] A retransmitted message has the same RETAIN flag, identifiers and properties as the first time."""
    client = harness.connect("c", auto_ack=False, **kept(5))
    publisher = harness.connect("p")
    publisher.publish("t", b"x", 2, retain=True, user_property=(("k", "v"),))
    client.subscribe("t", 2, identifier=9)
    first = client.expect_message("t", b"x", 2, retain=True, dup=False)
    client.reconnect()
    again = client.expect_message("t", b"x", 2, retain=True, dup=True)
    assert (again.packet_id, again.properties) == (first.packet_id, first.properties)
    assert again.properties.subscription_identifier == (9,)


def test_resumed_with_a_smaller_window(harness: Harness) -> None:
    """Edge case 18 [MQTT-4.9.0-1]: retransmitted messages count against the new connection's Receive Maximum."""
    client = harness.connect("c", auto_ack=False, **kept(5))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    for number in range(6):
        publisher.publish("t", b"%d" % number, 1 + number % 2)
    ids = [m.packet_id for m in client.messages]
    client.reconnect(receive_maximum=2)
    publisher.publish("t", b"new", 1)
    expected = [(n, b"%d" % k, True) for k, n in enumerate(ids)] + [(7, b"new", False)]
    seen = []
    while True:
        arrived = [p for p in unread(client) if isinstance(p, Publish)]
        seen += [(m.packet_id, m.payload, m.dup) for m in arrived]
        if not arrived:
            break
        assert len(arrived) <= 2
        for message in arrived:
            client.ack(message)
            if message.qos == 2:
                client.expect(Pubrel)
                client.send(Pubcomp(message.packet_id))
    assert seen == expected


def test_answers_to_the_old_connection_on_the_new_one(harness: Harness) -> None:
    """As soon as a client reconnects, it may acknowledge messages from its old connection. They are not sent again, and
    the window is unchanged.
    """
    client = harness.connect("c", auto_ack=False, **kept(5))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    for number in range(5):
        publisher.publish("t", b"%d" % number, 2 if number == 3 else 1)
    ids = [m.packet_id for m in client.messages]
    client.reconnect(receive_maximum=1)
    assert flow(unread(client)) == [(Publish, ids[0], b"0", True)]
    client.send(Puback(ids[2]))
    client.expect_nothing()
    client.send(Pubrec(ids[3]))
    assert unread(client) == [Pubrel(ids[3])]
    client.send(Pubcomp(ids[3]))
    client.expect_nothing()
    client.send(Puback(ids[0]))
    assert flow(unread(client)) == [(Publish, ids[1], b"1", True)]
    client.send(Puback(ids[1]))
    assert flow(unread(client)) == [(Publish, ids[4], b"4", True)]


def test_live_messages_do_not_overtake_what_is_sent_again(harness: Harness) -> None:
    """[MQTT-4.6.0-5] Live messages do not overtake retransmitted ones, even if everything happens
    in one turn or the publisher uses the fast path.
    """
    for qos in (1, 2):
        client = harness.connect("c", auto_ack=False, **kept(5))
        client.subscribe("t", 2)
        publisher = harness.connect("p")
        for number in range(4):
            publisher.publish("t", b"%d" % number, qos)
        client.drop()
        client.unread.clear()
        client.received.clear()
        with harness.together():
            client.reconnect(expect=None, receive_maximum=2)
            for number in range(4, 8):
                publisher.publish("t", b"%d" % number, qos)
        client.auto_ack = True
        client.reconnect(receive_maximum=3)
        payloads = [m.payload for m in client.messages]
        assert payloads == [b"0", b"1"] + [b"%d" % n for n in range(8)]
        client.drop()


def test_a_takeover_resumes(harness: Harness) -> None:
    """After a takeover, unfinished deliveries continue on the new connection."""
    client = harness.connect("c", auto_ack=False, **kept(5))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    publisher.publish("t", b"x", 2)
    number = client.expect_message().packet_id
    other = harness.connect("c", auto_ack=False, **kept(5))
    assert other.session_present
    assert other.expect_message("t", b"x", 2, dup=True).packet_id == number
    client.expect_disconnect(0x8E)
    # The old connection may no longer acknowledge.
    client.connection.feed(b"\x50\x02" + number.to_bytes(2, "big"))
    other.expect_nothing()
    other.send(Pubrec(number))
    assert other.next() == Pubrel(number)


def test_a_clean_start_forgets(harness: Harness) -> None:
    """[MQTT-3.1.2-4] After a clean start, nothing is retransmitted, and all packet ids are treated as unused."""
    subscriber = harness.connect("s")
    subscriber.subscribe("#", 2)
    client = harness.connect("c", auto_ack=False, **kept(5))
    client.subscribe("t", 2)
    client.publish("t", b"x", 2, packet_id=5)
    client.reconnect(clean_start=True)
    client.expect_nothing()
    client.publish("t", b"x", 2, packet_id=5)
    assert len(subscriber.messages) == 2
    assert harness.metrics.dropped == {("session_ended", "out"): 1}


@pytest.mark.parametrize("version", VERSIONS)
def test_resending_where_configured(broker_harness: Make, version: int) -> None:
    """[MQTT-4.4.0-1], edge case 43: the broker resends messages, with DUP, until they are acknowledged. It does this
    only for MQTT 3 clients.
    """
    harness = broker_harness(config={"session": {"retry_interval": 10}})
    client = harness.connect("c", version, auto_ack=False, **kept(version))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    for qos in (1, 2):
        publisher.publish("t", b"", qos)
    one, two = (m.packet_id for m in client.messages)
    unread(client)
    harness.advance(25)
    again = flow(unread(client))
    if version == 5:
        assert again == []
        return
    assert again[:2] == [(Publish, one, b"", True), (Publish, two, b"", True)]
    client.send(Puback(one), Pubrec(two))
    assert unread(client) == [Pubrel(two)]
    harness.advance(25)
    assert set(flow(unread(client))) == {(Pubrel, two)}
    client.send(Pubcomp(two))
    harness.advance(25)
    client.expect_nothing()


@pytest.mark.parametrize("version", [3, 4])
def test_no_answer_is_overdue_before_the_interval(broker_harness: Make, version: int) -> None:
    """The interval after which an acknowledgement is overdue starts when the message is sent, not at the broker's last
    check.
    """
    harness = broker_harness(config={"session": {"retry_interval": 10}})
    client = harness.connect("c", version, auto_ack=False, **kept(version))
    client.subscribe("t", 1)
    harness.advance(15)
    harness.connect("p").publish("t", b"x", 1)
    number = client.messages[0].packet_id
    unread(client)
    harness.advance(9)
    assert unread(client) == []
    harness.advance(10)
    assert flow(unread(client)) == [(Publish, number, b"x", True)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_that_waited_for_its_record_arrives_once_at_the_next_connection(
    broker_harness: Make, version: int
) -> None:
    """A message may be waiting for its record to be committed when the client reconnects. It still arrives once."""
    store = SlowStore(slow=False, durable=True)
    harness = broker_harness(store=store)
    client = harness.connect("c", version, auto_ack=False, **kept(version))
    client.subscribe("t", 2)
    store.slow = True
    harness.connect("p").publish("t", b"x", 2, packet_id=7)
    client.drop()
    client.reconnect(expect=None)
    store.slow = False
    store.finish()
    harness.settle()
    assert [m.payload for m in client.messages] == [b"x"]


def test_resending_that_a_reload_asks_for(broker_harness: Make) -> None:
    """After a reload enables retransmission, messages sent before the reload can be overdue as well."""
    harness = broker_harness()
    client = harness.connect("c", 4, auto_ack=False, **kept(4))
    client.subscribe("t", 1)
    harness.connect("p").publish("t", b"x", 1)
    number = client.messages[0].packet_id
    unread(client)
    harness.reload({"session": {"retry_interval": 10}})
    harness.advance(70)
    assert (Publish, number, b"x", True) in flow(unread(client))


@pytest.mark.parametrize("version", [3, 4])
def test_a_message_that_waits_for_its_record_is_not_retransmitted(
    broker_harness: Make, version: int
) -> None:
    """If the disk is slow, a message whose packet id has not been committed yet must not be retransmitted."""
    store = SlowStore(slow=False, durable=True)
    harness = broker_harness(store=store, config={"session": {"retry_interval": 10}})
    client = harness.connect("c", version, auto_ack=False, **kept(version))
    client.subscribe("t", 2)
    store.slow = True
    harness.connect("p").publish("t", b"x", 2, packet_id=7)
    harness.advance(25)
    assert unread(client) == []
    store.finish()
    harness.settle()
    number = client.messages[0].packet_id
    assert flow(unread(client)) == [(Publish, number, b"x", False)]
    harness.advance(9)
    client.send(Pubrec(number))
    harness.advance(25)
    assert unread(client) == []
    store.finish()
    harness.settle()
    assert unread(client) == [Pubrel(number)]
    harness.advance(9)
    assert unread(client) == []
    harness.advance(11)
    assert set(flow(unread(client))) == {(Pubrel, number)}
