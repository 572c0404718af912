"""Test that a cursor is tied to its call, process and arguments. Any other cursor is refused with a reason."""

from typing import Any

import pytest
from hookmq.model.cursors import MAX_LIMIT, Cursors, check_limit, cursor_number
from hookmq.model.errors import PluginError, StaleCursor
from hypothesis import given
from hypothesis import strategies as st

QUERY = ("a/#", None, True)


@pytest.fixture
def cursors() -> Cursors:
    return Cursors(lambda: "t1")


@given(
    st.text(max_size=80).filter(lambda text: text.isprintable()),
    st.text(alphabet="ab/é#", max_size=9),
)
def test_a_position_comes_back(position: str, filter: str) -> None:
    cursors = Cursors(lambda: "t1")
    cursor = cursors.make("sessions", (filter,), position)
    assert cursor.isascii()
    assert cursors.read("p", "sessions", (filter,), cursor) == position


def test_the_token_is_asked_for_once_and_late() -> None:
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        return "abcd"

    cursors = Cursors(token)
    assert asked == []
    first = cursors.make("sessions", (), "1")
    assert cursors.read("p", "sessions", (), first) == "1"
    assert cursors.make("sessions", (), "2") != first
    assert len(asked) == 1


@pytest.mark.parametrize(
    "cursor",
    [
        "x", "...", "sessions", "sessions.t1.00000000", "sessions.t1.00000000.A", "sessions.t1.0.é", 7, None,
        b"sessions.t1.0.MQ", "sessions.t1.0.0.MQ", "." * 3 + "A" * (1 << 18), "sessions.t1.0._w",
    ],
)  # fmt: skip
def test_invalid_cursors_are_refused(cursors: Cursors, cursor: Any) -> None:
    cursors.make("sessions", QUERY, "1")
    with pytest.raises(PluginError, match=r"plugin 'p': sessions\(\): .*cursor|of another call"):
        cursors.read("p", "sessions", QUERY, cursor)


def test_a_cursor_of_something_else_is_refused(cursors: Cursors) -> None:
    cursor = cursors.make("sessions", QUERY, "1")
    with pytest.raises(PluginError, match=r"queue\(\): 'sessions\..*' is of another call"):
        cursors.read("p", "queue", QUERY, cursor)
    with pytest.raises(PluginError, match="is of a call with other arguments"):
        cursors.read("p", "sessions", ("b/#", None, True), cursor)
    with pytest.raises(StaleCursor, match="before the broker started; begin again"):
        Cursors(lambda: "t2").read("p", "sessions", QUERY, cursor)
    later = Cursors(lambda: "t2")
    later.make("sessions", QUERY, "1")
    with pytest.raises(StaleCursor, match="before the broker started; begin again"):
        later.read("p", "sessions", QUERY, cursor)


@given(st.integers(0, 200), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_changed_cursor_is_refused(at: int, other: str) -> None:
    cursors = Cursors(lambda: "t1")
    cursor = cursors.make("sessions", QUERY, "1234567")
    at %= len(cursor)
    body = cursor.rindex(".") + 1
    changed = cursor[:at] + other + cursor[at + 1 :]
    if changed == cursor:
        return
    try:
        position = cursors.read("p", "sessions", QUERY, changed)
    except PluginError:
        return
    assert at >= body  # another position, in the same form
    assert cursors.make("sessions", QUERY, position) == changed


def test_an_error_shows_no_more_than_the_beginning(cursors: Cursors) -> None:
    with pytest.raises(PluginError) as caught:
        cursors.read("p", "sessions", (), "x" * 5000)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("limit", [1, 100, MAX_LIMIT])
def test_limits(limit: int) -> None:
    check_limit("p", "sessions", limit)


@pytest.mark.parametrize("limit", [0, -1, MAX_LIMIT + 1, True, 1.0, "1", None])
def test_other_limits_are_refused(limit: Any) -> None:
    with pytest.raises(PluginError, match=r"sessions\(\): the limit must be from 1 to 1000, not"):
        check_limit("p", "sessions", limit)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "²", "٣", "1" * 19, " 1"])
def test_only_digits_are_numbers(text: str) -> None:
    assert cursor_number("p", "queue", "0123") == 123
    with pytest.raises(PluginError, match=r"queue\(\): the cursor"):
        cursor_number("p", "queue", text)
