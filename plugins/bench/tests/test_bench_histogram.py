"""Test that buckets are accurate to 0.8 %, and that percentiles match the sorted durations."""

from hookmq_bench.histogram import SIZE, Histogram, bucket, lower, percentile_of_sparse, upper
from hypothesis import given
from hypothesis import strategies as st

durations = st.integers(0, 1 << 43)


def counted(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(durations)
def test_a_value_lies_in_its_bucket_and_a_bucket_is_narrow(value: int) -> None:
    number = bucket(value)
    assert 0 <= number < SIZE
    assert lower(number) <= value <= upper(number)
    assert upper(number) - lower(number) <= value / 128


def test_buckets_follow_each_other_without_a_gap() -> None:
    assert all(upper(number) + 1 == lower(number + 1) for number in range(SIZE - 1))
    assert [bucket(lower(number)) for number in range(SIZE)] == list(range(SIZE))


def test_values_out_of_range_are_counted_in_the_outer_buckets() -> None:
    histogram = counted([-5, 1 << 50])
    assert histogram.counts[0] == 1
    assert histogram.counts[-1] == 1
    assert histogram.largest == 1 << 50
    assert bucket(-5) == 0
    assert bucket(1 << 50) == SIZE - 1


@given(st.lists(durations, min_size=1), st.sampled_from([1, 50, 90, 99, 99.9, 100]))
def test_percentiles_are_those_of_the_sorted_values(values: list[int], percent: float) -> None:
    exact = sorted(values)[max(1, -int(-len(values) * percent // 100)) - 1]
    told = counted(values).percentile(percent)
    assert exact <= told <= exact * (1 + 1 / 128)
    assert told <= max(values)


@given(st.lists(durations), st.lists(durations))
def test_merged_is_as_counted_together(one: list[int], other: list[int]) -> None:
    merged = counted(one)
    merged.merge(counted(other))
    both = counted(one + other)
    assert merged.sparse() == both.sparse()
    assert (merged.count, merged.largest, merged.mean) == (both.count, both.largest, both.mean)


@given(st.lists(durations), st.lists(durations, min_size=1))
def test_a_difference_is_what_came_since(before: list[int], after: list[int]) -> None:
    histogram = counted(before)
    then = list(histogram.counts)
    for value in after:
        histogram.add(value)
    since = histogram.since(then)
    assert since == counted(after).sparse()
    assert percentile_of_sparse(since, 100) >= max(after)


def test_nothing_counted_is_nothing_told() -> None:
    assert counted([]).percentile(99) == 0
    assert counted([]).mean == 0
    assert percentile_of_sparse({}, 99) == 0
