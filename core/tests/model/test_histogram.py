"""Test histograms."""

import math
from typing import Any

import pytest
from hookmq.model.histogram import CALL_SECONDS, SECONDS, Exemplar, Histogram


def test_a_value_counts_in_the_first_range_that_reaches_it() -> None:
    found = Histogram((0.1, 1.0))
    for value in (0.0, 0.1, 0.2, 1.0, 1.1):
        found.add(value)
    assert found.counts == [2, 2, 1]
    assert found.count == 5
    assert abs(found.sum - 2.4) < 1e-9


def test_a_value_may_be_added_many_times() -> None:
    found = Histogram((1.0,))
    found.add(2.0, 3)
    assert (found.counts, found.sum) == ([0, 3], 6.0)


def test_the_bounds_rise() -> None:
    for bounds in (SECONDS, CALL_SECONDS):
        assert sorted(set(bounds)) == list(bounds)
        assert bounds[0] > 0


def test_each_range_keeps_its_newest_exemplar() -> None:
    found = Histogram((0.1, 1.0))
    assert found.exemplars is None
    first, second, large = (
        Exemplar(value, digit * 32, 1.0) for value, digit in ((0.2, "a"), (1.0, "b"), (5.0, "c"))
    )
    for one in (first, second, large):
        found.exemplify(one)
    assert found.exemplars == [None, second, large]
    assert found.count == 0


@pytest.mark.parametrize("trace_id", ["", "a" * 31, "A" * 32, "a" * 33, '"' * 32])
def test_an_exemplar_needs_a_trace_id(trace_id: str) -> None:
    with pytest.raises(ValueError, match="invalid trace id"):
        Histogram().exemplify(Exemplar(1.0, trace_id, 1.0))


@pytest.mark.parametrize(
    ("value", "time"),
    [(math.nan, 1.0), (1.0, math.nan), (1.0, math.inf), (1.0, None), ("1", 1.0)],
)
def test_an_exemplar_needs_finite_numbers(value: Any, time: Any) -> None:
    found = Histogram()
    with pytest.raises((ValueError, TypeError)):
        found.exemplify(Exemplar(value, "a" * 32, time))
    assert found.exemplars is None
