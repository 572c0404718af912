"""Test the filters that select the events to send."""

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hookmq.mqtt_api import matches
from hookmq.plugin import ConfigError
from hookmq_webhook.catalog import CATALOG
from hookmq_webhook.config import FilterConfig
from hookmq_webhook.events import Event
from hookmq_webhook.filters import Filters, keep_fields, overlap, select
from hookmq_webhook.samples import sample
from hypothesis import given
from hypothesis import strategies as st


def filters(*events: str, **config: Any) -> Filters:
    return Filters(FilterConfig(**config), select(events or ("*",)))


@pytest.mark.parametrize(
    ("patterns", "types"),
    [
        (["client.*"], {name for name in CATALOG if name.startswith("client.")}),
        (["message.acked"], {"message.acked"}),
        (["message.*", "-message.acked", "-*.cleared"],
         {"message.published", "message.delivered", "message.dropped", "message.retained"}),
        (["*.created"], {"session.created", "subscription.created"}),
        (["-message.*", "-session.*", "-c*", "-s*", "-r*", "-w*"],
         {"broker.started", "broker.stopping", "broker.reloaded"}),
    ],
)  # fmt: skip
def test_types(patterns: list[str], types: set[str]) -> None:
    made = filters(*patterns)
    assert {name for name in CATALOG if made.type(name)} == types


def test_types_of_other_plugins() -> None:
    made = filters("*", "-mine.secret*", "-other.one")
    assert made.type("mine.open")
    assert not made.type("mine.secrets")
    assert not made.type("other.one")
    made = filters("mine.*", "client.connected")
    assert made.type("mine.open")
    assert not made.type("client.disconnected")
    assert not made.type("other.one")


def message(payload: bytes, **data: Any) -> Event:
    return Event("message.published", 1.0, "c", "plant/1", "tcp", data, payload)


@pytest.mark.parametrize(
    ("payload", "passes"),
    [
        (b'{"celsius": 31, "unit": "C"}', True),
        (b'{"celsius": 30, "unit": "C"}', False),
        (b'{"celsius": 31, "unit": "K"}', False),
        (b'{"celsius": "31", "unit": "C"}', False),
        (b'{"unit": "C"}', False),
        (b"31", False),
        (b"", False),
        (b"\xff", False),
        (b'{"celsius": 1e999, "unit": "C"}', False),
        (b'{"celsius": NaN, "unit": "C"}', False),
        (b"[" * 10_000, False),
    ],
)
def test_conditions_on_the_payload(payload: bytes, passes: bool) -> None:
    made = filters(when=("payload.celsius > 30", 'payload.unit in ["C", "F"]'))
    assert made.event(message(payload)) is passes


def test_a_condition_on_the_whole_payload() -> None:
    assert filters(when=("payload > 30",)).event(message(b"30.5"))
    assert not filters(when=("payload > 30",)).event(message(b"29"))
    assert filters(when=('payload == "on"',)).event(message(b"on"))
    assert filters(when=("payload.a == 1",)).event(message(b'{"a": 1}', content_type="text/plain"))


def test_conditions_on_other_fields() -> None:
    made = filters(when=("qos > 0", 'client_id != "d"', 'content_type == "a/b"'))
    assert made.event(message(b"", qos=1, content_type="a/b"))
    assert not made.event(message(b"", qos=0, content_type="a/b"))
    assert not made.event(message(b"", qos=1))
    assert not filters(when=('client_id == "d"',)).event(message(b""))


def test_conditions_do_not_apply_to_event_types_without_the_field() -> None:
    made = filters(when=("payload.celsius > 30",))
    for name, kind in CATALOG.items():
        assert made.event(sample(name)) is not kind.payload  # the samples have no such field
    assert made.event(Event("mine.event", 1.0))
    assert not filters(when=('limit == "x"',)).event(Event("mine.event", 1.0, data={"limit": "y"}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("payload.celsius = 30", "filters.when: 'payload.celsius = 30' is not a condition"),
        ("paylod.celsius > 30", "did you mean 'payload'"),
        ("payload_format == 1", "no event has a field 'payload_format'"),
        ("payload.x == open", "double quotes"),
    ],
)
def test_invalid_conditions_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        filters(when=(text,))
    assert says in f"{raised.value} {raised.value.hint}"


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (["client.conected"], "did you mean 'client.connected'"),
        (["nothing"], "no event matches"),
        (["messages.*"], "no event matches 'messages.*'"),
        (["message.published", "-message.*"], "all types are excluded"),
        (["*", "-mine.*", "-message.publish"], "message.published"),
    ],
)
def test_types_that_there_are_not(patterns: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        select(patterns)
    assert says in str(raised.value) + str(raised.value.hint)


def about(
    type: str = "message.published",
    topic: str | None = "a/b",
    client: str | None = "c-1",
    **rest: Any,
) -> Event:
    listener = rest.pop("listener", "tcp")
    return Event(type, 1.0, client, topic, listener, rest, b"")


@pytest.mark.parametrize(
    ("config", "event", "passes"),
    [
        ({"topics": ("a/+",)}, about(), True),
        ({"topics": ("x/#", "a/#")}, about(), True),
        ({"topics": ("x/#",)}, about(), False),
        ({"topics": ("#",)}, about(topic="$SYS/x"), False),
        ({"exclude_topics": ("a/#",)}, about(), False),
        ({"topics": ("a/#",), "exclude_topics": ("a/c",)}, about(), True),
        ({"topics": ("x/#",)}, about("client.connected", None), True),
        ({"topics": ("x/#",)}, about("broker.started", None, None), True),
        ({"topics": ("a/1",)}, about("subscription.created", "a/+"), True),
        ({"topics": ("a/#",)}, about("subscription.created", "#"), True),
        ({"topics": ("a/#",)}, about("subscription.created", "b/#"), False),
        ({"exclude_topics": ("a/#",)}, about("subscription.created", "a/+"), False),
        ({"exclude_topics": ("a/#",)}, about("subscription.created", "#"), True),
        ({"topics": ("a/b",)}, about("client.denied", "a/b"), True),
        ({"clients": ("c-*",)}, about(), True),
        ({"clients": ("c-?",)}, about(), True),
        ({"clients": ("c-??",)}, about(), False),
        ({"clients": ("d",)}, about(), False),
        ({"clients": ("d", "*1")}, about(), True),
        ({"clients": ("c.1",)}, about(), False),
        ({"clients": ("*",)}, about(client="a\nb"), True),
        ({"exclude_clients": ("c-*",)}, about(), False),
        ({"exclude_clients": ("d-*",)}, about(), True),
        ({"clients": ("d",)}, about(client=None, origin="plugin:x"), False),
        ({"clients": ("d",)}, about("broker.started", None, None), True),
        ({"clients": ("d",)}, about("mine.event", None, None), True),
        ({"listeners": ("tcp", "ws")}, about(), True),
        ({"listeners": ("ws",)}, about(), False),
        ({"listeners": ("ws",)}, about("broker.started", None, None, listener=""), True),
        ({"listeners": ("ws",)}, about(listener="", origin="client"), True),
        ({"listeners": ("ws",)}, about(listener="", origin="will"), True),
        ({"listeners": ("ws",)}, about(listener="", origin="plugin:x", client=None), False),
    ],
)  # fmt: skip
def test_filters_select_events_by_their_fields(
    config: dict[str, Any], event: Event, passes: bool
) -> None:
    assert filters(**config).event(event) is passes


def test_everything_passes_where_nothing_is_asked() -> None:
    assert all(filters().event(sample(name)) for name in CATALOG)


def test_a_topic_alone() -> None:
    made = filters(topics=("a/#", "b/+"), exclude_topics=("a/x",))
    assert [made.topic(topic) for topic in ("a", "a/y", "a/x", "b/1", "b", "c")] == [
        True, True, False, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["a/#/b", "", "a+", "$share/g/a"])
@pytest.mark.parametrize("key", ["topics", "exclude_topics"])
def test_an_invalid_topic_filter_is_refused(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"filters.{key}: "):
        filters(**{key: (text,)})


def test_a_sample_is_always_the_same() -> None:
    made, again = filters(sample=0.25), filters(sample=0.25)
    events = [about(number=number)._replace(time=float(number)) for number in range(4000)]
    chosen = [made.event(event) for event in events]
    assert chosen == [again.event(event) for event in events]
    assert 800 < sum(chosen) < 1200
    assert not any(filters(sample=0.0).event(event) for event in events)
    more = filters(sample=0.5)
    assert all(more.event(event) for event, taken in zip(events, chosen, strict=True) if taken)


@pytest.mark.parametrize("by", ["client", "topic"])
def test_a_sample_of_clients_or_topics(by: str) -> None:
    made = filters(sample=0.5, sample_by=by)
    names = [f"n{number}" for number in range(200)]
    taken = set()
    for name in names:
        answers = {made.event(about(**{by: name})._replace(time=float(time))) for time in range(10)}
        assert len(answers) == 1
        if answers == {True}:
            taken.add(name)
    assert 60 < len(taken) < 140
    assert made.event(about("broker.started", None, None)) in (True, False)


def test_fields() -> None:
    assert keep_fields(()) is None
    some = keep_fields(["topic", "qos"])
    assert some is not None
    assert [some(name) for name in ("topic", "qos", "payload")] == [True, True, False]
    others = keep_fields(["-payload"])
    assert others is not None
    assert [others(name) for name in ("payload", "payload_base64", "topic")] == [False, False, True]
    with pytest.raises(ConfigError) as raised:
        keep_fields(["topik"])
    assert "did you mean 'topic'?" in str(raised.value.hint)
    with pytest.raises(ConfigError, match="all names with a -"):
        keep_fields(["-payload", "topic"])


patterns = st.text("ab*?", max_size=8)


@given(patterns, st.text("ab\n", max_size=10))
def test_patterns_are_those_of_a_shell(pattern: str, client: str) -> None:
    expected = fnmatchcase(client, pattern)
    assert filters(clients=(pattern, "never")).event(about(client=client)) is expected


def test_a_pattern_costs_one_pass() -> None:
    made = filters(clients=("*" + "a*" * 30 + "b",))
    assert not made.event(about(client="a" * 60_000))


levels = st.lists(st.sampled_from(["", "a", "b", "+", "$x"]), min_size=1, max_size=4)
names = st.builds(lambda ls, end: "/".join(ls) + end, levels, st.sampled_from(["", "/#"]))
tops = st.lists(st.sampled_from(["", "a", "b", "$x"]), min_size=1, max_size=4).map("/".join)


@given(names | st.just("#"), names | st.just("#"), tops)
def test_overlap_is_never_wrong_about_a_topic(first: str, second: str, topic: str) -> None:
    assert overlap(first, second) == overlap(second, first)
    if matches(first, topic) and matches(second, topic):
        assert overlap(first, second)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("a/#", "a", True), ("a/+", "a", False), ("+/b", "a/+", True), ("#", "$SYS/#", False),
     ("+/a", "$x/a", False), ("a/b/#", "a/+/c", True), ("a/b", "a/c", False),
     ("$x/a", "$x/#", True), ("$x/+", "$x/a", True), ("a", "a/+/#", False)],
)  # fmt: skip
def test_overlap(first: str, second: str, expected: bool) -> None:
    assert overlap(first, second) is expected
    assert overlap(second, first) is expected
