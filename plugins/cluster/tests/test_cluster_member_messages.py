"""Test the messages between nodes. The tests of the joined cluster test what nodes do with them."""

from random import Random

import pytest
from hookmq.plugin import StoreError
from hookmq_cluster.member_messages import MemberMessages
from hookmq_cluster.membership import Member
from hookmq_cluster.names import Names
from hookmq_cluster.wire_messages import HandOver, Hello, Kick, Leaving, WireMessage
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import SimulatedEngine, SimulatedLog


class World:
    """A network of nodes, and what they receive."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime(3)
        self.random = Random(3)
        self.log = SimulatedLog(self.runtime, self.random)
        self.received: dict[str, list[tuple[str, str, WireMessage]]] = {}

    def node(self, name: str, boot: str = "", address: str = "host:7") -> MemberMessages:
        boot = boot or f"{name}1"
        engine = SimulatedEngine(self.log, self.runtime, self.random)
        found = MemberMessages(engine, Names("test"), self.runtime, Member(name, boot, address))
        received = self.received.setdefault(boot, [])
        found.open(lambda node, boot, message: received.append((node, boot, message)))
        self.runtime.advance(0.1)
        return found


@pytest.fixture
def world() -> World:
    return World()


def test_a_message_reaches_one_node_or_all(world: World) -> None:
    a, b, c = map(world.node, "abc")
    a.send("b", HandOver("x"))
    a.send_all(Kick("client", 5.0))
    world.runtime.advance(1.0)
    kicked = ("a", "a1", Kick("client", 5.0))
    assert world.received == {"a1": [], "b1": [("a", "a1", HandOver("x")), kicked], "c1": [kicked]}
    assert b.is_open
    b.close()
    assert not b.is_open
    c.send("b", HandOver("y"))
    world.runtime.advance(1.0)
    assert len(world.received["b1"]) == 2


def test_nodes_that_stop_are_known_until_they_serve_again(world: World) -> None:
    a, b = map(world.node, "ab")
    assert not b.is_stopping(a.me)
    a.send_all(Leaving())
    world.runtime.advance(1.0)
    assert b.is_stopping(a.me)
    assert not b.is_stopping(a.me._replace(boot="a2"))
    a.send_all(Hello("host:7", False))
    world.runtime.advance(1.0)
    assert not b.is_stopping(a.me)
    a.send_all(Leaving())
    world.runtime.advance(1.0)
    b.forget(a.me)
    assert not b.is_stopping(a.me)


@pytest.mark.parametrize(("address", "shown"), [("host:7", "host:7"), ("", "an unknown address")])
def test_a_second_process_of_a_node_is_refused(world: World, address: str, shown: str) -> None:
    first = world.node("a", "a1", address)
    second = world.node("a", "a2")
    results: list[BaseException | None] = []
    world.runtime.spawn(second.refuse_namesake("test"), lambda *found: results.extend(found))
    world.runtime.advance(2.0)
    error = next(one for one in results if isinstance(one, StoreError))
    assert str(error) == (
        f"another process is already node 'a' of cluster 'test', at {shown}: give each node its own name"
    )
    assert world.received == {"a1": [], "a2": []}
    assert first.is_open


def test_a_node_alone_is_not_refused(world: World) -> None:
    found = world.node("a")
    world.node("b")
    results: list[object] = []
    world.runtime.spawn(found.refuse_namesake("test"), lambda *one: results.append(one))
    world.runtime.advance(0.5)
    assert results == []
    world.runtime.advance(1.0)
    assert results == [(None, None)]
