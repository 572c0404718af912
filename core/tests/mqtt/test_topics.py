"""Compare the topic rules of MQTT 5.0 section 4.7 with the specification's examples and a
brute-force search.
"""

import itertools

import pytest
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import (
    compile_filter,
    contains,
    has_wildcard,
    matches,
    parse_share,
    validate_filter,
    validate_topic,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

unhurried = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
"""Settings without a deadline, so that a busy machine does not fail the tests."""

# -- validity


@pytest.mark.parametrize(
    "topic",
    [
        "a",
        "/",
        "//",
        " ",
        "a/b",
        "/finance",
        "$SYS/x",
        "$share/g/a",
        "ä/東京/😀",
        "\ufeffa",
        "a" * 65_535,
    ],
)
def test_a_topic_may_be_any_text_without_wildcards(topic: str) -> None:
    validate_topic(topic)


@pytest.mark.parametrize(
    "topic",
    ["", "+", "#", "a/+", "a/#", "a+", "a#b", "a\0", "a" * 65_536, "é" * 32_768, "a/\ud800"],
)
def test_a_topic_that_is_none_is_refused(topic: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        validate_topic(topic)
    assert caught.value.code is ReasonCode.TOPIC_NAME_INVALID


def test_the_bound_on_length_is_in_bytes() -> None:
    validate_topic("é" * 32_767)  # 65,534 bytes
    validate_filter("😀" * 16_383 + "abc")  # 65,535 bytes
    with pytest.raises(ProtocolError):
        validate_filter("😀" * 16_384)


@pytest.mark.parametrize(
    "filter",
    [
        "a", "/", "#", "+", "+/+", "/+", "+/", "/#", "+/#", "a/#", "a/+/b", "sport/+/player1", "+/tennis/#", "$SYS/#",
        "$share/g/a", "$share/g/#", "$share/g//", "$share/g/+/x", "$share", "$shared/x", "a" * 65_535,
    ],
)  # fmt: skip
def test_a_filter_may_have_wildcards_as_whole_levels(filter: str) -> None:
    validate_filter(filter)


@pytest.mark.parametrize(
    "filter",
    [
        "", "a\0", "a#", "#a", "#/", "#/a", "a/#/b", "##", "a/##", "a/#/#", "sport/tennis#", "sport+", "+a", "++",
        "a/+b/c", "a/b+", "+/a+", "+#", "$share/", "$share//a",
        "$share/g", "$share/g/", "$share/+/a", "$share/#/a", "$share/#",
        "$share/g+h/a", "$share/g/a#", "$share/g/#/a", "$share/g/+a", "a" * 65_536, "\udfff",
    ],
)  # fmt: skip
def test_a_filter_that_is_none_is_refused(filter: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        validate_filter(filter)
    assert caught.value.code is ReasonCode.TOPIC_FILTER_INVALID


def test_the_number_of_levels_is_bounded() -> None:
    """As in mosquitto, the limit counts slashes, not levels: 200 slashes (201 levels) are allowed."""
    validate_topic("/" * 200)
    validate_filter("/" * 200)
    validate_filter("$share/g/" + "/" * 200)
    validate_topic("a/b/c/d", max_levels=3)
    with pytest.raises(ProtocolError, match="more than 200 slashes"):
        validate_topic("/" * 201)
    with pytest.raises(ProtocolError, match="more than 200 slashes"):
        validate_filter("/" * 201)
    with pytest.raises(ProtocolError, match="more than 3 slashes"):
        validate_topic("a/b/c/d/e", max_levels=3)
    with pytest.raises(ProtocolError, match="more than 3 slashes"):
        validate_filter("$share/g/a/b/c/d/e", max_levels=3)


def test_a_refusal_does_not_repeat_the_topic() -> None:
    with pytest.raises(ProtocolError) as caught:
        validate_topic("private#" * 1000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("filter", "name", "inner"),
    [
        ("$share/g/a/+", "g", "a/+"),
        ("$share/g//", "g", "/"),
        ("$share/g/$SYS/x", "g", "$SYS/x"),
        ("$share", None, "$share"),
        ("$shared/g/a", None, "$shared/g/a"),
        ("a/$share/g", None, "a/$share/g"),
    ],
)
def test_a_shared_filter_is_split(filter: str, name: str | None, inner: str) -> None:
    assert parse_share(filter) == (name, inner)


def test_wildcards_are_seen() -> None:
    assert [f for f in ("a", "/", "+", "#", "a/+", "a/#", "+/a", "$SYS/x") if has_wildcard(f)] == [
        "+", "#", "a/+", "a/#", "+/a",
    ]  # fmt: skip


# -- what matches

TABLE = [
    # the examples of section 4.7
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/#", "sport", True),
    ("sport/#", "sports", False),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("#", "$SYS/x", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("$SYS/#", "$SYS/x", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("ACCOUNTS", "Accounts", False),
    # corners
    ("#", "/", True),
    ("+/+", "/", True),
    ("+/#", "a", True),
    ("+/#", "$a", False),
    ("+/#", "$a/b", False),
    ("a/+", "a/$x", True),
    ("a/#", "a/$x", True),
    ("/#", "/", True),
    ("/#", "a", False),
    ("/+/#", "/", True),
    ("a/+/#", "a", False),
    ("a/+/#", "a/", True),
    ("a//b", "a/b", False),
    ("+/b", "a/c", False),
    ("a.c/+", "abc/d", False),
    ("a/+", "a/b\n", True),
    ("a/+/#", "a/b\nc/\n", True),
    ("Å/+", "A\u030a/b", False),
    ("a", "\ufeffa", False),
]


@pytest.mark.parametrize(("filter", "topic", "expected"), TABLE)
def test_matching_follows_the_specification(filter: str, topic: str, expected: bool) -> None:
    assert matches(filter, topic) is expected
    assert compile_filter(filter)(topic) is expected


def by_the_book(pattern: list[str], levels: list[str]) -> bool:
    """Return whether a filter matches according to section 4.7, apart from the ``$`` rule."""
    if pattern == ["#"]:
        return True
    if not pattern or not levels:
        return not pattern and not levels
    return pattern[0] in ("+", levels[0]) and by_the_book(pattern[1:], levels[1:])


def reference(filter: str, topic: str) -> bool:
    if filter[0] in "+#" and topic[0] == "$":
        return False
    return by_the_book(filter.split("/"), topic.split("/"))


def every_filter(depth: int) -> list[str]:
    made: list[str] = []
    for size in range(1, depth + 1):
        for levels in itertools.product(("", "a", "b", "$x", "+"), repeat=size - 1):
            made.extend("/".join((*levels, last)) for last in ("", "a", "b", "$x", "+", "#"))
    return [filter for filter in made if filter]


def every_topic(depth: int) -> list[str]:
    """Return all topics up to `depth` levels, including the levels ``z`` and ``$z``, which appear in no filter."""
    made: list[str] = []
    for size in range(1, depth + 1):
        made.extend(map("/".join, itertools.product(("", "a", "b", "$x", "z", "$z"), repeat=size)))
    return [topic for topic in made if topic]


def test_matching_is_right_for_every_small_filter_and_topic() -> None:
    topics = every_topic(3)
    for filter in every_filter(3):
        compiled = compile_filter(filter)
        for topic in topics:
            expected = reference(filter, topic)
            assert matches(filter, topic) is expected, (filter, topic)
            assert compiled(topic) is expected, (filter, topic)


LEVEL = st.sampled_from(["", "a", "b", "$x", "é", "."])
TOPIC = st.lists(LEVEL, min_size=1, max_size=6).map(lambda levels: "/".join(levels) or "a")


@st.composite
def filters(draw: st.DrawFn, depth: int = 6) -> str:
    levels = draw(st.lists(st.one_of(LEVEL, st.just("+")), max_size=depth - 1))
    last = draw(st.one_of(LEVEL, st.sampled_from("+#")))
    return "/".join([*levels, last]) or "a"


@unhurried
@given(filters(), TOPIC)
def test_matching_is_right_for_deeper_ones(filter: str, topic: str) -> None:
    assert matches(filter, topic) is reference(filter, topic)
    assert compile_filter(filter)(topic) is reference(filter, topic)


@unhurried
@given(st.text(st.characters(exclude_characters="+#/\0", exclude_categories=["Cs"]), min_size=1))
def test_any_level_is_itself_and_fits_a_plus(level: str) -> None:
    validate_topic(level)
    for filter in (f"a/{level}/#", f"a/+/{level}", f"+/{level}/+"):
        validate_filter(filter)
        assert matches(filter, f"a/{level}/{level}")
        assert compile_filter(filter)(f"a/{level}/{level}")


@unhurried
@given(st.text("a+#/$", max_size=8))
def test_validity_is_what_the_grammar_says(text: str) -> None:
    levels = text.split("/")
    good = text != "" and all(
        level == "+" or (level == "#" and n == len(levels) - 1) or not set(level) & set("+#")
        for n, level in enumerate(levels)
    )
    try:
        validate_filter(text)
    except ProtocolError:
        assert not good
    else:
        assert good


# -- what contains what


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/#", "a/b/+/#", True),
        ("a/+", "a/#", False),
        ("a/+/#", "a/#", False),
        ("a/#", "a/+/#", True),
        ("+/+", "/", True),
        ("+/+", "a/b", True),
        ("+/+", "$x/b", False),
        ("+/+", "#", False),
        ("#", "+/#", True),
        ("+/#", "#", True),
        ("+/+/#", "#", False),
        ("+/+/#", "/#", True),
        ("/+/#", "/#", True),  # "" is not a topic
        ("/#", "/+/#", True),
        ("/#", "/", True),
        ("#", "$SYS/x", False),
        ("#", "$SYS/#", False),
        ("+/#", "$SYS/#", False),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/x", True),
        ("$SYS/#", "#", False),
        ("a", "+", False),
        ("+", "a", True),
        ("+", "#", False),
        ("a/+", "a/$x", True),
        ("a/+/c", "a/b/+", False),
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
    ],
)
def test_containment(outer: str, inner: str, expected: bool) -> None:
    assert contains(outer, inner) is expected


def test_containment_is_right_for_every_pair_of_small_filters() -> None:
    # Filters with three levels can only distinguish topics in the first four levels. Deeper levels behave like the
    # fourth.
    every = every_filter(3)
    topics = every_topic(4)
    matched = {
        filter: sum(1 << n for n, topic in enumerate(topics) if reference(filter, topic))
        for filter in every
    }
    wrong = [
        (outer, inner)
        for outer, inner in itertools.product(every, repeat=2)
        if contains(outer, inner) is not (matched[inner] & ~matched[outer] == 0)
    ]
    assert wrong == []
    assert sum(contains(outer, inner) for outer, inner in itertools.product(every, repeat=2)) > 1000


def witnesses(inner: str, depth: int) -> list[str]:
    """Return topics that match `inner`. They are enough to expose any filter of up to `depth` levels that misses one of
    its topics.

    Each wildcard level takes two different names, because a literal can equal only one of them. Topics end in tails of
    every length, up to one level more than `depth`.
    """
    levels = inner.split("/")
    tails: list[tuple[str, ...]] = [()]
    if levels[-1] == "#":
        levels.pop()
        for size in range(1, depth + 2):
            tails.extend(itertools.product(("", "z"), repeat=size))
    heads = itertools.product(*(("", "z") if level == "+" else (level,) for level in levels))
    made = ("/".join((*head, *tail)) for head, tail in itertools.product(heads, tails))
    return [topic for topic in made if topic and reference(inner, topic)]


@unhurried
@given(filters(depth=5), filters(depth=5))
@example("/+/#", "/#")
@example("+/#", "#")
@example("#", "$x/#")
def test_containment_is_right_for_deeper_pairs(outer: str, inner: str) -> None:
    expected = all(reference(outer, topic) for topic in witnesses(inner, 5))
    assert contains(outer, inner) is expected


@unhurried
@given(filters(), st.data())
def test_a_filter_contains_what_it_is_narrowed_to(outer: str, data: st.DataObject) -> None:
    levels = outer.split("/")
    if levels[-1] == "#" and data.draw(st.booleans()):
        levels[-1:] = data.draw(st.lists(st.sampled_from(["", "a", "+"]), min_size=1, max_size=3))
    inner = "/".join(
        data.draw(st.sampled_from(["+", "", "q"])) if level == "+" else level for level in levels
    )
    assert contains(outer, inner or "q")


@unhurried
@given(filters(), TOPIC)
def test_to_contain_a_topic_is_to_match_it(filter: str, topic: str) -> None:
    assert contains(filter, topic) is matches(filter, topic)


@unhurried
@given(filters(4), filters(4), filters(4))
def test_containment_is_transitive(a: str, b: str, c: str) -> None:
    assert not (contains(a, b) and contains(b, c)) or contains(a, c)


def test_the_deepest_topics_are_no_different() -> None:
    slashes = "/" * 65_535
    pluses = "+/" * 32_767 + "+"
    validate_topic(slashes, max_levels=65_536)
    validate_filter(pluses, max_levels=65_536)
    assert matches("#", slashes)
    assert matches(pluses, "/" * 32_767)
    assert not matches(pluses, slashes)
    assert compile_filter(pluses)("/" * 32_767)
    assert not compile_filter(pluses)("$" + "/" * 32_767)
    assert contains(pluses[:-1] + "#", pluses)
    assert not contains(pluses, pluses[:-1] + "#")
