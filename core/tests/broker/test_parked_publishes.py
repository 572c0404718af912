"""Test PUBLISH packets that wait for room in a full journal. They stay in order, and their number is limited. Clients
that disconnect resend them later.
"""

from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
from hookmq.mqtt.packets import Puback, Pubcomp
from hookmq_testing import (
    Harness,
    HookRecorder,
    RecordingJournal,
    will,
)

Make = Callable[..., Harness]


class SmallJournal(RecordingJournal):
    """A journal with room for a fixed number of messages."""

    def __init__(self, room: int) -> None:
        super().__init__("small", wants=lambda topic: topic == "t")
        self.room = room

    @property
    def full(self) -> bool:
        return len(self.appended) >= self.room


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_full_journal_refuses_what_it_would_have_to_take(
    broker_harness: Make, qos: int, before: int
) -> None:
    journal, observer = SmallJournal(before), HookRecorder("on_dropped", id="o")
    harness = broker_harness(journals=[journal], plugins=[observer])
    pub, sub = harness.connect("pub"), harness.connect("sub")
    sub.subscribe(["t", "u"], 0)
    for number in range(before):  # all but the first take the fast path
        pub.publish("t", b"%d" % number, qos, expect=0)
    sub.unread.clear()
    pub.publish("t", b"too much", qos, expect=0x97)
    pub.publish("u", b"fine", qos, expect=0)
    if qos == 1:  # a repeated message would be a second delivery, which QoS 2 does not allow
        sub.expect_message("t", b"too much")
    sub.expect_message("u", b"fine")
    sub.expect_nothing()
    assert len(journal.appended) == before
    (dropped,) = observer.calls()
    assert (dropped.why.reason, dropped.why.detail) == ("queue_full", "small")
    journal.room += 1
    pub.publish("t", b"again", qos, expect=0)
    assert journal.appended[-1][1].payload == b"again"


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [3, 4])
def test_a_client_of_3_x_is_acknowledged_when_there_is_room(
    broker_harness: Make, version: int, qos: int
) -> None:
    """An MQTT 3 client is acknowledged on its open connection, in order, as soon as the journal has room."""
    journal = SmallJournal(1)
    harness = broker_harness(journals=[journal])
    sub, pub = harness.connect("sub"), harness.connect("pub", version, False)
    sub.subscribe(["t", "u"], 2)
    pub.publish("t", b"0", qos, expect=0)
    for number in range(1, 5):
        pub.publish("t", b"%d" % number, qos, packet_id=100 + number)
    pub.publish("t", b"1", qos, packet_id=101, dup=True) if qos == 2 else None
    pub.expect_nothing()
    pub.publish("u", b"the next is acknowledged", qos, expect=0)
    harness.advance(100)
    seen = [m.payload for m in sub.messages if m.topic == "t"]
    assert seen == ([b"0", b"1", b"2", b"3", b"4"] if qos == 1 else [b"0"])
    assert [m.payload for _, m in journal.appended] == [b"0"]
    journal.room = 3
    harness.advance(1)
    kind = Puback if qos == 1 else Pubcomp
    acknowledged = [packet.packet_id for packet in pub.received if isinstance(packet, kind)]
    assert acknowledged[-2:] == [101, 102]
    journal.room = 5
    pub.publish("t", b"5", qos, packet_id=105)  # there is room for this one, but others came first
    harness.advance(1)
    journal.room = 10
    harness.advance(1)
    assert [m.payload for _, m in journal.appended] == [b"%d" % n for n in range(6)]
    assert [m.payload for m in sub.messages if m.topic == "t"] == [b"%d" % n for n in range(6)]
    acknowledged = [packet.packet_id for packet in pub.received if isinstance(packet, kind)]
    assert acknowledged[-3:] == [103, 104, 105]
    assert (harness.broker.state.parking.waiting, harness.broker.state.parking.bytes) == (0, 0)
    pub.publish("t", b"6", qos, expect=0)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_that_waited_for_room_is_sent_again_after_a_reconnect(
    broker_harness: Make, qos: int
) -> None:
    journal, observer = SmallJournal(1), HookRecorder("on_dropped", id="o")
    harness = broker_harness(journals=[journal], plugins=[observer])
    sub, pub = harness.connect("sub"), harness.connect("pub", 4, False)
    sub.subscribe("t", 2)
    pub.publish("t", b"taken", qos, expect=0)
    pub.publish("t", b"not taken", qos, packet_id=7)
    pub.expect_nothing()
    pub.drop()
    harness.settle()
    (dropped,) = observer.calls()
    assert (dropped.why.reason, dropped.why.detail) == ("queue_full", "small")
    assert (harness.broker.state.parking.waiting, harness.broker.state.parking.bytes) == (0, 0)
    journal.room = 9
    harness.advance(1)
    assert [m.payload for _, m in journal.appended] == [b"taken"]
    pub.reconnect()
    pub.publish("t", b"not taken", qos, packet_id=7, dup=True, expect=0)
    assert [m.payload for _, m in journal.appended] == [b"taken", b"not taken"]
    times = [m.payload for m in sub.messages].count(b"not taken")
    assert times == (2 if qos == 1 else 1)


def test_qos_0_and_wills_reach_subscribers_while_a_journal_is_full(broker_harness: Make) -> None:
    journal, observer = SmallJournal(0), HookRecorder("on_dropped", id="o")
    harness = broker_harness(journals=[journal], plugins=[observer])
    sub = harness.connect("sub")
    sub.subscribe("t", 2)
    pub = harness.connect("pub", 4, will=will("t", b"will", 1))
    pub.publish("t", b"0")
    pub.publish("t", b"1", retain=True)
    pub.drop()
    assert [m.payload for m in sub.messages] == [b"0", b"1", b"will"]
    assert journal.appended == []
    assert {call.why.detail for call in observer.calls()} == {"small"}
    assert len(observer.calls()) == 3


def test_a_client_that_has_too_much_waiting_for_room_is_disconnected(broker_harness: Make) -> None:
    journal = SmallJournal(0)
    settings = {"broker": {"max_held_inbound_bytes": 4096, "hold_timeout": 30}}
    harness = broker_harness(journals=[journal], config=settings)
    modest, greedy = harness.connect("modest", 4), harness.connect("greedy", 4)
    modest.publish("t", b"x", 1)
    for _ in range(10):
        greedy.publish("t", bytes(1000), 1)
    assert not greedy.wire.reading
    harness.advance(31)
    greedy.expect_closed()
    modest.expect_nothing()
    assert harness.broker.state.parking.waiting == 1
    journal.room = 1
    harness.advance(1)
    modest.expect(Puback)


def test_parked_publishes_are_bounded_over_all_clients(broker_harness: Make) -> None:
    harness = broker_harness(journals=[SmallJournal(0)])
    harness.broker.state.parking.max_bytes = 5000
    clients = [harness.connect(f"c{number}", 4) for number in range(8)]
    for client in clients:
        client.publish("t", bytes(1000), 1)
    assert [client.closed for client in clients] == [False] * 3 + [True] * 5
    assert harness.broker.state.parking.bytes < 5000


class CountedJournal(SmallJournal):
    """A journal that counts how often the broker accesses it."""

    lookups = 0

    def __hash__(self) -> int:
        self.lookups += 1
        return id(self)


def test_a_check_for_room_does_not_visit_every_parked_publish(broker_harness: Make) -> None:
    journal = CountedJournal(0)
    harness = broker_harness(journals=[journal])
    clients = [harness.connect(f"c{number}", 4) for number in range(10)]
    with harness.together():
        for client, number in product(clients, range(100)):
            client.publish("t", b"%d" % number, 1)
    journal.lookups = 0
    harness.advance(1)
    assert journal.lookups < 200
    clients[0].drop()
    harness.settle()
    assert journal.lookups < 1000
    journal.room = 900
    harness.advance(1)
    assert len(journal.appended) == 900
    assert harness.broker.state.parking.waiting == 0
    for client in clients[1:]:
        client.expect(Puback)


def test_parked_publishes_continue_in_slices(broker_harness: Make) -> None:
    journal = SmallJournal(0)
    harness = broker_harness(journals=[journal])
    sub = harness.connect("sub")
    sub.subscribe("t", 2)
    pub = harness.connect("pub", 4)
    with harness.together():
        for number in range(300):
            pub.publish("t", b"%d" % number, 2)
    journal.room = 300
    harness.advance(1)
    assert [m.payload for m in sub.messages] == [b"%d" % number for number in range(300)]
    sent = Counter(
        write.turn for write in sub.wire.writes for _ in range(write.data.count(b"\x00\x01t"))
    )
    assert max(sent.values()) <= 64


def test_messages_collected_during_a_flush_are_committed_after_it(broker_harness: Make) -> None:
    """Messages collected during a flush are committed after it. This also holds if the store commits at once and the
    client acknowledged by the first commit has already left.
    """
    journal = RecordingJournal(slow=True)
    harness = broker_harness(journals=[journal])
    pub, other = harness.connect("pub"), harness.connect("other")
    pub.publish("t", b"x", 1, expect=None)
    other.publish("t", b"y", 1, expect=None)
    pub.drop()
    journal.finish()
    journal.finish()
    other.expect(Puback)
    assert journal.topics == ["t", "t"]
