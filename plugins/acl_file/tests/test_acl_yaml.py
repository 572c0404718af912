"""Test the YAML format: its meaning, and the position reported for every error. A truncated file never grants more
access.
"""

import pytest
from hookmq.plugin import Action, ClientInfo, ConfigError, Peer, Scope
from hookmq_acl_file.index import Index
from hookmq_acl_file.problems import MOST, FileError
from hookmq_acl_file.rules_yaml import read
from hookmq_toolkit.yaml_places import MAX_DEPTH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

unhurried = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

PUBLISH, SUBSCRIBE, DELIVER, WILL = (
    Action.PUBLISH,
    Action.SUBSCRIBE,
    Action.DELIVER,
    Action.WILL,
)


def index(text: str) -> Index:
    return read(text, "/etc/acl.yaml", "acl.yaml")


def decided(rules: Index, action: Action, topic: str, user: str | None = None, qos: int = 0) -> str:
    client = ClientInfo("c1", 5, user, Peer("10.0.0.1"), Scope())
    rule = rules.decide(rules.choose(client), action, topic, qos, False)
    return "" if rule is None else f"{'allow' if rule.allow else 'deny'} {rule.source}"


def test_a_file() -> None:
    rules = index(
        """\
# the plant's operators
groups:
  operators: [ann, bob]

rules:
  - deny: all
    topic: plant/secret/#

  - allow: [publish, subscribe]
    who: {group: operators}
    topic:
      - plant/#
      - "status/+"
  - {allow: publish, qos: 1, topic: d/%c/#}
"""
    )
    assert (rules.rules, rules.sections, rules.delivers) == (4, 2, False)
    assert decided(rules, PUBLISH, "plant/secret/x", "ann") == "deny acl.yaml:6"
    assert decided(rules, PUBLISH, "plant/x", "ann") == "allow acl.yaml:9"
    assert decided(rules, SUBSCRIBE, "status/+", "bob") == "allow acl.yaml:9"
    assert decided(rules, SUBSCRIBE, "plant/#", "ann") == "deny acl.yaml:6"
    assert decided(rules, PUBLISH, "plant/x", "eve") == ""
    assert decided(rules, PUBLISH, "d/c1/t", qos=1) == "allow acl.yaml:14"
    assert decided(rules, PUBLISH, "d/c1/t", qos=2) == ""


@pytest.mark.parametrize(
    ("word", "actions"),
    [
        ("publish", {PUBLISH, WILL}),
        ("will", {WILL}),
        ("subscribe", {SUBSCRIBE, DELIVER}),
        ("deliver", {DELIVER}),
        ("all", set(Action)),
        ("[will, subscribe]", {WILL, SUBSCRIBE, DELIVER}),
    ],
)
def test_actions(word: str, actions: set[Action]) -> None:
    rules = index(f"rules:\n- allow: {word}\n  topic: a\n")
    assert {action for action in Action if decided(rules, action, "a")} == actions
    assert rules.delivers == (word == "deliver")


def test_words_are_text_whatever_yaml_makes_of_them() -> None:
    rules = index(
        'rules: [{allow: publish, who: {user: [007, yes, 1.0, "null", 1:30]}, topic: 1}]\n'
    )
    for user in ("007", "yes", "1.0", "null", "1:30"):
        assert decided(rules, PUBLISH, "1", user)
    assert not decided(rules, PUBLISH, "1", "7")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rules: [\n", ":2:1: not YAML: while parsing a flow node: did not find expected node content"),
        ("rules:\n\t- a\n",
         ":2:1: not YAML: while scanning for the next token: found character that cannot start any token"),
        ("rules: []\nruels: []\n", ":2:1: unknown key 'ruels' (did you mean 'rules'?)"),
        ("rules: []\nrules: []\n", ":2:1: the key 'rules' is given twice (first in line 1)"),
        ("rules: []\ngroups: {}\n", ":2:1: groups must come before rules"),
        ("groups: {}\n", ":1:1: the key rules is missing (to allow nothing: rules: [])"),
        ("# nothing\n", ":1:1: the file has no rules"),
        ("rules: []\n---\nrules: []\n", ":3:1: a second document starts here"),
        ("[a]\n", ":1:1: the file must be a mapping with the keys groups, rules"),
        ("{[a]: 1}\n", ":1:2: a key must be a word"),
        ("rules: a\n", ":1:8: rules must be a list"),
        ("groups: [a]\nrules: []\n", ":1:9: groups must be a mapping of names to lists of users"),
        ("groups: {a: b}\nrules: []\n", ":1:13: group 'a' must be a list of users"),
        ("groups: {a: [[b]]}\nrules: []\n", ":1:14: a user must be text"),
        ("rules: &x []\n", ":1:8: anchors and aliases are not accepted"),
        ("rules: [*x]\n", ":1:9: anchors and aliases are not accepted"),
        ("rules: !!set []\n", ":1:8: tags are not accepted"),
        ("rules: " + "[" * 40 + "\n", f":1:{7 + MAX_DEPTH}: nested more than {MAX_DEPTH} deep"),
        ("rules: [a]\n", ":1:9: a rule must be a mapping with the keys allow, deny, who, qos, retain, topic"),
        ("rules: [{topic: a}]\n", ":1:9: a rule must have either allow or deny"),
        ("rules: [{allow: all, deny: all, topic: a}]\n", ":1:9: a rule must have either allow or deny"),
        ("rules: [{allow: pubish, topic: a}]\n", ":1:17: unknown action 'pubish' (did you mean 'publish'?)"),
        ("rules: [{allow: [], topic: a}]\n", ":1:17: an action is missing"),
        ("rules: [{allow: {a: b}, topic: a}]\n", ":1:17: an action is missing"),
        ("rules: [{allow: ~, topic: a}]\n", ":1:17: an action is missing"),
        ("rules: [{allow: all}]\n", ":1:9: the key topic is missing (for every topic: topic: \"#\")"),
        ("rules:\n- allow: all\n  topic:\n", ":3:9: a topic filter is missing"),
        ("rules: [{allow: all, topic: a, who: {user: b}}]\n", ":1:22: topic must be the last key of a rule"),
        ("rules: [{allow: all, topic: a, tpoic: b}]\n", ":1:32: unknown key 'tpoic' (did you mean 'topic'?)"),
        ("rules: [{allow: all, topic: [a, b#]}]\n",
         ":1:33: topic filter 'b#': '#' is not the whole last level"),
        ("rules: [{allow: all, topic: x%u}]\n",
         ":1:29: topic filter 'x%u': a variable (%u, %c, ${claim}) must be a whole level"),
        ('rules: [{deny: all, topic: a/%U/#}]\n',
         ":1:28: topic filter 'a/%U/#': unknown variable; expected %u, %c or ${claim}"),
        ("rules: [{deny: all, who: {user: [a, svc-*]}, topic: a}]\n",
         ":1:37: 'svc-*': * is not a wildcard in user (remove user to apply to all)"),
        ('rules: [{deny: all, who: {client: "*"}, topic: a}]\n',
         ":1:35: '*': * is not a wildcard in client (remove client to apply to all)"),
        ('rules: [{deny: all, who: {listener: tcp*}, topic: a}]\n',
         ":1:37: 'tcp*': * is not a wildcard in listener (remove listener to apply to all)"),
        ("rules: [{allow: all, topic: $share/g/a}]\n",
         ":1:29: topic filter '$share/g/a': write the filter without $share/NAME/"),
        ("rules: [{allow: publish, qos: 3, topic: a}]\n", ":1:31: qos is '3'; expected 0, 1 or 2"),
        ("rules: [{allow: publish, qos: '1', topic: a}]\n", ":1:31: qos is '1'; expected 0, 1 or 2"),
        ("rules: [{allow: publish, qos: [1], topic: a}]\n", ":1:31: qos is not a scalar; expected 0, 1 or 2"),
        ("rules: [{deny: subscribe, qos: 1, topic: a}]\n",
         ":1:27: qos has no effect if subscribe is denied: every subscription includes QoS 0"),
        ("rules: [{allow: all, retain: true, topic: a}]\n",
         ":1:22: retain has no effect on subscribe (use publish, will or deliver)"),
        ("rules: [{allow: publish, retain: yes, topic: a}]\n", ":1:34: retain is 'yes'; expected true or false"),
        ("rules: [{allow: all, who: {}, topic: a}]\n",
         ":1:27: who has no condition (remove who to apply to all clients)"),
        ("rules: [{allow: all, who: ann, topic: a}]\n",
         ":1:27: who must be a mapping with the keys user, client, group, claim, certificate, ip, listener, anonymous"),
        ("rules: [{allow: all, who: {usr: ann}, topic: a}]\n", ":1:28: unknown key 'usr' (did you mean 'user'?)"),
        ("rules: [{allow: all, who: {user: }, topic: a}]\n", ":1:34: a user is missing"),
        ("rules: [{allow: all, who: {user: []}, topic: a}]\n", ":1:34: a user is missing"),
        ("groups: {ops: [a]}\nrules: [{allow: all, who: {group: oops}, topic: a}]\n",
         ":2:35: unknown group 'oops' (did you mean 'ops'?)"),
        ("rules: [{allow: all, who: {ip: 10.0.0.1/8}, topic: a}]\n",
         ":1:32: '10.0.0.1/8' has bits set after its prefix (did you mean 10.0.0.0/8?)"),
        ("rules: [{allow: all, who: {ip: localhost}, topic: a}]\n",
         ":1:32: 'localhost' is not an IP address or network"),
        ("rules: [{allow: all, who: {claim: role}, topic: a}]\n",
         ":1:35: claim must be a mapping of names to values"),
        ("rules: [{allow: all, who: {claim: {}}, topic: a}]\n", ":1:35: a claim is missing"),
        ("rules: [{allow: all, who: {certificate: {cn: a}}, topic: a}]\n",
         ":1:42: unknown key 'cn' (known: common_name, fingerprint, san)"),
        ("rules: [{allow: all, who: {certificate: {fingerprint: ab}}, topic: a}]\n",
         ":1:55: fingerprint must be SHA-256 in hex: 64 digits"),
        ("rules: [{allow: all, who: {anonymous: maybe}, topic: a}]\n",
         ":1:39: anonymous is 'maybe'; expected true or false"),
    ],
)  # fmt: skip
def test_mistakes(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        index(text)
    assert str(caught.value) == f"/etc/acl.yaml{told}"


def test_every_mistake_is_found_at_once() -> None:
    with pytest.raises(FileError, match=r"acl\.yaml:1:9: .*; 2 more$") as caught:
        index("rules: [a, {allow: all, topic: a}, b, {allow: x, topic: a}]\n")
    assert [error.column for error in caught.value.errors] == [9, 36, 47]
    with pytest.raises(FileError) as caught:
        index("rules: [" + "a, " * 500 + "]\n")
    assert len(caught.value.errors) == MOST


WHOLE = """\
groups:
  ops: [ann]
  all: [ann, bob, eve]
rules:
  - deny: subscribe
    who: {group: ops}
    topic: a/secret
  - allow: [publish, subscribe]
    who:
      group: all
      claim:
        role: admin
    topic:
      - a/#
      - b/long
  - allow: publish
    qos: 0
    retain: false
    who:
      user: eve
    topic: c
  - deny: all
    topic: ["#"]
"""
ASKED = [
    (action, topic) for action in Action for topic in ("a", "a/secret", "b/long", "b", "c", "b/l")
]


def rights(rules: Index) -> set[tuple[str, Action, str, int]]:
    found = set()
    for user in ("ann", "bob", "eve", "dan"):
        for role in ("admin", "none"):
            client = ClientInfo("c", 5, user, Peer("10.0.0.1"), Scope(), claims={"role": role})
            chosen = rules.choose(client)
            for action, topic in ASKED:
                for qos in (0, 1):
                    rule = rules.decide(chosen, action, topic, qos, bool(qos))
                    if rule is not None and rule.allow:
                        found.add((user + role, action, topic, qos))
    return found


def test_a_file_cut_short_never_says_more() -> None:
    whole = rights(index(WHOLE))
    lines = WHOLE.splitlines(keepends=True)
    good = 0
    for count in range(len(lines)):
        try:
            cut = rights(index("".join(lines[:count])))
        except ConfigError:
            continue
        good += 1
        assert cut <= whole
    assert good > 3  # it is good YAML more often than not


YAMLISH = st.lists(
    st.sampled_from(
        ["rules:", "groups:", "- ", "  ", "allow: ", "deny: ", "all", "publish", "topic: ", "who: ", "user: ", "a", "#",
         "+/", "%u", "{", "}", "[", "]", ",", "\n", "\n  ", "\n  - ", "\n    ", '"', "&a", "*a", "!!x", "? ",
         ": ", "|", "---\n"]
    ),
    max_size=40,
).map("".join)  # fmt: skip


@unhurried
@given(YAMLISH | st.text(max_size=60))
def test_any_text_is_rules_or_an_error_with_a_place(text: str) -> None:
    try:
        rules = index(text)
    except ConfigError as error:
        source = error.source
    else:
        source = "/etc/acl.yaml"
        assert rules.rules >= 0
    assert source == "/etc/acl.yaml"
