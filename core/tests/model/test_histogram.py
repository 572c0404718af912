"""Test histograms."""

from hookmq.model.histogram import CALL_SECONDS, SECONDS, Histogram


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
