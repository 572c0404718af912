"""Facts that a plugin shares reach all nodes, also those that join later, and end everywhere."""

import gc
from random import Random

import pytest
from filled_clusters import NAMES, run
from hookmq_cluster.engine import Entry
from hookmq_cluster.facts import ClusterFacts, Fact
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.shared_facts import MAX_FACT, SharedFacts
from simulated_engine import Faults, SimulatedEngine, SimulatedLog


class Nodes:
    """Nodes that share facts on one log."""

    def __init__(self, faults: Faults = Faults()) -> None:  # noqa: B008
        self.runtime = VirtualRuntime(1)
        self.log = SimulatedLog(self.runtime, Random(1), faults)

    def join(self) -> ClusterFacts:
        """Return the facts of a new node."""
        facts = ClusterFacts()
        self.engine = SimulatedEngine(self.log, self.runtime, Random(2))
        run(self.runtime, facts.start(self.engine, NAMES, self.runtime))
        return facts


class Told:
    """The facts that a plugin has received."""

    def __init__(self, facts: ClusterFacts, space: str = "bans") -> None:
        self.seen: list[tuple[str, bytes | None, float]] = []
        self.end = facts.follow(space, lambda *told: self.seen.append(told))

    @property
    def values(self) -> list[tuple[str, bytes | None]]:
        return [(key, value) for key, value, _ in self.seen]


def test_a_fact_reaches_all_nodes_and_later_ones() -> None:
    nodes = Nodes()
    a, b = nodes.join(), nodes.join()
    assert isinstance(a, SharedFacts)
    here, there, elsewhere = Told(a), Told(b), Told(b, "other")
    a.put("bans", "k", b"1", 60)
    a.put("bans", "k", b"2", 60)
    nodes.runtime.advance(20.0)
    assert here.values == there.values == [("k", b"1"), ("k", b"2")]
    assert elsewhere.seen == []
    late = Told(nodes.join())
    assert late.values == [("k", b"2")]
    assert late.seen[0][2] == pytest.approx(40.0, abs=0.5)


def test_a_fact_is_withdrawn_everywhere() -> None:
    nodes = Nodes()
    a, b = nodes.join(), nodes.join()
    there = Told(b)
    a.put("bans", "k", b"1", 60)
    b.withdraw("bans", "k")
    nodes.runtime.advance(1.0)
    assert there.values[-1] == ("k", None)
    assert Told(a).seen == []
    assert Told(nodes.join()).seen == []


def test_a_fact_ends_in_memory_and_in_the_log() -> None:
    nodes = Nodes()
    a = nodes.join()
    a.put("bans", "k", b"1", 10)
    nodes.runtime.advance(11.0)
    assert Told(a).seen == []
    assert nodes.log.messages([NAMES.facts]) == []


def test_facts_that_have_ended_do_not_fill_the_memory() -> None:
    nodes = Nodes()
    a = nodes.join()
    Told(a)
    b = nodes.join()
    Told(b)
    a.put("bans", "long", b"1", 3600)
    for number in range(5000):
        a.put("bans", f"{number}", bytes(1000), 10)
        if number % 100 == 0:
            nodes.runtime.advance(2.0)
    nodes.runtime.advance(1.0)
    gc.collect()
    assert sum(isinstance(one, Fact) for one in gc.get_objects()) < 2 * 1700
    assert Told(b).values[0] == ("long", b"1")


def test_a_follower_ends() -> None:
    nodes = Nodes()
    a = nodes.join()
    told = Told(a)
    told.end()
    a.put("bans", "k", b"1", 10)
    nodes.runtime.advance(1.0)
    assert told.seen == []


def test_a_silent_log_gets_only_the_newest_value() -> None:
    nodes = Nodes()
    a = nodes.join()
    nodes.log.stop()
    a.put("bans", "k", b"1", 600)
    a.put("bans", "k", b"2", 600)
    a.put("bans", "short", b"1", 5)
    nodes.runtime.advance(10.0)
    nodes.log.start()
    nodes.runtime.advance(10.0)
    assert Told(nodes.join()).values == [("k", b"2")]


def test_facts_survive_lost_requests() -> None:
    nodes = Nodes(Faults(lost_request=0.2, lost_answer=0.2, lag=0.1))
    a, b = nodes.join(), nodes.join()
    for number in range(50):
        (a, b)[number % 2].put("bans", f"k{number}", b"x", 600)
    nodes.runtime.advance(100.0)
    assert {key for key, _ in Told(a).values} == {f"k{number}" for number in range(50)}


def test_a_large_fact_is_refused() -> None:
    nodes = Nodes()
    a = nodes.join()
    with pytest.raises(ValueError, match="a fact of 16385 bytes; possible: up to 16384"):
        a.put("bans", "k", bytes(MAX_FACT), 10)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x95\x02\xa1a\xa1b\xc0\xcb" + bytes(8)])
def test_damaged_facts_are_skipped(data: bytes) -> None:
    nodes = Nodes()
    a = nodes.join()
    nodes.log.append([Entry(NAMES.fact("bans", "k"), data)])
    a.put("bans", "k2", b"1", 60)
    nodes.runtime.advance(1.0)
    assert Told(a).values == [("k2", b"1")]
