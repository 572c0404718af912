"""Claims: where a session is, and that two nodes never create the same one."""

from random import Random

import pytest
from hookmq.cluster_api import Here, Place, Refused, Relay
from hookmq.plugin import ClientInfo, Peer, ReasonCode, Scope
from hookmq.server_api import Wire
from hookmq_cluster.claims import Claims, decode_session, encode_session
from hookmq_cluster.engine import Entry
from hookmq_cluster.membership import Member
from hookmq_cluster.names import Names
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import QUIET, Faults, SimulatedEngine, SimulatedLog

NAMES = Names("test")


def relay(wire: Wire, peer: Peer, scope: Scope) -> Relay:
    """Stands for a relay."""
    raise AssertionError


class World:
    """A log, a clock and two nodes."""

    def __init__(self, faults: Faults = QUIET, seed: int = 1) -> None:
        self.runtime = VirtualRuntime(seed)
        self.random = Random(seed)
        self.log = SimulatedLog(self.runtime, self.random, faults)
        self.lanes: dict[str, dict[str, str]] = {}
        self.owners: dict[str, str | None] = {"a": "a", "b": "b"}
        self.kicks: list[tuple[str, str]] = []
        self.engines: dict[str, SimulatedEngine] = {}

    def node(self, name: str) -> Claims:
        engine = self.engines[name] = SimulatedEngine(self.log, self.runtime, self.random)
        placed = self.lanes[name] = {}

        def owner(lane: str) -> Member | None:
            found = self.owners.get(lane)
            return None if found is None else Member(found, "1", "")

        return Claims(
            engine, NAMES, self.runtime, name, name, placed.get,
            lambda client_id, lane, _: placed.__setitem__(client_id, lane), owner,
            lambda member, lane: relay,
            lambda client_id: self.kicks.append((name, client_id)),
        )  # fmt: skip

    def locate(self, claims: Claims, client_id: str) -> Place:
        found: list[Place] = []
        claims.locate(client_id, found.append)
        self.runtime.advance(30.0)
        (place,) = found
        return place

    def claim(self, claims: Claims, client_id: str, durable: bool = True) -> Refused | None:
        found: list[Refused | None] = []
        claims.claim(client(client_id), durable, found.append)
        self.runtime.advance(30.0)
        (answer,) = found
        return answer


def client(client_id: str) -> ClientInfo:
    return ClientInfo(client_id, 5, None, Peer("127.0.0.1", 1), Scope("tcp"), connected_at=7.0)


@pytest.mark.parametrize("data", [b"\xc1", b"\x93\x02\xa1a\xa1b", b"\x93\x01\x01\x02", b"\x90"])
def test_damaged_entries_are_refused(data: bytes) -> None:
    assert decode_session(data) is None


def test_a_new_client_belongs_here_and_then_to_its_lane() -> None:
    world = World()
    a, b = world.node("a"), world.node("b")
    assert world.locate(a, "c") == Here()
    assert world.claim(a, "c") is None
    assert world.lanes["a"] == {"c": "a"}
    assert world.locate(b, "c") is relay
    assert world.kicks == [("a", "c")]


def test_a_session_that_is_not_durable_leaves_no_entry() -> None:
    world = World()
    a = world.node("a")
    assert world.locate(a, "c") == Here()
    assert world.claim(a, "c", durable=False) is None
    assert world.log.messages([NAMES.everything]) == []
    assert world.kicks == [("a", "c")]


def test_a_crowd_of_new_clients_leaves_room_for_commits() -> None:
    world = World()
    a = world.node("a")
    found: list[Refused | None] = []
    for number in range(200):
        a.claim(client(f"c{number}"), True, found.append)
    while len(found) < 50:
        world.runtime.advance(0.0001)
    before = world.log.sequence
    told: list[object] = []
    world.engines["a"].commit((Entry(NAMES.lease("a"), b"x"),), told.append)
    while not told:
        world.runtime.advance(0.0001)
    assert world.log.sequence - before < 40
    world.runtime.advance(30.0)
    assert found == [None] * 200
    assert set(world.lanes["a"]) == {f"c{number}" for number in range(200)}


def test_clients_are_refused_if_others_wait_too_long() -> None:
    world = World()
    a = world.node("a")
    found: list[Refused | None] = []
    for number in range(100):
        a.locate(f"c{number}", lambda place: None)
    world.runtime.advance(1.0)
    world.engines["a"].cut()
    for number in range(100):
        a.claim(client(f"c{number}"), True, found.append)
    world.runtime.advance(60.0)
    assert len(found) > 80
    assert {one.code for one in found if one is not None} == {ReasonCode.SERVER_UNAVAILABLE}
    world.engines["a"].heal()
    world.runtime.advance(60.0)
    assert len(found) == 100
    assert world.claim(a, "c0") is None


def test_a_dead_owner_is_waited_for() -> None:
    world = World()
    a, b = world.node("a"), world.node("b")
    world.locate(a, "c")
    world.claim(a, "c")
    world.owners["a"] = None
    place = world.locate(b, "c")
    assert isinstance(place, Refused)
    assert place.code is ReasonCode.SERVER_UNAVAILABLE
    world.owners["a"] = "b"  # adopted
    assert world.locate(b, "c") == Here()
    assert world.lanes["b"] == {"c": "a"}
    assert world.claim(b, "c") is None


@pytest.mark.parametrize("durable", [True, False])
def test_a_session_that_begins_to_move_after_the_lookup_is_not_replaced(durable: bool) -> None:
    world = World()
    a = world.node("a")
    world.claim(a, "c")
    assert world.locate(a, "c") == Here()
    world.owners["a"] = None
    answer = world.claim(a, "c", durable)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.reason) == (
        ReasonCode.SERVER_BUSY, "the session is moving to another node"
    )  # fmt: skip


def test_an_ended_session_can_be_created_elsewhere() -> None:
    world = World()
    a, b = world.node("a"), world.node("b")
    world.locate(a, "c")
    world.claim(a, "c")
    world.log.append([Entry(NAMES.session("c"), b"", replace=True, ttl=60)])
    assert world.locate(b, "c") == Here()
    assert world.claim(b, "c") is None
    assert world.locate(a, "c") is relay


def test_a_session_that_ends_while_its_client_connects_is_created_again() -> None:
    world = World()
    a = world.node("a")
    assert world.claim(a, "c") is None  # without a lookup before
    assert world.lanes["a"] == {"c": "a"}


def test_an_entry_of_another_version_is_refused() -> None:
    world = World()
    a = world.node("a")
    world.log.append([Entry(NAMES.session("c"), b"\x93\x02\xa1c\xa1a")])
    assert isinstance(world.locate(a, "c"), Refused)
    world.log.append([Entry(NAMES.session("d"), encode_session("other", "a"))])
    assert isinstance(world.locate(a, "d"), Refused)


def test_no_answer_is_a_refusal() -> None:
    world = World()
    a = world.node("a")
    world.engines["a"].cut()
    place = world.locate(a, "c")
    assert isinstance(place, Refused)
    assert place.code is ReasonCode.SERVER_UNAVAILABLE
    assert isinstance(world.claim(a, "c"), Refused)


@pytest.mark.parametrize("seed", range(40))
def test_two_nodes_never_create_the_same_session(seed: int) -> None:
    faults = Faults.drawn(Random(seed))
    world = World(faults, seed)
    nodes = [world.node(name) for name in "ab"]
    for number in range(10):
        name = f"c{number}"
        places: list[list[Place]] = [[], []]
        answers: list[list[Refused | None]] = [[], []]
        for one, claims in enumerate(nodes):
            claims.locate(name, places[one].append)
        world.runtime.advance(60.0)
        for one, claims in enumerate(nodes):
            if isinstance(places[one][0], Here):
                claims.claim(client(name), True, answers[one].append)
        world.runtime.advance(60.0)
        won = [one for one in (0, 1) if answers[one] == [None]]
        assert len(won) <= 1
        for one in won:
            stored = world.log.messages([NAMES.session(name)])
            assert decode_session(stored[-1].data) == (name, "ab"[one])
