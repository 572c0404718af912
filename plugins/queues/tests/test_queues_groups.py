"""Test how a subscription names its group: by the user property `consumer-group`, or as a shared subscription."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.plugin import Action
from hookmq_testing import Harness, HookRecorder, MemoryClient

from .conftest import plugin_of

Make = Callable[..., Harness]
JOBS = "$queue/jobs"
QUEUES = [{"name": "jobs", "groups": ["first", "second"]}]


def subscribe(
    client: MemoryClient, filter: str = JOBS, *groups: str, qos: int = 1
) -> tuple[int, str | None]:
    pairs = tuple(("consumer-group", one) for one in groups)
    answer = client.subscribe(filter, qos, **({"user_property": pairs} if pairs else {}))
    (code,) = answer.codes
    return code, answer.properties.reason_string


def consumers(harness: Harness) -> dict[str, list[str]]:
    harness.settle()
    found = plugin_of(harness).queues["jobs"].dispatchers
    return {name: [key[0] for key in one.consumers.by_key] for name, one in found.items()}


@pytest.mark.parametrize("filter", [JOBS, f"{JOBS}/#"])
def test_the_property_names_the_group(make: Make, filter: str) -> None:
    harness = make(queues=QUEUES)
    assert subscribe(harness.connect("none"), filter) == (1, None)
    assert subscribe(harness.connect("one"), filter, "first") == (1, None)
    assert subscribe(harness.connect("two"), filter, "second", qos=2) == (1, None)
    assert subscribe(harness.connect("three"), f"$share/second/{filter}", "second") == (1, None)
    assert consumers(harness) == {"first": ["none", "one"], "second": ["two", "three"]}


def test_the_property_applies_to_all_filters_of_a_subscribe(make: Make) -> None:
    harness = make(queues=[*QUEUES, {"name": "other"}])
    client = harness.connect("c")
    pairs = (("consumer-group", "second"),)
    answer = client.subscribe([JOBS, "$queue/other", "plain"], 1, user_property=pairs)
    assert answer.codes == (1, 0x8F, 1)
    assert answer.properties.reason_string == "the queue other has no group 'second'"
    assert consumers(harness) == {"first": [], "second": ["c"]}


def test_bad_groups(make: Make) -> None:
    harness = make(queues=QUEUES)
    client = harness.connect("c")
    for filter, groups, why in (
        (JOBS, ("none",), "the queue jobs has no group 'none'"),
        (JOBS, ("",), "the queue jobs has no group ''"),
        (JOBS, ("x" * 60000,), f"the queue jobs has no group '{'x' * 128}'"),
        (JOBS, ("first", "second"), "the subscription names 2 groups: expected one"),
        ("$share/first/$queue/jobs", ("second",), "the subscription names 2 groups: expected one"),
        ("$share/none/$queue/jobs", (), "the queue jobs has no group 'none'"),
    ):
        assert subscribe(client, filter, *groups) == (0x8F, why)
    assert consumers(harness) == {"first": [], "second": []}


def test_another_subscribe_changes_the_group(make: Make) -> None:
    harness = make(queues=QUEUES)
    client = harness.connect("c")
    subscribe(client, JOBS, "second")
    assert consumers(harness) == {"first": [], "second": ["c"]}
    subscribe(client, JOBS, "first")
    assert consumers(harness) == {"first": ["c"], "second": []}
    assert client.unsubscribe(JOBS).codes == (0,)
    assert consumers(harness) == {"first": [], "second": []}


def test_the_group_survives_a_new_connection_and_a_restart(make: Any) -> None:
    harness = make(queues=QUEUES)
    how: dict[str, Any] = {"session_expiry_interval": 3600, "clean_start": False}
    client = harness.connect("c", **how)
    subscribe(client, JOBS, "second")
    client.drop()
    assert consumers(harness) == {"first": [], "second": []}
    client = harness.connect("c", **how)
    assert consumers(harness) == {"first": [], "second": ["c"]}
    make.crash(harness)
    harness = make(queues=QUEUES)
    client = harness.connect("c", **how)
    assert consumers(harness) == {"first": [], "second": ["c"]}
    harness.connect("publisher").publish(JOBS, b"x", 1)
    message = client.expect_message(JOBS, b"x")
    assert ("group", "second") in (message.properties.user_property or ())


def test_the_broker_authorizes_the_group(make: Make) -> None:
    rules = HookRecorder("authorize", id="rules")
    harness = make(rules, queues=QUEUES)
    subscribe(harness.connect("c"), JOBS, "second")
    asked = [one for one in rules.calls("authorize") if one.action is Action.SUBSCRIBE]
    assert [(one.topic, one.subscription.share) for one in asked] == [
        (JOBS, None), (JOBS, "second"),
    ]  # fmt: skip
