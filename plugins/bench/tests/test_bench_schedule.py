"""Test when messages are due, without a clock."""

import pytest
from hookmq_bench.plan import SECOND
from hookmq_bench.schedule import Schedule
from hypothesis import given
from hypothesis import strategies as st


def all_due(schedule: Schedule, until: float, step: float = 0.013) -> list[tuple[int, int]]:
    found = []
    at = 0.0
    while at < until:
        at = min(until, at + step)
        found += schedule.due(int(at * SECOND))
    return found


def test_a_rate_is_kept_evenly_and_in_turn() -> None:
    due = all_due(Schedule(1000, 0, 4, [0, 1, 2, 3], 0), 1.0)
    assert [place for place, _ in due[:6]] == [0, 1, 2, 3, 0, 1]
    assert [time for _, time in due] == [number * SECOND // 1000 for number in range(1001)]


def test_a_ramp_rises_evenly() -> None:
    schedule = Schedule(1000, 2, 1, [0], 0)
    assert len(all_due(schedule, 1.0)) == pytest.approx(250, abs=1)  # a quarter of the ramp's
    assert len(schedule.due(2 * SECOND)) == pytest.approx(750, abs=1)
    assert len(schedule.due(3 * SECOND)) == pytest.approx(1000, abs=1)


@given(
    st.floats(1, 5000), st.sampled_from([0.0, 0.3]), st.integers(1, 7), st.integers(1, 3), st.integers(0, 300)
)  # fmt: skip
def test_processes_share_one_schedule(
    rate: float, ramp: float, publishers: int, processes: int, count: int
) -> None:
    whole = all_due(Schedule(rate, ramp, publishers, list(range(publishers)), 5, count), 0.2)
    parts = []
    for process in range(processes):
        own = [one for one in range(publishers) if one % processes == process]
        due = all_due(Schedule(rate, ramp, publishers, own, 5, count), 0.2)
        parts += [(own[place], time) for place, time in due]
    assert sorted(parts) == sorted(whole)
    times = [time for _, time in whole]
    assert times == sorted(times)
    if count:
        assert len(whole) <= count


def test_a_count_ends_it() -> None:
    schedule = Schedule(10, 0, 2, [0, 1], 0, 3)
    assert len(schedule.due(10 * SECOND)) == 3
    assert schedule.following is None


def test_no_publishers_no_messages() -> None:
    schedule = Schedule(10, 0, 2, [], 0)
    assert schedule.due(SECOND) == []
    assert schedule.following is None


def test_nothing_is_told_twice_and_nothing_early() -> None:
    schedule = Schedule(10, 0, 1, [0], 0)
    assert schedule.due(0) == [(0, 0)]
    assert schedule.due(99_999_999) == []
    assert schedule.following == 100_000_000
    assert schedule.due(100_000_000) == [(0, 100_000_000)]
