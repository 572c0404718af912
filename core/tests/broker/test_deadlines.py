"""Deadlines: what is due at once is called in slices, one a turn."""

from functools import partial

import pytest
from hookmq.broker.deadlines import SLICE, Deadlines
from hookmq.broker.expiries import SLICE as EXPIRIES
from hookmq.broker.expiries import Expiries
from hookmq.testing.runtime import EPOCH, VirtualRuntime


class Turns:
    """A runtime and its deadlines. `counts` tells how many calls each turn made."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.deadlines = Deadlines(self.runtime, lambda call: call())
        self.counts: list[int] = []
        self._open = False

    def note(self) -> None:
        """Count a call of this turn."""
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


@pytest.mark.parametrize("early", [0.0, 0.0004, -0.0004, 0.3])
def test_retained_messages_expire_in_slices_whatever_the_clocks_say(
    turns: Turns, early: float
) -> None:
    """A timer measures another clock than the expiry, so that the delay until the rest is due may be 0 or more."""
    expired: list[str] = []

    def expire(topic: str) -> None:
        turns.note()
        expired.append(topic)

    expiries = Expiries(turns.runtime, turns.deadlines, expire)
    count = 2 * EXPIRIES + 1
    for number in range(count):
        expiries.add(EPOCH + 30.0 - early, f"t/{number}")
    turns.runtime.advance(31.0)
    assert sorted(expired) == sorted(f"t/{number}" for number in range(count))
    assert turns.counts == [EXPIRIES, EXPIRIES, 1]
