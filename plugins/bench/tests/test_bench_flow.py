"""Test that a flow's counts match those computed from a set of all numbers that arrived."""

from hookmq_bench.flow import Flow
from hypothesis import given
from hypothesis import strategies as st


def fed(flow: Flow, numbers: list[int]) -> int:
    """Feed numbers to a flow, as a subscriber does. Return how far `next` advanced in total."""
    moved = 0
    for number in numbers:
        if number == flow.next:
            flow.next += 1
            moved += 1
        else:
            moved += flow.odd(number)
    return moved


@given(st.lists(st.integers(0, 60)))
def test_any_order_with_repeats_and_gaps(numbers: list[int]) -> None:
    flow = Flow()
    moved = fed(flow, numbers)
    came: set[int] = set()
    duplicates = reordered = 0
    highest = -1
    for number in numbers:
        if number in came:
            duplicates += 1
        elif number < highest:
            reordered += 1
        came.add(number)
        highest = max(highest, number)
    assert flow.next == highest + 1 == moved
    assert flow.received == len(came)
    assert flow.missing == highest + 1 - len(came)
    assert (flow.duplicates, flow.reordered) == (duplicates, reordered)


def test_a_late_subscriber_counts_from_its_first_number() -> None:
    flow = Flow(100)
    fed(flow, [100, 101, 103])
    assert (flow.received, flow.missing, flow.next) == (3, 1, 104)
    fed(flow, [99])
    assert flow.duplicates == 1


def test_every_other_message_lost_stays_small_and_exact() -> None:
    flow = Flow()
    fed(flow, list(range(0, 100_000, 2)))
    assert (flow.received, flow.missing) == (50_000, 49_999)
    fed(flow, [1, 3, 3])
    assert (flow.missing, flow.reordered, flow.duplicates) == (49_997, 2, 1)
