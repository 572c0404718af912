"""The handshakes of QoS 1 and 2 in both directions, their ids, and what is sent again after a session was resumed."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.codec import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from hookmq.qos import VOLATILE_1, VOLATILE_2, VOLATILE_RELEASED
from hookmq.session import BEHIND
from hookmq.testing import Harness, MemoryClient, SlowStore

Make = Callable[..., Harness]
VERSIONS = (3, 4, 5)
NOT_FOUND = 0x92


def kept(version: int) -> dict[str, Any]:
    """What makes a session outlive its connection."""
    return {"clean_start": False, **({"session_expiry_interval": 10000} if version == 5 else {})}


def unread(client: MemoryClient) -> list[Packet]:
    """Everything that waits to be read, taken."""
    client.harness.settle()
    packets = list(client.unread)
    client.unread.clear()
    return packets


def flow(packets: list[Packet]) -> list[tuple[Any, ...]]:
    """(kind, id, payload, DUP) of PUBLISH and (kind, id) of its acknowledgements."""
    return [
        (type(p), p.packet_id, p.payload, p.dup) if isinstance(p, Publish) else (type(p), p.packet_id)
        for p in packets
        if isinstance(p, Publish | Puback | Pubrec | Pubrel | Pubcomp)
    ]  # fmt: skip


# --- into the broker ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("learned", [0, 2])
def test_a_repeated_id_is_one_message(
    harness: Harness, version: int, durable: bool, learned: int
) -> None:
    """[MQTT-4.3.3-10, 4.3.3-11, 4.3.3-12] [MQTT311-4.3.3-2], edge 42: until PUBREL, whether DUP is set or not."""
    subscriber = harness.connect("s")
    subscriber.subscribe("t", 2)
    client = harness.connect("c", version, auto_ack=False, **(kept(version) if durable else {}))
    for number in range(learned):
        client.publish("t", b"before", 2, packet_id=100 + number, expect=0)
        subscriber.expect_message("t")
    for _ in range(2):
        for dup in (False, True, False):
            client.publish("t", b"x", 2, packet_id=5, dup=dup)
            assert client.next() == Pubrec(5)
        subscriber.expect_message("t", b"x", 2, dup=False)
        subscriber.expect_nothing()
        client.send(Pubrel(5))
        assert client.next() == Pubcomp(5)
    client.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_qos_1_id_is_new_after_puback(harness: Harness, version: int) -> None:
    """[MQTT-4.3.2-5] [MQTT311-4.3.2-2], edge 42"""
    subscriber = harness.connect("s")
    subscriber.subscribe("t", 1)
    client = harness.connect("c", version)
    for dup in (False, True, True, False):
        client.publish("t", b"x", 1, packet_id=5, dup=dup, expect=0)
        subscriber.expect_message("t", b"x", 1, dup=False)
    subscriber.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_ids(harness: Harness, version: int) -> None:
    """[MQTT-3.6.2-1, 3.7.2-1, 4.3.3-11], edge 41: an answer, and no disconnect."""
    client = harness.connect("c", version)
    client.auto_ack = False
    client.send(Pubrel(9))
    assert client.next() == Pubcomp(9, NOT_FOUND if version == 5 else 0)
    client.send(Pubrec(9))
    assert client.next() == Pubrel(9, NOT_FOUND if version == 5 else 0)
    client.send(Puback(9), Pubcomp(9))
    if version == 5:
        client.send(Pubrec(9, 0x80))
        client.raw(b"\x40\x04\x00\x09\x00\x00" + b"\x70\x04\x00\x09\x92\x00")
    client.expect_nothing()


@pytest.mark.parametrize("durable", [False, True])
def test_pubrel_twice(harness: Harness, durable: bool) -> None:
    """The id is free after the first."""
    client = harness.connect("c", auto_ack=False, **(kept(5) if durable else {}))
    client.publish("t", b"", 2, packet_id=5)
    client.expect(Pubrec)
    client.send(Pubrel(5), Pubrel(5))
    assert unread(client) == [Pubcomp(5), Pubcomp(5, NOT_FOUND)]


def test_short_and_long_acknowledgements_mean_the_same(harness: Harness) -> None:
    """Edge 44: Remaining Length 2, 3 and 4."""
    client = harness.connect("c", auto_ack=False)
    client.subscribe("t", 2)
    for end in (b"", b"\0", b"\0\0"):
        size = bytes((2 + len(end),))
        client.publish("t", b"", 1, packet_id=1)
        assert isinstance(client.next(), Publish)
        assert client.next() == Puback(1)
        number = client.messages[-1].packet_id.to_bytes(2, "big")
        client.raw(b"\x40" + size + number + end)
        client.publish("t", b"", 2, packet_id=1)
        assert isinstance(client.next(), Publish)
        assert client.next() == Pubrec(1)
        client.raw(b"\x62" + size + b"\0\1" + end)
        assert client.next() == Pubcomp(1)
        number = client.messages[-1].packet_id.to_bytes(2, "big")
        client.raw(b"\x50" + size + number + end)
        assert isinstance(client.next(), Pubrel)
        client.raw(b"\x70" + size + number + end)
        assert harness.broker.sessions["c"].inflight == {}
    client.expect_nothing()


def test_both_ends_count_on_their_own(harness: Harness) -> None:
    """[MQTT-2.2.1-5], edge 39: one id in both directions at once."""
    client = harness.connect("c", auto_ack=False)
    client.subscribe("t", 2)
    client.publish("t", b"x", 2, packet_id=1)
    assert flow(unread(client)) == [(Publish, 1, b"x", False), (Pubrec, 1)]
    client.send(Pubrec(1))
    assert unread(client) == [Pubrel(1)]
    client.send(Pubrel(1))
    assert unread(client) == [Pubcomp(1)]
    client.send(Pubcomp(1))
    client.expect_nothing()
    assert not harness.broker.sessions["c"].inflight


@pytest.mark.parametrize("version", VERSIONS)
def test_an_id_taken_outlives_the_connection(harness: Harness, version: int) -> None:
    """[MQTT-4.3.3-10]: the sender did not see PUBREC, or not PUBCOMP."""
    subscriber = harness.connect("s")
    subscriber.subscribe("t", 2)
    client = harness.connect("c", version, auto_ack=False, **kept(version))
    client.publish("t", b"x", 2, packet_id=5)
    client.reconnect()
    client.publish("t", b"x", 2, packet_id=5, dup=True)
    assert client.next() == Pubrec(5)
    client.send(Pubrel(5))
    client.expect(Pubcomp)
    client.reconnect()
    client.send(Pubrel(5))
    assert client.next() == Pubcomp(5, NOT_FOUND if version == 5 else 0)
    subscriber.expect_message("t", b"x")
    subscriber.expect_nothing()
    client.publish("t", b"y", 2, packet_id=5, dup=True)
    subscriber.expect_message("t", b"y")


def test_a_refused_id_is_free(broker_harness: Make) -> None:
    """[MQTT-4.3.3-9], edge 40: after PUBREC of 0x80 and above the next PUBLISH with the id is new."""
    harness = broker_harness(config={"broker": {"check_payload_format": True}})
    client = harness.connect("c", auto_ack=False)
    client.publish("t", b"\xff", 2, packet_id=5, payload_format_indicator=1, expect=0x99)
    client.send(Pubrel(5))
    assert client.next() == Pubcomp(5, NOT_FOUND)
    client.publish("t", b"", 2, packet_id=5)
    assert client.next() == Pubrec(5, 0x10)


# --- out of the broker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_one_delivery_step_by_step(harness: Harness, version: int, qos: int, durable: bool) -> None:
    """[MQTT-4.3.2-1, 4.3.2-2, 4.3.2-3, 4.3.3-1 to 5, 2.2.1-5]: nothing more until the client answers, nothing sent twice
    on a connection [MQTT-4.4.0-1]."""
    client = harness.connect("c", version, auto_ack=False, **(kept(version) if durable else {}))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    session = harness.broker.sessions["c"]
    for _ in range(3):
        publisher.publish("t", b"x", qos, expect=0)
        message = client.expect_message("t", b"x", qos, dup=False)
        harness.advance(10_000)
        client.expect_nothing()
        number = message.packet_id
        assert list(session.inflight) == [number]
        client.ack(message)
        if qos == 2:
            assert client.next() == Pubrel(number)
            harness.advance(10_000)
            client.expect_nothing()
            client.send(Pubrec(number))  # PUBREL was not seen: it is repeated
            assert client.next() == Pubrel(number)
            client.send(Pubcomp(number))
        client.expect_nothing()
        assert session.inflight == {}


def test_refused_by_the_receiver(harness: Harness) -> None:
    """[MQTT-4.3.3-4, 4.4.0-2], edge 40: no PUBREL, no resend, the id is free and the drop is counted."""
    for options in ({}, kept(5)):
        client = harness.connect("c", auto_ack=False, **options)
        client.subscribe("t", 2)
        publisher = harness.connect("p")
        before = harness.metrics.dropped.get(("refused", "out"), 0)
        for qos in (1, 1, 2, 2):
            publisher.publish("t", b"", qos)
            client.ack(client.expect_message(qos=qos), 0x97)
        client.expect_nothing()
        assert harness.broker.sessions["c"].inflight == {}
        assert harness.metrics.dropped["refused", "out"] == before + 4
    client.reconnect()
    client.expect_nothing()


def test_the_wrong_acknowledgement(harness: Harness) -> None:
    """PUBACK does not end QoS 2, and PUBREC or PUBCOMP not QoS 1."""
    for options in ({}, kept(5)):
        client = harness.connect("c", auto_ack=False, **options)
        client.subscribe("t", 2)
        publisher = harness.connect("p")
        publisher.publish("t", b"", 1)
        first = client.expect_message(qos=1).packet_id
        publisher.publish("t", b"", 2)
        second = client.expect_message(qos=2).packet_id
        client.send(Pubcomp(first), Puback(second))
        client.expect_nothing()
        client.send(Pubrec(first))
        assert client.next() == Pubrel(first, NOT_FOUND)
        assert list(harness.broker.sessions["c"].inflight) == [first, second]
        client.send(Puback(first), Pubrec(second))
        assert client.next() == Pubrel(second)
        client.send(Pubcomp(second))
        assert harness.broker.sessions["c"].inflight == {}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("header", "qos"), [(0x41, 1), (0x48, 1), (0x51, 2), (0x60, 2), (0x71, 2)])
def test_reserved_flags(
    harness: Harness, header: int, qos: int, version: int, durable: bool
) -> None:
    """[MQTT-2.1.3-1, 3.6.1-1]: also of an acknowledgement of something that waits for it."""
    client = harness.connect("c", version, auto_ack=False, **(kept(version) if durable else {}))
    client.subscribe("t", 2)
    harness.connect("p").publish("t", b"", qos)
    message = client.expect_message(qos=qos)
    if header >= 0x60:
        client.publish("u", b"", 2, packet_id=message.packet_id)
        client.ack(message)
        client.expect(Pubrel)
    client.raw(bytes((header, 2)) + message.packet_id.to_bytes(2, "big"))
    client.expect_disconnect(0x81)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_ids_wrap_and_pass_over_those_in_use(
    harness: Harness, durable: bool, learned: bool
) -> None:
    """[MQTT-2.2.1-4, 4.3.2-1]: after 65,535 comes the first that is free, never 0."""
    client = harness.connect("c", auto_ack=False, **(kept(5) if durable else {}))
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    publisher.publish("t", b"", 1)
    publisher.publish("t", b"", 1)
    session = harness.broker.sessions["c"]
    session.last_packet_id = 65534
    if not learned:
        publisher.connection.forget_decisions()
    for _ in range(3):
        publisher.publish("t", b"", 1)
    assert [m.packet_id for m in client.messages] == [1, 2, 65535, 3, 4]


@pytest.mark.parametrize("learned", [False, True])
def test_all_ids_in_use(broker_harness: Make, learned: bool) -> None:
    """The last free id is found; with none left a message waits, and takes the one that is freed."""
    harness = broker_harness(config={"session": {"max_inflight": 65535}})
    client = harness.connect("c", auto_ack=False)
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    for _ in range(2 * learned):
        publisher.publish("t", b"", 1)
        client.ack(client.expect_message())
    session = harness.broker.sessions["c"]
    session.inflight.update((n, VOLATILE_1) for n in range(1, 65536) if n not in (40000, 50000))
    publisher.publish("t", b"last", 1, expect=0)
    assert client.expect_message("t", b"last").packet_id == 40000
    publisher.publish("t", b"waits", 1, expect=0)
    client.expect_nothing()
    client.send(Puback(7))
    assert client.expect_message("t", b"waits").packet_id in (7, 50000)


# --- again --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", VERSIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_resumed(harness: Harness, version: int, to: int) -> None:
    """[MQTT-4.4.0-1, 3.3.1-1, 4.3.2-3, 4.3.3-3, 4.3.3-5, 4.3.3-6] [MQTT311-4.4.0-1, 3.3.1-1, 4.6.0-1], edge 43: what was
    unfinished comes again, in its order, under its id, with DUP; PUBREL where PUBREC came; then what waited. Also when
    the client comes back in another version."""
    client = harness.connect("c", version, auto_ack=False, **kept(version))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    for number, qos in enumerate((1, 2, 1, 2, 2, 1)):
        publisher.publish("t", b"%d" % number, qos, expect=0)
    messages = [p for p in unread(client) if isinstance(p, Publish)]
    ids = [m.packet_id for m in messages]
    assert len(set(ids)) == 6
    client.ack(messages[0])  # done: not again [MQTT-4.4.0-2]
    client.ack(messages[1])  # PUBREC: only PUBREL again
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
    """[MQTT-3.3.1-1]: RETAIN, identifiers and properties are those of the first time."""
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
    """Edge 18 [MQTT-4.9.0-1]: what is sent again counts against the new connection's Receive Maximum."""
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
    """A client may acknowledge at once what it had received before: that is not sent again, and the window stays."""
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
    """[MQTT-4.6.0-5]: with everything in one turn, and by the fast path's publisher."""
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
    """Unfinished deliveries go on over the connection that took over."""
    client = harness.connect("c", auto_ack=False, **kept(5))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    publisher.publish("t", b"x", 2)
    number = client.expect_message().packet_id
    other = harness.connect("c", auto_ack=False, **kept(5))
    assert other.session_present
    assert other.expect_message("t", b"x", 2, dup=True).packet_id == number
    client.expect_disconnect(0x8E)
    client.connection.feed(b"\x50\x02" + number.to_bytes(2, "big"))  # a superseded one may not act
    other.expect_nothing()
    other.send(Pubrec(number))
    assert other.next() == Pubrel(number)


def test_a_clean_start_forgets(harness: Harness) -> None:
    """[MQTT-3.1.2-4]: nothing comes again, and an id that was taken is new."""
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
    """[MQTT-4.4.0-1], edge 43: 3.x alone, with DUP, for as long as no answer comes."""
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
    """It counts from when the message was sent, not from when the broker looked last."""
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
def test_what_waited_for_its_record_is_of_the_connection_that_is_gone(
    broker_harness: Make, version: int
) -> None:
    """It comes once to the client that is back meanwhile."""
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
    """What was sent before it is overdue as well."""
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
def test_what_waits_for_its_record_is_not_overdue(broker_harness: Make, version: int) -> None:
    """A slow disk must not make us send, as a repetition, what was not sent yet: its packet id is not on record."""
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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeated_pubrec_of_a_session_that_ends_with_its_connection(
    broker_harness: Make, version: int
) -> None:
    """[MQTT-4.3.3-4]: each is answered, and what such sessions share stays as it was."""
    harness = broker_harness()
    client = harness.connect("c", version, auto_ack=False)
    client.subscribe("t", 2)
    publisher = harness.connect("p", version)
    inflight = harness.broker.sessions["c"].inflight
    publisher.publish("t", b"x", 2)
    client.send(Pubrec(1), Pubcomp(1))
    publisher.publish("t", b"y", 2)
    unread(client)
    ((number, shared),) = inflight.items()
    assert shared is VOLATILE_2
    for _ in range(3):
        client.send(Pubrec(number))
        assert unread(client) == [Pubrel(number)]
        assert inflight == {number: VOLATILE_RELEASED}
    assert not VOLATILE_2.released
    assert not VOLATILE_RELEASED.released
    client.send(Pubcomp(number))
    client.expect_nothing()
    assert inflight == {}


def test_a_client_that_caught_up_is_sent_to_directly_again(broker_harness: Make) -> None:
    harness = broker_harness()
    client = harness.connect("c")
    client.subscribe("t", 1)
    client.pause()
    publisher = harness.connect("p")
    for _ in range(3):
        publisher.publish("t", b"x" * 100_000, 1)
    session = harness.broker.sessions["c"]
    assert session.state == BEHIND
    client.resume()
    harness.settle()
    assert len(client.messages) == 3
    assert session.state != BEHIND
