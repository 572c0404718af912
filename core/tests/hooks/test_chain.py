from itertools import product
from typing import Any

import pytest
from hookmq.hooks.chain import (
    EMPTY_CHAINS,
    HookImplementation,
    any_contains,
    any_matches,
    any_overlaps,
    cacheable,
    narrow,
    overlaps,
)
from hookmq.hooks.stats import HookStats
from hookmq.model.events import Action
from hookmq.mqtt.topics import matches
from hypothesis import given
from hypothesis import strategies as st


def call(plugin_id: str, **given: Any) -> HookImplementation:
    stats = HookStats(plugin_id, "on_publish")
    return HookImplementation(
        plugin_id, "on_publish", lambda client, message: None, stats=stats, **given
    )


def test_narrow_gives_the_same_tuple_where_nothing_falls_out() -> None:
    calls = (call("a"), call("b", topic=any_matches(["t/#"])))
    assert narrow(calls, "t/1") is calls
    assert narrow((), "t") == ()


def test_narrow_keeps_order() -> None:
    a, b, c = call("a"), call("b", topic=any_matches(["x/#"])), call("c")
    assert narrow((a, b, c), "t") == (a, c)
    assert narrow((a, b, c), "x/1") == (a, b, c)


def test_empty_chains_are_empty_tuples() -> None:
    chains = EMPTY_CHAINS
    assert chains.on_connect is chains.on_auth is chains.on_publish is chains.on_deliver
    assert chains.on_connect == chains.on_subscribe == chains.on_will == ()
    assert chains.authorize == dict.fromkeys(Action, ())


def test_one_plugin_that_forbids_it_makes_a_chain_uncacheable() -> None:
    assert cacheable((call("a"), call("b")))
    assert not cacheable((call("a"), call("b", cacheable=False)))


def test_several_filters_match_if_one_does() -> None:
    test = any_matches(["a/#", "+/b"])
    assert [test(t) for t in ("a", "a/x", "z/b", "z/c")] == [True, True, True, False]


@pytest.mark.parametrize(
    ("mine", "other", "common"),
    [
        ("alarms/#", "#", True),
        ("alarms/#", "alarms", True),
        ("alarms/#", "+/fire", True),
        ("alarms/#", "+", True),
        ("alarms/#", "lights/#", False),
        ("a/+/c", "a/b/+", True),
        ("a/+/c", "a/b", False),
        ("a/b/#", "a", False),
        ("a/b/#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/#", False),
        ("$SYS/#", "$SYS/+", True),
        ("/x", "#", True),
        ("/+", "+/x", True),
    ],
)
def test_overlaps(mine: str, other: str, common: bool) -> None:
    assert overlaps(mine, other) is overlaps(other, mine) is common


LEVELS = ["", "a", "$b"]
TOPICS = [
    "/".join(levels)
    for depth in (1, 2, 3, 4)
    for levels in product(LEVELS, repeat=depth)
    if "/".join(levels)
]
FILTERS = st.tuples(
    st.lists(st.sampled_from([*LEVELS, "+"]), min_size=1, max_size=3), st.booleans()
).map(lambda made: "/".join(made[0] + ["#"] * made[1]))


@given(FILTERS.filter(bool), FILTERS.filter(bool))
def test_overlaps_is_a_common_topic(one: str, other: str) -> None:
    common = any(matches(one, t) and matches(other, t) for t in TOPICS)
    # "+" and "/#" share only the empty topic, which is not a valid topic: an extra call does no harm.
    if {one, other} not in ({"+", "/#"}, {"/#"}):
        assert overlaps(one, other) is common
    assert overlaps(one, other) or not common


def test_shared_subscriptions_are_looked_through() -> None:
    assert any_overlaps(["alarms/#"])("$share/g/alarms/+")
    assert not any_overlaps(["alarms/#"])("$share/g/lights")
    assert any_contains(["alarms/#"])("$share/g/alarms/+")
    assert not any_contains(["alarms/#"])("$share/g/#")
