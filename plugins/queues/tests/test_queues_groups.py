"""Test how a subscription names its group: with the user property `consumer-group`, or as a shared subscription."""

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


# --- groups on first use ----------------------------------------------------------------------------------------------

FREE: dict[str, Any] = {
    "name": "jobs", "groups": [{"name": "first", "settle": "explicit"}], "groups_on_first_use": True, "max_groups": 3,
    "group_expiry": 100,
}  # fmt: skip


def names(harness: Harness) -> list[str]:
    harness.settle()
    return list(plugin_of(harness).queues["jobs"].dispatchers)


def test_a_subscription_makes_a_group(make: Make) -> None:
    harness = make(queues=[FREE])
    publisher = harness.connect("publisher")
    publisher.publish(JOBS, b"before", 1)
    client = harness.connect("c")
    assert subscribe(client, JOBS, "mine") == (1, None)
    publisher.publish(JOBS, b"after", 1)
    for payload in (b"before", b"after"):
        message = client.expect_message(JOBS, payload)
        assert ("group", "mine") in (message.properties.user_property or ())
    assert plugin_of(harness).queues["jobs"].dispatchers["mine"].settings.settle == "explicit"
    assert names(harness) == ["first", "mine"]


def test_groups_that_clients_cannot_make(make: Make) -> None:
    harness = make(queues=[FREE])
    client = harness.connect("c")
    for group in ("a/b", "$a", "", "x" * 129, "\u00e4"):
        assert subscribe(client, JOBS, group) == (
            0x8F, f"the queue jobs has no group {group[:128]!r}",
        )  # fmt: skip
    assert subscribe(client, JOBS, "no", qos=0)[0] == 0x83
    assert names(harness) == ["first"]
    assert subscribe(client, "$share/one/$queue/jobs")[0] == 1
    assert subscribe(client, "$share/two/$queue/jobs")[0] == 1
    assert subscribe(client, "$share/three/$queue/jobs") == (
        0x8F, "the queue jobs has 3 groups, which is the maximum",
    )  # fmt: skip
    assert names(harness) == ["first", "one", "two"]


def test_a_group_that_a_client_made_survives_a_crash(make: Any) -> None:
    harness = make(queues=[FREE])
    publisher, client = harness.connect("publisher"), harness.connect("c")
    subscribe(client, JOBS, "mine")
    client.drop()
    publisher.publish(JOBS, b"x", 1, expect=0)
    make.crash(harness)
    harness = make(queues=[FREE])
    assert names(harness) == ["first", "mine"]
    assert plugin_of(harness).queues["jobs"].dispatchers["mine"].backlog == 1


def test_a_group_without_consumers_is_deleted(make: Any) -> None:
    harness = make(queues=[FREE])
    publisher, client = (
        harness.connect("publisher", keep_alive=0),
        harness.connect("c", keep_alive=0),
    )
    subscribe(client, JOBS, "mine")
    harness.advance(300)
    assert names(harness) == ["first", "mine"]
    client.drop()
    publisher.publish(JOBS, b"x", 1, expect=0)
    harness.advance(100)
    assert names(harness) == ["first", "mine"]
    harness.advance(30)
    assert names(harness) == ["first"]
    make.crash(harness)
    assert names(make(queues=[FREE])) == ["first"]


def test_a_durable_session_returns_to_a_group_that_was_deleted(make: Make) -> None:
    harness = make(queues=[FREE])
    how: dict[str, Any] = {"session_expiry_interval": 3600, "clean_start": False}
    client = harness.connect("c", **how)
    subscribe(client, JOBS, "mine")
    client.drop()
    harness.advance(130)
    assert names(harness) == ["first"]
    client = harness.connect("c", **how)
    assert names(harness) == ["first", "mine"]
    harness.connect("publisher").publish(JOBS, b"x", 1)
    client.expect_message(JOBS, b"x")


def test_without_the_setting_such_groups_are_forgotten(make: Any) -> None:
    harness = make(queues=[FREE])
    subscribe(harness.connect("c"), JOBS, "mine")
    harness.close()
    make.made.remove(harness)
    assert names(make(queues=[{**FREE, "groups_on_first_use": False}])) == ["first"]
