"""Test how durations, sizes and rates are parsed and formatted."""

import pytest
from hookmq.config.units import (
    Rate,
    format_duration,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5), ("250ms", 0.25), ("2m", 120), ("2min", 120), ("1h 30m", 5400), ("7d", 604800), ("1.5h", 5400),
        ("1w", 604800),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s x", "-5s", "5S", "1e3s", "5s,"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("64KiB", 65536), ("1MiB", 1 << 20), ("10kB", 10000), ("1.5KiB", 1536), ("2 gib", 2 << 30), ("7B", 7)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1.3B", "5 apples", "1K"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/s", Rate(100, 1)), ("5000/min", Rate(5000, 60)), ("10 / 5s", Rate(10, 5)), ("1MiB/s", Rate(1 << 20, 1)),
        ("0.5/h", Rate(0.5, 3600)),
    ],
)  # fmt: skip
def test_rates(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate
    assert parse_rate(str(rate)) == rate


@pytest.mark.parametrize("text", ["100", "100/", "/s", "100/fortnight", "-1/s", "inf/s", "1/0s"])
def test_invalid_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        parse_rate(text)


@given(st.floats(0, 1e9))
def test_durations_come_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@given(st.integers(0, 1 << 40))
def test_sizes_come_back(size: int) -> None:
    assert parse_size(format_size(size)) == size
