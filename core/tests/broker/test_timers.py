"""Test deadlines. Calls that are due at the same time are made in slices, one per turn."""

from functools import partial

import pytest
from hookmq.broker.timers import SLICE, TimerQueue
from hookmq_testing.runtime import VirtualRuntime


class Turns:
    """A runtime with deadlines. `counts` lists how many calls were made in each turn."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.deadlines = TimerQueue(self.runtime, lambda call: call())
        self.counts: list[int] = []
        self._open = False

    def note(self) -> None:
        """Count one call in this turn."""
        if not self._open:
            self._open = True
            self.counts.append(0)
            self.runtime.call_soon(self._close)
        self.counts[-1] += 1

    def _close(self) -> None:
        self._open = False


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_calls_due_at_one_time_are_made_in_order_and_in_slices(turns: Turns) -> None:
    made: list[int] = []

    def call(number: int) -> None:
        turns.note()
        made.append(number)

    for number in range(2 * SLICE + 1):
        turns.deadlines.after(1.0, partial(call, number))
    turns.runtime.advance(1.0)
    assert made == list(range(2 * SLICE + 1))
    assert turns.counts == [SLICE, SLICE, 1]


def test_a_call_that_is_set_by_another_waits_for_the_next_turn(turns: Turns) -> None:
    left = [3]

    def call() -> None:
        turns.note()
        left[0] -= 1
        if left[0]:
            turns.deadlines.after(0.0, call)

    turns.deadlines.after(1.0, call)
    turns.runtime.advance(1.0)
    assert turns.counts == [1, 1, 1]
    assert len(turns.deadlines) == 0
