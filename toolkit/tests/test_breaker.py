"""Test the circuit breaker: closed, open, and half-open with one probe, and calls that began before it opened."""

from hookmq_toolkit.breaker import LONGEST, Breaker
from hypothesis import given
from hypothesis import strategies as st


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        ask = breaker.ask()
        assert ask is not None
        ask.end(False)


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(3, 10, Time())
    fail(breaker, 2)
    ask = breaker.ask()
    assert ask is not None
    ask.end(True)
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker)
    assert (breaker.state, breaker.ask(), breaker.opened, breaker.opens_in()) == (
        "open",
        None,
        1,
        10,
    )


def test_one_probe_at_a_time_and_what_comes_of_it() -> None:
    time = Time()
    breaker = Breaker(1, 10, time)
    fail(breaker)
    time.now = 10
    assert (breaker.state, breaker.opens_in()) == ("half-open", 0)
    probe = breaker.ask()
    assert probe is not None
    assert breaker.ask() is None
    probe.end(None)  # abandoned, so the next request may be the probe
    probe.end(True)  # too late to count
    again = breaker.ask()
    assert again is not None
    again.end(True)
    assert breaker.state == "closed"


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_success() -> None:
    time = Time()
    breaker = Breaker(1, 10, time)
    pauses = []
    for _ in range(6):
        fail(breaker)
        pauses.append(breaker.opens_in())
        time.now += breaker.opens_in()
    assert pauses == [10, 20, 40, 80, 80, 80]
    assert max(pauses) == 10 * LONGEST
    ask = breaker.ask()
    assert ask is not None
    ask.end(True)
    fail(breaker)
    assert breaker.opens_in() == 10


def test_failures_of_who_asked_before_it_opened_do_not_lengthen_the_pause() -> None:
    time = Time()
    breaker = Breaker(2, 10, time)
    early = [breaker.ask() for _ in range(5)]
    for ask in early:
        assert ask is not None
        ask.end(False)
    assert (breaker.opened, breaker.opens_in()) == (1, 10)


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from([True, False, None])), max_size=40))
def test_it_never_stays_shut(steps: list[tuple[float, bool | None]]) -> None:
    time = Time()
    breaker = Breaker(2, 5, time)
    for seconds, good in steps:
        time.now += seconds
        ask = breaker.ask()
        assert (ask is None) == (breaker.state == "open")
        if ask is not None:
            ask.end(good)
    time.now += 5 * LONGEST
    assert breaker.ask() is not None
