"""Which of two connections of a client on two nodes is newer."""

from collections.abc import Iterable

import pytest
from hookmq_cluster.connection_order import ConnectionOrder
from hookmq_testing.runtime import VirtualRuntime


class SkewedRuntime(VirtualRuntime):
    """A runtime whose wall clock has an error in seconds."""

    def __init__(self, error: float) -> None:
        super().__init__()
        self.error = error

    def time(self) -> float:
        return super().time() + self.error


class World:
    """Nodes a and b, whose wall clocks have errors. `newest` is the node whose last report arrived at the other one."""

    def __init__(self, a: float = 0.0, b: float = 0.0) -> None:
        self.clocks = {"a": SkewedRuntime(a), "b": SkewedRuntime(b)}
        self.orders = {node: ConnectionOrder(clock, node) for node, clock in self.clocks.items()}

    def advance(self, seconds: float) -> None:
        for clock in self.clocks.values():
            clock.advance(seconds)

    def connect(self, *nodes: str, client: str = "c") -> Iterable[bool]:
        """Connect a client to nodes at once. Return whether each report ends the connection to the other node."""
        stamps = [self.orders[node].stamp(client) for node in nodes]
        return [
            self.orders["ab"[node == "a"]].is_older(client, stamp, node)
            for node, stamp in zip(nodes, stamps, strict=True)
        ]


@pytest.mark.parametrize("error", [-60.0, -0.5, 0.0, 0.5, 60.0])
@pytest.mark.parametrize("pause", [0.0, 0.01, 1.0, 3.0, 60.0])
def test_a_connection_that_follows_the_report_of_another_one_is_newer(
    error: float, pause: float
) -> None:
    world = World(b=error)
    for node in "abba":
        assert world.connect(node) == [True]
        world.advance(pause)


@pytest.mark.parametrize("error", [-60.0, 0.0, 60.0])
def test_one_of_two_connections_at_once_is_newer(error: float) -> None:
    world = World(b=error)
    assert sorted(world.connect("a", "b")) == [False, True]
    world.advance(1.0)
    assert sorted(world.connect("b", "a")) == [False, True]


def test_a_connection_that_the_other_node_did_not_hear_of_is_newer_by_the_clocks() -> None:
    world = World()
    late = world.orders["a"].stamp("c")
    world.advance(0.1)
    assert world.connect("b") == [True]
    assert not world.orders["b"].is_older("c", late, "a")


def test_reports_of_other_clients_count_too() -> None:
    world = World(b=-60.0)
    world.connect("a", client="other")
    missed = world.orders["a"].stamp("c")
    world.advance(0.1)
    world.connect("a", client="other")
    assert world.connect("b") == [True]
    assert not world.orders["b"].is_older("c", missed, "a")


def test_an_old_connection_is_older_whatever_the_stamp() -> None:
    world = World()
    world.orders["b"].stamp("c")
    assert not world.orders["b"].is_older("c", 0.0, "a")
    world.advance(1.9)
    world.orders["b"].stamp("other")
    assert not world.orders["b"].is_older("c", 0.0, "a")
    world.advance(0.2)
    assert world.orders["b"].is_older("c", 0.0, "a")
    world.orders["b"].stamp("other")
    assert world.orders["b"].is_older("c", 0.0, "a")
