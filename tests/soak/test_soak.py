"""Run a short soak, and test that its checks detect a leak. `make soak MINUTES=…` runs it longer."""

from pathlib import Path

import pytest
from pressure.overload import MEGABYTE
from pressure.soak import Round, judge, soak


@pytest.mark.slow
async def test_nothing_stays_of_those_who_left(tmp_path: Path) -> None:
    run = await soak(tmp_path, 30.0, lambda line: None)
    assert run.broken == []
    assert run.clients >= 2100


@pytest.mark.parametrize(
    ("objects", "memory", "found"),
    [(0, 0, 0), (300, 0, 1), (0, 300 * 1024, 1), (20, 10_000, 0), (300, 300 * 1024, 2)],
)
def test_a_leak_is_seen(objects: int, memory: int, found: int) -> None:
    """A leak is detected if each round of 300 clients adds the same number of objects or bytes."""
    rounds = [Round(50 * MEGABYTE + n * memory, 10_000 + n * objects, {}) for n in range(12)]
    assert len(judge(rounds, 300)) == found


@pytest.mark.parametrize("when", range(12))
def test_growth_that_happens_once_is_not_a_leak(when: int) -> None:
    """Growth that happens only once is not a leak. Examples are a module imported late or a pool
    created once.
    """
    rounds = [
        Round(50 * MEGABYTE + (n > when) * MEGABYTE, 10_000 + (n > when) * 300, {})
        for n in range(12)
    ]
    assert judge(rounds, 300) == []


def test_two_rounds_prove_nothing() -> None:
    assert judge([Round(0, 0, {})] * 2, 300) == ["too few rounds to compare"]
