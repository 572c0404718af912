"""Test access rules by comparing the deciding rule with the specification and a brute-force search."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hookmq.hooks.chain import overlaps
from hookmq.mqtt_api import contains, matches, parse_share
from hookmq.plugin import Action, ClientInfo, ConfigError, Peer, Scope
from hookmq_toolkit.rules import MAX_LISTED, Rule, Rules, rule_values, rules_from_lists
from hookmq_toolkit.rules.trie import Node
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

unhurried = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""Settings without a deadline, so that a busy machine does not fail the tests."""

PUBLISH, SUBSCRIBE, DELIVER, WILL = (
    Action.PUBLISH,
    Action.SUBSCRIBE,
    Action.DELIVER,
    Action.WILL,
)
EVERY = frozenset(Action)


def allow(filter: str, *actions: Action, **conditions: Any) -> Rule:
    return Rule(True, filter, frozenset(actions) or EVERY, source=f"allow {filter}", **conditions)


def deny(filter: str, *actions: Action, **conditions: Any) -> Rule:
    return Rule(False, filter, frozenset(actions) or EVERY, source=f"deny {filter}", **conditions)


def may(
    rules: list[Rule],
    action: Action,
    topic: str,
    qos: int = 0,
    retain: bool = False,
    values: Mapping[str, str] = MappingProxyType({}),
) -> bool:
    found = Rules(rules).decide(action, topic, qos, retain, values)
    return found is not None and found.allow


# -- what applies


def test_no_rule_decides_nothing() -> None:
    assert Rules([]).decide(PUBLISH, "a", 0, False, {}) is None
    assert Rules([allow("a", PUBLISH)]).decide(PUBLISH, "b", 0, False, {}) is None
    assert Rules([allow("a", PUBLISH)]).decide(WILL, "a", 0, False, {}) is None


def test_the_first_in_order_decides_not_the_closest() -> None:
    first, second = deny("a/#", order=1), allow("a/b", order=2)
    assert Rules([second, first]).decide(PUBLISH, "a/b", 0, False, {}) is first
    assert Rules([second, first]).rules == (first, second)
    assert may([allow("a/b"), deny("a/#")], PUBLISH, "a/b")


@pytest.mark.parametrize("action", [PUBLISH, WILL, DELIVER])
def test_messages_are_matched(action: Action) -> None:
    rules = [allow("a/+/c"), allow("b/#")]
    assert may(rules, action, "a/x/c")
    assert may(rules, action, "b")
    assert not may(rules, action, "a/x/y/c")


@pytest.mark.parametrize(
    ("granted", "asked", "granted_whole"),
    [
        ("home/+", "home/+", True),
        ("home/+", "home/x", True),
        ("home/+", "home/#", False),
        ("home/+", "#", False),
        ("home/+", "+/+", False),
        ("home/#", "home/#", True),
        ("home/#", "home", True),
        ("home/#", "home/+/x", True),
        ("#", "#", True),
        ("+/#", "#", True),
        ("#", "$SYS/#", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
    ],
)
@pytest.mark.parametrize("share", ["", "$share/g/"])
def test_a_subscription_must_be_contained(
    granted: str, asked: str, granted_whole: bool, share: str
) -> None:
    assert may([allow(granted)], SUBSCRIBE, share + asked) is granted_whole


@pytest.mark.parametrize(
    ("denied", "asked", "refused"),
    [
        ("home/secret", "home/#", True),
        ("home/secret", "home/+", True),
        ("home/secret", "#", True),
        ("home/secret", "home/secret", True),
        ("home/secret", "home/other", False),
        ("home/secret/#", "home/secret", True),
        ("+/secret", "home/#", True),
        ("$SYS/secret", "#", False),
        ("$SYS/secret", "+/secret", False),
        ("$SYS/secret", "$SYS/#", True),
        ("#", "$SYS/#", False),
    ],
)
@pytest.mark.parametrize("share", ["", "$share/g/"])
def test_a_subscription_must_not_overlap_what_is_denied_first(
    denied: str, asked: str, refused: bool, share: str
) -> None:
    rules = [deny(denied), allow("#"), allow("$SYS/#")]
    assert may(rules, SUBSCRIBE, share + asked) is not refused


def test_an_earlier_allow_prevails_over_a_later_deny() -> None:
    rules = [allow("home/+"), deny("home/#")]
    assert may(rules, SUBSCRIBE, "home/+")
    assert not may(rules, SUBSCRIBE, "home/#")


# -- conditions


@pytest.mark.parametrize("action", [PUBLISH, WILL, DELIVER])
def test_qos_and_retain_are_conditions_on_messages(action: Action) -> None:
    assert may([allow("a", qos=1)], action, "a", qos=1)
    assert not may([allow("a", qos=1)], action, "a", qos=2)
    assert not may([allow("a", retain=False)], action, "a", retain=True)
    assert may([deny("a", retain=True), allow("a")], action, "a", retain=False)
    assert not may([deny("a", retain=True), allow("a")], action, "a", retain=True)
    assert may([deny("a", qos=0), allow("a")], action, "a", qos=1)


def test_a_subscription_for_more_qos_is_the_same_rules_to_lower() -> None:
    rule = allow("a/#", qos=1)
    assert Rules([rule]).decide(SUBSCRIBE, "a/b", 2, False, {}) is rule


def test_no_subscription_keeps_to_a_retain_condition() -> None:
    assert not may([allow("a", retain=False)], SUBSCRIBE, "a")
    assert not may([deny("a", retain=True), allow("a")], SUBSCRIBE, "a")
    assert not may([deny("a", qos=0), allow("a")], SUBSCRIBE, "a", qos=2)


# -- variables

MINE = [allow("d/%u/#"), allow("c/%c"), allow("${site}/x")]


def test_variables_are_levels() -> None:
    values = {"%u": "ann", "%c": "c1", "${site}": "north"}
    assert may(MINE, PUBLISH, "d/ann/t", values=values)
    assert may(MINE, SUBSCRIBE, "d/ann/+", values=values)
    assert may(MINE, SUBSCRIBE, "c/c1", values=values)
    assert may(MINE, PUBLISH, "north/x", values=values)
    assert not may(MINE, PUBLISH, "d/bob/t", values=values)
    assert not may(MINE, SUBSCRIBE, "d/+/t", values=values)
    assert not may(MINE, SUBSCRIBE, "d/#", values=values)
    assert not may(MINE, PUBLISH, "d/%u/t", values=values)


@pytest.mark.parametrize("value", ["+", "#", "a/b", "/", "", "a+", "#a", "a\0", None])
def test_an_unusable_value_allows_nothing_and_denies_every_level(value: str | None) -> None:
    values = {} if value is None else {"%u": value}
    for topic in ("d/+/t", "d/#", "d/a/b", "d//t", "d/x/t"):
        assert not may([allow("d/%u/#")], SUBSCRIBE, topic, values=values)
    for topic in ("d/x/t", "d//t", "d/%u/t"):
        assert not may([allow("d/%u/#")], PUBLISH, topic, values=values)
        assert not may([deny("d/%u/t"), allow("#")], PUBLISH, topic, values=values)
        assert not may([deny("d/%u/t"), allow("#")], SUBSCRIBE, topic, values=values)
    assert not may([deny("d/%u/t"), allow("#")], SUBSCRIBE, "d/#", values=values)
    assert not may([deny("%u/t"), allow("$x/#")], PUBLISH, "$x/t", values=values)
    assert not may([deny("%u/t"), allow("$x/#")], SUBSCRIBE, "$x/+", values=values)
    assert may([deny("d/%u/t"), allow("#")], PUBLISH, "d/x/other", values=values)


def test_a_variable_in_front_never_opens_the_broker_s_own_topics() -> None:
    assert not may([allow("%u/#")], SUBSCRIBE, "$SYS/#", values={"%u": "$SYS"})
    assert not may([allow("%u/#")], PUBLISH, "$share/g/x", values={"%u": "$share"})
    assert may([allow("d/%u")], PUBLISH, "d/$x", values={"%u": "$x"})


def test_a_deny_behind_a_missing_value_holds_after_an_allow_of_the_same_filter() -> None:
    rules = [allow("d/%u"), deny("d/%u"), allow("d/+")]
    assert may(rules, PUBLISH, "d/ann", values={"%u": "ann"})
    assert not may(rules, PUBLISH, "d/ann")
    assert may(rules, PUBLISH, "d/bob", values={"%u": "ann"})


def test_a_claim_s_name_may_hold_a_slash() -> None:
    rules = Rules([allow("x/${https://a.example/site}/#")])
    assert rules.variables == {"${https://a.example/site}"}
    values = {"${https://a.example/site}": "north"}
    assert rules.decide(PUBLISH, "x/north/t", 0, False, values) is not None


# -- invalid rules


@pytest.mark.parametrize(
    "filter",
    [
        "", "a#", "a/#/b", "a+", "a\0b", "$share/g/a", "a/%ub", "x%c", "a/${b}c", "a/${", "a/${}", "${a+b}", "a/" * 201,
        "x" * 70_000, "${" * 30_000,
    ],
)  # fmt: skip
def test_a_bad_filter_is_named_with_its_source(filter: str) -> None:
    with pytest.raises(ConfigError, match=r"^acl\.yaml:7: topic filter ") as caught:
        Rules([Rule(True, filter, EVERY, source="acl.yaml:7")])
    assert len(str(caught.value)) < 400


def test_a_bad_qos_is_named() -> None:
    with pytest.raises(ConfigError, match="qos is 3"):
        Rules([allow("a", qos=3)])


# -- brute force

LEVELS = st.sampled_from(["a", "b", "", "$x", "v"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn, variables: bool = False) -> str:
    level = ["a", "b", "", "$x", "+", "+"] + (["%u", "%c", "${k}"] if variables else [])
    levels = draw(st.lists(st.sampled_from(level), max_size=4))
    if draw(st.booleans()) or not "/".join(levels):
        levels.append("#")
    return "/".join(levels)


VALUES = st.dictionaries(
    st.sampled_from(["%u", "%c", "${k}"]),
    st.sampled_from(["a", "b", "v", "$x", "", "+", "#", "a/b", "\0", "%u"]),
)
RULES = st.lists(
    st.builds(
        Rule,
        st.booleans(),
        filters(variables=True),
        st.frozensets(st.sampled_from(list(Action)), min_size=1),
        st.sampled_from([None, None, 0, 1, 2]),
        st.sampled_from([None, None, None, True, False]),
        st.integers(0, 3),
    ),
    max_size=12,
)
OPEN = "\x01"
"""Represents a level that may have any name."""


def brute(
    rules: list[Rule], action: Action, topic: str, qos: int, retain: bool, values: Mapping[str, str]
) -> Rule | None:
    for rule in sorted(rules, key=lambda rule: rule.order):
        if action in rule.actions and applies(rule, action, topic, qos, retain, values):
            return rule
    return None


def resolved(filter: str, values: Mapping[str, str]) -> list[str]:
    levels = filter.split("/")
    for index, level in enumerate(levels):
        if level in ("%u", "%c", "${k}"):
            value = values.get(level, "")
            bad = not value or set(value) & set("+#/\0") or (index == 0 and value[0] == "$")
            levels[index] = OPEN if bad else value
    return levels


def applies(
    rule: Rule, action: Action, topic: str, qos: int, retain: bool, values: Mapping[str, str]
) -> bool:
    levels = resolved(rule.filter, values)
    if rule.allow and OPEN in levels:
        return False
    if action is Action.SUBSCRIBE:
        asked = parse_share(topic)[1]
        if rule.allow:
            return rule.retain is None and contains("/".join(levels), asked)
        if levels[0] == OPEN:  # any first level, one that begins with "$" included
            first = asked.split("/")[0]
            levels[0] = "any" if first in ("+", "#") else first
        return overlaps("/".join("+" if x == OPEN else x for x in levels), asked)
    if rule.qos is not None and qos > rule.qos:
        return False
    if rule.retain is not None and rule.retain != retain:
        return False
    if levels[0] == OPEN:
        levels[0] = topic.split("/")[0]
    return matches("/".join("+" if level == OPEN else level for level in levels), topic)


@unhurried
@given(
    RULES,
    st.sampled_from([PUBLISH, DELIVER, WILL]),
    TOPICS,
    st.integers(0, 2),
    st.booleans(),
    VALUES,
)
def test_messages_are_decided_as_brute_force_decides(
    rules: list[Rule],
    action: Action,
    topic: str,
    qos: int,
    retain: bool,
    values: dict[str, str],
) -> None:
    decided = Rules(rules).decide(action, topic, qos, retain, values)
    assert decided is brute(rules, action, topic, qos, retain, values)


@unhurried
@given(RULES, filters(), st.sampled_from(["", "$share/g/"]), VALUES)
@example([Rule(False, "a", EVERY), Rule(True, "#", EVERY)], "#", "", {})
@example([Rule(False, "+", EVERY)], "/#", "", {})
@example([Rule(True, "/+/#", EVERY)], "/#", "", {})
def test_subscriptions_are_decided_as_brute_force_decides(
    rules: list[Rule], asked: str, share: str, values: dict[str, str]
) -> None:
    decided = Rules(rules).decide(SUBSCRIBE, share + asked, 1, False, values)
    assert decided is brute(rules, SUBSCRIBE, asked, 1, False, values)


@unhurried
@given(RULES, filters(), TOPICS, VALUES)
def test_an_allowed_subscription_brings_nothing_that_is_not_allowed(
    rules: list[Rule], asked: str, topic: str, values: dict[str, str]
) -> None:
    """A granted subscription delivers no message that the same rules would refuse.

    The checks for containment and overlap must guarantee this.
    """
    everywhere = [Rule(r.allow, r.filter, EVERY, None, None, r.order) for r in rules]
    compiled = Rules(everywhere)
    granted = compiled.decide(SUBSCRIBE, asked, 0, False, values)
    if granted is not None and granted.allow and matches(asked, topic):
        brought = compiled.decide(DELIVER, topic, 0, False, values)
        assert brought is not None
        assert brought.allow


@pytest.mark.slow
def test_a_hundred_thousand_rules_are_as_good_as_ten() -> None:
    rules = Rules(
        [deny(f"s/{n}/secret", order=n) for n in range(50_000)]
        + [allow(f"d/{n}/#", order=50_000 + n) for n in range(50_000)]
    )
    for n in (0, 1, 49_999):
        assert rules.decide(PUBLISH, f"d/{n}/t", 0, False, {}) is rules.rules[50_000 + n]
        found = rules.decide(SUBSCRIBE, f"s/{n}/#", 0, False, {})
        assert found is rules.rules[n]
    assert rules.decide(SUBSCRIBE, "#", 0, False, {}) is rules.rules[0]
    assert rules.decide(SUBSCRIBE, "s/+/secret", 0, False, {}) is rules.rules[0]


@unhurried
@given(RULES, st.lists(st.tuples(filters(), VALUES), min_size=1, max_size=8), st.booleans())
def test_earlier_lookups_do_not_change_later_results(
    rules: list[Rule], questions: list[tuple[str, dict[str, str]]], forgetful: bool
) -> None:
    """Earlier lookups do not change later results, even though wildcards merge parts of the trie and the merged parts
    are cached.
    """
    compiled = Rules(rules)
    if forgetful:
        compiled._denied._limit = compiled._denied._room = 0
    for asked, values in questions * 2:
        decided = compiled.decide(SUBSCRIBE, asked, 1, False, values)
        assert decided is brute(rules, SUBSCRIBE, asked, 1, False, values)


@unhurried
@given(RULES, filters(), TOPICS, VALUES)
def test_rules_taken_apart_allow_nothing(
    rules: list[Rule], asked: str, topic: str, values: dict[str, str]
) -> None:
    compiled = Rules(rules)
    compiled.decide(SUBSCRIBE, asked, 0, False, values)
    for _ in compiled.take_apart():
        assert compiled.decide(SUBSCRIBE, asked, 0, False, values) is None
        assert compiled.decide(PUBLISH, topic, 0, False, values) is None
    assert compiled.rules == ()
    again = Rules(rules).decide(PUBLISH, topic, 0, False, values)
    assert again is brute(rules, PUBLISH, topic, 0, False, values)


# -- values


def client(**given: Any) -> ClientInfo:
    return ClientInfo("c1", 5, given.pop("username", "ann"), Peer("10.0.0.1"), Scope(), **given)


def test_the_user_is_who_was_found_out() -> None:
    assert rule_values(client(), ["%u", "%c"]) == {"%u": "ann", "%c": "c1"}
    assert rule_values(client(identity="bob"), ["%u"]) == {"%u": "bob"}
    assert rule_values(client(identity=""), ["%u"]) == {"%u": ""}
    assert rule_values(client(username=None), ["%u", "%c"]) == {"%c": "c1"}


def test_claims_are_strings_and_integers_by_name_or_by_path() -> None:
    claims = {
        "a": "x",
        "n": 7,
        "b": True,
        "l": ["x"],
        "o": {"p": {"q": "deep"}},
        "f": 1.5,
        "d.e": "flat",
        "g": {"h.i": "longest"},
    }
    names = [
        "${a}",
        "${n}",
        "${b}",
        "${l}",
        "${o}",
        "${o.p.q}",
        "${a.x}",
        "${f}",
        "${d.e}",
        "${g.h.i}",
        "${none}",
    ]
    found = rule_values(client(claims=claims), names)
    assert found == {
        "${a}": "x",
        "${n}": "7",
        "${o.p.q}": "deep",
        "${d.e}": "flat",
        "${g.h.i}": "longest",
    }


# -- lists

LISTS = {
    "publish": ["a/%u/#", {"topic": "b", "qos": 1, "retain": False}],
    "sub": "c/#",
    "pubsub": ["d"],
    "deny": ["a/secret"],
}


def test_lists_become_rules_with_what_is_denied_first() -> None:
    made = rules_from_lists(LISTS, "claim acl")
    assert [(r.order, r.allow, r.filter, r.source) for r in made] == [
        (0, False, "a/secret", "claim acl.deny[0]"),
        (1, True, "a/%u/#", "claim acl.publish[0]"),
        (2, True, "b", "claim acl.publish[1]"),
        (3, True, "c/#", "claim acl.sub"),
        (4, True, "d", "claim acl.pubsub[0]"),
    ]
    assert made[0].actions == EVERY
    assert made[1].actions == {PUBLISH, WILL}
    assert made[3].actions == {SUBSCRIBE, DELIVER}
    assert (made[2].qos, made[2].retain) == (1, False)
    assert may(made, PUBLISH, "a/ann/t", values={"%u": "ann"})
    assert not may(made, SUBSCRIBE, "a/secret")


def test_deny_may_tell_the_actions_apart() -> None:
    made = rules_from_lists({"all": ["#"], "deny": {"publish": ["a"]}}, "answer")
    assert not may(made, PUBLISH, "a")
    assert may(made, SUBSCRIBE, "a")
    assert made[0].source == "answer.deny.publish[0]"


def test_a_list_of_rules_keeps_its_order() -> None:
    made = rules_from_lists(
        [
            {"permission": "allow", "action": "publish", "topic": "a", "retain": False},
            {"permission": "deny", "topic": "#"},
        ],
        "answer.permissions",
    )
    assert may(made, PUBLISH, "a")
    assert not may(made, SUBSCRIBE, "a")
    assert [rule.source for rule in made] == ["answer.permissions[0]", "answer.permissions[1]"]


@pytest.mark.parametrize(
    "lists",
    [
        None, "a", 1, {"read": ["a"]}, {1: ["a"]}, {"publish": 1}, {"publish": [1]}, {"publish": [["a"]]},
        {"publish": ["a#"]}, {"publish": [{"topic": "a", "extra": 1}]}, {"publish": [{"qos": 1}]},
        {"publish": [{"topic": "a", "qos": True}]}, {"publish": [{"topic": "a", "qos": 3}]},
        {"publish": [{"topic": "a", "retain": 1}]}, {"deny": 1}, {"deny": {"deny": ["a"]}}, ["a"], [{"topic": "a"}],
        [{"permission": "maybe", "topic": "a"}], [{"permission": "allow", "action": "x", "topic": "a"}],
        [{"permission": "allow", "action": [], "topic": "a"}], [{"permission": "allow", "topic": "a", "x": 1}],
        {"publish": ["a"] * (MAX_LISTED + 1)},
    ],
)  # fmt: skip
def test_lists_with_an_invalid_entry_are_refused_whole(lists: Any) -> None:
    with pytest.raises(ConfigError, match=r"^claim acl"):
        rules_from_lists(lists, "claim acl")


def test_empty_lists_are_no_rules() -> None:
    assert rules_from_lists({}, "x") == []
    assert rules_from_lists({"publish": [], "sub": None, "deny": None}, "x") == []
    assert rules_from_lists([], "x") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["publish", "deny", "all", "topic", "qos", "permission", "action"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@unhurried
@given(JSON)
def test_any_json_is_rules_or_an_error(lists: Any) -> None:
    try:
        made = rules_from_lists(lists, "claim acl")
    except ConfigError as error:
        source = error.source
    else:
        source = "claim acl"
        assert len(Rules(made)) == len(made)
    assert source.startswith("claim acl")


def test_a_rule_takes_two_nodes_at_most_however_deep_it_is() -> None:
    def nodes(node: Node) -> int:
        below = [*(node.children or {}).values(), *(node.variables or {}).values()]
        below += [node.plus] if node.plus is not None else []
        return 1 + sum(map(nodes, below))

    deep = [f"{'a/' * n}b{'/+/%u/${x/y}/c' * 40}{'/#' * (n % 2)}" for n in range(40)]
    rules = Rules([*map(allow, deep), *map(deny, deep)])
    for root in (rules._publish, rules._allowed, rules._denied.root):
        assert nodes(root) <= 1 + 2 * len(deep)
    topic = deep[4].replace("%u", "u").replace("${x/y}", "v").replace("+", "w")
    values = {"%u": "u", "${x/y}": "v"}
    found = Rules(map(allow, deep)).decide(Action.PUBLISH, topic, 0, False, values)
    assert found is not None
    assert found.filter == deep[4]
    assert Rules(map(allow, deep)).decide(Action.PUBLISH, f"{topic}/d", 0, False, values) is None
