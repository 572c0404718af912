"""Test the pipeline that processes one subscription, for a SUBSCRIBE or for a plugin."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.handlers.subscription_pipeline import SubscriptionPipeline, check
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.subscription import Subscription
from hookmq.mqtt.packets import SubscribeRequest
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]
Ended = list[tuple[Subscription | Deny, str, bool]]


@pytest.fixture
def rules() -> HookRecorder:
    return HookRecorder("authorize", "on_subscribe", "on_subscribed", id="rules")


@pytest.fixture
def harness(broker_harness: Make, rules: HookRecorder) -> Harness:
    return broker_harness(plugins=[rules], config={"session": {"max_subscriptions": 1}})


def checked(harness: Harness, filter: str, qos: int = 2) -> Subscription | Deny:
    state = harness.broker.state
    offered = state.settings.broker
    request = SubscribeRequest(filter, qos)
    return check(state, state.sessions["c"], offered, request, None, False)


def run(harness: Harness, filter: str, **how: Any) -> Ended:
    """Subscribe without a connection. Return the arguments that `done` received."""
    ended: Ended = []
    session = harness.broker.sessions["c"]
    pipeline = SubscriptionPipeline(harness.broker.state, session, None, **how)
    wanted = Subscription(filter, filter, 2)
    pipeline.run(wanted, lambda result, by, late: ended.append((result, by, late)))
    harness.settle()
    return ended


def test_a_subscription_above_the_limit_of_the_session_is_denied(harness: Harness) -> None:
    client = harness.connect("c")
    assert isinstance(checked(harness, "a"), Subscription)
    client.subscribe("a")
    assert isinstance(checked(harness, "a"), Subscription)  # it replaces the first
    excess = checked(harness, "b")
    assert isinstance(excess, Deny)
    assert (excess.code, excess.reason) == (ReasonCode.QUOTA_EXCEEDED, "too many subscriptions")


@pytest.mark.parametrize("filter", ["", "a/#/b", "$share/g", "a\0"])
def test_invalid_filters(harness: Harness, filter: str) -> None:
    harness.connect("c")
    refused = checked(harness, filter)
    assert isinstance(refused, Deny)
    assert refused.code is ReasonCode.TOPIC_FILTER_INVALID


def test_subscriptions_that_settings_exclude_are_denied(broker_harness: Make) -> None:
    harness = broker_harness(
        config={"broker": {"shared_available": False, "wildcard_available": False, "max_qos": 1}}
    )
    harness.connect("c")
    for filter, code in (
        ("$share/g/a", ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED),
        ("a/+", ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
    ):
        refused = checked(harness, filter)
        assert isinstance(refused, Deny)
        assert refused.code is code
    wanted = checked(harness, "a")
    assert isinstance(wanted, Subscription)
    assert wanted.qos == 1


def test_it_asks_and_may_be_lowered(harness: Harness, rules: HookRecorder) -> None:
    harness.connect("c")
    rules.answer("authorize", Allow(max_qos=1))
    ((made, _, late),) = run(harness, "a")
    assert isinstance(made, Subscription)
    assert (made.qos, late) == (1, False)
    assert harness.broker.sessions["c"].subscriptions == {"a": made}


def test_it_need_not_ask_and_skips_one_plugin(harness: Harness, rules: HookRecorder) -> None:
    harness.connect("c")
    rules.answer("authorize", Deny())
    rules.answer("on_subscribe", Deny())
    ((made, _, _),) = run(harness, "a", asks=False, skip="rules")
    assert isinstance(made, Subscription)
    assert not rules.calls("authorize")
    assert not rules.calls("on_subscribe")
    assert len(rules.calls("on_subscribed")) == 1


def test_a_refusal_changes_nothing(harness: Harness, rules: HookRecorder) -> None:
    harness.connect("c")
    rules.answer("on_subscribe", Deny(ReasonCode.QUOTA_EXCEEDED))
    ((refused, by, late),) = run(harness, "a")
    assert isinstance(refused, Deny)
    assert (refused.code, by, late) == (ReasonCode.QUOTA_EXCEEDED, "rules", False)
    assert not harness.broker.sessions["c"].subscriptions


def test_a_session_that_ends_while_a_plugin_decides(harness: Harness, rules: HookRecorder) -> None:
    client = harness.connect("c")

    async def leave(subscription: Subscription) -> None:
        client.disconnect()

    rules.answer("on_subscribe", lambda subscription: leave(subscription))
    ((refused, _, late),) = run(harness, "a")
    assert isinstance(refused, Deny)
    assert (refused.reason, late) == ("the session has ended", True)
    assert not harness.broker.state.router.lookup("a").matched


def test_a_cancelled_one_is_not_made(harness: Harness, rules: HookRecorder) -> None:
    harness.connect("c")
    session = harness.broker.sessions["c"]
    promise = harness.clock.promise()
    rules.answer("on_subscribe", lambda subscription: promise)
    pipeline = SubscriptionPipeline(harness.broker.state, session, None)
    pipeline.run(Subscription("a", "a"), lambda *_: pytest.fail("it was cancelled"))
    harness.settle()
    pipeline.cancel()
    promise.set_result(None)
    harness.settle()
    assert not session.subscriptions


def test_hooks_see_user_properties_that_nothing_keeps(
    harness: Harness, rules: HookRecorder
) -> None:
    pairs = (("group", "a"), ("group", "b"))
    client = harness.connect("c", 5, False, session_expiry_interval=60)
    assert client.subscribe("a", 1, user_property=pairs).codes == (1,)
    assert [call.subscription.user_property for call in rules.calls()] == [pairs] * 3
    kept = harness.broker.sessions["c"].subscriptions["a"]
    assert kept.user_property == ()
    assert [one.subscription for one in harness.handle("rules").subscriptions().items] == [kept]


def test_a_plugin_changes_the_share_name(harness: Harness, rules: HookRecorder) -> None:
    """If a plugin changes the share name, the broker authorizes the subscription again. UNSUBSCRIBE still uses the
    filter that the client sent.
    """
    rules.answer("on_subscribe", Subscription("a", "a", share="g"))
    client, other = harness.connect("c"), harness.connect("other")
    assert client.subscribe("a").codes == (0,)
    assert [call.subscription.share for call in rules.calls("authorize")] == [None, "g"]
    (group,) = harness.handle("rules").shared_groups().items
    assert (group.share, group.topic_filter, group.members) == ("g", "a", 1)
    other.publish("a", b"1")
    client.expect_message("a", b"1")
    assert client.unsubscribe("a").codes == (0,)
    assert not harness.handle("rules").shared_groups().items
