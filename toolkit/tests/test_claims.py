"""Claims are looked up by their whole name first, and then by dotted parts, with longer names first."""

from typing import Any

import pytest
from hookmq_toolkit.claims import MAX_DOTS, MISSING, claim_text, find_claim
from hypothesis import given
from hypothesis import strategies as st

CLAIMS: dict[str, Any] = {
    "a": {"b": 1, "b.c": 2, "x": {"c": 3}, "deep": {"d": {"e": 8}}},
    "a.b": 4,
    "a.deep": {"other": 9},
    "https://e.com/roles": 5,
    "null": None,
    "shadow.null": None,
    "shadow": {"null": "below"},
    "resource_access": {"my.app": {"roles": ["r"]}, "my": {"app": {"roles": ["shorter"]}}},
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a.b", 4), ("a.b.c", 2), ("a.x.c", 3), ("https://e.com/roles", 5), ("null", None), ("shadow.null", None),
        ("resource_access.my.app.roles", ["r"]), ("a.deep.other", 9), ("a.deep.d.e", 8),
    ],
)  # fmt: skip
def test_the_longest_name_is_found(name: str, value: Any) -> None:
    assert find_claim(CLAIMS, name) == value


@pytest.mark.parametrize(
    "name", ["", ".", "a.", ".a", "a..b", "a.b.d", "null.x", "none", "a.b.c.d", "https://e"]
)
def test_other_names_are_missing(name: str) -> None:
    assert find_claim(CLAIMS, name) is MISSING


names = st.text("ab.", max_size=4)
objects = st.recursive(
    st.none() | st.integers(0, 9), lambda inner: st.dictionaries(names, inner, max_size=3)
)


def reference(claims: dict[str, Any], name: str) -> Any:
    if name in claims:
        return claims[name]
    for end in range(len(name) - 1, -1, -1):
        inner = claims.get(name[:end])
        if name[end] == "." and isinstance(inner, dict):
            found = reference(inner, name[end + 1 :])
            if found is not MISSING:
                return found
    return MISSING


@given(st.dictionaries(names, objects, max_size=3), st.text("ab.", max_size=9))
def test_the_search_is_that_of_the_plain_definition(claims: dict[str, Any], name: str) -> None:
    assert find_claim(claims, name) is reference(claims, name) or find_claim(
        claims, name
    ) == reference(claims, name)


def test_a_name_with_many_dots_is_only_looked_up_whole() -> None:
    claims: dict[str, Any] = {"a": "end"}
    for _ in range(MAX_DOTS):
        claims = {"a": claims}
    path = ".".join("a" * (MAX_DOTS + 1))
    assert find_claim(claims, path) == "end"
    assert find_claim({"a": claims}, "a." + path) is MISSING
    assert find_claim({"a." + path: "whole"}, "a." + path) == "whole"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"), ("", ""), (7, "7"), (-1, "-1"), (True, None), (None, None), (1.5, None), (["x"], None),
        ({"x": "y"}, None),
    ],
)  # fmt: skip
def test_only_strings_and_integers_are_text(value: Any, text: str | None) -> None:
    assert claim_text({"name": value}, "name") == text


def test_a_missing_claim_has_no_text() -> None:
    assert claim_text({}, "name") is None
