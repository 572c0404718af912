"""Test the lane that holds an observer's events: its limits, and how events are taken from it in runs."""

from typing import Any

from hookmq.hooks.chain import HookImplementation
from hookmq.hooks.observer_lane import TEXTS, EventRun, Lane, TopicMemo
from hookmq.hooks.stats import HookStats
from hypothesis import given
from hypothesis import strategies as st


def lane(limit: int) -> Lane:
    stats = HookStats("p", "on_published")
    return Lane(HookImplementation("p", "on_published", print, stats=stats), limit)


def events(first: int, count: int) -> list[tuple[Any, ...]]:
    return [(number,) for number in range(first, first + count)]


@given(
    st.integers(1, 9),
    st.lists(st.one_of(st.integers(1, 7), st.tuples(st.integers(1, 7))), max_size=12),
)
def test_a_lane_is_a_queue_that_drops_its_oldest(limit: int, steps: list[Any]) -> None:
    made = lane(limit)
    expected: list[tuple[Any, ...]] = []
    number = dropped = 0
    for step in steps:
        if isinstance(step, int):
            made.add(EventRun(made, number, events(number, step), 0))
            expected += events(number, step)
            number += step
            dropped += max(0, len(expected) - limit)
            expected = expected[-limit:]
        elif expected:
            taken = made.take(step[0])
            assert 0 < len(taken) <= step[0]
            assert taken.left() == expected[: len(taken)]
            del expected[: len(taken)]
        assert (made.waiting, made.dropped) == (len(expected), dropped)
        assert [one for run in made.runs for one in run.left()] == expected


def test_lanes_share_the_events_of_a_turn() -> None:
    turn = events(0, 4)
    small, large = lane(2), lane(10)
    for one in (small, large):
        one.add(EventRun(one, 1, turn, 0))
    assert (small.take(9).left(), large.take(9).left()) == (events(2, 2), events(0, 4))
    assert turn == events(0, 4)


def test_a_cleared_lane_counts_what_it_lost() -> None:
    made = lane(10)
    made.add(EventRun(made, 1, events(0, 3), 0))
    made.clear()
    assert (made.waiting, made.dropped, len(made.runs)) == (0, 3, 0)


def test_a_filter_is_matched_once_for_each_topic() -> None:
    asked: list[str] = []

    def wanted(topic: str) -> bool:
        asked.append(topic)
        return topic.startswith("a")

    memo = TopicMemo(wanted)
    assert [memo[topic] for topic in ("a", "b", "a", "b")] == [True, False, True, False]
    assert asked == ["a", "b"]
    for number in range(3 * TEXTS):
        assert not memo[f"b{number}"]
        assert not memo["b" * 5000 + str(number)]  # not remembered: it is too long
    assert len(memo) <= TEXTS
    assert max(map(len, memo)) < 10
