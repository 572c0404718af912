"""Test the recorder: the hooks it implements, its records and its answers."""

from typing import Any

import pytest
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.specs import SPECS, HookKind
from hookmq.mqtt_api import Puback
from hookmq.plugin import Action, Allow, Deny, ReasonCode
from hookmq_testing import Harness, HookCall, HookRecorder
from hookmq_testing.plugins import instance_of


def implemented(harness: Harness) -> set[str]:
    return {
        name
        for name, found in harness.hooks.registry.items()
        if any(one.instance.id == "recorder" for one in found)
    }


def test_it_implements_what_it_is_told() -> None:
    with Harness([HookRecorder("on_connect", "on_deliver")]) as harness:
        assert implemented(harness) == {"on_connect", "on_deliver"}
    with Harness([HookRecorder()]) as harness:
        assert implemented(harness) == {
            name
            for name, spec in SPECS.items()
            if spec.kind not in (HookKind.PROVIDE, HookKind.REGISTER)
        }
    with pytest.raises(ValueError, match="on_conect"):
        HookRecorder("on_conect")


def test_two_of_them_do_not_share() -> None:
    one, two = HookRecorder("on_connect", id="one"), HookRecorder("on_publish", id="two")
    with Harness([one, two]) as harness:
        harness.connect("c").publish("a")
    assert {call.hook for call in one.recorded} == {"on_connect"}
    assert {call.hook for call in two.recorded} == {"on_publish"}


def test_calls_and_their_arguments() -> None:
    recorder = HookRecorder("on_connect", "authorize", "on_published")
    with Harness([recorder]) as harness:
        harness.connect("c").publish("a", b"x")
        assert [call.hook for call in recorder.calls()] == [
            "on_connect",
            "authorize",
            "on_published",
        ]
        assert len(recorder.calls("authorize", "on_connect")) == 2
        [call] = recorder.calls("authorize")
        assert (call.topic, call.action) == ("a", Action.PUBLISH)
        assert call.arguments["message"].payload == b"x"
        assert call.broker is harness.handle("recorder")
        with pytest.raises(AttributeError, match="authorize has no argument 'payload'"):
            call.payload  # noqa: B018
        assert repr(call).startswith("authorize(client=ClientInfo('c'")
        assert "broker" not in repr(call)
        recorder.clear()
        assert recorder.calls() == []


def test_answers() -> None:
    recorder = HookRecorder("on_publish")
    with Harness([recorder]) as harness:
        client = harness.connect("c")
        recorder.answer("on_publish", None, Deny(), Deny(ReasonCode.QUOTA_EXCEEDED))
        for code in (0x10, 0x87, 0x97, 0x97):
            client.publish("a", qos=1, expect=code)
        for error in (ValueError("no"), ValueError):
            recorder.answer("on_publish", error)
            client.publish("a", qos=1, expect=0x83)
        recorder.answer("on_publish", lambda message, client: Deny() if client else None)
        client.publish("a", qos=1, expect=0x87)
        event = harness.clock.event()
        recorder.answer("on_publish", event)
        client.publish("a", qos=1)
        client.expect_nothing()
        event.set(Deny())
        assert client.expect(Puback).code == 0x87
        with pytest.raises(ValueError, match="on_pulish"):
            recorder.answer("on_pulish", None)


def test_asked_about_deliveries() -> None:
    recorder = HookRecorder("authorize", deliver=True)
    with Harness([recorder]) as harness:
        client = harness.connect("c")
        client.subscribe("a")
        recorder.answer("authorize", lambda action: Deny() if action is Action.DELIVER else Allow())
        client.publish("a", b"x")
        client.expect_nothing()
        assert [call.action for call in recorder.calls("authorize")][-1] is Action.DELIVER
    with Harness([HookRecorder("authorize")]) as harness:
        assert harness.hooks.chains("default").authorize[Action.DELIVER] == ()


def test_answers_that_are_not_remembered() -> None:
    for cached, asked in ((True, 1), (False, 3)):
        recorder = HookRecorder("authorize", cached=cached)
        with Harness([recorder]) as harness:
            client = harness.connect("c")
            for _ in range(3):
                client.publish("a")
            assert len(recorder.calls("authorize")) == asked


def test_an_entry_of_its_own() -> None:
    instance = instance_of(HookRecorder("on_publish"), filters=("a/#",), listeners=("tls",))
    assert isinstance(instance, PluginInstance)
    assert instance.entry.listeners == ("tls",)


def test_a_call_by_hand() -> None:
    call: Any = HookCall("on_ready", {"broker": 1})
    assert call.broker == 1
    assert call == HookCall("on_ready", {"broker": 1})
