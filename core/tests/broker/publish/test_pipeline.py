"""Test the arguments of `on_publish`, and how its verdicts affect a message."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.instance import HookOptions
from hookmq.hooks.verdicts import Allow, Deny, Drop
from hookmq.model.events import DropReason
from hookmq.model.message import Message
from hookmq.mqtt.packets import (
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import (
    Harness,
    HookRecorder,
)
from hookmq_testing.plugins import instance_of
from hookmq_testing.runtime import EPOCH

Make = Callable[..., Harness]


FAULTS = pytest.mark.parametrize("fault", [ValueError("broken"), 42, "timeout"])


def one_plugin(make: Make, *hooks: str, **options: Any) -> tuple[Harness, HookRecorder]:
    plugin = HookRecorder(*hooks)
    return make(plugins=[plugin], **options), plugin


def told(plugin: HookRecorder, harness: Harness, *hooks: str) -> list[Any]:
    harness.settle()
    return plugin.calls(*hooks)


def test_on_publish_is_given_the_message(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_publish")
    one = harness.connect("one")
    one.publish(
        "t", b"x", 1, retain=True, content_type="c", message_expiry_interval=9, topic_alias=3
    )
    (call,) = plugin.calls()
    message: Message = call.message
    assert call.client is harness.broker.sessions["one"].client
    assert (message.topic, message.payload, message.qos, message.retain) == ("t", b"x", 1, True)
    assert message.properties == Properties(content_type="c", message_expiry_interval=9)
    assert (message.sender, message.origin, message.received_at) == ("one", "client", EPOCH)
    assert message.expires_at == EPOCH + 9


def test_on_publish_replaces_and_the_next_sees_it(broker_harness: Make) -> None:
    first, second = HookRecorder("on_publish", id="first"), HookRecorder("on_publish", id="second")
    first.answer("on_publish", lambda message: message.replace(payload=b"first", qos=1))
    second.answer(
        "on_publish", lambda message: message.replace(payload=message.payload + b"+second")
    )
    harness = broker_harness(plugins=[first, second])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 2)
    pub.publish("t", b"x", 2, expect=0)  # acknowledged at the QoS at which it was sent
    sub.expect_message("t", b"first+second", 1)


def test_on_publish_changes_nothing_of_whose_message_it_is(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_publish", "on_published")
    plugin.answer(
        "on_publish",
        lambda message: message.replace(sender="somebody", origin="forged", received_at=1.0),
    )
    harness.connect("one").publish("t", b"")
    (call,) = told(plugin, harness, "on_published")
    got: Message = call.message
    assert (got.sender, got.origin, got.received_at) == ("one", "client", EPOCH)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda message: message.replace(qos=2),
        lambda message: message.replace(payload="text"),
        lambda message: message.replace(topic=None),
        lambda message: message.replace(retain=1),
    ],
)
@pytest.mark.parametrize("on_error", ["deny", "pass"])
def test_on_publish_never_raises_qos_nor_breaks_types(
    broker_harness: Make, wrong: Any, on_error: Any
) -> None:
    plugin = HookRecorder("on_publish")
    plugin.answer("on_publish", wrong)
    options = {"on_publish": HookOptions(on_error=on_error)}
    harness = broker_harness(plugins=[instance_of(plugin, hooks=options)])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 2)
    pub.publish("t", b"x", 1, expect=0x83 if on_error == "deny" else 0)
    if on_error == "deny":
        sub.expect_nothing()
    else:
        sub.expect_message("t", b"x", 1)


@FAULTS
def test_on_publish_may_be_passed_over_when_it_fails(broker_harness: Make, fault: Any) -> None:
    plugin, second = HookRecorder("on_publish"), HookRecorder("on_publish", id="second")
    options = {"on_publish": HookOptions(on_error="pass", timeout=0.5)}
    harness = broker_harness(plugins=[instance_of(plugin, hooks=options), second])
    harness.fail("recorder", "on_publish", fault)
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1)
    harness.advance(0.6)
    assert pub.expect(Puback).code == 0x10
    assert len(second.calls()) == 1


def test_on_publish_moves_a_message_where_it_may_go(broker_harness: Make) -> None:
    plugin = HookRecorder("authorize", "on_publish")
    plugin.answer("on_publish", lambda message: message.replace(topic="to/" + message.topic))
    plugin.answer("authorize", lambda topic: Deny() if topic == "to/secret" else Allow())
    harness = broker_harness(plugins=[plugin])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("#", 1)
    plugin.clear()
    pub.publish("t", b"x", 1, expect=0)
    assert [call.topic for call in plugin.calls("authorize")] == ["t", "to/t"]
    assert plugin.calls("authorize")[1].message.topic == "to/t"
    sub.expect_message("to/t", b"x")
    pub.publish("secret", b"x", 1, expect=0x87)
    sub.expect_nothing()
    pub.publish("t", b"y", 1, expect=0)
    sub.expect_message("to/t", b"y")
    assert len(plugin.calls("authorize")) == 4  # both verdicts are cached


@pytest.mark.parametrize("topic", ["a/#", "", "+", "a\0b", "x/" * 300])
def test_on_publish_moves_a_message_to_no_topic(broker_harness: Make, topic: str) -> None:
    harness, plugin = one_plugin(broker_harness, "on_publish")
    plugin.answer("on_publish", lambda message: message.replace(topic=topic))
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("#", 1)
    pub.publish("t", b"x", 1)
    assert pub.expect(Puback).code >= 0x80
    sub.expect_nothing()
    assert harness.metrics.dropped == {("undecided", "in"): 1}


def test_on_publish_cannot_move_a_message_below_sys(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_publish")
    plugin.answer("on_publish", lambda message: message.replace(topic="$SYS/x"))
    harness.connect("pub").publish("t", b"x", 1, expect=0x87)


@pytest.mark.parametrize("code", [ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS])
@pytest.mark.parametrize("version", [4, 5])
def test_on_publish_drops_but_acknowledges(
    broker_harness: Make, version: int, code: ReasonCode
) -> None:
    observer = HookRecorder("on_dropped", "on_published", "on_denied", id="observer")
    plugin = HookRecorder("on_publish")
    plugin.answer("on_publish", Drop(code))
    harness = broker_harness(plugins=[plugin, observer])
    sub = harness.connect("sub")
    sub.subscribe("t", 2)
    pub = harness.connect("pub", version, auto_ack=False)
    pub.publish("t", b"0")
    pub.publish("t", b"1", 1)
    number = pub.publish("t", b"2", 2)
    expected = code if version == 5 else 0
    assert pub.expect(Puback).code == expected
    assert pub.expect(Pubrec).code == expected
    pub.publish("t", b"2", 2, dup=True, packet_id=number)
    assert pub.expect(Pubrec).code == 0  # already accepted, so the plugin is not asked again
    assert len(plugin.calls()) == 3
    pub.send(Pubrel(number))
    assert pub.expect(Pubcomp).code == 0
    sub.expect_nothing()
    calls = told(observer, harness)
    assert {call.hook for call in calls} == {"on_dropped"}
    assert [(call.why.reason, call.why.detail) for call in calls] == [
        (DropReason.PLUGIN, "recorder")
    ] * 3


def test_on_publish_retains_or_not(broker_harness: Make) -> None:
    harness, plugin = one_plugin(broker_harness, "on_publish")
    plugin.answer(
        "on_publish", lambda message: message.replace(retain=message.topic.startswith("keep"))
    )
    pub = harness.connect("pub")
    pub.publish("keep/1", b"x")
    pub.publish("t", b"x", retain=True)
    assert [message.topic for message in harness.handle("recorder").retained("#").items] == [
        "keep/1"
    ]


def test_on_publish_narrowed_to_a_topic_costs_the_others_nothing(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = HookRecorder("on_publish")
    harness = broker_harness(plugins=[instance_of(plugin, filters=("alarms/#",))])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("#", 1)
    for qos in (0, 1):
        for number in range(3):
            pub.publish("t", b"%d" % number, qos)
            pub.publish("alarms/1", b"%d" % number, qos)
    assert len(sub.messages) == 12
    assert len(plugin.calls()) == 6
    known = pub.connection.memo
    assert (len(known[b"t"].calls), len(known[b"alarms/1"].calls)) == (0, 1)
