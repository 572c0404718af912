"""Test that the retained index finds the same messages as a brute-force search, even if messages change during the
search.
"""

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from hookmq.mqtt.topics import matches
from hookmq.routing.retained_index import RetainedIndex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

unhurried = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
"""Settings without a deadline, so that a busy machine does not fail the tests."""


def make(*topics: str) -> RetainedIndex[str]:
    index: RetainedIndex[str] = RetainedIndex()
    for topic in topics:
        index.set(topic, topic.upper())
    return index


def found(index: RetainedIndex[str], filter: str) -> list[str]:
    return sorted(topic for topic, _ in index.match(filter))


def test_a_topic_has_one_value() -> None:
    index = make()
    assert index.set("a/b", "one") is None
    assert index.set("a/b", "two") == "one"
    assert (index.get("a/b"), index.get("a"), len(index)) == ("two", None, 1)
    assert "a/b" in index
    assert "a" not in index
    assert index.delete("a") is None
    assert index.delete("a/b") == "two"
    assert index.delete("a/b") is None
    assert (len(index), found(index, "#")) == (0, [])


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("a/b", ["a/b"]),
        ("a/none", []),
        ("a/#", ["a", "a/b", "a/b/c", "a/c"]),
        ("a/+", ["a/b", "a/c"]),
        ("+", ["a"]),
        ("#", ["/", "/a", "a", "a/b", "a/b/c", "a/c"]),
        ("+/#", ["/", "/a", "a", "a/b", "a/b/c", "a/c"]),
        ("+/+", ["/", "/a", "a/b", "a/c"]),
        ("/#", ["/", "/a"]),
        ("+/+/c", ["a/b/c"]),
        ("$x/#", ["$x", "$x/y"]),
        ("$x/+", ["$x/y"]),
        ("none/#", []),
        ("a/b/c/d/#", []),
    ],
)
def test_filters_find_what_they_match(filter: str, expected: list[str]) -> None:
    index = make("a", "a/b", "a/c", "a/b/c", "/", "/a", "$x", "$x/y")
    assert found(index, filter) == expected
    assert all(value == topic.upper() for topic, value in index.match(filter))


# -- against a model

LEVEL = st.sampled_from(["", "a", "b", "c", "d", "e", "f", "$x"])
SHALLOW = st.lists(LEVEL, min_size=1, max_size=3).map(lambda levels: "/".join(levels) or "a")
DEEP = st.lists(st.sampled_from("aaab"), min_size=1, max_size=8).map("/".join)
"""Topics with mostly identical levels, so that runs of levels are split and merged."""
TOPIC = st.one_of(SHALLOW, DEEP)
FILTER = st.one_of(
    st.tuples(
        st.lists(st.sampled_from(["+", "+", "a", "", "$x"]), max_size=2),
        st.sampled_from(["#", "#", "+", "a"]),
    ).map(lambda parts: "/".join([*parts[0], parts[1]]) or "a"),
    st.tuples(
        st.lists(st.sampled_from("++ab"), min_size=1, max_size=6), st.sampled_from("##+ab")
    ).map(lambda parts: "/".join([*parts[0], parts[1]])),
)
OPERATION = st.one_of(
    st.tuples(st.just("set"), TOPIC, st.integers(0, 9)),
    st.tuples(st.just("delete"), TOPIC, st.just(0)),
    st.tuples(st.just("search"), FILTER, st.sampled_from([0, 1, 3])),
    st.tuples(st.just("step"), st.just(""), st.integers(0, 9)),
    st.tuples(st.just("thin out"), st.just(""), st.integers(2, 4)),
    st.tuples(st.just("fill up"), st.just(""), st.integers(1, 3)),
)


def check_nodes(index: RetainedIndex[int]) -> None:
    """Assert that every node ends a topic or has several children. This guarantees at most two nodes per topic."""
    left = [index._root]
    count = 0
    while left:
        node = left.pop()
        children = [] if node.children is None else [n for n in node.children.order if n.alive]
        assert node is index._root or (node.topic is not None) + len(children) >= 2 or node.topic
        assert node.topic is None or node.topic.count("/") + 1 == node.depth
        count += 1
        born = [] if node.children is None else [n.born for n in node.children.order]
        assert born == sorted(set(born))
        for child in children:
            assert child.parent is node
            assert child.depth == node.depth + child.name.count("/") + 1
            assert child.first == child.name.partition("/")[0]
            assert node.children is not None
            assert node.children.find(child.first) is child
        left += children
    assert count <= 2 * len(index) + 1


@dataclass
class Search:
    filter: str
    steps: Iterator[tuple[str, int] | None]
    owed: set[str]
    """The topics that the search must find, because they have had a message ever since it began."""
    handed_out: set[str] = field(default_factory=set)

    def step(self, model: dict[str, int]) -> bool:
        for found in self.steps:
            if found is not None:
                topic, value = found
                assert topic in self.owed
                assert topic not in self.handed_out
                assert value == model[topic]
                self.handed_out.add(topic)
            return True
        assert self.owed <= self.handed_out
        return False


@unhurried
@given(st.lists(TOPIC, max_size=20), st.lists(OPERATION, max_size=60), st.booleans())
def test_a_search_is_right_whatever_happens_meanwhile(
    topics: list[str], operations: list[tuple[str, str, int]], crowded: bool
) -> None:
    index: RetainedIndex[int] = RetainedIndex()
    model: dict[str, int] = {}
    searches: list[Search] = []

    def put(topic: str, value: int) -> None:
        assert index.set(topic, value) == model.get(topic)
        model[topic] = value

    def drop(topic: str) -> None:
        assert index.delete(topic) == model.pop(topic, None)
        for search in searches:
            search.owed.discard(topic)
            search.handed_out.discard(topic)  # a deleted topic must not be returned again

    for topic in topics:
        put(topic, 0)
    if crowded:  # with this many children, gaps left by removed ones are closed
        for n in range(100):
            put(f"a/n{n}", n)
    for what, text, number in operations:
        if what == "set":
            put(text, number)
        elif what == "delete":
            drop(text)
        elif what == "search":
            steps = index.scan(text, number) if number else index.match(text)
            owed = {topic for topic in model if matches(text, topic)}
            searches.append(Search(text, steps, owed))
        elif what == "step":
            for search in searches:
                for _ in range(number):
                    if not search.step(model):
                        break
        elif what == "thin out":
            for topic in [topic for topic in model if topic.startswith("a/n")]:
                if int(topic[3:]) % number:
                    drop(topic)
        else:
            for n in range(0, 100 if crowded else 0, number):
                put(f"a/n{n}", number)
        assert len(index) == len(model)
    check_nodes(index)
    for search in searches:
        while search.step(model):
            pass
    for filter in ("#", "+/+", "a/#", "$x/#", "+/a", "a/a/+/#", "+/a/+/b"):
        expected = {topic: value for topic, value in model.items() if matches(filter, topic)}
        assert dict(index.match(filter)) == expected
    assert {topic: index.get(topic) for topic in model} == model
    for topic in list(model):
        drop(topic)
    assert index._root.children is None  # no node is left behind


@unhurried
@given(st.lists(st.tuples(st.sampled_from("123456"), st.booleans()), max_size=40))
def test_few_siblings_come_and_go(changes: list[tuple[str, bool]]) -> None:
    index = make()
    model: dict[str, str] = {}
    for name, stays in changes:
        topic = f"a/{name}"
        if stays:
            assert index.set(topic, name) == model.get(topic)
            model[topic] = name
        else:
            assert index.delete(topic) == model.pop(topic, None)
        assert dict(index.match("a/+")) == model
        assert dict(index.match(f"+/{name}")) == {k: v for k, v in model.items() if k == topic}


@pytest.mark.parametrize("rounds", [1, 2, 100])
@pytest.mark.parametrize("siblings", [1, 3, 4, 5, 6, 40])
def test_one_sibling_comes_and_goes_often(siblings: int, rounds: int) -> None:
    others = [f"a/{n}" for n in range(siblings)]
    index = make("a/x", *others[:2])
    for n in range(rounds):
        index.delete("a/x")
        if n == 0:  # the dict of children is made while a removed one is still in the list
            for topic in others[2:]:
                index.set(topic, "")
        assert found(index, "a/+") == sorted(others)
        index.set("a/x", "")
        assert found(index, "a/+") == sorted([*others, "a/x"])
    index.delete("a/x")
    while others:
        assert found(index, "a/+") == sorted(others)
        index.delete(others.pop())


# -- a search that stands still


def test_a_search_begins_when_it_is_asked_for() -> None:
    index = make("a/b")
    for filter in ("a/+", "a/b"):
        search = index.match(filter)
        index.set("a/c", "later")
        index.delete("a/b")
        assert list(search) == []
        index.set("a/b", "again")
        index.delete("a/c")


def test_a_deleted_and_set_topic_is_another_one() -> None:
    index = make("a/1", "a/2", "a/3")
    for filter in ("a/+", "#"):
        search = index.match(filter)
        first, _ = next(search)
        index.delete(first)
        index.set(first, "again")
        assert first not in dict(search)
        assert len(dict(index.match(filter))) == 3
    index = make("first", "a", "a/1")
    search = index.match("+")
    assert next(search)[0] == "first"
    index.delete("a")  # its node remains, because a/1 is below it
    index.set("a", "again")
    assert list(search) == []
    search = index.match("a/1")
    index.delete("a/1")
    index.set("a/1", "again")
    assert list(search) == []


def test_the_value_is_that_of_the_moment() -> None:
    index = make("a/1", "a/2")
    search = index.match("a/#")
    first, _ = next(search)
    (other,) = {"a/1", "a/2"} - {first}
    index.set(other, "new")
    assert list(search) == [(other, "new")]


def test_a_search_survives_that_the_tree_under_it_goes_and_comes_back() -> None:
    index = make("a", *(f"a/b/{n}" for n in range(50)), "z")
    search = index.match("#")
    seen = [next(search)[0] for _ in range(10)]
    for n in range(50):
        index.delete(f"a/b/{n}")
    for n in range(80):
        index.set(f"a/b/{n}", "new")
    assert [topic for topic, _ in search if topic not in seen] == ["z"]


def test_a_search_that_finds_nothing_can_be_interrupted() -> None:
    index = make(*(f"{n}/a" for n in range(100)))
    assert list(index.scan("+/b", pace=10)) == [None] * 10
    assert list(index.match("+/b")) == []


def test_a_search_ends_however_fast_topics_come() -> None:
    index = make("a/1", "a/2")
    search = index.scan("a/+", pace=1)
    steps = 0
    for _ in search:
        steps += 1
        index.set(f"a/new{steps}", "x")
        assert steps < 10
    assert steps == 4


def test_searches_do_not_hinder_one_another() -> None:
    index = make(*(f"a/{n}" for n in range(100)))
    searches = [index.match("a/+") for _ in range(10)]
    for turn, search in enumerate(searches):
        for _ in range(turn * 10):
            next(search)
    for n in range(0, 100, 2):
        index.delete(f"a/{n}")
    for turn, search in enumerate(searches):
        assert len(list(search)) == 50 - turn * 5


def test_memory_does_not_grow_with_topics_that_came_and_went() -> None:
    index = make("a/keep")
    search = index.match("a/#")
    assert next(search)[0] == "a/keep"
    for n in range(1000):
        index.set(f"a/{n}", "x")
        index.delete(f"a/{n}")
    root = index._root.children
    assert root
    assert [node.name for node in root.order] == ["a/keep"]
    assert list(search) == []
    index.set("a/stays", "x")
    for n in range(1000):
        index.set(f"a/{n}", "x")
        index.delete(f"a/{n}")
    node = root.find("a")
    assert node
    assert node.children
    assert len(node.children.order) <= 34


def test_a_deep_topic_is_one_node() -> None:
    """A deep topic is one node, so memory depends on the number and size of topics, not on the number of levels. A
    topic of 200 levels used to take 60 KB.
    """
    names = [f"t{n}" for n in range(20)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index = make()
        topics = [f"{name}{'/x' * 199}" for name in names]
        for topic in topics:
            index.set(topic, "")
        taken = (tracemalloc.get_traced_memory()[0] - before) // len(names)
    finally:
        tracemalloc.stop()
    assert taken < 4000
    # The same applies to paths that branched off at each level and were removed.
    for topic in topics:
        for at in range(2, len(topic), 2):
            index.set(topic[:at] + "/y", "")
            index.delete(topic[:at] + "/y")
    assert index._root.children is not None
    assert all(node.children is None for node in index._root.children.order)
    assert found(index, "+" + "/x" * 100 + "/#") == sorted(topics)
    assert found(index, "+" + "/+" * 199) == sorted(topics)
    assert found(index, "+" + "/+" * 198) == []


def test_a_search_goes_on_when_the_node_it_stands_at_is_joined_to_its_child() -> None:
    """A search continues even if the node at its position is merged with its child and grandchild, and then split
    again.
    """
    index = make("a/b/1", "a/b/c/d/2", "a/b/c/e/3", "a/b/c/e/4")
    search = index.match("a/+/#")
    assert next(search)[0] == "a/b/1"
    index.delete("a/b/1")
    index.delete("a/b/c/d/2")
    index.delete("a/b/c/e/3")
    index.set("a/x", "new")
    index.set("a/b/c/x", "new")
    assert [topic for topic, _ in search] == ["a/b/c/e/4"]
    index.delete("a/x")
    index.delete("a/b/c/x")
    check_nodes(cast("RetainedIndex[int]", index))


def test_depth_is_no_matter() -> None:
    index = make("/" * 65_535, "/" * 65_534)
    assert [len(topic) for topic, _ in index.match("#")] == [65_535, 65_534][::-1]
    assert len(list(index.match("+/" * 32_767 + "#"))) == 2
    assert index.delete("/" * 65_535)
    assert index.delete("/" * 65_534)
    assert index._root.children is None
