"""Test how a plugin asks, before publishing a message, what would happen to it: `await broker.transform(client,
message)`.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Allow, Deny, Drop, Handled
from hookmq.model.errors import PluginError
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


@pytest.fixture
def other() -> HookRecorder:
    hooks = ("authorize", "on_publish", "on_will", "on_denied", "on_dropped")
    return HookRecorder(*hooks, id="other")


@pytest.fixture
def asker() -> HookRecorder:
    return HookRecorder("on_publish", id="asker")


@pytest.fixture
def harness(broker_harness: Make, other: HookRecorder, asker: HookRecorder) -> Harness:
    harness = broker_harness(plugins=[other, asker])
    harness.connect("c")
    return harness


def ask(harness: Harness, topic: str, action: Action = Action.PUBLISH, client: str = "c") -> Any:
    handle = harness.handle("asker")
    message = Message(topic, b"x", 1, sender="c", origin="client", received_at=0.0)
    return harness.clock.run(
        handle.transform(handle.client(client) if client else None, message, action)
    )


def test_the_result_is_the_message_as_the_plugins_change_it(
    harness: Harness, other: HookRecorder, asker: HookRecorder
) -> None:
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    asked = len(other.calls("authorize"))
    other.answer("on_publish", lambda message: message.replace(topic="new/" + message.topic))
    found = ask(harness, "a")
    assert (found.topic, found.payload, found.qos) == ("new/a", b"x", 1)
    calls = other.calls("authorize")[asked:]
    assert [(one.client.client_id, one.topic) for one in calls] == [("c", "a"), ("c", "new/a")]
    assert asker.calls("on_publish") == [], "the plugin that asks is not called"
    watcher.expect_nothing()
    handle = harness.handle("asker")
    handle.publish(found.topic, found.payload, found.qos, transformed=True)
    watcher.expect_message("new/a", b"x")
    assert len(other.calls("on_publish")) == 1, "it was not called again for the same message"


@pytest.mark.parametrize("verdict", [Deny(ReasonCode.QUOTA_EXCEEDED, "full"), Drop(), Handled()])
def test_the_result_is_the_verdict_that_ends_the_chain(
    harness: Harness, other: HookRecorder, verdict: Any
) -> None:
    other.answer("on_publish", verdict)
    assert ask(harness, "a") is verdict
    assert other.calls("on_denied", "on_dropped") == []
    assert harness.metrics.dropped == {}
    assert harness.metrics.messages_handled == 0


def test_the_new_topic_is_authorized(harness: Harness, other: HookRecorder) -> None:
    other.answer("authorize", lambda topic: Deny() if topic == "secret" else Allow())
    other.answer("on_publish", lambda message: message.replace(topic="secret"))
    assert ask(harness, "a") == Deny()
    assert isinstance(ask(harness, "$SYS/a"), Deny)
    other.answer("on_publish", lambda message: message.replace(topic="a/#"))
    assert ask(harness, "a").code is ReasonCode.TOPIC_NAME_INVALID


def test_a_will_passes_both_hooks(harness: Harness, other: HookRecorder) -> None:
    asked = len(other.recorded)
    assert ask(harness, "a", Action.WILL).topic == "a"
    hooks = [one.hook for one in other.recorded[asked:]]
    assert hooks == ["authorize", "on_will", "on_publish"]


def test_without_a_client_nothing_is_authorized(harness: Harness, other: HookRecorder) -> None:
    other.answer("authorize", Deny())
    assert ask(harness, "a", client="").topic == "a"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topic": "a/#"}, "wildcard"),
        ({"topic": "a", "action": Action.SUBSCRIBE}, "not PUBLISH or WILL"),
        ({"topic": "a", "action": Action.WILL, "client": ""}, "needs a client"),
    ],
)
def test_invalid_arguments(harness: Harness, given: dict[str, Any], error: str) -> None:
    with pytest.raises(PluginError, match=error):
        ask(harness, **given)
    with pytest.raises(PluginError, match="message is str"):
        harness.handle("asker").transform(None, "a")  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="transformed is int"):
        harness.handle("asker").publish("a", b"", transformed=1)  # type: ignore[arg-type]
