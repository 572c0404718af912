"""Windows, sizes, queues and slow readers: how much may be on its way, what waits, and what is dropped."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.codec import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    encode,
)
from hookmq.store import MemoryStore, Queued
from hookmq.testing import DurableStore, Harness, MemoryClient

Make = Callable[..., Harness]
VERSIONS = (3, 4, 5)
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100_000}


def payloads(client: MemoryClient) -> list[bytes]:
    """The payloads of the unread messages, taken."""
    client.harness.settle()
    found = [p.payload for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return found


def numbers(*which: int) -> list[bytes]:
    return [b"%d" % n for n in which]


def send(harness: Harness, which: range, qos: int = 1, topic: str = "t", name: str = "p") -> None:
    """Publish numbers, each acknowledged."""
    publisher = next((c for c in harness.clients if c.connect.client_id == name), None)
    if publisher is None:
        publisher = harness.connect(name)
    for number in which:
        publisher.publish(topic, b"%d" % number, qos, expect=0 if qos else None)


def nothing_left(harness: Harness, name: str = "c") -> bool:
    session = harness.broker.sessions[name]
    return (
        session.inflight == {}
        and (session.queued, session.stored, session.queued_bytes) == (0, 0, 0)
        and harness.broker.core.queued_bytes == 0
    )


# --- towards the client -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_the_clients_receive_maximum(harness: Harness, kept: bool, learned: bool) -> None:
    """[MQTT-3.3.4-9, 4.9.0-1, 4.9.0-2], edge 18: a slot is freed by PUBACK, by PUBCOMP and by PUBREC of 0x80 and above,
    not by a good PUBREC, and not twice."""
    client = harness.connect("c", auto_ack=False, receive_maximum=3, **(KEPT if kept else {}))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    if not learned:
        publisher.connection.memo = {}
    for number, qos in enumerate((1, 2, 2, 1, 2, 1, 2, 1)):
        publisher.publish("t", b"%d" % number, qos, expect=0)
    one, two, three = client.messages
    assert payloads(client) == numbers(0, 1, 2)
    client.ack(two)
    assert client.next() == Pubrel(two.packet_id)
    client.expect_nothing()  # a good PUBREC frees nothing
    client.ack(one)
    assert payloads(client) == numbers(3)
    client.ack(three, 0x80)
    assert payloads(client) == numbers(4)
    client.send(Pubcomp(two.packet_id), Pubcomp(two.packet_id), Puback(one.packet_id))
    assert payloads(client) == numbers(5)  # what comes twice frees once
    client.send(Puback(77), Pubcomp(78), Pubrec(79, 0x80))
    client.expect_nothing()
    assert len(harness.broker.sessions["c"].inflight) == 3


def test_a_full_window_stops_nothing_else(harness: Harness) -> None:
    """[MQTT-3.3.4-10, 4.9.0-3]: QoS 0 and every answer."""
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe("t", 2)
    send(harness, range(3))
    assert payloads(client) == numbers(0)
    send(harness, range(10, 13), 0)
    assert payloads(client) == numbers(10, 11, 12)
    client.send(Pingreq())
    assert client.next() == Pingresp()
    assert client.subscribe("u").codes == (0,)
    client.publish("v", b"", 1, expect=0x10)
    client.publish("v", b"", 2, packet_id=9)
    assert client.next() == Pubrec(9, 0x10)
    client.send(Pubrel(9))
    assert client.next() == Pubcomp(9)
    client.unsubscribe("u")
    client.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_configured_window(broker_harness: Make, version: int) -> None:
    """Also for 3.x, which names none, and for who names more."""
    harness = broker_harness(config={"session": {"max_inflight": 2}})
    more: dict[str, Any] = {"receive_maximum": 100} if version == 5 else {}
    client = harness.connect("c", version, auto_ack=False, **more)
    client.subscribe("t", 1)
    send(harness, range(5))
    seen = []
    while found := [p for p in list(client.unread) if isinstance(p, Publish)]:
        assert len(found) <= 2
        client.unread.clear()
        seen += [m.payload for m in found]
        for message in found:
            client.ack(message)
    assert seen == numbers(0, 1, 2, 3, 4)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_order_through_a_window_of_one(harness: Harness, qos: int, kept: bool) -> None:
    """[MQTT-4.6.0-5]: whatever arrives while others wait waits behind them."""
    client = harness.connect("c", receive_maximum=1, **(KEPT if kept else {}))
    client.subscribe("t", qos)
    publisher = harness.connect("p")
    with harness.together():
        for number in range(50):
            publisher.publish("t", b"%d" % number, qos)
    assert payloads(client) == numbers(*range(50))
    assert nothing_left(harness)


@pytest.mark.parametrize("of", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_too_large_for_the_client(harness: Harness, of: int, qos: int, kept: bool) -> None:
    """[MQTT-3.1.2-24, 3.1.2-25], edge 20: dropped and counted, no id and no slot taken, the connection stays; a packet of
    exactly the maximum goes."""
    client = harness.connect(
        "c", maximum_packet_size=100, receive_maximum=1, **(KEPT if kept else {})
    )
    client.subscribe("t", 2)
    publisher = harness.connect("p", of)
    fits = 100 - len(encode(Publish("t", b"", qos, packet_id=1 if qos else 0), 5))
    for size in (fits, fits + 1, 1000, fits, 0):
        publisher.publish("t", b"x" * size, qos, expect=0 if qos else None)
    assert [len(m.payload) for m in client.messages] == [fits, fits, 0]
    assert harness.metrics.dropped == {("too_large", "out"): 2}
    if qos:
        assert [m.packet_id for m in client.messages] == [1, 2, 3]
    assert nothing_left(harness)


def test_too_large_on_return(harness: Harness) -> None:
    """What waited, and what was unfinished, meets the new connection's maximum."""
    client = harness.connect("c", auto_ack=False, **KEPT)
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    for qos in (1, 2):
        publisher.publish("t", b"x" * 100, qos)
        publisher.publish("t", b"small", qos)
    client.drop()
    publisher.publish("t", b"x" * 100, 1)
    publisher.publish("t", b"waited", 1)
    client.received.clear()
    client.reconnect(maximum_packet_size=60, auto_ack=True)
    assert [m.payload for m in client.messages] == [b"small", b"small", b"waited"]
    assert harness.metrics.dropped == {("too_large", "out"): 3}
    assert nothing_left(harness)
    client.reconnect()
    assert payloads(client) == []


# --- towards the broker -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learned", [0, 3])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_brokers_receive_maximum(broker_harness: Make, learned: int, qos: int) -> None:
    """[MQTT-3.3.4-7], edge 19: unfinished QoS 2 counts until PUBREL; one repeated is no further one."""
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
    """By 3.x, which knows no such limit, and where configured: counted only."""
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


def test_what_is_unfinished_from_before(broker_harness: Make) -> None:
    """Receive Maximum is of a connection (edge 17): ids taken on an earlier one may be finished and repeated on this."""
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


@pytest.mark.parametrize("page", [1, 2, None])
@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("bound", ["queue_messages", "queue_bytes", "max_queue_bytes"])
@pytest.mark.parametrize("policy", ["newest", "oldest", "disconnect"])
def test_bounds(
    broker_harness: Make, policy: str, bound: str, online: bool, page: int | None
) -> None:
    """In messages, in bytes, and in bytes of all together; in memory and in the store; each drop counted under its
    reason. The publisher is acknowledged whatever becomes of a copy."""
    size = 4 if bound == "queue_messages" else 4 * len("t0")
    session: dict[str, Any] = {"queue_drop": policy, "queue_page": page or 256}
    config = {"session": session, "broker": {}}
    config["broker" if bound == "max_queue_bytes" else "session"][bound] = size
    harness = broker_harness(store=DurableStore() if page else None, config=config)
    client = harness.connect("c", auto_ack=False, receive_maximum=1, **KEPT)
    client.subscribe("t", 1)
    if online:
        send(harness, range(1))
        assert payloads(client) == numbers(0)
    else:
        client.drop()
        send(harness, range(1))
    waiting = 4 - (not online)
    send(harness, range(1, 8))
    lost = 7 - waiting
    reason = "queue_full" if bound == "queue_messages" else "queue_bytes"
    if policy == "disconnect" and online:
        client.expect_disconnect(0x97)
    assert harness.metrics.dropped[reason, "out"] == lost
    assert harness.broker.core.queued_bytes == 4 * len("t0")
    client.received.clear()
    client.reconnect(auto_ack=True)
    kept = range(0, 5) if online else range(0, 4)
    if policy == "oldest":
        kept = range(4, 8)
    expected = numbers(*kept)
    if online and policy == "oldest":
        expected = numbers(0, *kept)
    assert [m.payload for m in client.messages] == expected
    assert sum(harness.metrics.dropped.values()) == lost
    assert nothing_left(harness)


def test_one_too_large_for_the_queue(broker_harness: Make) -> None:
    """Under `oldest` everything before it goes, and then itself, if it can never fit."""
    harness = broker_harness(config={"session": {"queue_bytes": 20, "queue_drop": "oldest"}})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    send(harness, range(3))
    harness.clients[-1].publish("t", b"x" * 100, 1, expect=0)
    send(harness, range(3, 4))
    client.reconnect()
    found = payloads(client)
    assert found[-1] == b"3"
    assert b"x" * 100 not in found
    assert sum(harness.metrics.dropped.values()) == 4 - (len(found) - 1)
    assert nothing_left(harness)


def test_bytes_of_all_together(broker_harness: Make) -> None:
    """One client's queue takes the room of others, and gives it back when its session ends."""
    harness = broker_harness(config={"broker": {"max_queue_bytes": 10}})
    greedy = harness.connect("greedy", **KEPT)
    modest = harness.connect("modest", **KEPT)
    greedy.subscribe("g", 1)
    modest.subscribe("m", 1)
    greedy.drop()
    modest.drop()
    send(harness, range(5), topic="g")
    send(harness, range(2), topic="m")
    assert harness.metrics.dropped == {("queue_bytes", "out"): 2}
    greedy.reconnect(clean_start=True)
    assert harness.broker.core.queued_bytes == 0
    send(harness, range(2), topic="m")
    modest.reconnect()
    assert payloads(modest) == numbers(0, 1)


def test_queues_of_clients_without_a_session_to_return_to(harness: Harness) -> None:
    """Nothing is left of them, whatever waited."""
    client = harness.connect("c", 4, auto_ack=False, high_water=10)
    client.subscribe("t", 1)
    client.pause()
    for qos in (0, 1):
        send(harness, range(300, 600), qos)
    assert harness.broker.core.queued_bytes > 0
    client.resume()
    client.drop()
    assert harness.broker.core.queued_bytes == 0
    assert "c" not in harness.broker.sessions


# --- QoS 0 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["newest", "oldest", "disconnect"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_qos_0_to_a_slow_reader(
    broker_harness: Make, policy: str, learned: bool, version: int
) -> None:
    """It waits, within the bounds; order holds across pause and resume."""
    harness = broker_harness(config={"session": {"queue_drop": policy, "queue_messages": 5}})
    client = harness.connect("c", 4, high_water=10)
    client.subscribe("t")
    harness.connect("p", version)
    if learned:
        send(harness, range(1000, 1003), 0)
        payloads(client)
    client.pause()
    send(harness, range(100, 102), 0)  # fills the buffer: 101 is the first to wait, or is written
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
    assert harness.broker.core.queued_bytes == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_order_across_pauses(harness: Harness, qos: int, kept: bool) -> None:
    """[MQTT-4.6.0-5]: however often a reader stops, with live messages in the turn in which it goes on."""
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
    """Its answers would pile up without bound: reading stops, and after a time so does the connection."""
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
    """Dropped by default; with `queue_qos0` it waits, in order with the rest, and is bounded like the rest."""
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
        send(harness, range(8, 9), 0)  # overtakes nothing of its own QoS
        client.auto_ack = True
        client.ack(client.messages[-1])
        assert payloads(client) == numbers(2, 3, 4, 5, 8)
        send(harness, range(9, 10), 0)
        assert payloads(client) == numbers(9)
        assert nothing_left(harness)


# --- pages --------------------------------------------------------------------------------------------------------------


class LateStore(MemoryStore):
    """Answers `read` when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.late = False
        self.reads: list[Callable[[], None]] = []

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Callable[[list[Queued]], None],
    ) -> None:
        def read() -> None:
            super(LateStore, self).read(owner, after, max_count, max_size, done)

        if self.late:
            self.reads.append(read)
        else:
            read()

    def finish(self) -> None:
        reads, self.reads = self.reads, []
        for read in reads:
            read()


@pytest.mark.parametrize("window", [1, 3, 1000])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("page", [1, 2, 7])
def test_a_long_queue_is_read_page_by_page(
    broker_harness: Make, page: int, qos: int, window: int
) -> None:
    """[MQTT-4.5.0-1, 4.6.0-5]: all come, in order, no more than a page is ever in memory; also while others
    arrive."""
    harness = broker_harness(store=DurableStore(), config={"session": {"queue_page": page}})
    client = harness.connect("c", receive_maximum=window, **KEPT)
    client.subscribe("t", qos)
    client.drop()
    send(harness, range(50), qos)
    session = harness.broker.sessions["c"]
    assert session.queue is not None
    assert len(session.queue) == page
    assert session.stored == 50 - page
    client.reconnect(auto_ack=False)
    publisher = harness.clients[-1]
    seen = []
    number = 50
    for _ in range(400):
        found = [p for p in list(client.unread) if isinstance(p, Publish | Pubrel)]
        client.unread.clear()
        if not found:
            break
        assert len(session.queue or ()) <= page
        for packet in found:
            if isinstance(packet, Publish):
                seen.append(packet.payload)
                client.ack(packet)
            else:
                client.send(Pubcomp(packet.packet_id))
        if number < 60:
            publisher.publish("t", b"%d" % number, qos)
            number += 1
    assert seen == numbers(*range(60))
    assert nothing_left(harness)
    assert harness.metrics.dropped == {}


@pytest.mark.parametrize("page", [1, 3])
def test_interrupted_between_pages(broker_harness: Make, page: int) -> None:
    """A client that comes and goes gets everything once, apart from what it had not acknowledged."""
    harness = broker_harness(store=DurableStore(), config={"session": {"queue_page": page}})
    client = harness.connect("c", auto_ack=False, receive_maximum=2, **KEPT)
    client.subscribe("t", 1)
    client.drop()
    send(harness, range(20))
    seen: list[bytes] = []
    for round_ in range(30):
        client.received.clear()
        client.reconnect()
        again = [m for m in client.messages if m.dup]
        assert [m.payload for m in again] == seen[len(seen) - len(again) :]
        if client.messages:
            client.ack(client.messages[0])
        seen += [m.payload for m in client.messages if not m.dup]
        if round_ == 10:
            send(harness, range(20, 25))
    assert seen == numbers(*range(25))


def test_a_page_that_comes_late(broker_harness: Make) -> None:
    """The client has gone, or gone and come back, while its page was read."""
    store = LateStore()
    harness = broker_harness(store=store, config={"session": {"queue_page": 2}})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    send(harness, range(9))
    store.late = True
    client.reconnect()
    assert payloads(client) == numbers(0, 1)
    client.drop()
    send(harness, range(9, 10))
    store.finish()  # away
    client.reconnect()
    assert payloads(client) == numbers(2, 3)
    assert len(store.reads) == 1
    client.reconnect()
    assert len(store.reads) == 1
    store.finish()  # gone and back
    assert payloads(client) == numbers(4, 5)
    client.drop()
    client.reconnect(clean_start=True)
    store.finish()  # and another session by now
    assert payloads(client) == []
    assert harness.broker.core.queued_bytes == 0


def test_live_messages_while_a_page_is_read(broker_harness: Make) -> None:
    """[MQTT-4.6.0-5]: they wait behind it."""
    store = LateStore()
    harness = broker_harness(store=store, config={"session": {"queue_page": 2}})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    send(harness, range(5))
    store.late = True
    client.reconnect()
    send(harness, range(5, 8))
    assert payloads(client) == numbers(0, 1)
    for _ in range(5):
        store.finish()
    assert payloads(client) == numbers(2, 3, 4, 5, 6, 7)
    assert nothing_left(harness)


# --- in the same segment ----------------------------------------------------------------------------------------------


def test_acknowledgements_in_one_segment(harness: Harness) -> None:
    """A whole window acknowledged at once makes room for a whole window."""
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
    """PUBACK and DISCONNECT in one segment: it is not sent again."""
    client = harness.connect("c", auto_ack=False, **KEPT)
    client.subscribe("t", 1)
    send(harness, range(2))
    first = client.expect_message(payload=b"0")
    client.send(Puback(first.packet_id), Disconnect())
    client.reconnect()
    client.expect_message(payload=b"1", dup=True)
    client.expect_nothing()
