"""Test that large fan-outs are sent in slices: turns are bounded, topics stay in order, and there is one list of
recipients and one commit.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.packets import Pingreq, Puback, Publish, Pubrec
from hookmq.storage.records import Enqueue, PutMessage, PutReceived
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore

Make = Callable[..., Harness]


def sliced(make: Make, asynchronous: bool = False, **options: Any) -> Harness:
    return make(config={"broker": {"fan_out_batch": 2, "async_fan_out": asynchronous}}, **options)


def subscribers(
    harness: Harness, count: int = 7, qos: int = 1, **options: Any
) -> list[MemoryClient]:
    made = [harness.connect(f"sub{number}", **options) for number in range(count)]
    for sub in made:
        sub.subscribe("t", qos)
    return made


def served(subs: list[MemoryClient]) -> int:
    """Return how many subscribers have received a message, without running the event loop."""
    return sum(any(isinstance(packet, Publish) for packet in sub.received) for sub in subs)


def turns(harness: Harness, look: Callable[[], Any]) -> list[Any]:
    """Call `look` after each turn of the event loop until nothing is left to do. Return its results."""
    seen = []
    while harness.clock.turn():
        seen.append(look())
    return seen


def later(harness: Harness, pub: MemoryClient, *publishes: tuple[bytes, int]) -> None:
    """Publish without running the event loop."""
    harness._together += 1
    for payload, qos in publishes:
        pub.publish("t", payload, qos)
    harness._together -= 1


def test_one_slice_a_turn(broker_harness: Make) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness)
    pub = harness.connect("pub")
    later(harness, pub, (b"x", 1))
    written = [len(sub.wire.writes) for sub in subs]
    turns(harness, lambda: None)
    when = [sub.wire.writes[written[i]].turn for i, sub in enumerate(subs)]
    assert when == sorted(when)
    assert [when.count(turn) for turn in dict.fromkeys(when)] == [2, 2, 2, 1]


@pytest.mark.parametrize("qos", [0, 1])
def test_fan_outs_that_stopped_at_the_same_point_continue_together(
    broker_harness: Make, qos: int
) -> None:
    """If several fan-outs were interrupted at the same point, a subscriber receives their messages in one write."""
    harness = broker_harness(config={"broker": {"fan_out_batch": 4}})
    subs = subscribers(harness, 8, qos)
    pub = harness.connect("pub")
    written = [len(sub.wire.writes) for sub in subs]
    later(harness, pub, *((b"%d" % number, qos) for number in range(4)))
    turns(harness, lambda: None)
    assert [len(sub.wire.writes) - written[i] for i, sub in enumerate(subs)] == [1] * 8
    when = [sub.wire.writes[written[i]].turn for i, sub in enumerate(subs)]
    assert [when.count(turn) for turn in dict.fromkeys(when)] == [1] * 8  # four messages a slice
    for sub in subs:
        assert [m.payload for m in sub.messages] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("version", [4, 5])
def test_plain_receivers_of_a_slice_share_the_bytes(broker_harness: Make, version: int) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness, 6, 0, version=version)
    written = [len(sub.wire.writes) for sub in subs]
    harness.connect("pub").publish("t", b"x" * 100)
    packets = {sub.wire.writes[written[i]].data for i, sub in enumerate(subs)}
    assert len(packets) == 1
    assert len({id(sub.wire.writes[written[i]].data) for i, sub in enumerate(subs)}) == 1
    assert harness.broker.metrics.messages_delivered == 6


def test_a_receiver_that_is_slow_is_not_plain(broker_harness: Make) -> None:
    """Messages for a slow receiver wait, or are dropped and counted, just as they would be without slices."""
    harness = sliced(broker_harness)
    subs = subscribers(harness, 6, 0)
    subs[3].pause()
    pub = harness.connect("pub")
    for number in range(3):
        pub.publish("t", b"%d" % number)
    assert [len(sub.messages) for sub in subs] == [3, 3, 3, 0, 3, 3]
    subs[3].resume()
    assert [m.payload for m in subs[3].messages] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("version", [4, 5])
def test_acknowledged_when_all_were_handed_the_message(broker_harness: Make, version: int) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness)
    pub = harness.connect("pub", version)
    later(harness, pub, (b"x", 1))
    seen = turns(harness, lambda: (served(subs), len(pub.unread)))
    assert {count for count, acknowledged in seen if acknowledged} == {7}
    assert pub.expect(Puback).code == 0


def test_acknowledged_at_commit(broker_harness: Make) -> None:
    harness = sliced(broker_harness, asynchronous=True)
    subs = subscribers(harness)
    pub = harness.connect("pub")
    later(harness, pub, (b"x", 1))
    seen = turns(harness, lambda: (served(subs), len(pub.unread)))
    first = next(count for count, acknowledged in seen if acknowledged)
    assert first <= 2
    assert seen[-1] == (7, 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_order_holds_across_slices(broker_harness: Make, asynchronous: bool) -> None:
    harness = sliced(broker_harness, asynchronous)
    subs = subscribers(harness)
    one, two = harness.connect("one"), harness.connect("two")
    with harness.together():
        for number in range(4):
            one.publish("t", b"1%d" % number, 1)
            two.publish("t", b"2%d" % number, number % 2)
    first = [message.payload for message in subs[0].messages]
    assert len(first) == 8
    for sub in subs:
        got = [message.payload for message in sub.messages]
        assert got == first
        assert [p for p in got if p[:1] == b"1"] == [b"10", b"11", b"12", b"13"]
    assert [one.expect(Puback).packet_id for _ in range(4)] == [1, 2, 3, 4]


def test_a_later_message_does_not_overtake(broker_harness: Make) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness)
    pub = harness.connect("pub")
    later(harness, pub, (b"1", 1))
    for _ in range(3):
        harness.clock.turn()
    assert 0 < served(subs) < 7
    # The list of targets has shrunk, but the first message is still being delivered.
    later(harness, pub, (b"2", 0))
    for sub in subs[3:]:
        harness._together += 1
        sub.send_unsubscribe("t")
        harness._together -= 1
    harness.settle()
    for sub in subs[:3]:
        assert [message.payload for message in sub.messages] == [b"1", b"2"]


def test_topics_do_not_wait_for_each_other(broker_harness: Make) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness, 20)
    other = harness.connect("other")
    other.subscribe("quick", 1)
    pub, second = harness.connect("pub"), harness.connect("second")
    later(harness, pub, (b"x", 1))
    for _ in range(3):
        harness.clock.turn()
    harness._together += 1
    second.publish("quick", b"now", 1)
    harness._together -= 1
    seen = turns(harness, lambda: (served(subs), served([other]), len(second.unread)))
    assert next(count for count, quick, done in seen if quick and done) < 20
    assert seen[-1][0] == 20


def test_small_fan_outs_are_not_cut(broker_harness: Make) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness, 2)
    pub = harness.connect("pub")
    later(harness, pub, (b"x", 1))
    turns(harness, lambda: None)
    assert subs[0].wire.writes[-1].turn == subs[1].wire.writes[-1].turn
    assert subs[0].wire.writes[-1].turn == pub.wire.writes[-1].turn


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_sliced_fan_out_is_one_commit(broker_harness: Make, asynchronous: bool) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = sliced(broker_harness, asynchronous, store=store)
    subs = subscribers(harness, 5, session_expiry_interval=60)
    live = [harness.connect(f"live{number}") for number in range(4)]
    for client in live:
        client.subscribe("t", 1)
    for sub in subs[:3]:
        sub.disconnect()
    pub = harness.connect("pub", session_expiry_interval=60)
    store.slow = True
    pub.publish("t", b"x", 2)
    batch = store.committing or ()
    assert [type(record) for record in batch] == [PutReceived, PutMessage, *[Enqueue] * 5]
    pub.expect_nothing()
    assert served(live) == 4  # clients whose sessions are not durable do not wait for the disk
    store.finish(all=False)
    pub.expect(Pubrec)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_acknowledgement_still_waits_for_the_commit(
    broker_harness: Make, asynchronous: bool
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = sliced(broker_harness, asynchronous, store=store)
    away = subscribers(harness, 1, session_expiry_interval=60)[0]
    away.disconnect()
    live = [harness.connect(f"live{number}") for number in range(4)]
    for client in live:
        client.subscribe("t", 1)
    pub = harness.connect("pub")
    store.slow = True
    pub.publish("t", b"x", 1)
    assert served(live) == 4
    pub.expect_nothing()
    store.finish()
    pub.expect(Puback)


def test_matched_counts_all_at_once(broker_harness: Make) -> None:
    observer = HookRecorder("on_published")
    harness = sliced(broker_harness, plugins=[observer])
    subscribers(harness)
    member = harness.connect("member")
    member.subscribe("$share/g/t", 1)
    harness.connect("pub").publish("t", b"x", 1, expect=0)
    harness.settle()
    assert [call.matched for call in observer.calls("on_published")] == [8]
    assert len(member.messages) == 1


def test_no_local_and_retain_as_published_hold_in_slices(broker_harness: Make) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness)
    subs[5].subscribe("t", 1, retain_as_published=True)
    subs[6].subscribe("t", 1, no_local=True)
    subs[6].publish("t", b"x", 1, retain=True, expect=0)
    assert subs[6].messages == []
    assert [sub.messages[-1].retain for sub in subs[:6]] == [False] * 5 + [True]


def test_a_durable_session_gets_its_qos_0_in_turn(broker_harness: Make) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness, session_expiry_interval=60)
    pub = harness.connect("pub")
    with harness.together():
        for number in range(3):
            pub.publish("t", b"%d" % number, 0)
    for sub in subs:
        assert [message.payload for message in sub.messages] == [b"0", b"1", b"2"]


# --- sessions that outlive their connections: slices of one batch -------------------------------------------------------


def kept(make: Make, count: int = 7, asynchronous: bool = False) -> tuple[Harness, SlowStore]:
    """Return a broker with `count` offline durable sessions that subscribe to "t"."""
    store = SlowStore(DurableStore(), slow=False)
    harness = sliced(make, asynchronous, store=store)
    for client in subscribers(harness, count, session_expiry_interval=60):
        client.disconnect()
    store.committed.clear()
    return harness, store


def queued(harness: Harness) -> int:
    """Return the number of messages in all queues."""
    return sum(session.queued for session in harness.broker.sessions.values())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_durable_sessions_are_served_in_slices_and_committed_together(
    broker_harness: Make, asynchronous: bool
) -> None:
    harness, store = kept(broker_harness, asynchronous=asynchronous)
    pub = harness.connect("pub", session_expiry_interval=60, auto_ack=False)
    store.committed.clear()
    later(harness, pub, (b"x", 2))
    seen = turns(harness, lambda: (queued(harness), len(store.committed), len(pub.unread)))
    steps = [after[0] - before[0] for before, after in zip([(0, 0, 0), *seen], seen, strict=False)]
    assert max(steps) == 2
    assert all(count == 7 for count, commits, _ in seen if commits)
    assert all(commits for _, commits, acknowledged in seen if acknowledged)
    [batch] = store.committed
    assert [type(record) for record in batch] == [PutReceived, PutMessage, *[Enqueue] * 7]
    pub.expect(Pubrec)


def test_other_clients_continue_during_a_large_fan_out(broker_harness: Make) -> None:
    harness, store = kept(broker_harness, 20)
    live, pub = harness.connect("live"), harness.connect("pub")
    live.subscribe("live", 0)
    later(harness, pub, (b"x", 1))
    for _ in range(3):
        harness.clock.turn()
    assert 0 < queued(harness) < 20
    harness._together += 1
    live.publish("live", b"now", 0)
    live.send(Pingreq())
    harness._together -= 1
    seen = turns(harness, lambda: (queued(harness), len(live.unread), len(store.committed)))
    assert any(count < 20 and got == 2 for count, got, _ in seen)
    assert seen[-1] == (20, 2, 1)
    pub.expect(Puback)


def test_a_crash_between_slices_leaves_nothing(broker_harness: Make) -> None:
    harness, _ = kept(broker_harness)
    pub = harness.connect("pub", session_expiry_interval=60)
    later(harness, pub, (b"x", 2))
    for _ in range(3):
        harness.clock.turn()
    assert 0 < queued(harness) < 7
    harness.restart()
    assert queued(harness) == 0
    assert not pub.unread
    pub.reconnect(clean_start=False)
    pub.publish("t", b"x", 2, dup=True, packet_id=1)
    assert queued(harness) == 7


@pytest.mark.parametrize("second", ["t", "other"])
def test_a_second_one_does_not_put_off_the_commit(broker_harness: Make, second: str) -> None:
    """A second fan-out waits until the first one is complete and committed. Both stay in order."""
    harness, store = kept(broker_harness)
    for client in subscribers(harness, session_expiry_interval=60):
        client.subscribe("other", 1)
        client.disconnect()
    one, two = harness.connect("one"), harness.connect("two")
    store.committed.clear()
    later(harness, one, (b"1", 1))
    for _ in range(3):
        harness.clock.turn()
    before = queued(harness)
    assert 0 < before < 7
    assert store.committed == []
    harness._together += 1
    two.publish(second, b"2", 1)
    harness._together -= 1
    harness.clock.turn()
    assert queued(harness) <= before + 2
    harness.settle()
    batches = [
        [(record.owner, record.message_ref) for record in batch if type(record) is Enqueue]
        for batch in store.committed
    ]
    assert [[id for _, id in batch] for batch in batches] == [[1] * 7, [2] * 7]
    assert all(len(set(batch)) == 7 for batch in batches)
    one.expect(Puback)
    two.expect(Puback)
    later(harness, one, (b"3", 1))
    harness.clock.turn()
    assert queued(harness) < 21, "the next one goes in slices again"
    harness.settle()
    assert queued(harness) == 21


def test_a_batch_that_is_held_is_cut_nowhere(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookmq.storage.group_commit.MAX_RECORDS", 3)
    harness, store = kept(broker_harness)
    pub = harness.connect("pub")
    other = harness.connect("other", session_expiry_interval=60)
    store.committed.clear()
    later(harness, pub, (b"x", 1))
    for number in range(3):
        harness.clock.turn()
        harness._together += 1
        other.publish("nobody", b"%d" % number, 2)
        harness._together -= 1
    harness.settle()
    [whole] = [batch for batch in store.committed if any(type(one) is Enqueue for one in batch)]
    assert sum(type(one) is Enqueue for one in whole) == 7
    for _ in range(3):
        other.expect(Pubrec)


def test_a_fault_of_ours_in_a_slice_holds_up_no_commit(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, store = kept(broker_harness)
    pub = harness.connect("pub")
    later(harness, pub, (b"x", 1))
    harness.clock.turn()
    # Makes the creation of queue entries fail.
    monkeypatch.setattr("hookmq.storage.group_commit.Enqueue", None)
    harness.settle()
    monkeypatch.undo()
    assert harness.logged("internal.error")
    harness.allow_errors = True
    pub.expect(Puback)
    pub.publish("t", b"y", 1, expect=0)
    assert all(session.queued for session in harness.broker.sessions.values() if session.durable)
    assert store.committing is None
