"""Test how a plugin publishes messages and waits until they are committed."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Deny, Drop
from hookmq.model.client import ClientInfo, Scope
from hookmq.model.errors import PluginError
from hookmq.model.events import DropReason
from hookmq.model.message import Message
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import DurableStore, Harness, HookRecorder, SlowStore
from hookmq_testing.runtime import EPOCH

Make = Callable[..., Harness]


@pytest.fixture
def mine() -> HookRecorder:
    return HookRecorder("on_publish", id="mine")


@pytest.fixture
def other() -> HookRecorder:
    return HookRecorder("on_publish", "authorize", "on_published", "on_dropped", id="other")


@pytest.fixture
def harness(broker_harness: Make, mine: HookRecorder, other: HookRecorder) -> Harness:
    return broker_harness(plugins=[mine, other])


class Told:
    """Records the result of an awaitable."""

    def __init__(self, harness: Harness, awaitable: Awaitable[Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.cancel = harness.clock.spawn(awaitable, self._told)

    def _told(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error


def test_it_bears_the_name_of_its_plugin(
    harness: Harness, mine: HookRecorder, other: HookRecorder
) -> None:
    sub = harness.connect("sub")
    sub.subscribe("t", 2)
    other.clear()
    properties = Properties(content_type="c", message_expiry_interval=9, topic_alias=4)
    harness.handle("mine").publish("t", b"x", 1, properties=properties)
    assert other.calls() == []  # in a later turn, so that nothing happens within the plugin's call
    sub.expect_message("t", b"x", 1, retain=False)
    assert mine.calls() == []  # its own on_publish is skipped
    assert other.calls("authorize") == []  # the operator who configured the plugin trusts it
    (asked,) = other.calls("on_publish")
    message: Message = asked.message
    assert asked.client is None
    assert (message.sender, message.origin, message.received_at) == (None, "plugin:mine", EPOCH)
    assert message.properties == Properties(content_type="c", message_expiry_interval=9)
    assert message.expires_at == EPOCH + 9
    (published,) = other.calls("on_published")
    assert (published.client, published.matched) == (None, 1)
    assert published.message is message


def test_others_may_replace_drop_or_deny_it(harness: Harness, other: HookRecorder) -> None:
    sub = harness.connect("sub")
    sub.subscribe("#")
    broker = harness.handle("mine")
    other.answer("on_publish", lambda message: message.replace(topic="moved", payload=b"y"))
    broker.publish("t", b"x")
    sub.expect_message("moved", b"y")
    other.answer("on_publish", Drop())
    broker.publish("t", b"x")
    harness.settle()
    other.answer("on_publish", Deny(ReasonCode.QUOTA_EXCEEDED))
    broker.publish("t", b"x")
    harness.settle()
    sub.expect_nothing()
    dropped = [
        (call.client, call.why.reason, call.why.detail) for call in other.calls("on_dropped")
    ]
    assert dropped == [(None, DropReason.PLUGIN, "other"), (None, DropReason.DENIED, "other")]
    (refused,) = harness.logged("publish.refused")
    assert (refused["plugin"], refused["topic"], refused["code"]) == ("mine", "t", "0x97")


def test_retained_and_for_sessions_that_are_away(harness: Harness) -> None:
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe("t", 1)
    away.disconnect()
    harness.handle("mine").publish("t", b"x", 2, retain=True)
    harness.settle()
    away.reconnect()
    away.expect_message("t", b"x", 1)
    late = harness.connect("late")
    late.subscribe("t")
    late.expect_message("t", b"x", 0, retain=True)


def test_plugins_may_publish_below_sys(harness: Harness) -> None:
    sub = harness.connect("sub")
    sub.subscribe(["$SYS/#", "#"])
    harness.handle("mine").publish("$SYS/broker/uptime", b"1")
    sub.expect_message("$SYS/broker/uptime", b"1")
    sub.expect_nothing()


@pytest.mark.parametrize(
    ("topic", "payload", "qos"),
    [
        ("a/#", b"", 0),
        ("", b"", 0),
        ("+", b"", 0),
        ("a\0", b"", 0),
        ("t", "text", 0),
        ("t", b"", 3),
    ],
)
def test_invalid_topics_and_qos_are_refused_at_once(
    harness: Harness, topic: str, payload: Any, qos: int
) -> None:
    broker = harness.handle("mine")
    with pytest.raises(PluginError):
        broker.publish(topic, payload, qos)
    with pytest.raises(PluginError):
        broker.publish_and_wait(topic, payload, qos)
    harness.settle()
    assert not harness.clock.tasks


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": 5}, "topic is int, not str"),
        ({"qos": 1.0}, "QoS is float, not int"),
        ({"payload": "text"}, "payload is str, not bytes"),
        ({"retain": 1}, "retain is int, not bool"),
        ({"properties": {}}, "properties is dict, not Properties"),
        ({"as_client": "one"}, "as_client is str, not "),
        ({"volatile": 1}, "volatile is int, not bool"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_at_once(
    harness: Harness, changes: dict[str, Any], words: str
) -> None:
    """Both builds refuse arguments of the wrong type at once. An error in a later turn would be
    invisible to the plugin.
    """
    broker = harness.handle("mine")
    given: dict[str, Any] = {"topic": "t", "payload": b"x"} | changes
    for publish in (broker.publish, broker.publish_and_wait):
        with pytest.raises(PluginError, match=f"plugin 'mine': cannot publish: {words}"):
            publish(**given)
    harness.settle()
    assert not harness.clock.tasks


@pytest.mark.parametrize("as_client", [True, False])
def test_a_message_has_the_limit_of_a_publish(
    broker_harness: Make, mine: HookRecorder, as_client: bool
) -> None:
    """The limit applies to the size of the message as an MQTT 5 packet. In this test, the header takes 3 bytes, the
    topic 3 and the packet id 2.
    """
    harness = broker_harness(plugins=[mine], config={"broker": {"max_packet_size": 1000}})
    harness.connect("one")
    client = client_of(harness) if as_client else None
    sub = harness.connect("sub")
    sub.subscribe("#", 1)
    broker = harness.handle("mine")
    properties = Properties(content_type="x" * 17)  # 21 bytes with its length
    broker.publish("a", bytes(1000 - 8 - 21), 1, properties=properties, as_client=client)
    assert len(sub.expect_message("a").payload) == 971
    broker.publish("a", bytes(1000 - 9), 1, as_client=client)
    assert len(sub.expect_message("a").payload) == 991
    too_large = r"cannot publish: the packet of 1001 bytes exceeds broker.max_packet_size, 1000"
    for publish in (broker.publish, broker.publish_and_wait):
        with pytest.raises(PluginError, match=too_large):
            publish("a", bytes(1000 - 8), 1, as_client=client)
        with pytest.raises(PluginError, match=too_large):
            publish("a", bytes(972), 1, properties=properties, as_client=client)
    sub.expect_nothing()


def test_a_reload_lowers_the_limit_only_for_new_connections(
    broker_harness: Make, mine: HookRecorder
) -> None:
    """After a reload lowers the limit, a plugin may still publish messages as large as older connections may send."""
    harness = broker_harness(plugins=[mine], config={"broker": {"max_packet_size": 1000}})
    harness.reload(config={"broker": {"max_packet_size": 500}})
    harness.handle("mine").publish("a", bytes(900))
    with pytest.raises(PluginError, match=r"exceeds broker.max_packet_size, 1000"):
        harness.handle("mine").publish("a", bytes(1000))


# --- waiting ------------------------------------------------------------------------------------------------------------


def test_publish_and_wait_tells_how_many_matched(harness: Harness) -> None:
    harness.connect("sub").subscribe("t")
    harness.connect("sub2").subscribe("#")
    broker = harness.handle("mine")
    assert harness.clock.run(broker.publish_and_wait("t", b"x")) == 2
    assert harness.clock.run(broker.publish_and_wait("nobody/home", b"x")) == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_publish_and_wait_waits_for_the_commit(
    broker_harness: Make, mine: HookRecorder, qos: int
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(plugins=[mine], store=store)
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe("t", 1)
    away.disconnect()
    store.slow = True
    told = Told(harness, harness.handle("mine").publish_and_wait("t", b"x", qos))
    harness.settle()
    assert told.done == (qos == 0)  # at QoS 0, nothing is stored
    store.finish()
    harness.settle()
    assert (told.done, told.result) == (True, 1)


def test_publish_and_wait_is_sent_whether_awaited_or_not(harness: Harness) -> None:
    sub = harness.connect("sub")
    sub.subscribe("t")
    harness.handle("mine").publish_and_wait("t", b"x")
    sub.expect_message("t", b"x")


@pytest.mark.parametrize("answer", [Deny(ReasonCode.QUOTA_EXCEEDED), ValueError("broken")])
def test_publish_and_wait_raises_when_it_was_refused(
    harness: Harness, other: HookRecorder, answer: Any
) -> None:
    other.answer("on_publish", answer)
    with pytest.raises(PluginError, match="refused"):
        harness.clock.run(harness.handle("mine").publish_and_wait("t", b"x"))


def test_publish_and_wait_of_what_was_dropped(harness: Harness, other: HookRecorder) -> None:
    other.answer("on_publish", Drop())
    assert harness.clock.run(harness.handle("mine").publish_and_wait("t", b"x")) == 0


@pytest.mark.parametrize("when", ["at once", "before the commit"])
def test_a_cancelled_publish_and_wait_gets_no_result(
    broker_harness: Make, mine: HookRecorder, when: str
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(plugins=[mine], store=store)
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe("t", 1)
    away.disconnect()
    store.slow = True
    told = Told(harness, harness.handle("mine").publish_and_wait("t", b"x", 1))
    harness.clock.turn()
    if when == "before the commit":
        harness.settle()
    told.cancel()
    store.finish()
    harness.settle()
    store.finish()
    assert not told.done
    assert not harness.clock.tasks
    away.reconnect(expect=None)
    store.finish()
    harness.settle()
    store.finish()
    away.expect_message("t", b"x")
    assert not harness.logged("internal.error")


def test_a_hook_may_wait_for_what_it_publishes(harness: Harness, mine: HookRecorder) -> None:
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("#", 1)

    async def copy(message: Message) -> Message:
        matched = await harness.handle("mine").publish_and_wait("copy/" + message.topic, b"", 1)
        return message.replace(payload=b"%d" % matched)

    mine.answer("on_publish", lambda message: copy(message))
    pub.publish("t", b"x", 1, expect=0)
    assert [(m.topic, m.payload) for m in sub.messages] == [("copy/t", b""), ("t", b"1")]


# --- for a client -------------------------------------------------------------------------------------------------------


def client_of(harness: Harness, client_id: str = "one") -> ClientInfo:
    return harness.broker.sessions[client_id].client


@pytest.mark.parametrize("online", [True, False])
def test_as_a_client(
    harness: Harness, mine: HookRecorder, other: HookRecorder, online: bool
) -> None:
    one, sub = harness.connect("one", session_expiry_interval=60), harness.connect("sub")
    one.subscribe("t", no_local=True)
    sub.subscribe("t")
    client = client_of(harness)
    if not online:
        one.disconnect()
    other.clear()
    broker = harness.handle("mine")
    assert harness.clock.run(broker.publish_and_wait("t", b"x", as_client=client)) == 2
    sub.expect_message("t", b"x")
    assert not mine.calls()  # the plugin's own on_publish is skipped here too
    for hook in ("authorize", "on_publish", "on_published"):
        (call,) = other.calls(hook)
        assert call.client is client
        message: Message = call.message
        assert (message.sender, message.origin) == ("one", "plugin:mine")
    if not online:
        one.reconnect()
    one.expect_nothing()  # no-local


def test_as_a_client_that_may_not(harness: Harness, other: HookRecorder) -> None:
    one, sub = harness.connect("one"), harness.connect("sub")
    sub.subscribe("#")
    other.answer("authorize", Deny(rule="line 3"))
    client = client_of(harness)
    broker = harness.handle("mine")
    with pytest.raises(PluginError, match="refused: not authorized"):
        harness.clock.run(broker.publish_and_wait("t", b"x", as_client=client))
    with pytest.raises(PluginError, match="refused"):
        harness.clock.run(broker.publish_and_wait("$SYS/x", b"x", as_client=client))
    sub.expect_nothing()
    dropped = [(call.client, call.why.reason) for call in other.calls("on_dropped")]
    assert dropped == [(client, DropReason.DENIED)] * 2
    denied = harness.logged("authz.denied")
    assert denied[0]["client_id"] == "one"
    assert [line["plugin"] for line in harness.logged("publish.refused")] == ["mine", "mine"]
    assert not one.closed


def test_another_clients_session_is_not_the_sender(
    broker_harness: Make, mine: HookRecorder
) -> None:
    """The sender is the client that has left, not another user's client that has since taken its client id."""
    harness = broker_harness(plugins=[mine])
    one = harness.connect("one", username="ann")
    client = client_of(harness)
    one.disconnect()
    two = harness.connect("one", username="bob")
    two.subscribe("t", no_local=True)
    harness.handle("mine").publish("t", b"x", as_client=client)
    two.expect_message("t", b"x")


def test_the_mount_point_belongs_to_the_topic(broker_harness: Make, mine: HookRecorder) -> None:
    harness = broker_harness(plugins=[mine])
    sub = harness.connect("sub")
    sub.subscribe("#")
    harness.connect("one", scope=Scope("tenants", "a/"))
    harness.handle("mine").publish("a/t", b"x", as_client=client_of(harness))
    sub.expect_message("a/t", b"x")


# --- volatile -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> SlowStore:
    return SlowStore(DurableStore(), slow=False)


@pytest.fixture
def durable(broker_harness: Make, mine: HookRecorder, store: SlowStore) -> Harness:
    return broker_harness(plugins=[mine], store=store)


def retained(harness: Harness) -> list[bytes]:
    """Return the payloads that a new subscriber receives."""
    late = harness.connect("late")
    late.subscribe("t")
    harness.settle()
    found = [message.payload for message in late.messages]
    late.disconnect()
    return found


@pytest.mark.parametrize("as_client", [True, False])
def test_volatile_messages_are_retained_without_a_record(
    durable: Harness, store: SlowStore, as_client: bool
) -> None:
    durable.connect("one")
    client = client_of(durable) if as_client else None
    broker = durable.handle("mine")
    for payload in (b"1", b"2", b"3"):
        broker.publish("t", payload, retain=True, as_client=client, volatile=True)
    assert retained(durable) == [b"3"]
    broker.publish("t", b"", retain=True, volatile=True)
    assert retained(durable) == []
    broker.publish("t", b"4", retain=True, as_client=client, volatile=True)
    durable.settle()
    assert store.records() == []
    durable.restart()
    assert retained(durable) == []
    assert durable.broker.state.retained_bytes == 0


def test_a_volatile_message_that_expires_leaves_no_record(
    durable: Harness, store: SlowStore
) -> None:
    properties = Properties(message_expiry_interval=5)
    durable.handle("mine").publish("t", b"1", retain=True, properties=properties, volatile=True)
    assert retained(durable) == [b"1"]
    durable.advance(10)
    assert retained(durable) == []
    assert store.records() == []


def test_the_record_of_the_message_that_it_replaces_goes(
    durable: Harness, store: SlowStore
) -> None:
    durable.connect("pub").publish("t", b"old", 1, retain=True)
    durable.handle("mine").publish("t", b"new", retain=True, volatile=True)
    assert retained(durable) == [b"new"]
    durable.restart()
    assert retained(durable) == []


def test_a_later_message_with_a_record_replaces_it(durable: Harness, store: SlowStore) -> None:
    """A later message with a record replaces a volatile one. The publisher's record is written with the first message
    that needs it.
    """
    pub = durable.connect("pub")
    client = client_of(durable, "pub")
    broker = durable.handle("mine")
    broker.publish("t", b"1", retain=True, as_client=client, volatile=True)
    broker.publish("u", b"1", retain=True, as_client=client, volatile=True)
    durable.settle()
    pub.publish("t", b"2", 1, retain=True)
    assert retained(durable) == [b"2"]
    durable.restart()
    assert retained(durable) == [b"2"]
    (publisher,) = durable.broker.state.publishers._by_id.values()
    assert publisher.uses == 1


def test_replacing_and_clearing_leaves_no_publisher(durable: Harness, store: SlowStore) -> None:
    pub = durable.connect("pub")
    client = client_of(durable, "pub")
    pub.publish("t", b"1", 1, retain=True)
    broker = durable.handle("mine")
    broker.publish("t", b"2", retain=True, as_client=client, volatile=True)
    broker.publish("t", b"", retain=True)
    durable.settle()
    inner = store.inner
    assert isinstance(inner, DurableStore)
    assert (inner.retained, inner.publishers) == ({}, {})


def test_volatile_changes_nothing_else(durable: Harness) -> None:
    away = durable.connect("away", session_expiry_interval=60)
    away.subscribe("t", 1)
    away.disconnect()
    durable.handle("mine").publish("t", b"x", 1, volatile=True)
    durable.settle()
    durable.restart()
    away.reconnect()
    away.expect_message("t", b"x")
    assert retained(durable) == []


@pytest.mark.parametrize(
    "values",
    [
        {"user_property": (("a", "\ud800"),)},
        {"content_type": "x" * 70_000},
        {"message_expiry_interval": 2**40},
        {"response_topic": "#"},
    ],
)
def test_an_invalid_property_is_refused_at_once(
    broker_harness: Callable[..., Harness], values: dict[str, Any]
) -> None:
    harness = broker_harness(plugins=[HookRecorder(id="mine")])
    with pytest.raises(PluginError, match="cannot publish"):
        harness.handle("mine").publish("t", b"", properties=Properties(**values))
