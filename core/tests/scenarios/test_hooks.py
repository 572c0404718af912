"""Test every hook in a whole broker: its arguments, its order, and how its result affects packets."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker import published_events
from hookmq.broker.handlers import publish as inbound
from hookmq.broker.sessions.due_will import PATIENCE
from hookmq.hooks.instance import HookOptions
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Limits
from hookmq.model.errors import PluginError
from hookmq.model.events import Action, Direction, DropReason, EndedBy, SessionEvent
from hookmq.model.message import Message, make_message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Auth,
    Connack,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.memory_store import MemoryStore
from hookmq_testing import (
    DurableStore,
    Harness,
    HookRecorder,
    MemoryClient,
    RecordingJournal,
    will,
)
from hookmq_testing.plugins import instance_of
from hookmq_testing.runtime import EPOCH

Make = Callable[..., Harness]
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
FAULTS = pytest.mark.parametrize("fault", [ValueError("broken"), 42, "timeout"])


def one_plugin(make: Make, *hooks: str, **options: Any) -> tuple[Harness, HookRecorder]:
    plugin = HookRecorder(*hooks)
    return make(plugins=[plugin], **options), plugin


def told(plugin: HookRecorder, harness: Harness, *hooks: str) -> list[Any]:
    harness.settle()
    return plugin.calls(*hooks)


# --- order --------------------------------------------------------------------------------------------------------------


def test_every_chain_runs_in_the_order_of_the_configuration(broker_harness: Make) -> None:
    order: list[tuple[str, str]] = []

    def noting(hook: str, name: str) -> Callable[[], None]:
        def note() -> None:
            order.append((hook, name))

        return note

    hooks = ("on_connect", "authorize", "on_publish", "on_subscribe", "on_deliver", "on_will")
    plugins = []
    for name in ("zebra", "apple", "mango"):
        plugin = HookRecorder(*hooks, id=name)
        for hook in hooks:
            plugin.answer(hook, noting(hook, name))
        plugins.append(plugin)
    harness = broker_harness(plugins=plugins)
    one = harness.connect("one", will=will("bye"))
    one.subscribe("t")
    one.publish("t")
    one.drop()
    for hook in hooks:
        names = [name for found, name in order if found == hook]
        assert names == ["zebra", "apple", "mango"] * (len(names) // 3)
        assert names
    assert [hook for hook, name in order if name == "zebra"] == [
        "on_connect", "authorize", "authorize", "on_subscribe", "authorize", "on_publish", "on_deliver",
        "authorize", "on_will", "on_publish",
    ]  # fmt: skip


# --- on_connect ---------------------------------------------------------------------------------------------------------


def test_on_connect_is_given_the_client_and_its_packet(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_connect")
    one = harness.connect("one", 5, False, 30, "alice", b"secret", session_expiry_interval=5)
    (call,) = plugin.calls()
    assert call.client is harness.broker.sessions["one"].client
    assert (call.client.client_id, call.client.version, call.client.username) == ("one", 5, "alice")
    assert (call.client.clean_start, call.client.keep_alive) == (False, 30)
    assert call.client.peer == one.peer
    assert call.client.listener == "default"
    assert call.client.connected_at == EPOCH
    assert call.connect == one.connect
    assert call.connect.password == b"secret"
    assert call.broker is harness.handle("recorder")


def test_on_connect_accepts_with_identity_claims_and_limits(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_connect", config={"auth": {"default": "deny"}})
    limits = Limits(
        max_packet_size=1000,
        receive_maximum=5,
        session_expiry=60,
        queue_messages=2,
        max_subscriptions=1,
    )
    plugin.answer("on_connect", Accept("alice", {"role": "x"}, EPOCH + 100, limits))
    one = harness.connect("one", session_expiry_interval=600)
    assert one.connack is not None
    told = one.connack.properties
    assert (told.maximum_packet_size, told.receive_maximum) == (1000, 5)
    assert told.session_expiry_interval == 60
    session = harness.broker.sessions["one"]
    assert (session.client.identity, session.client.claims) == ("alice", {"role": "x"})
    assert session.queue_messages == 2
    assert one.subscribe(["a", "b"]).codes == (0, 0x97)
    harness.advance(99)
    one.ping()
    harness.advance(2)
    one.expect_disconnect(0xA0)


@pytest.mark.parametrize(
    ("code", "five", "three"),
    [
        (ReasonCode.NOT_AUTHORIZED, 0x87, 5),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 0x86, 4),
        (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 0x85, 2),
        (ReasonCode.SERVER_UNAVAILABLE, 0x88, 3),
        (ReasonCode.BANNED, 0x8A, 5),
        (ReasonCode.SESSION_TAKEN_OVER, 0x80, 3),  # not allowed in CONNACK
    ],
)
@VERSIONS
def test_on_connect_denies(
    broker_harness: Make, version: int, code: ReasonCode, five: int, three: int
) -> None:
    observer = HookRecorder("on_auth_failed", "on_session", "on_disconnect", id="observer")
    plugin = HookRecorder("on_connect")
    plugin.answer("on_connect", Deny(code, "not you"))
    harness = broker_harness(plugins=[plugin, observer])
    one = harness.connect("one", version, expect=five if version == 5 else three)
    if version == 5:
        assert one.connack is not None
        assert one.connack.properties.reason_string == "not you"
    (call,) = told(observer, harness)
    assert (call.hook, call.client.client_id) == ("on_auth_failed", "one")
    assert (call.code, call.reason) == (code, "not you")
    assert harness.broker.sessions == {}


def test_on_connect_any_denial_denies(broker_harness: Make) -> None:
    plugins = [HookRecorder("on_connect", id=name) for name in ("a", "b", "c")]
    plugins[0].answer("on_connect", Accept("alice"))
    plugins[1].answer("on_connect", Deny(ReasonCode.BANNED))
    harness = broker_harness(plugins=plugins)
    harness.connect("one", expect=0x8A)
    assert [len(plugin.calls()) for plugin in plugins] == [1, 1, 0]
    assert harness.logged("auth.failed")[0]["plugin"] == "b"


@FAULTS
@VERSIONS
def test_on_connect_that_fails_refuses(broker_harness: Make, version: int, fault: Any) -> None:
    harness, plugin = one_plugin(broker_harness, "on_connect")
    harness.fail("recorder", "on_connect", fault)
    one = harness.connect("one", version, expect=None)
    if fault == "timeout":
        harness.advance(4.9)
        one.expect_nothing()
        harness.advance(0.2)
    assert one.expect(Connack).code == (0x88 if version == 5 else 3)
    assert one.closed
    assert len(plugin.calls()) == 0
    harness.heal()
    harness.connect("one", version)


@VERSIONS
def test_on_connect_default_is_the_setting(broker_harness: Make, version: int) -> None:
    observer = HookRecorder("on_auth_failed")
    harness = broker_harness(plugins=[observer], config={"auth": {"default": "deny"}})
    harness.connect("one", version, expect=0x87 if version == 5 else 5)
    (call,) = told(observer, harness)
    assert call.reason == ""


# --- on_auth ------------------------------------------------------------------------------------------------------------


def test_on_auth_exchanges_and_accepts(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_auth", config={"auth": {"default": "deny"}})
    plugin.answer("on_auth", Challenge(b"who?"), Accept("alice"))
    method = {"authentication_method": "M", "authentication_data": b"hello"}
    one = harness.connect("one", properties=method, expect=None)
    challenge = one.expect(Auth)
    assert (challenge.code, challenge.properties.authentication_data) == (0x18, b"who?")
    answer = Properties(authentication_method="M", authentication_data=b"me")
    one.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, answer))
    assert one.expect(Connack).code == 0
    first, second = plugin.calls()
    assert first.auth.properties == Properties(**method)
    assert second.auth == Auth(ReasonCode.CONTINUE_AUTHENTICATION, answer)
    assert first.client is second.client
    assert first.client.identity == "alice"


@pytest.mark.parametrize(
    ("answer", "code"),
    [(None, 0x8C), (Deny(ReasonCode.BANNED), 0x8A), (ValueError("x"), 0x80), ("odd", 0x80)],
)
def test_on_auth_refuses(broker_harness: Make, answer: Any, code: int) -> None:
    harness, plugin = one_plugin(broker_harness, "on_auth")
    plugin.answer("on_auth", answer)
    harness.connect("one", authentication_method="M", expect=code)


def test_on_auth_that_never_answers(broker_harness: Make) -> None:
    harness, _ = one_plugin(broker_harness, "on_auth")
    harness.fail("recorder", "on_auth", "timeout")
    one = harness.connect("one", authentication_method="M", expect=None)
    harness.advance(5.1)
    assert one.expect(Connack).code == 0x80


# --- authorize: the wire ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "publish", "subscribe"),
    [
        (ReasonCode.NOT_AUTHORIZED, 0x87, 0x87),
        (ReasonCode.MESSAGE_RATE_TOO_HIGH, 0x97, 0x97),  # 0x96 is allowed in neither packet
        (ReasonCode.QUOTA_EXCEEDED, 0x97, 0x97),
        (ReasonCode.TOPIC_NAME_INVALID, 0x90, None),
        (ReasonCode.TOPIC_FILTER_INVALID, None, 0x8F),
    ],
)
@pytest.mark.parametrize("hook", ["authorize", "on_publish", "on_subscribe"])
def test_a_denial_has_a_code_the_packet_may_carry(
    broker_harness: Make, hook: str, code: ReasonCode, publish: int | None, subscribe: int | None
) -> None:
    harness, plugin = one_plugin(broker_harness, hook)
    plugin.answer(hook, Deny(code, "why not"))
    one = harness.connect("one")
    if publish is not None and hook != "on_subscribe":
        for qos, kind in ((1, Puback), (2, Pubrec)):
            number = one.publish("t", b"", qos)
            answer: Any = one.expect(kind)
            assert (answer.packet_id, answer.code) == (number, publish)
            assert answer.properties.reason_string == "why not"
        number = one.publish("t", b"", 2)  # a PUBREC of 0x80 or above has freed the id
        one.publish("t", b"", 2, packet_id=number)
        assert [one.expect(Pubrec).code for _ in range(2)] == [publish] * 2
        assert not harness.broker.sessions["one"].received
    if subscribe is not None and hook != "on_publish":
        answer = one.subscribe(["t", "$share/g/t"])
        assert answer.codes == (subscribe, subscribe)
        assert answer.properties.reason_string == "why not"


def test_no_reason_is_given_to_who_does_not_want_it(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "authorize")
    plugin.answer("authorize", Deny(reason="why not"))
    one = harness.connect("one", request_problem_information=0)
    one.publish("t", b"", 1)
    assert one.expect(Puback) == Puback(1, 0x87)
    assert one.subscribe("t").properties == Properties()


@pytest.mark.parametrize("hook", ["authorize", "on_publish"])
@pytest.mark.parametrize("version", [3, 4])
def test_a_denied_publish_of_3_x_is_acknowledged(
    broker_harness: Make, hook: str, version: int
) -> None:
    harness, plugin = one_plugin(broker_harness, hook)
    sub = harness.connect("sub")
    sub.subscribe("t", 2)
    plugin.answer(hook, Deny())
    one = harness.connect("one", version)
    one.publish("t", b"")
    one.publish("t", b"", 1, expect=0)
    one.publish("t", b"", 2, expect=0)  # PUBREC, PUBREL, PUBCOMP
    sub.expect_nothing()
    assert harness.metrics.dropped == {("denied", "in"): 3}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [3, 4])
def test_a_denied_publish_of_3_x_disconnects_where_that_is_configured(
    broker_harness: Make, version: int, qos: int
) -> None:
    config = {"broker": {"mqtt3_denied_publish": "disconnect"}}
    harness, plugin = one_plugin(broker_harness, "authorize", config=config)
    plugin.answer("authorize", Deny())
    one = harness.connect("one", version)
    one.publish("t", b"", qos)
    one.expect_closed()


@VERSIONS
def test_a_denied_subscribe(broker_harness: Make, version: int) -> None:
    harness, plugin = one_plugin(broker_harness, "authorize")
    plugin.answer(
        "authorize",
        lambda topic, action: Deny() if topic == "no" and action is Action.SUBSCRIBE else Allow(),
    )
    one = harness.connect("one", version)
    # MQTT 3.1 has no failure code: the client is granted its QoS and receives nothing.
    refused = {3: 1, 4: 0x80, 5: 0x87}[version]
    assert one.subscribe([("yes", 2), ("no", 1), ("yes/too", 0)]).codes == (2, refused, 0)
    pub = harness.connect("pub")
    pub.publish("no", b"", 1, expect=0x10)
    pub.publish("yes", b"", 1, expect=0)
    one.expect_message("yes")
    one.expect_nothing()


def test_a_denied_qos_0_vanishes(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "authorize")
    sub, one = harness.connect("sub"), harness.connect("one")
    sub.subscribe("t")
    plugin.answer("authorize", Deny())
    one.publish("t", b"")
    one.expect_nothing()
    sub.expect_nothing()
    assert harness.metrics.dropped == {("denied", "in"): 1}


@pytest.mark.parametrize("what", ["qos0", "qos1", "qos2", "subscribe"])
@pytest.mark.parametrize("hook", ["authorize", "on_publish", "on_subscribe"])
@VERSIONS
def test_deny_and_disconnect(broker_harness: Make, version: int, hook: str, what: str) -> None:
    if (hook == "on_publish") == (what == "subscribe") and hook != "authorize":
        what = "subscribe" if hook == "on_subscribe" else "qos1"
    harness, plugin = one_plugin(broker_harness, hook)
    plugin.answer(hook, Deny(ReasonCode.MESSAGE_RATE_TOO_HIGH, "slow down", disconnect=True))
    one = harness.connect("one", version)
    if what == "subscribe":
        one.send_subscribe(["a", "b"])
    else:
        one.publish("t", b"", int(what[-1]))
    packet = one.expect_disconnect(0x96)  # DISCONNECT has it
    if packet is not None:
        assert packet.properties.reason_string == "slow down"
    one.expect_closed()
    assert len(plugin.calls()) == 1


@FAULTS
@pytest.mark.parametrize("hook", ["authorize", "on_publish"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [3, 4])
def test_a_publish_of_3_x_that_nobody_could_decide_is_not_acknowledged(
    broker_harness: Make, version: int, qos: int, hook: str, fault: Any
) -> None:
    """If no plugin could decide on an MQTT 3 client's PUBLISH, it is not acknowledged. The client sends it again after
    reconnecting, and it is then delivered.
    """
    plugin = HookRecorder(hook)
    harness = broker_harness(plugins=[plugin])
    sub, one = harness.connect("sub"), harness.connect("one", version, False)
    sub.subscribe("t", 2) if hook == "on_publish" else None
    harness.fail("recorder", hook, fault)
    one.publish("t", b"x", qos, packet_id=7 if qos else None)
    harness.advance(3)
    if not qos:
        one.expect_nothing()  # at QoS 0, the client expects no acknowledgement
        return
    one.expect_closed()
    assert not [packet for packet in one.received if isinstance(packet, Puback | Pubrec)]
    assert not harness.broker.sessions["one"].received
    harness.heal()
    again = harness.connect("one", version, False)
    again.publish("t", b"x", qos, packet_id=7, dup=True)
    answer = again.expect(Puback) if qos == 1 else again.expect(Pubrec)
    assert answer.packet_id == 7
    if hook == "on_publish":
        sub.expect_message("t", b"x")


@FAULTS
@pytest.mark.parametrize("hook", ["authorize", "on_publish"])
def test_a_publish_that_nobody_could_decide(broker_harness: Make, hook: str, fault: Any) -> None:
    observer = HookRecorder("on_dropped", "on_denied", id="observer")
    plugin = HookRecorder(hook)
    harness = broker_harness(plugins=[plugin, observer])
    sub, one = harness.connect("sub"), harness.connect("one")
    sub.subscribe("t", 2) if hook == "on_publish" else None
    harness.fail("recorder", hook, fault)
    timeout = 0.25 if hook == "authorize" else 1.0
    one.publish("t", b"", 1)
    one.publish("t", b"", 2)
    if fault == "timeout":
        harness.advance(timeout - 0.01)
        one.expect_nothing()
        harness.advance(timeout + 0.02)
    assert one.expect(Puback).code == 0x83
    assert one.expect(Pubrec).code == 0x83
    sub.expect_nothing()
    reasons = [call.why for call in told(observer, harness, "on_dropped")]
    assert [(why.reason, why.direction, why.detail) for why in reasons] == [
        (DropReason.UNDECIDED, Direction.IN, "recorder")
    ] * 2
    assert {(call.code, call.rule) for call in observer.calls("on_denied")} == {(0x83, "recorder")}


@FAULTS
@pytest.mark.parametrize("hook", ["authorize", "on_subscribe"])
@VERSIONS
def test_a_subscribe_that_nobody_could_decide(
    broker_harness: Make, version: int, hook: str, fault: Any
) -> None:
    harness, _ = one_plugin(broker_harness, hook)
    harness.fail("recorder", hook, fault)
    one = harness.connect("one", version)
    one.send_subscribe(["a", "b"])
    harness.advance(2.5)
    if version == 3:  # MQTT 3.1 cannot express a refusal
        one.expect_closed()
        return
    refused = {4: 0x80, 5: 0x83}[version]
    assert one.expect(Suback).codes == (refused, refused)
    assert harness.broker.sessions["one"].subscriptions == {}


# --- on_publish ---------------------------------------------------------------------------------------------------------


# --- on_subscribe -------------------------------------------------------------------------------------------------------


def test_on_subscribe_is_given_the_subscription(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_subscribe")
    one = harness.connect("one")
    one.subscribe("$share/g/a/+", 1, retain_as_published=True, retain_handling=2, identifier=9)
    (call,) = plugin.calls()
    assert call.client is harness.broker.sessions["one"].client
    assert call.subscription == Subscription("$share/g/a/+", "a/+", 1, False, True, 2, 9, "g")


def test_on_subscribe_rewrites_and_unsubscribe_of_the_original_works(broker_harness: Make) -> None:
    plugin = HookRecorder("on_subscribe", "on_subscribed", "on_unsubscribed")
    plugin.answer(
        "on_subscribe",
        lambda subscription: subscription.replace(
            topic_filter="tenant/" + subscription.topic_filter, qos=1
        ),
    )
    harness = broker_harness(plugins=[plugin])
    one, pub = harness.connect("one"), harness.connect("pub")
    assert one.subscribe("t", 2).codes == (1,)
    pub.publish("t", b"", 1, expect=0x10)
    pub.publish("tenant/t", b"x", 2, expect=0)
    one.expect_message("tenant/t", b"x", 1)
    assert one.unsubscribe("tenant/t").codes == (0x11,)
    assert one.unsubscribe("t").codes == (0,)
    pub.publish("tenant/t", b"", 1, expect=0x10)
    subscribed, unsubscribed = told(plugin, harness, "on_subscribed", "on_unsubscribed")
    assert (subscribed.subscription.filter, subscribed.subscription.topic_filter) == (
        "t",
        "tenant/t",
    )
    assert subscribed.code == 1
    assert unsubscribed.subscription == subscribed.subscription


def test_a_rewritten_subscription_must_be_allowed_where_it_goes(broker_harness: Make) -> None:
    plugin = HookRecorder("authorize", "on_subscribe")
    forbidden = {"x/no"}
    plugin.answer("authorize", lambda topic: Deny() if topic in forbidden else Allow(max_qos=1))
    plugin.answer(
        "on_subscribe",
        lambda subscription: subscription.replace(topic_filter="x/" + subscription.topic_filter),
    )
    harness = broker_harness(plugins=[plugin])
    one = harness.connect("one", session_expiry_interval=60)
    assert one.subscribe(["t", "no", "$share/g/t"], 2).codes == (1, 0x87, 1)
    asked = [call.topic for call in plugin.calls("authorize")]
    assert asked == ["t", "x/t", "no", "x/no", "t", "x/t"]
    plugin.clear()
    one.reconnect()
    one.ping()
    assert [call.topic for call in plugin.calls("authorize")] == ["x/t", "x/t"]
    forbidden.add("x/t")
    harness.handle("recorder").invalidate_authz(filter="x/t")
    one.expect_disconnect(0x87)
    assert harness.broker.sessions["one"].subscriptions == {}


def test_a_rewrite_and_its_permission_may_both_be_awaited(broker_harness: Make) -> None:
    plugin = HookRecorder("authorize", "on_subscribe")
    harness = broker_harness(plugins=[plugin])

    async def later(answer: Any) -> Any:
        await harness.clock.sleep(0.1)
        return answer

    plugin.answer("authorize", lambda topic: later(Allow()))
    plugin.answer(
        "on_subscribe",
        lambda subscription: later(
            subscription.replace(topic_filter="x/" + subscription.topic_filter)
        ),
    )
    one = harness.connect("one")
    one.send_subscribe(["a", "b"], 1)
    one.publish("x/a", b"own", 1)
    harness.advance(0.55)
    one.expect_nothing()
    harness.advance(0.2)
    assert one.expect(Suback).codes == (1, 1)
    one.expect_message("x/a", b"own")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda subscription: subscription.replace(qos=2),
        lambda subscription: subscription.replace(filter="other"),
        lambda subscription: subscription.replace(retain_handling=3),
        lambda subscription: Drop(),
        lambda subscription: "text",
    ],
)
def test_on_subscribe_cannot_do_that(broker_harness: Make, wrong: Any) -> None:
    harness, plugin = one_plugin(broker_harness, "on_subscribe")
    plugin.answer("on_subscribe", wrong)
    one = harness.connect("one")
    assert one.subscribe("t", 1).codes == (0x83,)
    assert harness.broker.sessions["one"].subscriptions == {}


@pytest.mark.parametrize("filter", ["a/#/b", "", "a+"])
def test_on_subscribe_rewrites_to_no_filter(broker_harness: Make, filter: str) -> None:
    harness, plugin = one_plugin(broker_harness, "on_subscribe")
    plugin.answer("on_subscribe", lambda subscription: subscription.replace(topic_filter=filter))
    one = harness.connect("one")
    assert one.subscribe("t").codes[0] >= 0x80
    assert harness.broker.sessions["one"].subscriptions == {}


# --- on_deliver ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_on_deliver_is_asked_once_for_each_session(broker_harness: Make, qos: int) -> None:
    harness, plugin = one_plugin(broker_harness, "on_deliver")
    subs = [harness.connect(f"sub{number}", version) for number, version in enumerate((3, 4, 5))]
    for sub in subs:
        sub.subscribe(["t/#", "t/+"], 2)  # the filters overlap, but each client gets only one copy
    pub = harness.connect("pub")
    pub.publish("t/1", b"x", qos)
    pub.publish("elsewhere", b"x", qos)
    assert [call.client.client_id for call in plugin.calls()] == ["sub0", "sub1", "sub2"]
    for call in plugin.calls():
        assert (call.message.topic, call.message.payload) == ("t/1", b"x")
        assert call.subscription.filter in ("t/#", "t/+")
    assert [len(sub.messages) for sub in subs] == [1, 1, 1]


def test_on_deliver_is_asked_when_a_message_leaves_its_queue(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_deliver")
    sub = harness.connect("sub", session_expiry_interval=60)
    sub.subscribe("t", 1)
    sub.disconnect()
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1)
    assert plugin.calls() == []
    sub.reconnect()
    assert len(plugin.calls()) == 1


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("crash", [False, True])
def test_on_deliver_is_not_asked_again_and_the_same_packet_is_sent_again(
    broker_harness: Make, crash: bool, qos: int, queued: bool
) -> None:
    store = DurableStore()
    harness, plugin = one_plugin(broker_harness, "on_deliver", store=store)
    plugin.answer("on_deliver", lambda message: message.replace(payload=b"censored"))
    sub = harness.connect("sub", session_expiry_interval=60, auto_ack=False)
    other = harness.connect("other", session_expiry_interval=60)
    for client in (sub, other):
        client.subscribe("t", 2)
    if queued:
        sub.disconnect()
    other.disconnect()
    harness.connect("pub").publish("t", b"secret", qos)
    if queued:
        sub.reconnect()
    first = sub.expect_message("t", b"censored", qos, dup=False)
    if crash:
        harness.restart()
    sub.reconnect()
    again = sub.expect_message("t", b"censored", qos, dup=True)
    assert again.packet_id == first.packet_id
    assert len(plugin.calls()) == 1
    sub.reconnect(auto_ack=True)
    sub.expect_message("t", b"censored", qos)
    other.reconnect()  # each client gets its own copy, made from the original message
    other.expect_message("t", b"censored", qos)
    assert [call.message.payload for call in plugin.calls()] == [b"secret"] * 2
    harness.settle()
    assert (store.queues, store.messages) == ({}, {})


@pytest.mark.parametrize("version", [4, 5])
def test_on_deliver_replaces(broker_harness: Make, version: int) -> None:
    first, second = HookRecorder("on_deliver", id="a"), HookRecorder("on_deliver", id="b")
    first.answer(
        "on_deliver",
        lambda message, client: message.replace(payload=client.client_id.encode(), topic="to"),
    )
    second.answer(
        "on_deliver",
        lambda message: message.replace(
            payload=message.payload + b"!", properties=Properties(content_type="c")
        ),
    )
    harness = broker_harness(plugins=[first, second])
    subs = [harness.connect(name, version) for name in ("one", "two")]
    for sub in subs:
        sub.subscribe("t", 1)
    harness.connect("pub").publish("t", b"x", 1, retain=True, expect=0)
    for sub in subs:
        message = sub.expect_message("to", sub.client_id.encode() + b"!", 1)
        assert message.properties.content_type == ("c" if version == 5 else None)
    third = harness.connect("three", version)
    third.subscribe("t", 1)
    third.expect_message("to", b"three!", 1, retain=True)  # the retained message is the original


@pytest.mark.parametrize("expiry", [0, 60])
def test_on_deliver_for_the_next_member_begins_with_the_original(
    broker_harness: Make, expiry: int
) -> None:
    store = DurableStore()
    harness, plugin = one_plugin(broker_harness, "on_deliver", store=store)
    plugin.answer(
        "on_deliver",
        lambda client, message: message.replace(
            payload=message.payload + client.client_id.encode()
        ),
    )
    first = harness.connect("1", session_expiry_interval=expiry, auto_ack=False)
    first.subscribe("$share/g/t", 1)
    second = harness.connect("2", session_expiry_interval=expiry)
    second.subscribe("$share/g/t", 1)
    second.pause()
    second.connection.pause_writing()
    harness.connect("pub").publish("t", b"to ", 1)
    first.expect_message("t", b"to 1")
    second.connection.resume_writing()
    second.resume()
    first.drop()
    second.expect_message("t", b"to 2")
    assert store.messages == {}


@pytest.mark.parametrize("answer", [Drop(), Deny()])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry", [0, 60])
def test_on_deliver_drops(broker_harness: Make, answer: Any, qos: int, expiry: int) -> None:
    observer = HookRecorder("on_dropped", "on_delivered", id="observer")
    plugin = HookRecorder("on_deliver")
    plugin.answer("on_deliver", lambda client: answer if client.client_id == "two" else None)
    store = DurableStore()
    harness = broker_harness(plugins=[plugin, observer], store=store)
    subs = [
        harness.connect(name, session_expiry_interval=expiry) for name in ("one", "two", "three")
    ]
    for sub in subs:
        sub.subscribe("t", 2)
    # The publisher does not learn about it.
    harness.connect("pub").publish("t", b"x", qos, expect=0)
    assert [len(sub.messages) for sub in subs] == [1, 0, 1]
    (call,) = told(observer, harness, "on_dropped")
    assert (call.client.client_id, call.why.reason) == ("two", DropReason.PLUGIN)
    assert (call.why.direction, call.why.client_id) == (Direction.OUT, "two")
    assert len(observer.calls("on_delivered")) == 2
    assert store.queues == {}


@pytest.mark.parametrize("on_error", ["pass", "drop"])
@pytest.mark.parametrize("fault", [ValueError("broken"), 42, "awaitable"])
def test_on_deliver_that_fails(broker_harness: Make, fault: Any, on_error: Any) -> None:
    plugin = HookRecorder("on_deliver")
    options = {"on_deliver": HookOptions(on_error=on_error)}
    harness = broker_harness(plugins=[instance_of(plugin, hooks=options)])

    async def later() -> None:
        return None

    plugin.answer("on_deliver", (lambda: later()) if fault == "awaitable" else fault)
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 1)
    pub.publish("t", b"x", 1, expect=0)
    if on_error == "pass":
        sub.expect_message("t", b"x", 1)
    else:
        sub.expect_nothing()
        assert harness.metrics.dropped == {("plugin", "out"): 1}


# --- on_will ------------------------------------------------------------------------------------------------------------


def test_on_will_is_given_the_will_before_on_publish(broker_harness: Make) -> None:
    plugin = HookRecorder("on_will", "on_publish")
    plugin.answer("on_will", lambda message: message.replace(payload=b"edited"))
    harness = broker_harness(plugins=[plugin])
    watcher = harness.connect("watcher")
    watcher.subscribe("bye", 1)
    harness.connect("one", will=will("bye", b"x", 1, user_property=(("k", "v"),))).drop()
    assert [call.hook for call in plugin.calls()] == ["on_will", "on_publish"]
    (call,) = plugin.calls("on_will")
    assert (call.client.client_id, call.message.topic, call.message.payload) == ("one", "bye", b"x")
    assert (call.message.origin, call.message.sender) == ("will", "one")
    assert plugin.calls("on_publish")[0].message.payload == b"edited"
    assert watcher.expect_message("bye", b"edited", 1).properties.user_property == (("k", "v"),)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Drop(), DropReason.PLUGIN),
        (Deny(), DropReason.DENIED),
    ],
)
def test_on_will_keeps_a_will_back(broker_harness: Make, answer: Any, reason: DropReason) -> None:
    harness, plugin = one_plugin(broker_harness, "on_will", "on_dropped")
    plugin.answer("on_will", answer)
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    harness.connect("one", will=will("bye", b"x")).drop()
    watcher.expect_nothing()
    (call,) = told(plugin, harness, "on_dropped")
    assert (call.client.client_id, call.why.reason) == ("one", reason)
    assert len(plugin.calls("on_will")) == 1


@pytest.mark.parametrize("fault", [ValueError("broken"), "timeout"])
def test_a_will_waits_while_on_will_cannot_decide(broker_harness: Make, fault: Any) -> None:
    harness, _ = one_plugin(broker_harness, "on_will")
    harness.fail("recorder", "on_will", fault)
    watcher = harness.connect("watcher", keep_alive=0)
    watcher.subscribe("bye")
    harness.connect("one", will=will("bye", b"x")).drop()
    harness.advance(60)
    watcher.expect_nothing()
    assert harness.metrics.dropped == {}
    harness.advance(PATIENCE)
    watcher.expect_nothing()
    assert harness.metrics.dropped == {("undecided", "in"): 1}


# --- observers ----------------------------------------------------------------------------------------------------------


def test_on_session_tells_every_turn_of_its_life(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_session")

    def events() -> list[SessionEvent]:
        return [call.event for call in told(plugin, harness)]

    one = harness.connect("one", session_expiry_interval=10)
    assert events() == [SessionEvent.CREATED]
    one.drop()
    one.reconnect()
    harness.connect("one", session_expiry_interval=10, clean_start=False)
    assert events()[1:] == [SessionEvent.RESUMED, SessionEvent.TAKEN_OVER, SessionEvent.RESUMED]
    plugin.clear()
    again = harness.connect("one", session_expiry_interval=10)
    assert events() == [SessionEvent.TAKEN_OVER, SessionEvent.ENDED, SessionEvent.CREATED]
    plugin.clear()
    again.disconnect()
    harness.advance(11)
    assert events() == [SessionEvent.EXPIRED]
    plugin.clear()
    harness.connect("two").disconnect()
    assert events() == [SessionEvent.CREATED, SessionEvent.ENDED]
    assert {call.client.client_id for call in plugin.calls()} == {"two"}


def test_on_subscribed_and_on_unsubscribed(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_subscribed", "on_unsubscribed")
    one = harness.connect("one")
    one.subscribe([("a", 2), ("b/#", 0)])
    one.subscribe("a", 1)
    one.unsubscribe(["a", "never"])
    calls = told(plugin, harness)
    assert [(call.hook, call.subscription.filter) for call in calls] == [
        ("on_subscribed", "a"), ("on_subscribed", "b/#"), ("on_subscribed", "a"), ("on_unsubscribed", "a"),
    ]  # fmt: skip
    assert [call.code for call in calls[:3]] == [2, 0, 1]
    assert {call.client.client_id for call in calls} == {"one"}


def test_on_published_counts_what_matched(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_published")
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe(["t", "#"])
    harness.connect("away", session_expiry_interval=60).subscribe("t", 1)
    member = harness.connect("member")
    member.subscribe("$share/g/t")
    for topic, qos in (("t", 0), ("t", 1), ("t", 1), ("other", 2), ("t", 0)):
        pub.publish(topic, b"x", qos)
    harness.handle("recorder").publish("nobody/else", b"")
    calls = told(plugin, harness)
    assert [call.matched for call in calls] == [3, 3, 3, 1, 3, 1]
    assert [call.message.qos for call in calls] == [0, 1, 1, 2, 0, 0]
    clients = [call.client.client_id if call.client else None for call in calls]
    assert clients == ["pub"] * 5 + [None]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_has_its_acknowledgement_before_a_message_is_made_for_observers(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    harness, plugin = one_plugin(broker_harness, "on_published")
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 1)
    pub.publish("t", b"first", qos)
    order: list[str] = []
    make, write = make_message, pub.wire.write

    def made(*args: Any) -> Message:
        order.append("made")
        return make(*args)

    def written(data: bytes) -> None:
        order.append("written")
        write(data)

    monkeypatch.setattr(published_events, "make_message", made)
    monkeypatch.setattr(pub.wire, "write", written)
    pub.publish("t", b"second", qos, expect=0)
    assert order[:2] == ["written", "made"]
    calls = told(plugin, harness)
    assert [(one.message.payload, one.message.qos, one.matched) for one in calls] == [
        (b"first", qos, 1), (b"second", qos, 1),
    ]  # fmt: skip
    assert {one.client.client_id for one in calls} == {"pub"}


def test_observers_get_delayed_events_in_order(broker_harness: Make) -> None:
    hooks = ("on_published", "on_disconnect", "on_dropped", "on_retained")
    harness, plugin = one_plugin(broker_harness, *hooks)
    harness.connect("away", session_expiry_interval=60).subscribe("full/#")
    pub = harness.connect("pub")
    for topic in ("a", "b"):
        pub.publish(topic, b"", 1)
    told(plugin, harness)
    before = len(plugin.calls())
    packets = (
        Publish("a", b"1", 1, packet_id=1),
        Publish("k", b"2", 1, True, packet_id=2),
        Publish("b", b"3", 1, packet_id=3),
        Disconnect(),
    )
    pub.connection.feed(b"".join(encode(packet, pub.version) for packet in packets))
    seen = [
        (call.hook, b"" if call.hook == "on_disconnect" else call.message.payload)
        for call in told(plugin, harness)[before:]
    ]
    assert seen == [
        ("on_published", b"1"), ("on_retained", b"2"), ("on_published", b"2"), ("on_published", b"3"),
        ("on_disconnect", b""),
    ]  # fmt: skip


def test_delayed_events_are_passed_before_a_reload_replaces_observers(
    broker_harness: Make,
) -> None:
    harness, plugin = one_plugin(broker_harness, "on_published")
    pub = harness.connect("pub")
    pub.publish("t", b"first", 1)
    core = harness.broker.state
    pub.connection.feed(encode(Publish("t", b"second", 1, packet_id=9), pub.version))
    assert len(core.writes.later) == 1
    core.use(core.settings, core.hooks)
    assert core.writes.later == []
    assert [one.message.payload for one in told(plugin, harness)] == [b"first", b"second"]


def test_on_delivered_when_the_flow_is_complete(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_delivered", "on_dropped")
    sub = harness.connect("sub", auto_ack=False)
    sub.subscribe("t", 2)
    pub = harness.connect("pub")
    for qos in (0, 1, 2, 1, 2):
        pub.publish("t", b"%d" % qos, qos)

    def delivered() -> list[bytes]:
        return [call.message.payload for call in told(plugin, harness, "on_delivered")]

    assert delivered() == [b"0"]
    _, one, two, bad, worse = sub.messages
    sub.ack(two)
    assert delivered() == [b"0"]
    sub.send(Pubcomp(two.packet_id))
    assert delivered() == [b"0", b"2"]
    sub.ack(one)
    sub.ack(bad, 0x97)
    sub.ack(worse, 0x99)
    assert delivered() == [b"0", b"2", b"1"]
    dropped = told(plugin, harness, "on_dropped")
    assert [(call.why.reason, call.why.detail) for call in dropped] == [
        (DropReason.REFUSED, "0x97"), (DropReason.REFUSED, "0x99"),
    ]  # fmt: skip
    assert {call.client.client_id for call in plugin.calls()} == {"sub"}


def test_on_delivered_tells_the_qos_of_the_delivery(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_delivered")
    for granted in (0, 1, 2):
        harness.connect(f"sub{granted}").subscribe("t", granted)
    pub = harness.connect("pub")
    for qos in (0, 1, 2):
        pub.publish("t", b"x", qos)
    found = [
        (call.client.client_id, call.message.qos, call.qos)
        for call in told(plugin, harness, "on_delivered")
    ]
    assert sorted(found) == [
        (f"sub{granted}", qos, min(granted, qos)) for granted in (0, 1, 2) for qos in (0, 1, 2)
    ]


def test_on_dropped_tells_why(broker_harness: Make) -> None:
    plugin = HookRecorder("on_dropped")
    session = {"queue_messages": 1, "max_inflight": 1}
    harness = broker_harness(
        plugins=[plugin], config={"session": session, "broker": {"max_retained": 1}}
    )

    def last(count: int = 1) -> Any:
        calls = told(plugin, harness)
        assert len(calls) == count
        plugin.clear()
        why = calls[-1].why
        assert harness.metrics.dropped[why.reason, why.direction] >= 1
        client = calls[-1].client
        assert why.client_id == (client.client_id if client else None)
        return why.reason, why.direction, why.client_id, calls[-1].message.payload

    out = Direction.OUT
    pub = harness.connect("pub")
    sub = harness.connect("sub", session_expiry_interval=600, auto_ack=False)
    sub.subscribe("t", 1)
    for payload in (b"1", b"2", b"3"):
        pub.publish("t", payload, 1)
    assert last() == (DropReason.QUEUE_FULL, out, "sub", b"3")
    sub.disconnect()
    pub.publish("t", b"zero", 0)
    assert last() == (DropReason.OFFLINE_QOS0, out, "sub", b"zero")
    harness.connect("sub").disconnect()
    assert last(2)[:3] == (DropReason.SESSION_ENDED, out, "sub")

    small = harness.connect("small", maximum_packet_size=100)
    small.subscribe("t", 1)
    pub.publish("t", bytes(200), 1)
    assert last()[:3] == (DropReason.TOO_LARGE, out, "small")
    small.disconnect()

    late = harness.connect("late", session_expiry_interval=600)
    late.subscribe("t", 1)
    late.disconnect()
    pub.publish("t", b"old", 1, message_expiry_interval=5)
    harness.advance(6)
    late.reconnect()
    assert last() == (DropReason.EXPIRED, out, "late", b"old")
    late.disconnect(session_expiry_interval=0)

    slow = harness.connect("slow", high_water=100)
    slow.subscribe("t", 0)
    slow.pause()
    pub.publish("t", bytes(200), 0)
    pub.publish("t", b"waits", 0)
    slow.drop()
    assert last() == (DropReason.CLIENT_LEFT, out, "slow", b"waits")

    pub.publish("keep/1", b"x", retain=True)
    pub.publish("keep/2", b"y", retain=True)
    assert last()[0:2] == (DropReason.RETAIN_LIMIT, Direction.IN)


def test_on_retained(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_retained")
    pub = harness.connect("pub")
    for topic, payload in (("a", b"1"), ("a", b"2"), ("b", b""), ("a", b""), ("a", b"")):
        pub.publish(topic, payload, retain=True)
    pub.publish("c", b"not retained")
    calls = told(plugin, harness)
    assert [(call.topic, call.message and call.message.payload) for call in calls] == [
        ("a", b"1"), ("a", b"2"), ("a", None),
    ]  # fmt: skip


def test_on_auth_failed_at_re_authentication(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_auth", "on_auth_failed")
    plugin.answer("on_auth", Accept("alice"), Deny(ReasonCode.NOT_AUTHORIZED, "expired"))
    method = Properties(authentication_method="M")
    one = harness.connect("one", properties=method)
    one.send(Auth(ReasonCode.RE_AUTHENTICATE, method))
    one.expect_disconnect(0x87)
    (call,) = told(plugin, harness, "on_auth_failed")
    assert (call.client.client_id, call.code, call.reason) == ("one", 0x87, "expired")


def test_on_denied_names_the_rule(broker_harness: Make) -> None:
    acl, observer = HookRecorder("authorize", "on_publish", id="acl"), HookRecorder("on_denied")
    harness = broker_harness(plugins=[acl, observer])
    acl.answer(
        "authorize", lambda topic: Deny(ReasonCode.QUOTA_EXCEEDED) if topic == "t" else Allow()
    )
    acl.answer("on_publish", Deny())
    one = harness.connect("one")
    one.publish("t", b"", 1)
    one.publish("u", b"", 0)
    one.subscribe("t")
    one.publish("$SYS/x")
    calls = told(observer, harness)
    assert [(call.action, call.topic, call.code, call.rule) for call in calls] == [
        (Action.PUBLISH, "t", 0x97, "acl"),
        (Action.PUBLISH, "u", 0x87, "acl"),
        (Action.SUBSCRIBE, "t", 0x97, "acl"),
        (Action.PUBLISH, "$SYS/x", 0x87, "broker"),
    ]
    assert {call.client.client_id for call in calls} == {"one"}


def _goodbye(harness: Harness, client: MemoryClient) -> None:
    client.disconnect()


def _goodbye_with_will(harness: Harness, client: MemoryClient) -> None:
    client.disconnect(4)


def _vanish(harness: Harness, client: MemoryClient) -> None:
    client.drop("connection reset by peer")


def _silence(harness: Harness, client: MemoryClient) -> None:
    harness.advance(16)


def _nonsense(harness: Harness, client: MemoryClient) -> None:
    client.raw(b"\x00\x00")


def _taken_over(harness: Harness, client: MemoryClient) -> None:
    harness.connect("one")


def _kicked(harness: Harness, client: MemoryClient) -> None:
    assert harness.handle("recorder").disconnect("one", reason="go")


def _kicked_without_will(harness: Harness, client: MemoryClient) -> None:
    assert harness.handle("recorder").disconnect("one", ReasonCode.QUOTA_EXCEEDED, drop_will=True)


@pytest.mark.parametrize(
    ("end", "code", "by", "fires", "error"),
    [
        (_goodbye, 0x00, EndedBy.CLIENT, False, ""),
        (_goodbye_with_will, 0x04, EndedBy.CLIENT, True, ""),
        (_vanish, 0x80, EndedBy.NETWORK, True, "connection reset by peer"),
        (_silence, 0x8D, EndedBy.NETWORK, True, None),
        (_nonsense, 0x81, EndedBy.SERVER, True, None),
        (_taken_over, 0x8E, EndedBy.TAKEOVER, True, None),
        (_kicked, 0x98, EndedBy.SERVER, True, "go"),
        (_kicked_without_will, 0x97, EndedBy.SERVER, False, ""),
    ],
)
def test_on_disconnect_tells_how_it_ended(
    broker_harness: Make,
    end: Callable[[Harness, MemoryClient], None],
    code: int,
    by: EndedBy,
    fires: bool,
    error: str | None,
) -> None:
    harness, plugin = one_plugin(broker_harness, "on_disconnect")
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    one = harness.connect("one", keep_alive=10, will=will("bye"))
    end(harness, one)
    (call,) = told(plugin, harness)
    assert call.client.client_id == "one"
    assert (call.reason.code, call.reason.by, call.reason.will) == (code, by, fires)
    if error is None:
        assert call.reason.error
    else:
        assert call.reason.error == error
    assert len(watcher.messages) == fires


def test_on_disconnect_is_only_for_who_was_accepted(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_disconnect", "on_connect")
    plugin.answer("on_connect", Deny())
    harness.connect("one", expect=0x87)
    harness.open().raw(b"GET / HTTP/1.1\r\n\r\n")
    harness.open().drop()
    assert told(plugin, harness, "on_disconnect") == []


def test_observers_that_fail_are_nobody_elses_problem(broker_harness: Make) -> None:
    hooks = ("on_session", "on_published", "on_delivered", "on_disconnect", "on_subscribed")
    broken, fine = HookRecorder(*hooks, id="broken"), HookRecorder(*hooks, id="fine")
    for hook in hooks:
        broken.answer(hook, ValueError("broken"))
    harness = broker_harness(plugins=[broken, fine])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 1)
    pub.publish("t", b"x", 1, expect=0)
    sub.expect_message("t", b"x")
    pub.disconnect()
    seen = [call.hook for call in told(fine, harness)]
    assert [seen.count(hook) for hook in hooks] == [3, 1, 1, 1, 1]


# --- lifecycle and providers --------------------------------------------------------------------------------------------


def test_on_startup_on_ready_and_on_shutdown(broker_harness: Make) -> None:
    plugin = HookRecorder("on_startup", "on_ready", "on_shutdown")
    harness = broker_harness(plugins=[plugin])
    assert [call.hook for call in plugin.calls()] == ["on_startup", "on_ready"]
    assert plugin.calls()[0].broker is harness.handle("recorder")
    harness.close()
    assert [call.hook for call in plugin.calls()] == ["on_startup", "on_ready", "on_shutdown"]


def test_provide_store_and_provide_journal(broker_harness: Make) -> None:
    plugin = HookRecorder("provide_store", "provide_journal")
    store, journal = MemoryStore("mine"), RecordingJournal()
    plugin.answer("provide_store", store)
    plugin.answer("provide_journal", journal)
    harness = broker_harness(plugins=[plugin])
    assert harness.broker.state.store is store
    harness.connect("pub").publish("t", b"x", 1, expect=0)
    assert journal.topics == ["t"]
    assert [call.config for call in plugin.calls()] == [harness.settings] * 2


# --- unused hooks cost nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("hooks", [(), ("on_connect", "on_session", "on_disconnect", "on_will")])
def test_a_message_that_no_plugin_wants_is_never_made(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch, hooks: tuple[str, ...], qos: int
) -> None:
    plugins = [HookRecorder(*hooks)] if hooks else []
    harness = broker_harness(plugins=plugins)
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 2)
    pub.publish("t", b"first", qos)
    assert set(pub.connection.memo) == {b"t"}
    chains = pub.connection.chains
    assert chains.on_publish == chains.on_deliver == ()
    assert not any(chains.authorize.values())

    def made(*args: Any, **options: Any) -> Message:
        raise AssertionError("a message was made")

    monkeypatch.setattr(inbound, "make_message", made)
    for number in range(5):
        pub.publish("t", b"%d" % number, qos, expect=0)
        sub.expect_message("t")
    assert sub.messages[-1].payload == b"4"


@pytest.mark.parametrize("hook", ["on_publish", "on_deliver", "on_published", "on_delivered"])
def test_a_plugin_that_wants_messages_gets_every_one(broker_harness: Make, hook: str) -> None:
    harness, plugin = one_plugin(broker_harness, hook)
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 2)
    for number in range(4):
        for qos in (0, 1, 2):
            pub.publish("t", b"%d" % number, qos)
    calls = told(plugin, harness)
    assert len(calls) == 12
    assert sorted(call.message.payload for call in calls) == sorted(
        b"%d" % number for number in range(4) for _ in range(3)
    )
    assert [packet.__class__ for packet in sub.received].count(Publish) == 12
    stats = harness.hooks.instance("recorder")
    assert stats is not None
    assert stats.stats(hook).calls == 12


def test_on_event_is_told_what_a_plugin_emits(broker_harness: Make) -> None:
    plugin, observer = HookRecorder("authorize", id="limits"), HookRecorder("on_event", id="o")
    plugin.answer("authorize", Allow())
    harness = broker_harness(plugins=[plugin, observer])
    handle = harness.handle("limits")
    harness.connect("one")
    client = handle.client("one")
    handle.emit("ratelimit.banned", client, seconds=60, event="a field of that name")
    handle.emit("ratelimit.limited")
    harness.settle()
    told = [(c.client, c.event, dict(c.fields), c.plugin) for c in observer.calls()]
    assert told == [
        (client, "ratelimit.banned", {"seconds": 60, "event": "a field of that name"}, "limits"),
        (None, "ratelimit.limited", {}, "limits"),
    ]
    with pytest.raises(TypeError):
        observer.calls()[0].fields["seconds"] = 1
    for wrong in ("banned", "banned.", ""):
        with pytest.raises(PluginError, match="dot"):
            handle.emit(wrong)


def test_events_that_answer_events_end(broker_harness: Make) -> None:
    observer = HookRecorder("on_event", id="loop")
    harness = broker_harness(plugins=[observer], config={"broker": {"publish_depth": 3}})

    async def again() -> None:
        harness.handle("loop").emit("loop.again")

    observer.answer("on_event", again)
    harness.handle("loop").emit("loop.first")
    harness.settle()
    assert [call.event for call in observer.calls()] == ["loop.first"] + ["loop.again"] * 2
