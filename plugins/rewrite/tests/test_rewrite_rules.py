"""Test rewrite rules without a broker: captured groups, variables, loops and refused
configurations.
"""

import pytest
from hookmq.plugin import ConfigError, Plugin
from hookmq_rewrite.rule import CompiledRule, Rule
from hookmq_rewrite.rule_set import RuleSet
from hypothesis import given
from hypothesis import strategies as st

LEVELS = st.lists(st.sampled_from(["a", "b", "+", "$s", ""]), min_size=1, max_size=4)
FILTERS = (
    st.tuples(LEVELS, st.booleans())
    .map(lambda one: "/".join([*one[0], *["#"] * one[1]]))
    .filter(bool)
)
TOPICS = st.lists(st.sampled_from(["a", "b", "$s", ""]), min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize(
    ("filter", "to", "topic", "expected"),
    [
        ("a/+/c", "x/${1}", "a/b/c", "x/b"),
        ("a/+/c", "x/${1}", "a/b/d", None),
        ("a/+/+", "${2}/${1}", "a/b/c", "c/b"),
        ("a/#", "x/${1}/y", "a/b/c", "x/b/c/y"),
        ("a/#", "x/${1}", "a", "x"),
        ("a/#", "x/${1}", "a/", "x"),
        ("+/#", "${2}", "a/b/c", "b/c"),
        ("a", "b", "a", "b"),
        ("a/#", "x/%c-${1}", "a/b", "x/dev-b"),
        ("a/#", "x/%u/${room}", "a/b", "x/ann/7"),
        # filters that clients subscribe to
        ("a/#", "x/${1}", "a/+/c", "x/+/c"),
        ("a/#", "x/${1}", "a/#", "x/#"),
        ("a/+", "x/${1}", "a/+", "x/+"),
        ("a/+", "x/${1}", "a/#", None),
        ("a/+", "x/${1}", "#", None),
        ("+", "x", "$SYS", None),
    ],
)
def test_a_rule_fills_in_what_wildcards_matched(
    filter: str, to: str, topic: str, expected: str | None
) -> None:
    rule = CompiledRule(Rule(filter, to), "rules[0]")
    assert rule.apply(topic, {"%c": "dev", "%u": "ann", "${room}": "7"}) == expected


@pytest.mark.parametrize(
    ("regex", "to", "topic", "expected"),
    [
        (r"a/(\w+)-(\d+)", "x/${1}/${2}", "a/room-7", "x/room/7"),
        (r"a/(?P<name>\w+)(/.*)?", "x/${name}${2}", "a/b", "x/b"),
        (r"a/(?P<name>\w+)(/.*)?", "x/${name}${2}", "a/b/c", "x/b/c"),
        (r"a/b", "x", "a/b/c", None),
    ],
)
def test_a_regular_expression_must_match_the_whole_topic(
    regex: str, to: str, topic: str, expected: str | None
) -> None:
    rule = CompiledRule(Rule("a/#", to, regex), "rules[0]")
    assert rule.apply(topic, {}) == expected


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "the client has no %u"),
        ({"%u": ""}, "the client has no %u"),
        ({"%u": "a/b"}, "the client's %u is no single topic level"),
        ({"%u": "+"}, "the client's %u is no single topic level"),
    ],
)
def test_a_value_cannot_change_the_levels(values: dict[str, str], why: str) -> None:
    rule = CompiledRule(Rule("a/#", "x/%u"), "rules[0]")
    with pytest.raises(ValueError, match=why.replace("+", r"\+")):
        rule.apply("a/b", values)


def test_a_client_cannot_make_a_topic_that_starts_with_a_dollar_sign() -> None:
    rule = CompiledRule(Rule("a/#", "${1}"), "rules[0]")
    with pytest.raises(ValueError, match=r"\$SYS would become the first level"):
        rule.apply("a/$SYS/x", {})
    assert CompiledRule(Rule("a/#", "$mine/${1}"), "rules[0]").apply("a/b", {}) == "$mine/b"


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Rule("a/b#", "x"), "rules[0].filter: expected a topic filter, found 'a/b#'"),
        (Rule("", "x"), "rules[0].filter: expected a topic filter, found ''"),
        (Rule("$share/g/a", "x"), "rules[0].filter: expected a topic filter, found '$share/g/a'"),
        (Rule("a", ""), "rules[0].to: expected a topic, found an empty text"),
        (Rule("a", "x/+"), "rules[0].to: '+' must not occur in the new topic"),
        (Rule("a/+", "x/${2}"), "rules[0].to: ${2} names no group; the rule has 1"),
        (Rule("a/+", "x/${}"), "rules[0].to: ${} names no group; the rule has 1"),
        (Rule("a", "$SYS/x"), "rules[0].to: topics below $SYS cannot be made"),
        (Rule("a/#", "x", "("), "rules[0].regex: missing ), unterminated subpattern at position 0"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(rule: Rule, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        CompiledRule(rule, "rules[0]")
    assert str(refused.value).startswith(why)


def test_rules_are_tried_again_with_the_result() -> None:
    rules = RuleSet([Rule("b/#", "c/${1}"), Rule("a/#", "b/${1}"), Rule("a/x", "never")])
    assert rules.rewrite("publish", "a/x", lambda names: {}) == "c/x"
    assert rules.rewrite("publish", "d/x", lambda names: {}) == "d/x"
    assert rules.rewrite("deliver", "a/x", lambda names: {}) == "a/x"


@pytest.mark.parametrize(
    ("rules", "way"),
    [
        ([Rule("#", "x/${1}")], "rules[0] -> rules[0]"),
        ([Rule("a/#", "a/b/${1}")], "rules[0] -> rules[0]"),
        ([Rule("a/#", "b/${1}"), Rule("b/#", "a/${1}")], "rules[0] -> rules[1] -> rules[0]"),
        ([Rule("a/#", "${1}/x", "a/(.*)")], "rules[0] -> rules[0]"),
        ([Rule("z", "a/b"), Rule("a/+", "a/%c")], "rules[1] -> rules[1]"),
    ],
)
def test_loops_are_refused(rules: list[Rule], way: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RuleSet(rules)
    assert str(refused.value).startswith(f"{way}: these rules could rewrite publish topics")


def test_rules_of_different_actions_do_not_make_a_loop() -> None:
    there = Rule("a/#", "b/${1}", actions=("publish", "subscribe"))
    back = Rule("b/#", "a/${1}", actions=("deliver",))
    assert RuleSet([there, back]).rewrite("deliver", "b/x", lambda names: {}) == "a/x"


@given(FILTERS, TOPICS)
def test_a_rewritten_topic_matches_the_result_of_its_rule(filter: str, topic: str) -> None:
    wild = sum(level in ("+", "#") for level in filter.split("/"))
    rule = CompiledRule(Rule(filter, "/".join(["x", *(f"${{{n + 1}}}" for n in range(wild))])), "r")
    made = rule.apply(topic, {})
    assert made is None or Plugin.matches(rule.result, made)
