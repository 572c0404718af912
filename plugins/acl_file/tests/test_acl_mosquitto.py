"""Test mosquitto's format: what it means in both brokers, errors with line numbers, and the equivalent YAML."""

import pytest
from hookmq.plugin import Action, ClientInfo, ConfigError, Peer, Scope
from hookmq_acl_file.convert import quoted, to_yaml
from hookmq_acl_file.index import Index
from hookmq_acl_file.problems import FileError
from hookmq_acl_file.rules_mosquitto import read
from hookmq_acl_file.rules_yaml import read as read_yaml
from hookmq_toolkit.yaml_places import parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

unhurried = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])

PUBLISH, SUBSCRIBE, DELIVER, WILL = (
    Action.PUBLISH,
    Action.SUBSCRIBE,
    Action.DELIVER,
    Action.WILL,
)

# The example that mosquitto's own documentation is known for, and what its manual says beside it.
EXAMPLE = """\
# This affects access control for clients with no username.
topic read $SYS/#

# This only affects clients with username "roger".
user roger
topic foo/bar
topic deny foo/secret
topic read foo/#

user anna maria
topic write a b c

# This affects all clients.
pattern write $SYS/broker/connection/%c/state
pattern readwrite home/%u/#
pattern deny home/+/lock
"""


def index(text: str) -> Index:
    return read(text, "/etc/acl", "acl")


def may(rules: Index, action: Action, topic: str, user: str | None, client_id: str = "c1") -> bool:
    client = ClientInfo(client_id, 5, user, Peer("10.0.0.1"), Scope())
    rule = rules.decide(rules.choose(client), action, topic, 0, False)
    return rule is not None and rule.allow


@pytest.mark.parametrize(
    ("user", "action", "topic", "allowed"),
    [
        (None, SUBSCRIBE, "$SYS/#", True),
        (None, DELIVER, "$SYS/broker/uptime", True),
        (None, PUBLISH, "$SYS/x", False),
        (
            "roger",
            SUBSCRIBE,
            "$SYS/#",
            False,
        ),  # lines before the first user are for clients without a name
        ("roger", PUBLISH, "foo/bar", True),
        ("roger", WILL, "foo/bar", True),
        ("roger", PUBLISH, "foo/x", False),
        ("roger", SUBSCRIBE, "foo/x", True),
        ("roger", SUBSCRIBE, "foo/#", False),  # foo/secret is within
        ("roger", DELIVER, "foo/secret", False),
        ("roger", SUBSCRIBE, "#", False),
        ("anna maria", PUBLISH, "a b c", True),
        ("anna maria", SUBSCRIBE, "a b c", False),
        ("dan", PUBLISH, "$SYS/broker/connection/c1/state", True),
        ("dan", PUBLISH, "$SYS/broker/connection/c2/state", False),
        ("dan", PUBLISH, "home/dan/light", True),
        ("dan", PUBLISH, "home/eve/light", False),
        ("dan", PUBLISH, "home/dan/lock", False),  # deny decides first, wherever it stands
        (None, PUBLISH, "home//light", False),
        ("+", PUBLISH, "home/dan/light", False),
        ("+", SUBSCRIBE, "home/+/light", False),
        ("#", SUBSCRIBE, "home/#", False),
        ("dan/light", PUBLISH, "home/dan/light/x", False),
    ],
)
def test_the_example(user: str | None, action: Action, topic: str, allowed: bool) -> None:
    assert may(index(EXAMPLE), action, topic, user) is allowed


def test_a_user_s_own_lines_come_before_patterns() -> None:
    rules = index("pattern deny a/#\nuser u\ntopic a/b\n")
    assert may(rules, PUBLISH, "a/b", "u")
    assert not may(rules, PUBLISH, "a/c", "u")


def test_a_user_named_twice_is_one() -> None:
    rules = index("user u\ntopic a\nuser v\ntopic b\nuser u\ntopic deny a\n")
    assert not may(rules, PUBLISH, "a", "u")


def test_white_space_comments_and_line_ends() -> None:
    rules = index(
        "\ufefftopic x\n".lstrip("\ufeff")
        + "  # comment\r\n\tuser  u \r\n topic\tread   a \r\n\r\n"
    )
    assert may(rules, SUBSCRIBE, "a", "u")
    assert rules.rules == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("topic\n", "1:1: a value is missing after 'topic'"),
        ("\nuser\n", "2:1: a value is missing after 'user'"),
        ("tpoic a\n", "1:1: unknown word 'tpoic' (known: topic, pattern, user)"),
        ("topic raed a\n", "1:1: unknown access 'raed' (read, write, readwrite or deny,"
         " also before a filter that contains a space)"),
        ("topic read a#\n", "1:1: topic filter 'a#': '#' is not the whole last level"),
        ("topic read d/%u\n", "1:1: %u and %c are plain text in a topic line (use pattern)"),
        ("pattern read d-%u\n", "1:1: topic filter 'd-%u': a variable (%u, %c, ${claim}) must be a whole level"),
        ("pattern read ${x}\n", "1:1: ${...} is not supported in mosquitto's format"),
    ],
)  # fmt: skip
def test_mistakes(text: str, told: str) -> None:
    with pytest.raises(FileError) as caught:
        index(text)
    assert str(caught.value) == f"/etc/acl:{told}"


def test_every_mistake_is_found_at_once() -> None:
    with pytest.raises(FileError, match="; 2 more") as caught:
        index("topic a\nx\ntopic b\ny z\nuser\n")
    assert [error.line for error in caught.value.errors] == [2, 4, 5]


def test_an_empty_file_allows_nothing() -> None:
    rules = index("# nothing\n")
    assert not may(rules, PUBLISH, "a", "u")
    assert not may(rules, PUBLISH, "a", None)


# -- in YAML

NAMES = st.sampled_from(["u", "v", "a b", "null", "true", "- x", "ü", 'q"\\'])
FILTERS = st.sampled_from(
    [
        "a",
        "a/b",
        "a/+",
        "a/#",
        "#",
        "+/b",
        "$SYS/#",
        "a b",
        "~",
        "12",
        "a: b",
        "*x",
        "\x85",
        "ab\x07",
    ]
)
ACCESS = st.sampled_from(["", "read ", "write ", "readwrite ", "deny "])
LINES = st.lists(
    st.one_of(
        st.builds("user {}".format, NAMES),
        st.builds("topic {}{}".format, ACCESS.filter(bool), FILTERS),
        st.builds(
            "pattern {}{}".format,
            ACCESS.filter(bool),
            FILTERS | st.sampled_from(["%u/#", "a/%c", "%c/+/%u"]),
        ),
        st.just("# comment"),
    ),
    max_size=12,
)
TOPICS = ["a", "a/b", "a/c", "u/b", "b", "$SYS/x", "a b", "c1", "a/c1", "12"]


@unhurried
@given(LINES)
def test_yaml_says_the_same(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    here, there = index(text), read_yaml(to_yaml(text, "acl"), "x", "x")
    assert here.delivers == there.delivers is False
    for user in (None, "u", "v", "a b", "null", "true", "- x", "ü", 'q"\\'):
        for topic in TOPICS:
            for action in Action:
                assert may(here, action, topic, user) == may(there, action, topic, user)
        for filter in ("#", "a/#", "+/b", "u/#"):
            assert may(here, SUBSCRIBE, filter, user) == may(there, SUBSCRIBE, filter, user)


@unhurried
@given(LINES)
def test_or_sifts_deliveries_as_mosquitto_does(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    here, there = index(text), read_yaml(to_yaml(text, "acl", filtered=True), "x", "x")
    assert there.delivers
    for user in (None, "u", "a b"):
        for topic in TOPICS:
            for action in (PUBLISH, WILL, DELIVER):
                assert may(here, action, topic, user) == may(there, action, topic, user)
        for filter in ("#", "a/#", "$SYS/#", "u/+"):
            assert may(there, SUBSCRIBE, filter, user)


@unhurried
@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_any_text_comes_back_from_its_quotes(text: str) -> None:
    node = parse(f"- {quoted(text)}\n", "x")
    assert node is not None
    assert node.items is not None
    assert node.items[0].text == text


@unhurried
@given(
    st.lists(
        st.sampled_from(["topic", "user", "pattern", "read", "deny", " ", "\n", "a/#", "%u", "#", "\t", "\r"])
    ).map("".join)
    | st.text(max_size=60)
)  # fmt: skip
def test_any_text_is_rules_or_an_error_with_a_line(text: str) -> None:
    try:
        rules = index(text)
    except ConfigError as error:
        line = error.line
    else:
        line = 1
        assert rules.rules <= text.count("\n") + 1
    assert line > 0
