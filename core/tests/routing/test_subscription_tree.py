"""Test that the subscription tree finds the same routes as a brute-force search, and that every valid cached route is
correct.
"""

import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import has_wildcard, matches
from hookmq.routing.subscription_tree import FEW, LONG_TOPIC, SubscriptionTree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

unhurried = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""Settings without a deadline, so that a busy machine does not fail the tests."""

Entry = tuple[str, str, int]


class Route:
    def __init__(self, topic: str, matched: list[Entry]) -> None:
        self.valid = True
        self.topic = topic
        self.matched = sorted(matched)


def make(cache_size: int = 65_536, max_levels: int = 200) -> SubscriptionTree[str, int, Route]:
    return SubscriptionTree(Route, cache_size, max_levels)


def look_up(router: SubscriptionTree[str, int, Route], topics: Iterable[str]) -> dict[str, Route]:
    return {topic: router.lookup(topic) for topic in topics}


def still_valid(routes: dict[str, Route]) -> set[str]:
    return {topic for topic, route in routes.items() if route.valid}


def check_nodes(router: SubscriptionTree[str, int, Route], filters: set[str]) -> None:
    """Assert that every node ends a filter or has several children."""
    left = [(router._root, "")]
    found: set[str] = set()
    count = 0
    while left:
        node, path = left.pop()
        count += 1
        below = [] if node.plus is None else [("+", node.plus)]
        if node.children is not None:
            assert node.children
            below += node.children.items()
        ends = [end for end, leaf in (("", node.here), ("/#", node.rest)) if leaf is not None]
        assert node is router._root or ends or len(below) > 1
        found |= {f"{path}{end}"[1:] for end in ends}
        left += [(child, f"{path}/{level}{child.tail}") for level, child in below]
    assert found == {filter for filter in filters if has_wildcard(filter)}
    assert count <= 2 * len(found) + 1


# -- against a model

LEVEL = st.sampled_from(["", "a", "b", "$x"])
TOPIC = st.one_of(
    st.lists(LEVEL, min_size=1, max_size=3).map(lambda levels: "/".join(levels) or "a"),
    st.lists(st.sampled_from("aaab"), min_size=1, max_size=8).map("/".join),
)
FILTER = st.one_of(
    st.tuples(
        st.lists(st.one_of(LEVEL, st.just("+")), max_size=2),
        st.one_of(LEVEL, st.sampled_from("+#")),
    ).map(lambda parts: "/".join([*parts[0], parts[1]]) or "a"),
    # Most levels are the same, so that nodes with several levels are split and joined.
    st.tuples(st.lists(st.sampled_from("aa+b"), max_size=7), st.sampled_from("a+#")).map(
        lambda parts: "/".join([*parts[0], parts[1]])
    ),
)
SUBSCRIBER = st.sampled_from(["ann", "bob", "cy"])
OPERATION = st.one_of(
    st.tuples(st.just("subscribe"), FILTER, SUBSCRIBER, st.integers(0, 2)),
    st.tuples(st.just("unsubscribe"), FILTER, SUBSCRIBER, st.just(0)),
    st.tuples(st.just("unsubscribe held"), st.just(""), st.just(""), st.integers(0, 20)),
    st.tuples(st.just("lookup"), TOPIC, st.just(""), st.just(0)),
    st.tuples(st.just("invalidate"), FILTER, st.just(""), st.just(0)),
    st.tuples(st.just("clear"), st.just(""), st.just(""), st.just(0)),
)


@unhurried
@given(
    # By default, Hypothesis would draw about five at a time.
    st.lists(OPERATION, min_size=15, max_size=60),
    st.sampled_from([0, 1, 3, 1000]),
    st.sampled_from(["", "a/{}", "{}/a", "$x/{}"]),
)
def test_the_router_does_what_brute_force_does(
    operations: list[tuple[str, str, str, int]], cache_size: int, crowd: str
) -> None:
    router = make(cache_size)
    held: dict[tuple[str, str], int] = {}
    given_out: list[Route] = []

    def expected(topic: str) -> list[Entry]:
        return sorted(
            (who, filter, value) for (filter, who), value in held.items() if matches(filter, topic)
        )

    if crowd and cache_size == 1000:  # a partition with more routes than are matched one by one
        given_out.extend(router.lookup(crowd.format(n)) for n in range(FEW + 10))

    for what, text, who, value in operations:
        if what == "unsubscribe held":
            if not held:
                continue
            what, (text, who) = "unsubscribe", list(held)[value % len(held)]
        if what == "subscribe":
            assert router.subscribe(text, who, value) == held.get((text, who))
            held[text, who] = value
        elif what == "unsubscribe":
            assert router.unsubscribe(text, who) == held.pop((text, who), None)
        elif what == "lookup":
            assert sorted(router.match(text)) == expected(text)
            route = router.lookup(text)
            assert route.matched == expected(text)
            assert route.valid is (cache_size > 0)
            if route.valid:
                assert router.lookup(text) is route
            given_out.append(route)
        elif what == "invalidate":
            router.invalidate(text)
            assert not any(route.valid and matches(text, route.topic) for route in given_out)
        else:
            router.clear_cache()
            assert not any(route.valid for route in given_out)
        assert len(router) == len(held)
        given_out = [route for route in given_out if route.valid]
        assert all(route.matched == expected(route.topic) for route in given_out)
        assert len({id(route) for route in given_out}) <= cache_size

    check_nodes(router, {filter for filter, _ in held})
    for filter, who in list(held):
        router.unsubscribe(filter, who)
    # The trie is empty: sessions that come and go must not fill the memory.
    root = router._root
    assert (root.children, root.plus, root.here, root.rest) == (None, None, None, None)
    assert router._exact == {}


# -- subscriptions


def test_one_filter_serves_many_subscribers() -> None:
    router = make()
    for filter in ("a/b", "a/+", "a/#"):
        for n in range(5):
            router.subscribe(filter, f"s{n}", n)
    assert len(router) == 15
    assert sorted(router.match("a/b")) == sorted(
        (f"s{n}", filter, n) for filter in ("a/b", "a/+", "a/#") for n in range(5)
    )
    for n in range(4):
        for filter in ("a/b", "a/+", "a/#"):
            assert router.unsubscribe(filter, f"s{n}") == n
    assert sorted(router.match("a/b")) == [("s4", "a/#", 4), ("s4", "a/+", 4), ("s4", "a/b", 4)]


def test_filters_that_match_the_same_are_kept_apart() -> None:
    router = make()
    router.subscribe("#", "ann", 1)
    router.subscribe("+/#", "ann", 2)
    assert router.unsubscribe("+/+/#", "ann") is None
    assert router.unsubscribe("+/#", "ann") == 2
    assert router.match("a") == [("ann", "#", 1)]


def test_a_subscriber_is_looked_up_by_its_hash_and_equality() -> None:
    class Session:
        pass

    router: SubscriptionTree[Session, int, Route] = SubscriptionTree(
        lambda topic, matched: Route(topic, [])
    )
    one, two = Session(), Session()
    router.subscribe("a/+", one, 1)
    assert router.unsubscribe("a/+", two) is None
    assert router.subscribe("a/+", two, 2) is None
    assert {id(who): value for who, _, value in router.match("a/x")} == {id(one): 1, id(two): 2}


def test_a_value_of_none_counts_as_a_subscription() -> None:
    router: SubscriptionTree[str, None, Route] = SubscriptionTree(
        lambda topic, matched: Route(topic, [])
    )
    for filter in ("a", "a/+", "a/#"):
        router.subscribe(filter, "ann", None)
        router.subscribe(filter, "ann", None)
    assert len(router) == 3
    for filter in ("a", "a/+", "a/#"):
        router.unsubscribe(filter, "ann")
    assert len(router) == 0


def test_too_deep_a_filter_is_refused() -> None:
    router = make(max_levels=3)
    router.subscribe("a/b/c/d", "ann", 0)
    for filter in ("a/b/c/d/e", "a/+/c/d/#"):
        with pytest.raises(ProtocolError) as caught:
            router.subscribe(filter, "ann", 0)
        assert caught.value.code is ReasonCode.TOPIC_FILTER_INVALID
    assert len(router) == 1


def test_depth_is_no_matter() -> None:
    router = make(max_levels=65_536)
    deep = "+/" * 32_767 + "+"
    topic = "/" * 32_767
    router.subscribe(deep, "ann", 1)
    router.subscribe(deep[:-1] + "#", "bob", 2)
    router.subscribe("/" * 65_535, "cy", 3)
    assert router.lookup(topic).matched == [("ann", deep, 1), ("bob", deep[:-1] + "#", 2)]
    assert router.lookup("/" * 65_535).matched == [
        ("bob", deep[:-1] + "#", 2),
        ("cy", "/" * 65_535, 3),
    ]
    assert router.unsubscribe(deep, "ann") == 1
    assert router.lookup(topic).matched == [("bob", deep[:-1] + "#", 2)]


@pytest.mark.parametrize(
    "inner", ["a", "a/b", "a/+", "a/#", "a/b/c", "a/+/c", "+", "+/b", "+/#", "+/+/c"]
)
@pytest.mark.parametrize("outer", ["a/#", "a/+", "+", "+/#", "a/b/#", "+/+", "a/+/#"])
def test_removing_a_filter_keeps_those_below_and_above_it(inner: str, outer: str) -> None:
    router = make()
    router.subscribe(inner, "ann", 1)
    router.subscribe(outer, "bob", 2)
    router.unsubscribe(outer, "bob")
    topic = inner.replace("+", "x").replace("#", "x")
    assert router.match(topic) == [("ann", inner, 1)]


def test_a_filter_of_one_subscriber_takes_the_space_of_one() -> None:
    router = make()
    for filter in ("a", "+"):
        router.subscribe(filter, "ann", 1)
        router.subscribe(filter, "ann", 2)
    alone = [router._exact["a"], router._root.plus.here if router._root.plus else None]
    assert alone == [("ann", "a", 2), ("ann", "+", 2)]
    for filter in ("a", "+"):
        router.subscribe(filter, "bob", 3)
        router.unsubscribe(filter, "ann")
    alone = [router._exact["a"], router._root.plus.here if router._root.plus else None]
    assert alone == [("bob", "a", 3), ("bob", "+", 3)]


@pytest.mark.parametrize(
    "shape", ["{}/+" + "/x" * 198, "{}" + "/x/+" * 99 + "/x", "{}" + "/+" * 199]
)
def test_a_deep_filter_is_one_node(shape: str) -> None:
    """A deep filter is one node, so memory depends on the number and size of filters, not on the number of levels. A
    filter of 200 levels used to take 58 KB.
    """
    filters = [shape.format(f"t{n}") for n in range(20)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        router = make()
        for filter in filters:
            router.subscribe(filter, "ann", 1)
        taken = (tracemalloc.get_traced_memory()[0] - before) // len(filters)
    finally:
        tracemalloc.stop()
    assert taken < 3000
    # The same applies to paths that branched off at each level and were removed.
    for filter in filters:
        for at in range(2, 390, 2):
            router.subscribe(filter[:at].rstrip("/") + "/y/+", "bob", 1)
            router.unsubscribe(filter[:at].rstrip("/") + "/y/+", "bob")
    check_nodes(router, set(filters))
    assert router.match("t3" + "/x" * 199) == [("ann", shape.format("t3"), 1)]
    assert router.match("t3" + "/x" * 198) == router.match("t3" + "/x" * 200) == []


# -- topics that begin with a dollar


@pytest.mark.parametrize("topic", ["$", "$SYS", "$SYS/a", "$/a"])
def test_no_wildcard_stands_for_a_dollar(topic: str) -> None:
    router = make()
    for filter in ("#", "+", "+/a", "+/#", "+/+"):
        router.subscribe(filter, "ann", 1)
    assert router.match(topic) == []
    router.subscribe(topic, "ann", 2)
    router.subscribe(topic.partition("/")[0] + "/#", "ann", 3)
    assert sorted(value for _, _, value in router.match(topic)) == [2, 3]


@pytest.mark.parametrize("topic", ["$", "$SYS", "$SYS/a", "$/a"])
def test_a_route_of_a_dollar_topic_goes_with_its_filters_alone(topic: str) -> None:
    router = make()
    route = router.lookup(topic)
    for filter in ("#", "+", "+/a", "+/#"):
        router.subscribe(filter, "ann", 1)
    assert route.valid
    router.subscribe(topic.partition("/")[0] + "/#", "ann", 3)
    assert not route.valid
    assert router.lookup(topic).matched == [("ann", topic.partition("/")[0] + "/#", 3)]


def test_dollar_topics_do_not_count_among_the_many_of_a_leading_wildcard() -> None:
    router = make()
    look_up(router, [f"$SYS/{n}" for n in range(FEW)])
    routes = look_up(router, ["a/b", "a/c"])
    router.subscribe("+/b", "ann", 1)
    assert still_valid(routes) == {"a/c"}


# -- the cache


@pytest.mark.parametrize("filter", ["a/b", "a/+", "a/#", "+/b", "#", "+/#"])
def test_unsubscribing_makes_a_new_route(filter: str) -> None:
    router = make()
    router.subscribe(filter, "ann", 1)
    route = router.lookup("a/b")
    router.unsubscribe(filter, "ann")
    assert not route.valid
    assert router.lookup("a/b").matched == []


def test_no_connection_may_rely_on_the_route_of_a_long_topic() -> None:
    router = make()
    assert router.lookup("a" * LONG_TOPIC).valid
    assert not router.lookup("a" * (LONG_TOPIC + 1)).valid
    assert list(router._routes) == ["a" * LONG_TOPIC]


def test_the_route_of_the_newest_long_topic_is_kept_until_a_filter_changes() -> None:
    router = make()
    first, second = "a" * (LONG_TOPIC + 1), "b" * (LONG_TOPIC + 1)
    route = router.lookup(first)
    assert router.lookup(first) is route
    assert not route.valid  # so that connections do not rely on it
    router.lookup(second)
    assert router.lookup(first) is not route  # only one such route is kept, to limit the memory
    assert (router.hits, router.misses) == (1, 3)
    changes: tuple[Callable[[], object], ...] = (
        lambda: router.subscribe(first, "ann", 1),
        lambda: router.subscribe("+", "ann", 1),
        lambda: router.unsubscribe("+", "ann"),
        lambda: router.unsubscribe(first, "ann"),
        router.clear_cache,
    )
    for change in changes:
        before = router.lookup(first)
        change()
        assert router.lookup(first) is not before


@pytest.mark.parametrize(
    ("size", "dropped"), [(1, 1), (3, 1), (127, 1), (128, 2), (640, 10), (6400, 100)]
)
def test_a_full_cache_drops_the_first_64th(size: int, dropped: int) -> None:
    router = make(cache_size=size)
    routes = look_up(router, map(str, range(size)))
    assert still_valid(routes) == set(routes)
    router.lookup("one more")
    assert routes.keys() - still_valid(routes) == set(map(str, range(dropped)))
    assert router.evicted == dropped


def test_a_cleared_cache_is_as_new() -> None:
    router = make()
    routes = look_up(router, ["a/b", "a/c", "$x/b"])
    router.clear_cache()
    assert still_valid(routes) == set()
    assert router.invalidated == 3
    for filter in ("a/#", "$x/#", "#"):
        router.subscribe(filter, "ann", 1)
    assert router.invalidated == 3
    assert router.lookup("$x/b").matched == [("ann", "$x/#", 1)]


def test_a_filter_without_wildcards_drops_one_of_many() -> None:
    router = make()
    crowd = look_up(router, [f"a/{n}" for n in range(FEW + 1)])
    router.subscribe("a/7", "ann", 1)
    assert crowd.keys() - still_valid(crowd) == {"a/7"}


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("beyond", [0, 1])
def test_a_leading_wildcard_invalidates_all_routes_if_there_are_many(
    gone: int, beyond: int
) -> None:
    router = make()
    crowd = look_up(router, [f"{n}/a" for n in range(FEW + beyond + gone)])
    for n in range(gone):
        router.invalidate(f"{n}/a")
    left = still_valid(crowd)
    router.subscribe("+/none", "ann", 0)
    assert still_valid(crowd) == (set() if beyond else left)


def test_a_lookup_compiles_once() -> None:
    router = make()
    router.subscribe("a/#", "ann", 1)
    route = router.lookup("a/b")
    assert route.matched == [("ann", "a/#", 1)]
    assert router.lookup("a/b") is route
    assert (router.hits, router.misses) == (1, 1)


def test_a_changed_value_makes_a_new_route() -> None:
    router = make()
    router.subscribe("a", "ann", 1)
    route = router.lookup("a")
    assert router.subscribe("a", "ann", 2) == 1
    assert not route.valid
    assert router.lookup("a").matched == [("ann", "a", 2)]


def test_unsubscribing_what_is_not_held_drops_nothing() -> None:
    router = make()
    router.subscribe("a/+", "ann", 1)
    route = router.lookup("a/b")
    assert router.unsubscribe("a/+", "bob") is None
    assert router.unsubscribe("a/#", "ann") is None
    assert router.unsubscribe("a/b", "ann") is None
    assert route.valid


@pytest.mark.parametrize(
    ("filter", "dropped"),
    [
        ("a/b", {"a/b"}),
        ("a/c", {"a/c"}),
        ("a/none", set()),
        ("a/+", {"a/b", "a/c"}),
        ("a/#", {"a", "a/b", "a/c", "a/b/c"}),
        ("a/b/#", {"a/b", "a/b/c"}),
        ("+/b", {"a/b", "z/b"}),
        ("+", {"a"}),
        ("#", {"a", "a/b", "a/c", "a/b/c", "z/b", "/"}),
        ("/#", {"/"}),
        ("/+", {"/"}),
        ("$x/#", {"$x/b"}),
        ("none/#", set()),
    ],
)
def test_few_routes_are_dropped_precisely(filter: str, dropped: set[str]) -> None:
    router = make()
    routes = look_up(router, ["a", "a/b", "a/c", "a/b/c", "z/b", "/", "$x/b"])
    router.subscribe(filter, "ann", 0)
    assert routes.keys() - still_valid(routes) == dropped
    assert router.invalidated == len(dropped)


def test_many_routes_are_dropped_unseen_but_only_those_of_the_first_level() -> None:
    router = make()
    crowd = look_up(router, [f"a/{n}" for n in range(FEW + 1)])
    others = look_up(router, ["b/c", "$x/c", "a"])
    assert router.lookup("a") is others.pop("a")
    router.subscribe("a/b/#", "ann", 0)
    assert still_valid(crowd) == set()
    assert still_valid(others) == {"b/c", "$x/c"}
    assert router.invalidated == FEW + 2


def test_up_to_the_bound_they_are_looked_at() -> None:
    router = make()
    crowd = look_up(router, [f"a/{n}" for n in range(FEW)])
    router.subscribe("a/7/#", "ann", 0)
    assert crowd.keys() - still_valid(crowd) == {"a/7"}
    router.subscribe("+/8", "ann", 0)
    assert crowd.keys() - still_valid(crowd) == {"a/7", "a/8"}


def test_a_leading_wildcard_drops_many_unseen_but_nothing_under_a_dollar() -> None:
    router = make()
    crowd = look_up(router, [f"{n}/a" for n in range(FEW + 1)])
    hidden = look_up(router, [f"$x/{n}" for n in range(FEW + 1)])
    router.subscribe("+/none", "ann", 0)
    assert still_valid(crowd) == set()
    assert still_valid(hidden) == set(hidden)
    router.subscribe("$x/none/+", "ann", 0)
    assert still_valid(hidden) == set()


def test_routes_that_are_gone_do_not_count_as_many() -> None:
    router = make()
    for _ in range(FEW):
        for topic in ("a/b", "a/c"):
            router.lookup(topic)
            router.invalidate(topic)
    routes = look_up(router, ["a/b", "a/c"])
    router.invalidate("+/b")
    assert still_valid(routes) == {"a/c"}


def test_a_cleared_cache_holds_no_names() -> None:
    router = make()
    routes = look_up(router, ["a/b", "$x/b"])
    router.clear_cache()
    assert still_valid(routes) == set()
    routes = look_up(router, ["z"])
    for filter in ("$x/#", "a/#", "+/b"):
        router.invalidate(filter)
    assert still_valid(routes) == {"z"}
    assert router.invalidated == 2


def test_a_scan_of_topics_cannot_fill_the_memory() -> None:
    router = make(cache_size=100)
    routes = look_up(router, [f"{n}/scan" for n in range(1000)])
    assert still_valid(routes) == {f"{n}/scan" for n in range(900, 1000)}
    assert router.evicted == 900
    assert router.invalidated == 0
    assert len(router._plain) == len(router._routes) == 100
    router.clear_cache()
    assert still_valid(routes) == set()
    assert (router._routes, router._plain, router._plain_count) == ({}, {}, 0)


def test_an_evicted_route_comes_back_right() -> None:
    router = make(cache_size=1)
    first = router.lookup("a")
    router.lookup("b")
    assert not first.valid
    router.subscribe("a", "ann", 1)
    assert router.lookup("a").matched == [("ann", "a", 1)]


def test_without_a_cache_no_route_stays_valid() -> None:
    router = make(cache_size=0)
    assert not router.lookup("a").valid
    assert router.lookup("a") is not router.lookup("a")


def test_a_route_that_cannot_be_compiled_is_not_cached() -> None:
    fail = True

    def compile(topic: str, matched: list[Entry]) -> Route:
        if fail:
            raise LookupError(topic)
        return Route(topic, matched)

    router: SubscriptionTree[str, int, Route] = SubscriptionTree(compile)
    with pytest.raises(LookupError):
        router.lookup("a")
    fail = False
    assert router.lookup("a").valid
    assert (router.hits, router.misses) == (0, 2)
