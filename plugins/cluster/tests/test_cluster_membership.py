"""Leases: which nodes live, and when a silent one counts as dead."""

from random import Random

import pytest
from hookmq_cluster.engine import Appended, Entry, Unavailable
from hookmq_cluster.membership import Member, Membership, decode_member, encode_member
from hookmq_cluster.names import Names
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import QUIET, Faults, SimulatedEngine, SimulatedLog

LEASE = 15.0
NAMES = Names("test")


class World:
    """A log, a clock, and nodes with their members."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime(3)
        self.random = Random(3)
        self.log = SimulatedLog(self.runtime, self.random)
        self.events: list[tuple[str, str, str]] = []
        self.expelled: list[str] = []

    def node(self, name: str, boot: str = "1") -> tuple[Membership, SimulatedEngine]:
        """Start a node and wait until its lease is in the log."""
        engine = SimulatedEngine(self.log, self.runtime, self.random)
        own = NAMES.own(name)
        last = [one.sequence for one in self.log.messages([own])]
        won = self.log.append(
            [Entry(own, boot.encode(), (own, last[-1] if last else 0), replace=True)]
        )
        assert isinstance(won, Appended)
        membership = Membership(
            engine, NAMES, self.runtime, Member(name, boot, f"{name}:1"), LEASE,
            lambda: (own, won.last),
            lambda member: self.events.append((name, "joined", member.node + member.boot)),
            lambda member: self.events.append((name, "left", member.node + member.boot)),
            self.expelled.append,
        )  # fmt: skip
        results: list[Unavailable | None] = []
        membership.watch(results.append)
        membership.renew(results.append)
        self.runtime.advance(1.0)
        assert results == [None, None]
        return membership, engine


def test_a_lease_is_read_as_it_was_written() -> None:
    member = Member("a", "b1", "host:7", 2, "mqtt.example:1883")
    assert decode_member(encode_member(member)) == member


def test_a_lease_without_a_version_of_frames_is_that_of_version_1() -> None:
    assert decode_member(b"\x94\x01\xa1a\xa1b\xa1c") == Member("a", "b", "c", 1)


def test_a_newer_lease_may_have_more_fields() -> None:
    data = b"\x97\x01\xa1a\xa1b\xa1c\x03\xa1d\xa1e"
    assert decode_member(data) == Member("a", "b", "c", 3, "d")
    assert decode_member(b"\x95" + data[1:-4]) == Member("a", "b", "c", 3)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93\x01\xa1a", b"\x94\x02\xa1a\xa1b\xa1c", b"\x01"]
)
def test_damaged_leases_are_ignored(data: bytes) -> None:
    assert decode_member(data) is None


def test_nodes_find_each_other() -> None:
    world = World()
    world.node("a")
    b, _ = world.node("b")
    assert b.others["a"] == Member("a", "1", "a:1")
    world.runtime.advance(LEASE)
    assert world.events == [("b", "joined", "a1"), ("a", "joined", "b1")]
    world.runtime.advance(10 * LEASE)
    assert len(world.events) == 2
    assert b.renewed_ago <= LEASE / 3 + 1


def test_a_silent_node_leaves_soon_after_its_lease() -> None:
    world = World()
    a, _ = world.node("a")
    _, dying = world.node("b")
    world.runtime.advance(2 * LEASE)
    world.events.clear()
    dying.cut()
    world.runtime.advance(LEASE / 2)
    assert a.is_live("b")
    # Two looks have to miss the lease.
    world.runtime.advance(LEASE / 2 + 1.5)
    assert not a.is_live("b")
    assert world.events == [("a", "left", "b1")]


def test_a_new_node_waits_for_a_lease_before_it_trusts_leases() -> None:
    world = World()
    a, _ = world.node("a")
    world.runtime.advance(LEASE / 2)
    assert not a.trusts_leases
    world.runtime.advance(LEASE)
    assert a.trusts_leases


def test_a_node_that_stops_leaves_soon() -> None:
    world = World()
    a, _ = world.node("a")
    b, _ = world.node("b")
    world.runtime.advance(2 * LEASE)
    done: list[bool] = []
    b.stop(lambda: done.append(True))
    world.runtime.advance(LEASE)
    assert done
    assert not a.is_live("b")


def test_a_node_that_stops_while_it_renews_its_lease_leaves_soon() -> None:
    world = World()
    b, _ = world.node("b")
    world.runtime.advance(2 * LEASE)
    done: list[bool] = []
    b.renew(lambda _: None)
    b.stop(lambda: done.append(True))
    world.runtime.advance(0.1)
    assert done
    assert not any(one.data for one in world.log.messages([NAMES.leases]))


def test_a_late_end_does_not_delete_the_lease_of_the_next_process() -> None:
    world = World()
    a, _ = world.node("a")
    b, engine = world.node("b")
    world.runtime.advance(LEASE)
    world.log.faults = Faults(late=1.0)
    b.stop(lambda: None)
    world.log.faults = QUIET
    engine.crash()
    world.node("b", "2")
    world.events.clear()
    world.runtime.advance(LEASE)
    assert a.is_live("b")
    assert world.events == []


def test_a_restart_is_a_leave_and_a_join() -> None:
    world = World()
    world.node("a")
    _, old = world.node("b", "1")
    world.runtime.advance(LEASE)
    old.crash()
    world.events.clear()
    world.node("b", "2")
    world.runtime.advance(LEASE)
    assert [event for event in world.events if event[0] == "a"] == [
        ("a", "left", "b1"),
        ("a", "joined", "b2"),
    ]


def test_nobody_is_declared_dead_while_the_log_does_not_answer() -> None:
    world = World()
    world.node("a")
    world.node("b")
    world.runtime.advance(2 * LEASE)
    world.events.clear()
    world.log.stop()
    world.runtime.advance(4 * LEASE)
    assert world.events == []
    world.log.start()
    world.runtime.advance(3 * LEASE)
    assert world.events == []


def test_a_message_proves_that_a_node_lives() -> None:
    world = World()
    a, _ = world.node("a")
    _, cut = world.node("b")
    world.runtime.advance(2 * LEASE)
    cut.cut()
    for _ in range(30):
        world.runtime.advance(LEASE / 10)
        a.heard_from("b", "1")
    assert a.is_live("b")
    world.runtime.advance(LEASE)
    assert not a.is_live("b")


def test_a_message_of_a_new_process_does_not_prove_that_the_former_one_lives() -> None:
    world = World()
    a, _ = world.node("a")
    _, dead = world.node("b")
    world.runtime.advance(2 * LEASE)
    dead.cut()
    for _ in range(30):
        world.runtime.advance(LEASE / 10)
        a.heard_from("b", "2")
    assert not a.is_live("b")


def test_a_node_whose_lane_was_taken_is_expelled_once() -> None:
    world = World()
    a, _ = world.node("a")
    own = NAMES.own("a")
    assert isinstance(world.log.append([Entry(own, b"other", replace=True)]), Appended)
    world.runtime.advance(LEASE)
    assert len(world.expelled) == 1
    assert a.is_live("a")
    world.runtime.advance(LEASE)
    assert len(world.expelled) == 1
    assert world.log.messages([NAMES.leases]) == []


def test_a_late_renewal_is_reported_because_others_may_have_dropped_the_node() -> None:
    world = World()
    world.node("a")
    b, cut = world.node("b")
    lapsed: list[float] = []
    b.lapsed = lambda: lapsed.append(world.runtime.now())
    world.runtime.advance(5 * LEASE)
    assert lapsed == []
    cut.cut()
    world.runtime.advance(2 * LEASE)
    assert lapsed == []
    cut.heal()
    world.runtime.advance(2 * LEASE)
    assert len(lapsed) == 1


def test_leases_are_found_on_all_pages() -> None:
    world = World()
    world.log.faults = Faults(page=1)
    members = [world.node(name)[0] for name in "abc"]
    world.runtime.advance(5 * LEASE)
    assert [sorted(member.others) for member in members] == [["b", "c"], ["a", "c"], ["a", "b"]]
    assert "left" not in {event for _, event, _ in world.events}
