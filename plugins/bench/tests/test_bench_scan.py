"""Subscribers and publishers count and answer packets correctly, no matter where the received bytes are split."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hookmq.mqtt_api import (
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    decode,
    encode,
    frame,
)
from hookmq.plugin import Properties
from hookmq_bench.connection import Connection
from hookmq_bench.flow import Flow
from hookmq_bench.plan import STAMP, Plan
from hookmq_bench.publisher import Publisher
from hookmq_bench.subscriber import Subscriber, no_credit
from hookmq_bench.tally import Tally
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unwired import Bench, Wire, vary

LONG = Properties(user_property=(("k" * 100, "v" * 100),))


def message(
    plan: Plan, number: int, *, publisher: int = 0, qos: int = 0, due: int = 900, **more: object
) -> bytes:
    """Return a PUBLISH with a stamp."""
    payload = STAMP.pack(plan.key(publisher), number, due) + plan.payload
    packet_id = number + 1 if qos else 0
    packet = Publish("t", payload, qos, packet_id=packet_id, **more)  # type: ignore[arg-type]
    return encode(packet, plan.target.version)


def packets(data: bytes, version: int = 4) -> list[Packet]:
    found = []
    pos = 0
    while pos < len(data):
        place = frame(data, pos)
        assert place is not None
        found.append(decode(data[pos], data[place[0] : place[1]], version, server=True))
        pos = place[1]
    return found


def feed(connection: Connection, data: bytes, cuts: Sequence[int] = ()) -> None:
    """Feed `data` to a connection, cut into pieces at `cuts`."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        if end > start:
            connection.feed(data[start:end])


def subscriber(
    bench: Bench,
    plan: Plan,
    credit: Callable[[int, int], None] = no_credit,
    joins: bool = False,
) -> Subscriber:
    flows = {} if joins else {plan.key(0): Flow(), plan.key(1): Flow()}
    made = Subscriber(bench.turn, plan.target.version, bench.tally, flows, 0, joins, credit)
    made.qos = plan.qos
    return made


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(
    st.sampled_from([4, 5]), st.integers(0, 2), st.sampled_from([0, 20, 200, 20_000]),
    st.lists(st.integers(0, 3000), max_size=6), st.booleans(),
)  # fmt: skip
def test_messages_are_found_however_they_are_cut(
    bench: Bench, version: int, qos: int, size: int, cuts: list[int], long: bool
) -> None:
    bench.tally = Tally(since=0)
    plan = vary(version, qos=qos, payload=b"x" * size)
    properties = LONG if long and version == 5 else Properties()
    gained: list[tuple[int, int]] = []
    one = subscriber(bench, plan, credit=lambda publisher, by: gained.append((publisher, by)))
    wire = bench.wire(one)
    data = b"".join(
        message(plan, number, qos=qos, properties=properties) for number in range(0, 20, 2)
    )
    feed(one, data, cuts)
    bench.loop.run()
    assert bench.tally.received == 10
    flow = one.flows[plan.key(0)]
    assert (flow.next, flow.received, flow.missing) == (19, 10, 9)
    assert {publisher for publisher, _ in gained} == {0}
    assert sum(by for _, by in gained) == 19
    assert bench.tally.latency.count == 10
    assert bench.tally.latency.largest == bench.now - 900
    ids = [number + 1 for number in range(0, 20, 2)]
    kind = {0: None, 1: Puback, 2: Pubrec}[qos]
    assert packets(wire.take(), version) == ([kind(one) for one in ids] if kind else [])


def test_pubrel_is_answered(bench: Bench) -> None:
    one = subscriber(bench, vary(qos=2))
    wire = bench.wire(one)
    feed(one, encode(Pubrel(7), 4) + encode(Pubrel(8), 4))
    bench.loop.run()
    assert packets(wire.take()) == [Pubcomp(7), Pubcomp(8)]
    assert len(wire.writes) == 0


def test_one_write_a_turn(bench: Bench) -> None:
    plan = vary(qos=1)
    one = subscriber(bench, plan)
    wire = bench.wire(one)
    for number in range(5):
        feed(one, message(plan, number, qos=1))
    bench.loop.run()
    assert len(wire.writes) == 1


def test_duplicates_order_and_qos_are_counted(bench: Bench) -> None:
    plan = vary(qos=1)
    one = subscriber(bench, plan)
    feed(one, b"".join(message(plan, number, qos=1) for number in (0, 2, 1, 1)))
    feed(one, message(plan, 3, qos=0))
    flow = one.flows[plan.key(0)]
    assert (flow.duplicates, flow.reordered, flow.missing) == (1, 1, 0)
    assert bench.tally.wrong_qos == 1


def test_strangers_are_counted_apart(bench: Bench) -> None:
    plan, other = vary(), vary(run=0x111111)
    one = subscriber(bench, plan)
    feed(one, message(other, 5) + encode(Publish("t", b"short"), 4) + message(plan, 0))
    assert bench.tally.strangers == 2
    assert one.flows[plan.key(0)].received == 1


def test_a_joining_subscriber_takes_stamps_of_any_run(bench: Bench) -> None:
    plan = vary(run=0x111111)
    one = subscriber(bench, plan, joins=True)
    one.qos = -1
    feed(one, message(plan, 40) + message(plan, 42) + encode(Publish("t", b"\0" * 24), 4))
    [flow] = one.flows.values()
    assert (flow.first, flow.received, flow.missing) == (40, 2, 1)
    assert bench.tally.strangers == 1


def test_warm_up_is_in_no_latency(bench: Bench) -> None:
    plan = vary()
    bench.tally.since = 500
    one = subscriber(bench, plan)
    feed(one, message(plan, 0, due=499) + message(plan, 1, due=500))
    assert bench.tally.latency.count == 1
    assert bench.tally.received == 2


@pytest.mark.parametrize("data", [b"\x30\xff\xff\xff\xff\x01", b"\xf0\0", b"\x30\x02\xff\xff"])
def test_bytes_that_are_not_mqtt_end_the_connection(bench: Bench, data: bytes) -> None:
    one = subscriber(bench, vary())
    wire = bench.wire(one)
    told: list[str] = []
    one.lost = told.append
    feed(one, data)
    if wire.ended:
        one.connection_lost(None)
        assert "sent invalid MQTT" in told[0]
    else:  # a PUBLISH whose topic exceeds it has no stamp
        assert bench.tally.strangers == 1


def test_why_the_broker_left_is_told(bench: Bench) -> None:
    one = subscriber(bench, vary(5))
    bench.wire(one)
    told: list[str] = []
    one.lost = told.append
    feed(one, encode(Disconnect(0x97, Properties(reason_string="enough")), 5))
    one.connection_lost(None)
    one.connection_lost(None)
    assert told == ["DISCONNECT quota exceeded (0x97): enough"]


def publisher(bench: Bench, plan: Plan, waits: str = "") -> Publisher:
    made = Publisher(bench.turn, plan, 1, bench.tally, 0, waits)
    made.limit(65_535)
    return made


def run(bench: Bench, one: Publisher) -> None:
    bench.turn.mark(one)
    bench.loop.run()


def sent(wire: Wire, version: int = 4) -> list[Publish]:
    found = [one for one in packets(wire.take(), version) if isinstance(one, Publish)]
    return found


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_publisher_writes_the_bytes_of_the_codec(bench: Bench, version: int, qos: int) -> None:
    properties = {"publish": Properties(content_type="a/b")} if version == 5 else {}
    plan = vary(version, qos=qos, retain=True, properties=properties)
    one = publisher(bench, plan, "arrival")
    wire = bench.wire(one)
    one.running = True
    run(bench, one)
    assert len(wire.writes) == 1
    for number, packet in enumerate(sent(wire, version)):
        assert packet.topic == "t/abcdef/1"
        assert packet.payload == STAMP.pack(plan.key(1), number, bench.now) + b"filler"
        assert (packet.qos, packet.retain, packet.packet_id) == (
            qos,
            True,
            (number + 1) * (qos > 0),
        )
        assert packet.properties.content_type == ("a/b" if version == 5 else None)
    assert one.sent == plan.window == bench.tally.sent


def test_a_window_of_arrivals(bench: Bench) -> None:
    plan = vary(scenario="fanout", publishers=2, subscribers=3, window=8)
    one = publisher(bench, plan, "arrival")
    wire = bench.wire(one)
    one.running = True
    run(bench, one)
    assert (len(sent(wire)), one.outstanding) == (8, 8)
    one.arrived(3)  # one message at all three
    bench.loop.run()
    assert not wire.writes  # less than a quarter of the window
    one.arrived(3)
    bench.loop.run()
    assert (len(sent(wire)), one.outstanding) == (2, 8)
    one.forgive()
    bench.loop.run()
    assert len(sent(wire)) == 8


def test_a_window_of_pongs(bench: Bench) -> None:
    one = publisher(bench, vary(scenario="pub", subscribers=0), "pong")
    wire = bench.wire(one)
    one.running = True
    run(bench, one)
    assert wire.take().endswith(b"\xc0\0")
    feed(one, b"\xd0\0")
    bench.loop.run()
    assert len(sent(wire)) == 4


@pytest.mark.parametrize("cut", range(9))
def test_acknowledgements_end_it_at_qos_1(bench: Bench, cut: int) -> None:
    one = publisher(bench, vary(qos=1))
    wire = bench.wire(one)
    one.running = True
    run(bench, one)
    wire.take()
    bench.now += 500
    feed(one, encode(Puback(1), 4) + encode(Puback(2), 4) + b"\xd0\0", [cut])
    bench.loop.run()
    assert bench.tally.acked == 2
    assert bench.tally.acknowledged.largest == 500
    assert [packet.packet_id for packet in sent(wire)] == [5, 6]
    feed(one, encode(Puback(2), 4))
    assert bench.tally.stray_acks == 1


def test_qos_2_has_two_steps(bench: Bench) -> None:
    one = publisher(bench, vary(qos=2, window=1))
    wire = bench.wire(one)
    one.running = True
    run(bench, one)
    wire.take()
    feed(one, encode(Pubrec(1), 4))
    bench.loop.run()
    assert packets(wire.take()) == [Pubrel(1)]
    assert (bench.tally.acked, one.outstanding) == (0, 1)
    feed(one, encode(Pubcomp(1), 4))
    bench.loop.run()
    assert bench.tally.acked == 1
    assert [packet.packet_id for packet in sent(wire)] == [2]


def test_a_refusal_is_no_loss(bench: Bench) -> None:
    one = publisher(bench, vary(5, qos=1), "arrival")
    bench.wire(one)
    one.running = True
    run(bench, one)
    feed(one, encode(Puback(1, 0x97), 5) + encode(Puback(2, 0x10), 5) + encode(Puback(3), 5))
    assert bench.tally.refused == {"quota exceeded (0x97)": 1}
    assert bench.tally.unmatched == 1
    assert one.outstanding == 2  # the fourth, and the third, which has not arrived
    feed(one, encode(Pubrec(9, 0x80), 5))
    assert bench.tally.stray_acks == 1


def test_packet_ids_in_use_are_passed_over(bench: Bench) -> None:
    one = publisher(bench, vary(qos=1, window=3))
    wire = bench.wire(one)
    one.running = True
    one._id = 65_534
    one.unacked = {65_535: 1}
    run(bench, one)
    assert [packet.packet_id for packet in sent(wire)] == [1, 2]


def test_the_receive_maximum_bounds_the_window(bench: Bench) -> None:
    one = publisher(bench, vary(5, qos=1, window=50))
    wire = bench.wire(one)
    one.limit(3)
    one.running = True
    run(bench, one)
    assert len(sent(wire, 5)) == 3


def test_a_quota_ends_it(bench: Bench) -> None:
    one = publisher(bench, vary(), "arrival")
    wire = bench.wire(one)
    one.running, one.quota = True, 5
    run(bench, one)
    one.arrived(4)
    bench.loop.run()
    assert len(sent(wire)) == 5


def test_a_fixed_rate_sends_what_is_due_and_stamps_when_it_was(bench: Bench) -> None:
    one = publisher(bench, vary(rate=100.0, window=2), "arrival")
    wire = bench.wire(one)
    one.running = True
    run(bench, one)
    assert not wire.writes
    for due in (10, 20, 30):
        one.due(due)
    bench.loop.run()
    dues = [STAMP.unpack_from(packet.payload)[2] for packet in sent(wire)]
    assert dues == [10, 20]
    assert one.backlog == 1
    one.arrived(1)
    bench.loop.run()
    assert [STAMP.unpack_from(packet.payload)[2] for packet in sent(wire)] == [30]


@pytest.mark.parametrize("rate", [0.0, 10.0])
def test_large_messages_are_put_a_few_at_a_time(bench: Bench, rate: float) -> None:
    one = publisher(bench, vary(rate=rate, payload=bytes(400_000), window=5), "arrival")
    wire = bench.wire(one)
    one.running = True
    for due in range(5 if rate else 0):
        one.due(due)
    run(bench, one)
    assert [len(write) // 400_000 for write in wire.writes] == [2, 2, 1]


def test_a_publisher_waits_while_its_buffer_is_full(bench: Bench) -> None:
    one = publisher(bench, vary(), "arrival")
    wire = bench.wire(one)
    one.running = True
    one.pause_writing()
    run(bench, one)
    assert not wire.writes
    one.resume_writing()
    bench.loop.run()
    assert len(sent(wire)) == 4


def test_an_idle_client_sends_pingreq(bench: Bench) -> None:
    one = publisher(bench, vary(), "arrival")
    wire = bench.wire(one)
    one.keep_alive()
    bench.loop.run()
    assert wire.take() == b"\xc0\0"
    one.keep_alive()  # the answer is still to come
    bench.loop.run()
    assert wire.take() == b""
    feed(one, b"\xd0\0")
    one.running = True
    run(bench, one)
    wire.take()
    one.keep_alive()  # it has written since
    bench.loop.run()
    assert wire.take() == b""
    one.keep_alive()
    bench.loop.run()
    assert wire.take() == b"\xc0\0"
