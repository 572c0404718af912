"""Test topic templates: the values that a client may fill in, and topic filters that overlap."""

import pytest
from hookmq.plugin import ConfigError, Plugin
from hookmq_toolkit.topic_template import TopicTemplate, overlap
from hypothesis import given
from hypothesis import strategies as st

LEVELS = st.lists(st.sampled_from(["a", "b", "+", "$s", ""]), min_size=1, max_size=4)
FILTERS = (
    st.tuples(LEVELS, st.booleans())
    .map(lambda one: "/".join([*one[0], *["#"] * one[1]]))
    .filter(bool)
)
TOPICS = (
    st.lists(st.sampled_from(["a", "b", "$s", ""]), min_size=1, max_size=5)
    .map("/".join)
    .filter(bool)
)
VALUES = {"%c": "dev", "%u": "ann", "${room}": "7"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("a/b", "a/b"),
        ("devices/%c/#", "devices/dev/#"),
        ("%u/${room}/+", "ann/7/+"),
        ("x%c-%u", "xdev-ann"),
        ("$mine/%c", "$mine/dev"),
        ("a/${rest}", "a/b/c"),
        ("100%/x", "100%/x"),
    ],
)
def test_values_fill_in(text: str, filled: str) -> None:
    template = TopicTemplate(text)
    template.check("filter")
    assert template.fill(VALUES, {"rest": "b/c"}) == filled


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "the client has no %c"),
        ("a/b", "the client's %c is no single topic level"),
        ("+", "the client's %c is no single topic level"),
        ("#", "the client's %c is no single topic level"),
        ("$SYS", "$SYS would become the first level"),
    ],
)
def test_a_client_cannot_widen_a_filter(value: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"the client|would become") as refused:
        TopicTemplate("%c/x").fill({"%c": value})
    assert str(refused.value) == why


def test_a_missing_value_is_named() -> None:
    with pytest.raises(ValueError, match=r"the client has no \$\{room\}"):
        TopicTemplate("a/${room}").fill({})


@pytest.mark.parametrize("text", ["", "a/#/b", "a+", "a/${x", "$share/g", "a\0b"])
def test_an_invalid_filter_is_refused_with_its_key(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TopicTemplate(text).check("rules[0].filter")
    assert str(refused.value).startswith(
        f"rules[0].filter: expected a topic filter, found {text!r}"
    )


@given(FILTERS, FILTERS, TOPICS)
def test_filters_that_share_a_topic_overlap(first: str, second: str, topic: str) -> None:
    if Plugin.matches(first, topic) and Plugin.matches(second, topic):
        assert overlap(first, second)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("a/+", "+/b", True), ("a/b", "a/c", False), ("a/#", "a", True), ("a", "a/b", False), ("#", "$s", False)],
)  # fmt: skip
def test_overlap(first: str, second: str, expected: bool) -> None:
    assert overlap(first, second) is expected
    assert overlap(second, first) is expected
