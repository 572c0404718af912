"""Test how a plugin subscribes a client. The checks, hooks, records and retained messages are the same as for
SUBSCRIBE.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.client import Scope
from hookmq.model.errors import PluginError
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.plugin import ClientRequest
from hookmq_testing import DurableStore, Harness, HookRecorder, SlowStore

Make = Callable[..., Harness]


@pytest.fixture
def mine() -> HookRecorder:
    return HookRecorder("on_subscribe", id="mine")


@pytest.fixture
def other() -> HookRecorder:
    return HookRecorder(
        "authorize", "on_subscribe", "on_subscribed", "on_denied", "on_event", id="other"
    )


@pytest.fixture
def harness(broker_harness: Make, mine: HookRecorder, other: HookRecorder) -> Harness:
    return broker_harness(plugins=[mine, other])


def subscribe(harness: Harness, client_id: str, filter: str, *more: Any, **how: Any) -> Any:
    return harness.clock.run(harness.handle("mine").subscribe(client_id, filter, *more, **how))


def reported(harness: Harness, other: HookRecorder) -> list[tuple[str, dict[str, object]]]:
    """Return the events that `on_event` received, after checking that the log contains the same events."""
    calls = [
        (call.event, {"client_id": call.client.client_id, **call.fields})
        for call in other.calls("on_event")
    ]
    for event, fields in calls:
        assert {"plugin": "mine", **fields} in harness.logged(event)
    return calls


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_online_client(
    harness: Harness, mine: HookRecorder, other: HookRecorder, qos: int
) -> None:
    one, pub = harness.connect("one"), harness.connect("pub")
    pub.publish("t/1", b"kept", 2, retain=True)
    other.clear()
    assert subscribe(harness, "one", "t/#", qos) == ReasonCode(qos)
    one.expect_message("t/1", b"kept", qos, retain=True)
    pub.publish("t/2", b"live", 2)
    one.expect_message("t/2", b"live", qos, retain=False)
    assert not mine.calls("on_subscribe")  # a plugin is not asked about its own subscriptions
    assert [call.subscription.filter for call in other.calls("on_subscribe")] == ["t/#"]
    assert [call.code for call in other.calls("on_subscribed")] == [ReasonCode(qos)]
    # Only for the PUBLISH by `pub`.
    assert [c.action for c in other.calls("authorize")] == ["publish"]
    assert reported(harness, other) == [
        ("broker.subscribed", {"client_id": "one", "filter": "t/#", "qos": qos})
    ]
    assert one.unsubscribe("t/#").codes == (0,)  # it is the client's own subscription


def test_an_offline_client(broker_harness: Make, mine: HookRecorder) -> None:
    store = DurableStore()
    harness = broker_harness(plugins=[mine], store=store)
    one, pub = harness.connect("one", session_expiry_interval=60), harness.connect("pub")
    pub.publish("t/1", b"kept", 1, retain=True)
    one.disconnect()
    assert subscribe(harness, "one", "t/#", 1) == 1
    pub.publish("t/2", b"queued", 1)
    one.reconnect()
    one.expect_message("t/2", b"queued", 1)
    one.expect_message("t/1", b"kept", 1, retain=True)
    one.expect_nothing()
    one.disconnect()
    harness.restart()
    harness.connect("pub").publish("t/3", b"after", 1)
    one.reconnect()
    one.expect_message("t/3", b"after")
    one.expect_nothing()


def test_the_options_count(harness: Harness) -> None:
    one, pub = harness.connect("one"), harness.connect("pub")
    pub.publish("t", b"kept", retain=True)
    subscribe(
        harness, "one", "t", no_local=True, retain_as_published=True, retain_handling=2, identifier=7
    )  # fmt: skip
    one.expect_nothing()
    one.publish("t", b"own")
    one.expect_nothing()
    pub.publish("t", b"new", retain=True)
    got = one.expect_message("t", b"new", retain=True)
    assert got.properties.subscription_identifier == (7,)


def test_retain_handling_1_sends_to_new_subscriptions_only(harness: Harness) -> None:
    one, pub = harness.connect("one"), harness.connect("pub")
    pub.publish("t", b"kept", retain=True)
    subscribe(harness, "one", "t", retain_handling=1)
    one.expect_message("t", b"kept")
    subscribe(harness, "one", "t", 1, retain_handling=1)
    one.expect_nothing()


def test_shared_subscriptions(harness: Harness) -> None:
    one, two, pub = (harness.connect(name) for name in ("one", "two", "pub"))
    for name in ("one", "two"):
        assert subscribe(harness, name, "$share/g/t", 1) == 1
    for number in range(4):
        pub.publish("t", b"%d" % number, 1)
    assert len(one.messages) == len(two.messages) == 2


def test_below_the_mount_point_of_its_listener(broker_harness: Make, mine: HookRecorder) -> None:
    harness = broker_harness(plugins=[mine])
    one = harness.connect("one", scope=Scope("tenants", "a/"))
    subscribe(harness, "one", "t")
    harness.connect("pub").publish("t", b"not its own")
    harness.connect("pub2").publish("a/t", b"x")
    one.expect_message("t", b"x")
    one.expect_nothing()


def test_the_answer_waits_for_the_commit(broker_harness: Make, mine: HookRecorder) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(plugins=[mine], store=store)
    harness.connect("pub").publish("t", b"kept", retain=True)
    one = harness.connect("one", session_expiry_interval=60)
    store.slow = True
    ended: list[object] = []
    awaited: Awaitable[Any] = harness.handle("mine").subscribe("one", "t", 1)
    harness.clock.spawn(awaited, lambda result, error: ended.append((result, error)))
    harness.settle()
    assert not ended
    one.expect_nothing()
    store.finish()
    harness.settle()
    assert ended == [(ReasonCode(1), None)]
    one.expect_message("t", b"kept")


def test_it_is_made_even_if_nothing_awaits_it(harness: Harness) -> None:
    one = harness.connect("one")
    harness.handle("mine").subscribe("one", "t")
    harness.settle()
    harness.connect("pub").publish("t", b"x")
    one.expect_message("t", b"x")


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_authorize_is_asked_on_request(harness: Harness, other: HookRecorder) -> None:
    one = harness.connect("one")
    other.answer("authorize", Deny(), Allow(max_qos=1))
    assert subscribe(harness, "one", "t", 2, authorize=True) is ReasonCode.NOT_AUTHORIZED
    assert not harness.broker.sessions["one"].subscriptions
    (denied,) = other.calls("on_denied")
    assert (denied.client.client_id, denied.topic, denied.rule) == ("one", "t", "other")
    assert subscribe(harness, "one", "t", 2, authorize=True) == 1
    events = [
        ("broker.subscribe_refused", {"client_id": "one", "filter": "t", "code": "0x87", "reason": ""}),
        ("broker.subscribed", {"client_id": "one", "filter": "t", "qos": 1}),
    ]  # fmt: skip
    assert reported(harness, other) == events
    assert not one.closed


def test_on_subscribe_may_refuse_and_change_it(harness: Harness, other: HookRecorder) -> None:
    one = harness.connect("one")
    other.answer("on_subscribe", Deny(ReasonCode.QUOTA_EXCEEDED, "no more", disconnect=True))
    assert subscribe(harness, "one", "t") is ReasonCode.QUOTA_EXCEEDED
    assert not one.closed  # the client did not request this subscription
    other.answer("on_subscribe", lambda subscription: subscription.replace(topic_filter="moved"))
    assert subscribe(harness, "one", "t") is ReasonCode.SUCCESS
    harness.connect("pub").publish("moved", b"x")
    one.expect_message("moved", b"x")


@pytest.mark.parametrize(
    ("section", "how", "code"),
    [
        ({"session": {"max_subscriptions": 1}}, {}, ReasonCode.QUOTA_EXCEEDED),
        ({"session": {"subscription_bytes": 4}}, {}, ReasonCode.QUOTA_EXCEEDED),
        ({"broker": {"wildcard_available": False}}, {}, ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
        (
            {"broker": {"subscription_identifiers_available": False}}, {"identifier": 1},
            ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("online", [True, False])
def test_the_limits_of_clients(
    broker_harness: Make, mine: HookRecorder, other: HookRecorder,
    section: dict[str, Any], how: dict[str, Any], code: ReasonCode, online: bool,
) -> None:  # fmt: skip
    harness = broker_harness(plugins=[mine, other], config=section)
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe("a")
    if not online:
        one.disconnect()
    before = dict(harness.broker.sessions["one"].subscriptions)
    assert subscribe(harness, "one", "abcd/+", **how) is code
    assert harness.broker.sessions["one"].subscriptions == before
    ((event, fields),) = reported(harness, other)
    assert (event, fields["code"]) == ("broker.subscribe_refused", f"0x{code:02X}")


def test_a_client_without_a_session(harness: Harness) -> None:
    with pytest.raises(PluginError, match="cannot subscribe: client 'nobody' has no session"):
        subscribe(harness, "nobody", "t")


def test_a_session_that_ends_while_a_plugin_decides(harness: Harness, other: HookRecorder) -> None:
    one = harness.connect("one")

    async def leave() -> None:
        one.disconnect()

    other.answer("on_subscribe", lambda: leave())
    with pytest.raises(PluginError, match="the session of client 'one' has ended"):
        subscribe(harness, "one", "t")
    assert not harness.broker.state.router.lookup("t").matched


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client_id": b"c"}, "client_id is bytes, not str"),
        ({"filter": 5}, "filter is int, not str"),
        ({"filter": "a/#/b"}, "'#' is not the whole last level"),
        ({"qos": 3}, "QoS 3: expected 0, 1 or 2"),
        ({"qos": "1"}, "QoS is str, not int"),
        ({"no_local": 1}, "no_local is int, not bool"),
        ({"retain_as_published": None}, "retain_as_published is NoneType, not bool"),
        ({"retain_handling": 3}, "retain_handling 3: expected 0, 1 or 2"),
        ({"identifier": 0}, "identifier 0: expected 1 to 268435455"),
        ({"identifier": "1"}, "identifier is str, not int | None"),
        ({"filter": "$share/g/t", "no_local": True}, "is a shared subscription and cannot be no_local"),
        ({"authorize": 1}, "authorize is int, not bool"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused_at_once(
    harness: Harness, changes: dict[str, Any], words: str
) -> None:
    harness.connect("c")
    given = {"client_id": "c", "filter": "t"} | changes
    with pytest.raises(PluginError) as refused:
        harness.handle("mine").subscribe(**given)
    assert str(refused.value).startswith("plugin 'mine': cannot subscribe: ")
    assert words in str(refused.value)
    harness.settle()
    assert not harness.broker.sessions["c"].subscriptions


def test_subscriptions_of_its_own_clients_are_logged_at_debug_level(
    harness: Harness, mine: HookRecorder, other: HookRecorder
) -> None:
    """A plugin may often subscribe its own clients, so the broker logs this at debug level. Subscriptions of other
    clients, including those of other plugins, are logged at info level.
    """
    for owner, level in (("mine", "debug"), ("other", "info")):
        client = harness.clock.run(harness.handle(owner).connect(ClientRequest(f"of-{owner}")))
        harness.logs.clear()
        subscribe(harness, client.client_id, "t/#", 0)
        harness.clock.run(harness.handle("mine").unsubscribe(client.client_id, "t/#"))
        found = [(one, event) for one, event, _ in harness.logs if event.startswith("broker.")]
        assert found == [(level, "broker.subscribed"), (level, "broker.unsubscribed")]
