"""Test that connections are visited in slices."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.tracing.visit import SLICE, Visit
from hookmq_testing import Harness


@pytest.fixture
def harness(broker_harness: Callable[..., Harness]) -> Harness:
    return broker_harness()


def test_a_turn_has_one_slice(harness: Harness) -> None:
    connections: list[Any] = list(range(2 * SLICE + 1))
    visited: list[Any] = []
    counts: list[int] = []

    def count() -> None:
        counts.append(len(visited))
        if len(counts) < 4:
            harness.clock.call_soon(count)

    Visit(harness.clock, connections, visited.append, lambda: visited.append("done")).run()
    counts.append(len(visited))
    harness.clock.call_soon(count)
    harness.settle()
    assert counts == [SLICE, 2 * SLICE, 2 * SLICE + 2, 2 * SLICE + 2]
    assert visited == [*connections, "done"]


@pytest.mark.parametrize("last", [3, SLICE - 1, SLICE])
def test_a_visit_can_be_canceled(harness: Harness, last: int) -> None:
    visited: list[Any] = []

    def stop(connection: Any) -> None:
        visited.append(connection)
        if connection == last:
            visit.cancel()

    connections: list[Any] = list(range(3 * SLICE))
    visit = Visit(harness.clock, connections, stop, lambda: visited.append("done"))
    visit.run()
    harness.settle()
    assert visited == connections[: last + 1]


def test_a_visit_can_be_canceled_between_two_turns(harness: Harness) -> None:
    visited: list[Any] = []
    connections: list[Any] = list(range(SLICE + 1))
    visit = Visit(harness.clock, connections, visited.append, lambda: visited.append("done"))
    visit.run()
    visit.cancel()
    harness.settle()
    assert visited == connections[:SLICE]


def test_nothing_to_visit(harness: Harness) -> None:
    done: list[None] = []
    Visit(harness.clock, (), lambda _: None, lambda: done.append(None)).run()
    assert len(done) == 1
