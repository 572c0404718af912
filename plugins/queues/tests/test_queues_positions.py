"""Test how positions in a stream are parsed."""

import pytest
from hookmq_queues.positions import Position, parse_position


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("first", ("first", 0)),
        ("last", ("last", 0)),
        ("next", ("next", 0)),
        ("0", ("offset", 0)),
        ("9223372036854775807", ("offset", (1 << 63) - 1)),
        ("@12.5", ("time", 12.5)),
        ("1970-01-01T01:00:01+01:00", ("time", 1)),
        ("2030-01-31T12:00:00Z", ("time", 1896091200)),
    ],
)
def test_positions(text: str, position: tuple[str, float]) -> None:
    assert parse_position(text) == position
    assert isinstance(parse_position(text), Position)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "use first, last, next, an offset"),
        ("First", "use first, last"),
        ("-1", "use first, last"),
        ("9223372036854775808", "offsets end at"),
        ("9" * 5000, "offsets end at"),
        ("٣", "use first, last"),
        ("@", "use first, last"),
        ("@nan", "times begin at 1970"),
        ("@inf", "times begin at 1970"),
        ("@-1", "times begin at 1970"),
        ("1960-01-01T00:00:00Z", "times begin at 1970"),
        ("2030-01-31T12:00:00", "needs a UTC offset"),
        ("2030-01-31", "needs a UTC offset"),
        ("2030-02-31T12:00:00Z", "use first, last"),
        ("yesterday", "use first, last"),
    ],
)
def test_what_is_not_a_position(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        parse_position(text)
    assert len(str(raised.value)) < 250
