"""Test how a plugin checks a permission: `await broker.authorize(client, action, topic)`."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.errors import PluginError
from hookmq.model.events import Action
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.plugin import ClientInfo, Context, Drop, Message, Plugin, hookimpl
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


@pytest.fixture
def rules() -> HookRecorder:
    return HookRecorder("authorize", "on_denied", id="rules")


@pytest.fixture
def harness(broker_harness: Make, rules: HookRecorder) -> Harness:
    return broker_harness(plugins=[rules])


def ask(harness: Harness, client: ClientInfo, action: Action, topic: str, *more: Any) -> Any:
    return harness.clock.run(harness.handle("rules").authorize(client, action, topic, *more))


def info(harness: Harness, name: str = "c") -> ClientInfo:
    harness.connect(name)
    found = harness.handle("rules").client(name)
    assert found is not None
    return found


@pytest.mark.parametrize("action", [Action.PUBLISH, Action.WILL])
def test_plugins_are_asked_as_for_a_message_of_the_client(
    harness: Harness, rules: HookRecorder, action: Action
) -> None:
    client = info(harness)
    verdict = Deny(ReasonCode.NOT_AUTHORIZED, "not you")
    rules.answer("authorize", verdict)
    assert ask(harness, client, action, "door/open") is verdict
    (call,) = rules.calls("authorize")
    assert (call.client, call.action, call.topic) == (client, action, "door/open")
    message: Message = call.message
    assert (message.topic, message.qos, message.sender) == ("door/open", 0, "c")
    assert call.subscription is None
    assert rules.calls("on_denied") == []


def test_a_message_is_asked_about_where_it_is_to_go(harness: Harness, rules: HookRecorder) -> None:
    client = info(harness)
    rules.answer("authorize", Allow())
    message = Message("later/5/door", b"x", 1, True)
    assert ask(harness, client, Action.PUBLISH, "door", message) == Allow()
    (call,) = rules.calls("authorize")
    asked: Message = call.message
    assert (call.topic, asked.topic, asked.payload, asked.qos, asked.retain) == (
        "door", "door", b"x", 1, True
    )  # fmt: skip


@pytest.mark.parametrize(
    ("filter", "inner", "share"), [("a/#", "a/#", None), ("$share/g/a/#", "a/#", "g")]
)
def test_subscriptions(
    harness: Harness, rules: HookRecorder, filter: str, inner: str, share: str | None
) -> None:
    client = info(harness)
    rules.answer("authorize", Allow(max_qos=1))
    assert ask(harness, client, Action.SUBSCRIBE, filter) == Allow(max_qos=1)
    (call,) = rules.calls("authorize")
    assert (call.topic, call.message) == (inner, None)
    asked = call.subscription
    assert (asked.filter, asked.topic_filter, asked.share) == (filter, inner, share)


@pytest.mark.parametrize(("default", "kind"), [("allow", Allow), ("deny", Deny)])
def test_nobody_answers(
    broker_harness: Make, rules: HookRecorder, default: str, kind: type
) -> None:
    harness = broker_harness(plugins=[rules], config={"authz": {"default": default}})
    client = info(harness)
    assert isinstance(ask(harness, client, Action.PUBLISH, "t"), kind)


def test_authorize_denies_messages_that_the_pipeline_would_refuse(
    harness: Harness, rules: HookRecorder
) -> None:
    client = info(harness)
    rules.answer("authorize", Allow(max_qos=0))
    assert isinstance(ask(harness, client, Action.PUBLISH, "t", Message("t", b"", 1)), Deny)
    assert isinstance(ask(harness, client, Action.PUBLISH, "t", Message("t", b"", 0)), Allow)
    rules.clear()
    rules.answer("authorize", Allow())
    assert isinstance(ask(harness, client, Action.PUBLISH, "$SYS/x"), Deny)
    assert isinstance(ask(harness, client, Action.WILL, "$SYS/x"), Deny)
    assert rules.calls("authorize") == []


@pytest.mark.parametrize("fault", [RuntimeError("boom"), "nonsense", "timeout"])
def test_a_plugin_that_fails_decides_nothing(
    harness: Harness, rules: HookRecorder, fault: Any
) -> None:
    client = info(harness)
    harness.fail("rules", "authorize", fault)
    verdict = ask(harness, client, Action.PUBLISH, "t")
    assert isinstance(verdict, Deny)
    assert not verdict.decided


def test_nothing_is_remembered(harness: Harness, rules: HookRecorder) -> None:
    client = info(harness)
    rules.answer("authorize", Allow())
    for _ in range(2):
        ask(harness, client, Action.PUBLISH, "t")
    assert len(rules.calls("authorize")) == 2
    assert harness.broker.state.remembered == 0


def test_a_client_that_left(harness: Harness, rules: HookRecorder) -> None:
    one = harness.connect("one")
    client = harness.handle("rules").client("one")
    assert client is not None
    one.disconnect()
    rules.answer("authorize", lambda client: Deny() if client.client_id == "one" else Allow())
    assert isinstance(ask(harness, client, Action.PUBLISH, "t"), Deny)


@pytest.mark.parametrize(
    ("action", "topic", "message"),
    [
        (Action.DELIVER, "t", None),
        (Action.PUBLISH, "a/#", None),
        (Action.PUBLISH, "", None),
        (Action.SUBSCRIBE, "a/#/b", None),
        (Action.SUBSCRIBE, "$share//a", None),
        (Action.PUBLISH, b"t", None),
        (Action.PUBLISH, "t", b"x"),
    ],
)
def test_questions_that_make_no_sense(
    harness: Harness, action: Action, topic: Any, message: Any
) -> None:
    client = info(harness)
    with pytest.raises(PluginError, match="cannot authorize"):
        harness.handle("rules").authorize(client, action, topic, message)
    with pytest.raises(PluginError, match="cannot authorize"):
        harness.handle("rules").authorize("c", Action.PUBLISH, "t")  # type: ignore[arg-type]


class Asker(Plugin):
    """A plugin that asks all plugins, including itself, before it gives its own answer."""

    @hookimpl
    async def authorize(
        self, client: ClientInfo, action: Action, topic: str, broker: BrokerHandle
    ) -> Allow | Deny:
        return await broker.authorize(client, action, topic)


def test_a_question_that_asks_itself_ends_in_a_denial(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[Asker(None, Context("asker"))])
    one = harness.connect("one")
    one.publish("t", b"", 1, expect=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
    assert "plugins ask in a loop" in str(harness.logged("plugin.failed")[0]["error"])


class Delay(Plugin):
    """A plugin that handles ``later/TOPIC``: if the client may publish to TOPIC, the plugin publishes there a minute
    later.
    """

    @hookimpl
    async def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Drop | Deny | None:
        topic = message.topic.removeprefix("later/")
        if client is None or topic == message.topic:
            return None
        verdict = await broker.authorize(client, Action.PUBLISH, topic, message)
        if isinstance(verdict, Deny):
            return verdict
        broker.runtime.call_later(60, lambda: broker.publish(topic, message.payload, message.qos))
        return Drop()


def test_a_delayed_publish_does_not_bypass_the_rules(
    broker_harness: Make, rules: HookRecorder
) -> None:
    rules.answer("authorize", lambda topic: Deny() if topic == "door" else Allow())
    harness = broker_harness(plugins=[rules, Delay(None, Context("delay"))])
    sub, one = harness.connect("sub"), harness.connect("one")
    sub.subscribe("#")
    for topic in ("lamp", "door"):
        one.publish(f"later/{topic}", b"x")
    harness.advance(61)
    sub.expect_message("lamp", b"x")
    sub.expect_nothing()


def explain(harness: Harness, client: ClientInfo, action: Action, topic: str, *more: Any) -> Any:
    found = harness.clock.run(harness.handle("rules").explain(client, action, topic, *more))
    return [(one.plugin, one.verdict) for one in found]


@pytest.mark.parametrize("action", [Action.PUBLISH, Action.WILL, Action.SUBSCRIBE])
def test_explain_returns_the_verdict_of_each_plugin(
    broker_harness: Make, rules: HookRecorder, action: Action
) -> None:
    """Unlike `authorize`, `explain` also asks the plugins after the first denial."""
    others = [HookRecorder("authorize", id=name) for name in ("first", "silent")]
    harness = broker_harness(plugins=[*others, rules])
    client = info(harness)
    denied, allowed = Deny(rule="line 7"), Allow(max_qos=1, rule="line 8")
    others[0].answer("authorize", denied)
    rules.answer("authorize", allowed)
    assert explain(harness, client, action, "door") == [
        ("first", denied), ("silent", None), ("rules", allowed)
    ]  # fmt: skip
    found = harness.clock.run(harness.handle("rules").explain(client, action, "door"))
    assert [one.verdict.rule for one in found if one.verdict is not None] == ["line 7", "line 8"]
    harness.fail("silent", "authorize", RuntimeError("boom"))
    verdict = dict(explain(harness, client, action, "door"))["silent"]
    assert isinstance(verdict, Deny)
    assert not verdict.decided


def test_explain_asks_about_deliveries(broker_harness: Make, rules: HookRecorder) -> None:
    """Only plugins that decide on deliveries are asked."""
    harness = broker_harness(plugins=[rules])
    client = info(harness)
    assert explain(harness, client, Action.DELIVER, "door") == [("", Allow())]
    rules.authorize_actions = frozenset({Action.DELIVER})  # type: ignore[misc]
    harness.handle("rules").invalidate_authz()
    harness.settle()
    rules.answer("authorize", Deny())
    assert explain(harness, client, Action.DELIVER, "door") == [("rules", Deny())]
    (call,) = rules.calls("authorize")
    assert (call.message.topic, call.subscription.filter) == ("door", "door")
    assert call.message.sender is None
    with pytest.raises(PluginError):
        explain(harness, client, Action.DELIVER, "door/#")


def test_an_allow_keeps_the_rule_of_the_first_plugin(
    broker_harness: Make, rules: HookRecorder
) -> None:
    first = HookRecorder("authorize", id="first")
    harness = broker_harness(plugins=[first, rules])
    client = info(harness)
    first.answer("authorize", Allow(rule="one"))
    rules.answer("authorize", Allow(max_qos=1, rule="two"))
    verdict = ask(harness, client, Action.PUBLISH, "t")
    assert (verdict.max_qos, verdict.rule) == (1, "one")


@pytest.mark.parametrize(("default", "verdict"), [("allow", Allow()), ("deny", Deny())])
def test_explain_shows_the_default_if_all_abstain(
    broker_harness: Make, rules: HookRecorder, default: str, verdict: Allow | Deny
) -> None:
    harness = broker_harness(plugins=[rules], config={"authz": {"default": default}})
    client = info(harness)
    assert explain(harness, client, Action.PUBLISH, "t") == [("rules", None), ("", verdict)]
