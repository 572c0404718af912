"""Lanes: one owner at a time, whoever races."""

from random import Random

import pytest
from hookmq_cluster.engine import Appended, Entry, Refused, Stored, Unavailable
from hookmq_cluster.lanes import Lanes, OtherOwner, Owner, decode_owner, encode_owner
from hookmq_cluster.membership import Member
from hookmq_cluster.names import Names
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import QUIET, Faults, LateAnswers, SimulatedEngine, SimulatedLog

NAMES = Names("test")


class World:
    """A log, a clock, and the lanes as nodes see them."""

    def __init__(self, faults: Faults = QUIET, seed: int = 5) -> None:
        self.runtime = VirtualRuntime(seed)
        self.random = Random(seed)
        self.log = SimulatedLog(self.runtime, self.random, faults)
        self.changes: list[tuple[str, str, str]] = []

    def lanes(self, node: str, boot: str = "1") -> Lanes:
        engine = SimulatedEngine(self.log, self.runtime, self.random)
        lanes = Lanes(
            engine, NAMES, self.runtime, Member(node, boot, ""),
            lambda lane, owner: self.changes.append((node, lane, owner.node + owner.boot)),
        )  # fmt: skip
        lanes.watch()
        return lanes

    def own(self, lanes: Lanes, lane: str) -> int | OtherOwner | Refused | Unavailable:
        results: list[int | OtherOwner | Refused | Unavailable] = []
        lanes.take_own(lane, results.append)
        self.runtime.advance(1.0)
        return results[0]


def test_an_owner_is_read_as_it_was_written() -> None:
    stored = Stored("s", 9, encode_owner("lane", "a", "b", "c"), 0.0)
    assert decode_owner(stored) == ("lane", Owner("a", "b", 9, "c"))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x94\x02\xa1a\xa1b\xa1c", b"\x94\x01\x01\x01\x01"]
)
def test_damaged_owners_are_refused(data: bytes) -> None:
    assert decode_owner(Stored("s", 1, data, 0.0)) is None


def test_a_new_lane_and_a_restart_of_its_owner() -> None:
    world = World()
    first = world.lanes("a", "1")
    fence = world.own(first, "a")
    assert isinstance(fence, int)
    assert first.fences == {"a": fence}
    second = world.lanes("a", "2")
    newer = world.own(second, "a")
    assert isinstance(newer, int)
    assert newer > fence
    assert first.fences == {}
    assert first.owners["a"] == Owner("a", "2", newer, "2")
    entry = Entry("hmq.test.lane.a", b"", (NAMES.own("a"), fence))
    assert isinstance(world.log.append([entry]), Refused)


def test_a_lane_that_another_node_owns_is_not_taken_at_start() -> None:
    world = World()
    a = world.lanes("a")
    fence = world.own(a, "a")
    assert isinstance(fence, int)
    b = world.lanes("b")
    world.runtime.advance(1.0)
    results: list[int | Refused | Unavailable] = []
    b.take("a", b.owners["a"], results.append)
    world.runtime.advance(1.0)
    assert isinstance(results[0], int)
    assert results[0] > fence
    given: list[int | Refused | Unavailable] = []
    a.give("a", None, given.append)
    assert given == [Refused("hmq.test.own.a", "another process owns lane 'a'")]
    again = world.lanes("a", "2")
    refused = world.own(again, "a")
    assert isinstance(refused, OtherOwner)
    assert refused.node == "b"
    assert b.of("b") == ["a"]


def test_a_damaged_owner_is_not_overwritten() -> None:
    world = World()
    assert isinstance(world.log.append([Entry(NAMES.own("a"), b"\xc1")]), Appended)
    refused = world.own(world.lanes("a"), "a")
    assert isinstance(refused, Refused)
    assert "damaged" in refused.reason


@pytest.mark.parametrize("seed", range(30))
def test_one_of_many_wins(seed: int) -> None:
    world = World(Faults.drawn(Random(seed)), seed)
    dead = world.lanes("a")
    while not dead.fences:
        dead.take_own("a", lambda _: None)
        world.runtime.advance(60.0)
    survivors = [world.lanes(name) for name in "bcde"]
    world.runtime.advance(60.0)
    results: dict[int, list[int | Refused | Unavailable]] = {i: [] for i in range(4)}
    for number, one in enumerate(survivors):
        one.take("a", one.owners["a"], results[number].append)
    world.runtime.advance(120.0)
    assert all(len(found) == 1 for found in results.values())
    owner = decode_owner(world.log.messages([NAMES.own("a")])[-1])
    assert owner is not None
    winners = [number for number, one in enumerate(survivors) if one.fences]
    won = [number for number, found in results.items() if isinstance(found[0], int)]
    assert won == winners
    assert len(won) <= 1
    for number in won:
        assert owner[1].node == "bcde"[number]
        assert survivors[number].fences["a"] == owner[1].sequence


@pytest.mark.parametrize("returned", [False, True])
def test_a_lane_that_comes_back_was_lost(returned: bool) -> None:
    world = World()
    a = world.lanes("a")
    fence = world.own(a, "a")
    assert isinstance(fence, int)
    a.close()  # it reads no later entries
    b = world.lanes("b", "7")
    world.runtime.advance(1.0)
    results: list[int | Refused | Unavailable] = []
    if returned:
        b.take("a", b.owners["a"], results.append)
        world.runtime.advance(1.0)
        b.give("a", Member("a", "1", ""), results.append)
        world.runtime.advance(1.0)
    owned: list[bool | None] = []
    renewed: list[int | Refused | Unavailable] = []
    a.check("a", owned.append)
    a.renew("a", renewed.append)
    world.runtime.advance(1.0)
    assert owned == [not returned]
    assert isinstance(renewed[0], Refused) == returned
    if returned:
        a.fences["a"] = b.owners["a"].sequence  # it has loaded the lane again
        a.check("a", owned.append)
        world.runtime.advance(1.0)
        assert owned[-1]
    b.close()


def test_a_lane_that_was_lost_before_the_answer_is_not_won() -> None:
    world = World()
    a, b = world.lanes("a"), world.lanes("b")
    world.own(a, "x")
    engine = world.log.engines[-1]
    assert isinstance(engine, SimulatedEngine)
    late = LateAnswers(engine, NAMES.own("x"))
    results: list[int | Refused | Unavailable] = []
    b.take("x", b.owners["x"], results.append)
    world.runtime.advance(1.0)
    a.take("x", a.owners["x"], results.append)
    world.runtime.advance(1.0)
    [newer] = results
    assert b.owners["x"] == Owner("a", "1", newer if isinstance(newer, int) else 0, "1")
    late.give()
    assert results[1:] == [Refused("hmq.test.own.x", "another process owns lane 'x'")]
    assert (a.fences, b.fences) == ({"x": newer}, {})


def test_the_owners_of_all_lanes_are_read() -> None:
    world = World()
    names = [f"n{number}" for number in range(300)]
    for name in names:
        world.own(world.lanes(name), name)
    late = world.lanes("late")
    late.close()
    late.owners.clear()
    read: list[Unavailable | None] = []
    late.read(read.append)
    world.runtime.advance(1.0)
    assert read == [None]
    assert set(late.owners) == set(names)


def test_giving_a_lane_away_fences_the_giver() -> None:
    world = World()
    a = world.lanes("a")
    fence = world.own(a, "a")
    b = world.lanes("b", "7")
    results: list[int | Refused | Unavailable] = []
    a.give("a", Member("b", "7", ""), results.append)
    world.runtime.advance(1.0)
    assert isinstance(results[0], int)
    assert isinstance(fence, int)
    assert a.fences == {}
    assert b.owners["a"] == Owner("b", "7", results[0], "1")
    entry = Entry("hmq.test.lane.a", b"", (NAMES.own("a"), fence))
    assert isinstance(world.log.append([entry]), Refused)
    a.close()
    b.close()
