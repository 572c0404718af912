"""Test `authorize` in the broker: when it is called, how long verdicts are cached, and the effect of each verdict."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Accept, Allow, Deny
from hookmq.model.client import Scope
from hookmq.model.events import Action, DropReason
from hookmq.model.message import Message
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Auth, Connack, Puback, Publish, Suback, Subscribe, SubscribeRequest
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, HookCall, HookRecorder, will
from hookmq_testing.plugins import instance_of

Make = Callable[..., Harness]


@pytest.fixture
def plugin() -> HookRecorder:
    recorder = HookRecorder("authorize")
    recorder.answer("authorize", Allow())
    return recorder


@pytest.fixture
def harness(broker_harness: Make, plugin: HookRecorder) -> Harness:
    return broker_harness(plugins=[plugin])


def asked(plugin: HookRecorder, *actions: Action) -> list[tuple[Action, str]]:
    calls = plugin.calls("authorize")
    return [(call.action, call.topic) for call in calls if not actions or call.action in actions]


# --- calls ------------------------------------------------------------------------------------------------------------


def test_authorize_gets_the_client_action_topic_and_message(
    harness: Harness, plugin: HookRecorder
) -> None:
    given = will("bye", b"w", 1, retain=True, delay=3, content_type="x")
    one = harness.connect("one", will=given, scope=Scope("in", mount_point="m/"))
    one.subscribe("a/#", 2, no_local=True, identifier=4)
    one.subscribe("$share/g/b", 1)
    one.publish("t", b"p", 1, retain=True, user_property=(("k", "v"),))
    wills, subscribes, shared, publishes = plugin.calls("authorize")

    def common(call: HookCall, action: Action, topic: str) -> None:
        assert (call.action, call.topic) == (action, topic)
        assert call.client is harness.broker.sessions["one"].client
        assert call.broker is harness.handle(plugin.id)

    common(wills, Action.WILL, "m/bye")
    assert (wills.message.payload, wills.message.qos, wills.message.retain) == (b"w", 1, True)
    assert wills.message.origin == "will"
    assert wills.message.properties == Properties(content_type="x")
    assert wills.subscription is None
    common(subscribes, Action.SUBSCRIBE, "m/a/#")
    assert subscribes.message is None
    assert (subscribes.subscription.filter, subscribes.subscription.topic_filter) == (
        "a/#",
        "m/a/#",
    )
    assert (subscribes.subscription.qos, subscribes.subscription.no_local) == (2, True)
    assert subscribes.subscription.identifier == 4
    common(shared, Action.SUBSCRIBE, "m/b")
    assert shared.subscription.share == "g"
    common(publishes, Action.PUBLISH, "m/t")
    message: Message = publishes.message
    assert (message.topic, message.payload, message.qos, message.retain) == ("m/t", b"p", 1, True)
    assert (message.sender, message.origin) == ("one", "client")
    assert message.user_property == (("k", "v"),)
    assert publishes.subscription is None


@pytest.mark.parametrize("default", ["allow", "deny"])
def test_authz_default_decides_without_implementations(broker_harness: Make, default: str) -> None:
    observer = HookRecorder("on_denied")
    harness = broker_harness(plugins=[observer], config={"authz": {"default": default}})
    one = harness.connect("one")
    denied = default == "deny"
    assert one.subscribe("t").codes == ((0x87,) if denied else (0,))
    one.publish("t", b"", 1, expect=0x87 if denied else 0)
    harness.settle()
    assert [call.rule for call in observer.calls("on_denied")] == ["default"] * 2 * denied


@pytest.mark.parametrize("default", ["allow", "deny"])
def test_authz_default_decides_if_all_plugins_abstain(broker_harness: Make, default: str) -> None:
    plugin = HookRecorder("authorize")
    harness = broker_harness(plugins=[plugin], config={"authz": {"default": default}})
    one = harness.connect("one")
    for _ in range(2):
        one.publish("t", b"", 1, expect=0x87 if default == "deny" else 0x10)
    assert len(plugin.calls()) == 1  # the result is cached even if the plugin abstains


def test_nobody_publishes_below_sys(harness: Harness, plugin: HookRecorder) -> None:
    one = harness.connect("one")
    one.publish("$SYS/broker/uptime", b"", 1, expect=0x87)
    assert asked(plugin) == []
    one.publish("$other", b"", 1, expect=0x10)


def test_plugins_are_not_asked_about_themselves(harness: Harness, plugin: HookRecorder) -> None:
    plugin.answer("authorize", Deny())
    watcher = harness.connect("watcher")
    assert harness.clock.run(_publish(harness, plugin)) == 0
    assert asked(plugin) == []
    watcher.expect_nothing()


async def _publish(harness: Harness, plugin: HookRecorder) -> int:
    return await harness.handle(plugin.id).publish_and_wait("t", b"")


# --- the cache --------------------------------------------------------------------------------------------------------


def test_an_answer_is_remembered(harness: Harness, plugin: HookRecorder) -> None:
    one = harness.connect("one")
    for _ in range(5):
        one.publish("t", b"", 1)
        one.publish("t", b"", 2)
        one.publish("t", b"", 1, retain=True)
        one.publish("u", b"")
    # By topic, QoS and retain.
    assert asked(plugin) == [(Action.PUBLISH, "t")] * 3 + [(Action.PUBLISH, "u")]
    metrics = harness.metrics
    assert metrics.authz_cache_misses == 4
    assert metrics.messages_received == 20


def test_the_counters_tell_of_hits(broker_harness: Make, plugin: HookRecorder) -> None:
    # On the slow path, the cache is consulted for every message.
    harness = broker_harness(plugins=[plugin, HookRecorder("on_publish", id="second")])
    harness.broker.state.shortcuts = False
    one = harness.connect("one")
    for _ in range(5):
        one.publish("t", b"", 1)
    assert (harness.metrics.authz_cache_hits, harness.metrics.authz_cache_misses) == (4, 1)
    one.subscribe("t")
    one.subscribe("t")
    assert (harness.metrics.authz_cache_hits, harness.metrics.authz_cache_misses) == (5, 2)


def test_a_denial_is_remembered(harness: Harness, plugin: HookRecorder) -> None:
    plugin.answer("authorize", Deny(ReasonCode.QUOTA_EXCEEDED, "too much"))
    one = harness.connect("one")
    for _ in range(3):
        one.publish("t", b"", 1)
        answer = one.expect(Puback)
        assert (answer.code, answer.properties.reason_string) == (0x97, "too much")
        assert one.subscribe("t").codes == (0x97,)
    assert len(plugin.calls()) == 2


@pytest.mark.parametrize("qos", [0, 1])
def test_cache_for_ends_with_the_clock(harness: Harness, plugin: HookRecorder, qos: int) -> None:
    plugin.answer("authorize", Allow(cache_for=10))
    one = harness.connect("one")
    for at in (0.0, 5.0, 4.9):
        harness.advance(at)
        one.publish("t", b"", qos)
    assert len(plugin.calls()) == 1
    harness.advance(0.2)
    one.publish("t", b"", qos)
    assert len(plugin.calls()) == 2
    plugin.answer("authorize", Deny())
    harness.advance(9.7)
    one.unread.clear()
    one.publish("t", b"", 1, expect=0x10 if qos else 0x87)
    harness.advance(1)
    one.publish("t", b"", 1, expect=0x87)


@pytest.mark.parametrize(("seconds", "asked"), [(None, 3), (10, 4), (0, 5)])
def test_a_refusal_may_be_remembered_for_a_time(
    harness: Harness, plugin: HookRecorder, seconds: float | None, asked: int
) -> None:
    plugin.answer("authorize", lambda topic: Deny(cache_for=seconds) if topic == "t" else Allow())
    one = harness.connect("one")
    one.publish("other", b"", 1)
    for _ in range(2):
        one.publish("t", b"", 1, expect=None)
        one.unread.clear()
    harness.advance(10.1)
    one.publish("t", b"", 1, expect=None)
    one.publish("u", b"", 1, expect=None)
    assert len(plugin.calls()) == asked


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_cache_for_nothing(harness: Harness, plugin: HookRecorder, qos: int) -> None:
    plugin.answer("authorize", Allow(cache_for=0))
    one = harness.connect("one")
    for _ in range(4):
        one.publish("t", b"", qos)
    assert len(plugin.calls()) == 4
    assert harness.broker.state.remembered == 0


def test_the_shortest_cache_for_holds(broker_harness: Make, plugin: HookRecorder) -> None:
    second = HookRecorder("authorize", id="second")
    second.answer("authorize", Allow(cache_for=5))
    harness = broker_harness(plugins=[plugin, second])
    one = harness.connect("one")
    one.publish("t", b"")
    harness.advance(6)
    one.publish("t", b"")
    assert (len(plugin.calls()), len(second.calls())) == (2, 2)


@pytest.mark.parametrize("answer", [None, Allow(), Deny()])
def test_a_plugin_that_looks_at_the_message_is_always_asked(
    broker_harness: Make, answer: Allow | Deny | None
) -> None:
    plugin = HookRecorder("authorize", cached=False)
    plugin.answer("authorize", answer)
    harness = broker_harness(plugins=[plugin])
    one = harness.connect("one")
    for number in range(3):
        one.publish("t", b"%d" % number, 1)
    assert [call.message.payload for call in plugin.calls()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("fault", [ValueError("broken"), "nonsense", "timeout"])
def test_undecided_is_never_remembered(harness: Harness, plugin: HookRecorder, fault: Any) -> None:
    one = harness.connect("one")
    harness.fail(plugin.id, "authorize", fault)
    for _ in range(2):
        one.publish("t", b"", 1)
        one.send_subscribe("t", 0)
        harness.advance(1)
        assert one.expect(Puback).code == 0x83
        assert one.expect(Suback).codes == (0x83,)
    harness.heal()
    one.publish("t", b"", 1, expect=0x10)
    assert one.subscribe("t").codes == (0,)
    assert harness.metrics.dropped[DropReason.UNDECIDED, "in"] == 2
    assert (DropReason.DENIED, "in") not in harness.metrics.dropped


def test_an_answer_that_is_awaited_is_remembered_too(
    harness: Harness, plugin: HookRecorder
) -> None:
    async def later() -> Allow:
        await harness.clock.sleep(0.1)
        return Allow()

    plugin.answer("authorize", lambda topic: later())
    one = harness.connect("one")
    for _ in range(3):
        one.publish("t", b"", 1)
        harness.advance(0.2)
        assert one.expect(Puback).code == 0x10
    assert len(plugin.calls()) == 1


def test_an_answer_for_who_left_is_not_remembered(harness: Harness, plugin: HookRecorder) -> None:
    event = harness.clock.event()
    plugin.answer("authorize", event)
    one = harness.connect("one")
    one.publish("t", b"", 1)
    one.drop()
    event.set(Allow())
    harness.settle()
    assert harness.broker.state.remembered == 0


# --- max_qos ------------------------------------------------------------------------------------------------------------


def test_max_qos_lowers_what_is_granted(harness: Harness, plugin: HookRecorder) -> None:
    plugin.answer("authorize", Allow(max_qos=1))
    one = harness.connect("one")
    assert one.subscribe([("a", 0), ("b", 1), ("c", 2)]).codes == (0, 1, 1)
    assert harness.broker.sessions["one"].subscriptions["c"].qos == 1


@pytest.mark.parametrize("version", [4, 5])
def test_a_publish_above_max_qos_is_denied(
    broker_harness: Make, plugin: HookRecorder, version: int
) -> None:
    observer = HookRecorder("on_denied", id="observer")
    harness = broker_harness(plugins=[plugin, observer])
    plugin.answer("authorize", Allow(max_qos=0))
    sub = harness.connect("sub")
    sub.subscribe("t", 2)
    one = harness.connect("one", version)
    one.publish("t", b"0", 0)
    for qos in (1, 2, 1):
        one.publish("t", b"", qos, expect=0x87 if version == 5 else 0)
    assert [message.payload for message in sub.messages] == [b"0"]
    assert [call.topic for call in observer.calls("on_denied")] == ["t"] * 3


def test_the_lowest_max_qos_holds(broker_harness: Make, plugin: HookRecorder) -> None:
    second = HookRecorder("authorize", id="second")
    plugin.answer("authorize", Allow(max_qos=2))
    second.answer("authorize", Allow(max_qos=1))
    harness = broker_harness(plugins=[plugin, second])
    assert harness.connect("one").subscribe("t", 2).codes == (1,)


# --- several plugins ----------------------------------------------------------------------------------------------------


def test_any_denial_denies(broker_harness: Make) -> None:
    plugins = [HookRecorder("authorize", id=name) for name in ("a", "b", "c")]
    observer = HookRecorder("on_denied", id="observer")
    plugins[0].answer("authorize", Allow())
    plugins[1].answer("authorize", Deny(ReasonCode.QUOTA_EXCEEDED))
    plugins[2].answer("authorize", Allow())
    harness = broker_harness(plugins=[*plugins, observer])
    one = harness.connect("one")
    one.publish("t", b"", 1, expect=0x97)
    harness.settle()
    assert [len(plugin.calls()) for plugin in plugins] == [1, 1, 0]
    (call,) = observer.calls()
    assert (call.action, call.topic, call.code, call.rule) == (Action.PUBLISH, "t", 0x97, "b")


def test_narrowed_to_topics(broker_harness: Make, plugin: HookRecorder) -> None:
    plugin.answer("authorize", Deny())
    harness = broker_harness(plugins=[instance_of(plugin, filters=("alarms/#",))])
    one = harness.connect("one")
    one.publish("other", b"", 1, expect=0x10)
    one.publish("alarms/1", b"", 1, expect=0x87)
    assert one.subscribe(["other", "alarms/+", "#"]).codes == (0, 0x87, 0x87)
    assert [topic for _, topic in asked(plugin)] == ["alarms/1", "alarms/+", "#"]


def test_narrowed_plugins_grant_only_within(broker_harness: Make, plugin: HookRecorder) -> None:
    entry = instance_of(plugin, filters=("alarms/#",))
    harness = broker_harness(plugins=[entry], config={"authz": {"default": "deny"}})
    one = harness.connect("one")
    assert one.subscribe(["alarms/#", "#", "other"]).codes == (0, 0x87, 0x87)


def test_narrowed_to_listeners(broker_harness: Make, plugin: HookRecorder) -> None:
    plugin.answer("authorize", Deny())
    harness = broker_harness(plugins=[instance_of(plugin, listeners=("public",))])
    harness.connect("in", scope=Scope("private")).publish("t", b"", 1, expect=0x10)
    harness.connect("out", scope=Scope("public")).publish("t", b"", 1, expect=0x87)


# --- invalidation -------------------------------------------------------------------------------------------------------


def test_invalidate_forgets_for_one_or_for_all(harness: Harness, plugin: HookRecorder) -> None:
    one, two = harness.connect("one"), harness.connect("two")

    def both() -> list[str]:
        plugin.clear()
        one.publish("t", b"", 1)
        two.publish("t", b"", 0)
        harness.settle()
        return [call.client.client_id for call in plugin.calls()]

    assert both() == ["one", "two"]
    assert both() == []
    harness.handle(plugin.id).invalidate_authz("one")
    assert both() == ["one"]
    harness.handle(plugin.id).invalidate_authz("nobody")
    assert both() == []
    harness.handle(plugin.id).invalidate_authz()
    assert both() == ["one", "two"]
    harness.handle(plugin.id).invalidate_authz(filter="elsewhere")
    assert both() in ([], ["one", "two"])  # it may also forget more than necessary
    plugin.answer("authorize", Deny())
    harness.handle(plugin.id).invalidate_authz(filter="#")
    assert both() == ["one", "two"]
    assert harness.broker.state.remembered == 2


def test_invalidation_while_an_answer_is_awaited(harness: Harness, plugin: HookRecorder) -> None:
    event = harness.clock.event()
    plugin.answer("authorize", event)
    one = harness.connect("one")
    one.publish("t", b"", 1)
    harness.handle(plugin.id).invalidate_authz()
    event.set(Allow())
    assert one.expect(Puback).code == 0x10
    plugin.answer("authorize", Deny())
    # The plugin decided before the permissions changed, so its verdict must not be cached.
    one.publish("t", b"", 1, expect=0x87)
    assert harness.broker.state.remembered == 1
    one.disconnect()
    assert harness.broker.state.remembered == 0


@pytest.mark.parametrize("version", [4, 5])
def test_rights_that_end_in_the_middle_of_a_run(
    harness: Harness, plugin: HookRecorder, version: int
) -> None:
    """Permissions may end in the middle of a series of identical messages in one segment. The remaining messages are
    then authorized again.
    """
    watcher = harness.connect("watcher", version)
    watcher.subscribe("t")
    one = harness.connect("one", version)
    message = encode(Publish("t", b"x"), version)
    request = encode(Subscribe(1, (SubscribeRequest("u", 0),)), version)

    def end() -> None:
        plugin.answer("authorize", Deny())
        harness.handle(plugin.id).invalidate_authz("one")

    one.raw(message)
    plugin.answer("authorize", end)
    one.raw(message * 4 + request + message * 4)
    assert len(watcher.messages) == 5


def test_re_authentication_forgets(broker_harness: Make, plugin: HookRecorder) -> None:

    login = HookRecorder("on_auth", id="login")
    login.answer("on_auth", Accept("alice"))
    harness = broker_harness(plugins=[login, plugin])
    method = Properties(authentication_method="M")
    one = harness.connect("one", properties=method)
    one.publish("t", b"", 1, expect=0x10)
    plugin.answer("authorize", Deny())
    one.publish("t", b"", 1, expect=0x10)
    one.send(Auth(ReasonCode.RE_AUTHENTICATE, method))
    assert one.expect(Auth).code == 0
    one.publish("t", b"", 1, expect=0x87)


# --- wills --------------------------------------------------------------------------------------------------------------


def test_a_will_that_is_denied_refuses_the_connection(broker_harness: Make) -> None:
    plugin, observer = HookRecorder("authorize"), HookRecorder("on_denied", id="observer")
    plugin.answer("authorize", Deny(ReasonCode.QUOTA_EXCEEDED))
    harness = broker_harness(plugins=[plugin, observer])
    harness.connect("one", will=will("bye"), expect=0x97)
    harness.connect("two", 4, will=will("bye"), expect=3)
    harness.connect("three")
    harness.settle()
    assert {(call.action, call.topic, call.rule) for call in observer.calls()} == {
        (Action.WILL, "bye", "recorder")
    }
    assert set(harness.broker.sessions) == {"three"}


def test_a_will_is_asked_about_again_when_it_fires(harness: Harness, plugin: HookRecorder) -> None:
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    one = harness.connect("one", will=will("bye"))
    plugin.clear()
    one.drop()
    assert asked(plugin) == [(Action.WILL, "bye")]
    watcher.expect_message("bye")


@pytest.mark.parametrize("invalidate", [False, True])
def test_a_will_whose_right_was_taken_away(
    harness: Harness, plugin: HookRecorder, invalidate: bool
) -> None:
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    one = harness.connect("one", will=will("bye", retain=True))
    plugin.answer("authorize", lambda action: Deny() if action is Action.WILL else Allow())
    if invalidate:
        harness.handle(plugin.id).invalidate_authz()
    one.drop()
    watcher.expect_nothing()
    assert harness.metrics.dropped == {("denied", "in"): 1}
    assert harness.broker.state.retained.get("bye") is None


# --- deliveries ---------------------------------------------------------------------------------------------------------


def test_each_delivery_is_asked_about_only_where_wanted(broker_harness: Make) -> None:
    plugin = HookRecorder("authorize", deliver=True)
    plugin.answer(
        "authorize",
        lambda client, action: (
            Deny() if action is Action.DELIVER and client.client_id == "sub1" else Allow()
        ),
    )
    observer = HookRecorder("on_dropped", id="observer")
    harness = broker_harness(plugins=[plugin, observer])
    subs = [harness.connect(f"sub{number}") for number in range(3)]
    for sub in subs:
        sub.subscribe("t/#", 1)
    pub = harness.connect("pub")
    pub.publish("t/1", b"0", 0)
    pub.publish("t/1", b"1", 1, expect=0)
    assert [len(sub.messages) for sub in subs] == [2, 0, 2]
    calls = [call for call in plugin.calls() if call.action is Action.DELIVER]
    assert [call.client.client_id for call in calls] == ["sub0", "sub1", "sub2"] * 2
    assert {(call.topic, call.subscription.filter) for call in calls} == {("t/1", "t/#")}
    assert [call.message.payload for call in calls] == [b"0"] * 3 + [b"1"] * 3
    dropped = [(call.client.client_id, call.why.reason) for call in observer.calls()]
    assert dropped == [("sub1", DropReason.DENIED)] * 2


def test_a_delivery_cannot_be_awaited(broker_harness: Make) -> None:
    plugin = HookRecorder("authorize", deliver=True)
    harness = broker_harness(plugins=[plugin])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 1)

    async def later() -> Allow:
        return Allow()

    plugin.answer("authorize", lambda action: later() if action is Action.DELIVER else Allow())
    pub.publish("t", b"", 1, expect=0)
    sub.expect_nothing()  # after a failure, the message is not delivered
    stats = next(one.stats("authorize") for one in harness.hooks.plugins)
    assert stats.error == 1


def test_a_shared_subscription_is_judged_by_its_filter_and_remembered_apart(
    broker_harness: Make,
) -> None:
    plugin = HookRecorder("authorize")
    plugin.answer("authorize", lambda subscription: Deny() if subscription.share else Allow())
    one = broker_harness(plugins=[plugin]).connect("one")
    assert one.subscribe(["a/#", "$share/g/a/#", "a/#"]).codes == (0, 0x87, 0)
    assert [(call.topic, call.subscription.share) for call in plugin.calls()] == [
        ("a/#", None),
        ("a/#", "g"),
    ]


def test_a_deny_names_its_rule_to_observers_and_the_log_but_not_to_the_client(
    broker_harness: Make,
) -> None:
    plugin, observer = HookRecorder("authorize"), HookRecorder("on_denied", id="observer")
    plugin.answer("authorize", Deny(rule="acl.yaml:12"))
    harness = broker_harness([plugin, observer])
    client = harness.connect("c")
    for _ in range(2):  # the plugin decides once, then the verdict is cached
        client.send_subscribe("t")
        answer = client.expect(Suback)
        assert answer.codes == (0x87,)
        assert answer.properties.reason_string is None
    assert [call.rule for call in observer.calls("on_denied")] == ["recorder: acl.yaml:12"] * 2
    assert harness.logged("authz.denied")[0]["rule"] == "recorder: acl.yaml:12"


class Late(HookRecorder):
    """A plugin that does not authorize deliveries at first, but starts to do so later."""

    delivers = False

    @property
    def authorize_actions(self) -> frozenset[Action]:  # type: ignore[override]
        return frozenset(Action) if self.delivers else frozenset({Action.PUBLISH})


@pytest.mark.parametrize("qos", [0, 1])
def test_a_plugin_may_begin_to_ask_about_deliveries(broker_harness: Make, qos: int) -> None:
    plugin = Late("authorize", "on_connect")
    plugin.answer("authorize", lambda action: Deny() if action is Action.DELIVER else Allow())
    harness = broker_harness([plugin])
    early, pub = harness.connect("early"), harness.connect("pub")
    early.subscribe("t", qos)
    event = harness.clock.event()
    plugin.answer("on_connect", event)
    opening = harness.connect("opening", expect=None)
    pub.publish("t", b"1", qos)
    early.expect_message("t", b"1")
    plugin.delivers = True
    pub.publish("t", b"2", qos)
    early.expect_message("t", b"2")
    harness.handle("recorder").invalidate_authz()
    event.set(None)
    harness.settle()
    opening.expect(Connack)
    opening.subscribe("t", qos)
    pub.publish("t", b"3", qos)
    early.expect_nothing()
    opening.expect_nothing()
    asked = [call for call in plugin.calls("authorize") if call.action is Action.DELIVER]
    assert {call.client.client_id for call in asked} == {"early", "opening"}
    plugin.delivers = False
    harness.handle("recorder").invalidate_authz()
    pub.publish("t", b"4", qos)
    early.expect_message("t", b"4")
    opening.expect_message("t", b"4")
