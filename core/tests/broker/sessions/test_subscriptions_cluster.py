"""Test what a cluster is told about the subscriptions of this node."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.subscription import Subscription
from hookmq.storage.cluster import Remote
from hookmq_testing import ClusterRecorder, DurableStore, Harness, HookRecorder, MemoryClient

Make = Callable[..., Harness]


@pytest.fixture
def cluster() -> ClusterRecorder:
    return ClusterRecorder()


def told(cluster: ClusterRecorder) -> list[tuple[Any, ...]]:
    """Return and forget (client id, durable, filter, QoS, added) and (owner, members) of the calls so far."""
    found: list[tuple[Any, ...]] = []
    for name, *arguments in cluster.calls("subscribed", "online"):
        if name == "subscribed":
            client_id, durable, subscription, added = arguments
            found.append((client_id, durable, subscription.filter, subscription.qos, added))
        else:
            found.append((*arguments,))
    cluster.recorded.clear()
    return found


def test_subscriptions_come_and_go(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    one = harness.connect("one")
    one.subscribe(["a", "b/#"], 1)
    assert told(cluster) == [("one", False, "a", 1, True), ("one", False, "b/#", 1, True)]
    one.subscribe("a", 2)
    assert told(cluster) == [("one", False, "a", 2, True)]
    one.unsubscribe(["a", "none"])
    assert told(cluster) == [("one", False, "a", 2, False)]
    one.disconnect()
    assert told(cluster) == [("one", False, "b/#", 1, False)]


def test_the_call_has_the_whole_subscription(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    harness.connect("one").subscribe("$share/g/a/+", 1, identifier=7)
    ((_, _, _, subscription, _),) = cluster.calls("subscribed")
    assert (subscription.share, subscription.topic_filter) == ("g", "a/+")
    assert (subscription.qos, subscription.identifier) == (1, 7)


def test_a_subscription_that_a_plugin_moves_and_one_it_refuses(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    plugin = HookRecorder("on_subscribe")
    plugin.answer(
        "on_subscribe",
        lambda subscription: (
            Deny()
            if subscription.filter == "no"
            else subscription.replace(topic_filter=subscription.topic_filter + "/all")
        ),
    )
    harness = broker_harness([plugin, cluster])
    one = harness.connect("one")
    one.subscribe(["a", "no"])
    ((_, _, _, subscription, _),) = cluster.calls("subscribed")
    assert (subscription.filter, subscription.topic_filter) == ("a", "a/all")
    plugin.answer("on_subscribe", None)
    one.subscribe("a")  # the same filter now selects other topics
    calls = [(one[3].topic_filter, one[4]) for one in cluster.calls("subscribed")]
    assert calls == [("a/all", True), ("a/all", False), ("a", True)]


def test_a_durable_session_keeps_its_subscriptions_until_it_expires(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe("a", 1)
    assert told(cluster) == [("one", True, "a", 1, True)]
    one.disconnect()
    one.reconnect()
    one.drop()
    assert told(cluster) == []
    harness.advance(61)
    assert told(cluster) == [("one", True, "a", 1, False)]


def test_a_takeover_with_clean_start(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    harness.connect("one", session_expiry_interval=60).subscribe("a", 1)
    harness.connect("one", session_expiry_interval=60)
    assert told(cluster) == [("one", True, "a", 1, True), ("one", True, "a", 1, False)]


def test_a_revoked_subscription(broker_harness: Make, cluster: ClusterRecorder) -> None:
    rules = HookRecorder("authorize")
    rules.answer("authorize", Allow())
    harness = broker_harness([rules, cluster])
    harness.connect("one").subscribe("a", 1)
    rules.answer("authorize", Deny())
    harness.handle("recorder").invalidate_authz()
    harness.settle()
    assert told(cluster) == [("one", False, "a", 1, True), ("one", False, "a", 1, False)]


def test_what_the_store_has_is_told_too(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster], store=DurableStore())
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe(["a", "$share/g/b"], 1)
    expected = [call for call in told(cluster) if len(call) == 5]
    harness.restart()
    assert [call for call in told(cluster) if len(call) == 5] == expected


def members(harness: Harness, *names: str, **options: Any) -> list[MemoryClient]:
    made = [harness.connect(name, **options) for name in names]
    for one in made:
        one.subscribe("$share/g/t", 1)
    return made


def last(cluster: ClusterRecorder) -> int:
    """Return the number of online members that the cluster was told last."""
    found: int = cluster.calls("online")[-1][2]
    return found


def test_members_come_and_go(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    one, two = members(harness, "one", "two", session_expiry_interval=60)
    assert cluster.calls("online") == [("online", "g/g/t", 1), ("online", "g/g/t", 2)]
    one.drop()
    assert last(cluster) == 1
    one.reconnect()
    assert last(cluster) == 2
    harness.connect("two", clean_start=False, session_expiry_interval=60)  # taken over
    assert last(cluster) == 2
    assert [call[2] for call in cluster.calls("online")] == [1, 2, 1, 2, 1, 2]
    one.unsubscribe("$share/g/t")
    assert last(cluster) == 1
    two.reconnect(clean_start=True)
    assert last(cluster) == 0
    assert not harness.broker.state.groups


def test_a_remote_is_no_subscription_of_this_node(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    broker_harness([cluster])
    cluster.node.add_remote(Remote("other"), Subscription("a", "a"))
    assert told(cluster) == []
