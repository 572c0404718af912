"""Test how long messages wait before they are delivered again."""

import pytest
from hookmq.plugin import ConfigError
from hookmq_queues.backoff import Backoff
from hypothesis import given
from hypothesis import strategies as st


def test_the_delay_grows_up_to_the_maximum() -> None:
    backoff = Backoff(initial=1.0, multiplier=3.0, maximum=20.0, jitter=0.0)
    assert [backoff.delay("nack", count, 0.5) for count in (0, 1, 2, 3, 4, 10**9)] == [
        1.0, 1.0, 3.0, 9.0, 20.0, 20.0,
    ]  # fmt: skip


def test_the_jitter() -> None:
    backoff = Backoff(initial=10.0, jitter=0.2)
    assert [backoff.delay("nack", 1, random) for random in (0.0, 0.5, 1.0)] == [8.0, 10.0, 12.0]


def test_only_the_configured_causes() -> None:
    assert Backoff().delay("nack", 1, 0.5) == 0.0
    backoff = Backoff(initial=2.0, causes=("timeout",), jitter=0.0)
    assert backoff.delay("nack", 1, 0.5) == backoff.delay("lost", 1, 0.5) == 0.0
    assert backoff.delay("timeout", 1, 0.5) == 2.0


@given(
    st.floats(0.001, 604800), st.floats(1, 100), st.floats(0, 1), st.integers(0, 1 << 32), st.floats(0, 1)
)  # fmt: skip
def test_the_delay_is_never_above_the_maximum(
    initial: float, multiplier: float, jitter: float, count: int, random: float
) -> None:
    backoff = Backoff(initial, multiplier, 604800.0, jitter)
    assert 0 <= backoff.delay("nack", count, random) <= 604800.0


def test_an_initial_delay_above_the_maximum_is_refused() -> None:
    with pytest.raises(ConfigError, match="initial: 400s is more than maximum, 300s"):
        Backoff(initial=400.0)
