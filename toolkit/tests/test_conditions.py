"""Test which conditions hold, and which are invalid."""

from typing import Any

import pytest
from hookmq.plugin import ConfigError
from hookmq_toolkit.conditions import Condition

VALUE = {
    "celsius": 31.5, "count": 3, "state": "open", "on": True, "none": None, "list": [{"x": 1}, "a"], "a-b": {"0": 7},
    "big": 10**30,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("p.celsius > 30", True), ("p.celsius>31.5", False), ("p.celsius >= 31.5", True), ("p.celsius < 30", False),
        ("p.celsius <= 31.5", True), ("p.count == 3.0", True), ("p.count != 3", False), ("p.count == 4", False),
        ("p.big > 1e29", True), ("p.count > -1", True),
        ('p.state == "open"', True), ('p.state != "open"', False), ('p.state > "opem"', True),
        ('p.state in ["shut", "open"]', True), ('p.state not in ["shut", "open"]', False),
        ('p.state not  in ["x"]', True), ("p.count in [1, 2, 3]", True),
        # other types
        ("p.on == 1", False), ("p.on == true", True), ("p.on > 0", False), ("p.count == true", False),
        ('p.count < "9"', False), ('p.celsius > "3"', False), ("p.state > 3", False), ("p.count != true", True),
        # missing fields
        ("p.missing == null", True), ("p.missing != null", False), ("p.none == null", True), ("p.missing > 1", False),
        ("p.missing < 1", False), ("p.missing != 5", True), ("p.missing in [1, null]", True), ("p.celsius != null", True),
        ("p.missing.deeper == null", True), ("p.celsius.deeper > 1", False),
        # paths
        ("p.list.0.x == 1", True), ('p.list.1 == "a"', True), ("p.list.2 == null", True), ("p.a-b.0 == 7", True),
        ('p.list == [{"x": 1}, "a"]', True), ('p.list == [{"x": true}, "a"]', False), ('p.list.0 == {"x": 1}', True),
        ("p.list.x == null", True), ("p.list.-1 == null", True), ("p.list.99999999999999999999 == null", True),
        ('  p.state   ==   "open"  ', True), ('p.state == "a > b"', False),
    ],
)  # fmt: skip
def test_conditions(text: str, holds: bool) -> None:
    condition = Condition(text)
    assert condition.root == "p"
    assert condition.holds(VALUE) is holds


@pytest.mark.parametrize(
    ("value", "holds"), [(31, True), (30, False), ("31", False), (None, False), ({"a": 31}, False)]
)
def test_a_field_without_a_path(value: Any, holds: bool) -> None:
    assert Condition("payload > 30").holds(value) is holds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a condition"),
        ("payload.x", "is not a condition"),
        ("payload.x >", "is not a condition"),
        ("payload.x = 3", "is not a condition"),
        ("payload. > 3", "is not a condition"),
        ("payload..x > 3", "is not a condition"),
        ("3 > payload.x", "is not a condition"),
        ("payload.x > 3 and payload.y > 4", "is not a JSON value"),
        ("payload.x == open", "double quotes"),
        ("payload.x == 'open'", "double quotes"),
        ("payload.x > NaN", "is not a JSON value"),
        ("payload.x > true", "needs a number or a text"),
        ("payload.x > null", "needs a number or a text"),
        ("payload.x >= [1]", "needs a number or a text"),
        ("payload.x in 3", "needs a list with values"),
        ("payload.x in []", "needs a list with values"),
        ("payload.x not in {}", "needs a list with values"),
        ("payload.x == " + "[" * 100_000, "is not a JSON value"),
    ],
)
def test_what_is_not_a_condition_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Condition(text, "filters.when")
    assert says in f"{raised.value} {raised.value.hint}"
    assert str(raised.value).startswith("filters.when: ")
