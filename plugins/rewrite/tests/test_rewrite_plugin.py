"""Test rewriting in a broker: publish, subscribe, will and delivery, with authorization before and after the rewrite."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt_api import Suback
from hookmq.plugin import Action, Allow, ClientInfo, Context, Deny, Plugin, hookimpl
from hookmq_rewrite.plugin import RewritePlugin
from hookmq_testing import Harness, make_plugin, will
from hookmq_testing.contracts import PluginContract

IN: dict[str, Any] = {"filter": "old/#", "to": "new/${1}"}
OUT: dict[str, Any] = {"filter": "new/#", "to": "old/${1}", "actions": ["deliver"]}
OWN: dict[str, Any] = {"filter": "mine/#", "to": "users/%u/${1}"}
Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = RewritePlugin
    use = "rewrite"
    configs = (
        {"rules": [IN, OUT, OWN]},
        {"rules": [{"filter": "a/#", "to": "z/${1}", "regex": "a/(.*)"}]},
    )
    bad_configs = (
        {},
        {"rules": []},
        {"rules": [{"filter": "#", "to": "x/${1}"}]},
        {"rules": [{"filter": "a"}]},
        {"rules": [{**IN, "actions": ["read"]}]},
    )


class Deciding(Plugin):
    """A plugin that denies topics listed in `forbidden` and records all requests."""

    forbidden: frozenset[str] = frozenset()
    authorize_cached = False

    def __init__(self) -> None:
        super().__init__(None, Context("deciding"))
        self.asked: list[tuple[str, str]] = []

    @hookimpl
    def authorize(self, client: ClientInfo, action: Action, topic: str) -> Allow | Deny:
        self.asked.append((action.value, topic))
        return Deny() if topic in self.forbidden else Allow()


@pytest.fixture
def make(broker_harness: Callable[..., Harness]) -> Make:
    def build(*rules: dict[str, Any], deciding: Deciding | None = None, **config: Any) -> Harness:
        plugin = make_plugin(RewritePlugin, {"rules": list(rules), **config}, "rewrite")
        return broker_harness([deciding, plugin] if deciding is not None else [plugin])

    return build


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_is_published_to_the_new_topic(make: Make, qos: int) -> None:
    harness = make(IN)
    old, new = harness.connect("old"), harness.connect("new")
    new.subscribe("new/#", 2)
    old.publish("old/a", b"1", qos)
    new.expect_message("new/a", b"1")
    old.publish("other", b"2", qos)
    new.expect_nothing()


def test_a_subscription_is_made_to_the_new_filter_and_ends_with_the_old_one(make: Make) -> None:
    harness = make(IN, OUT)
    old, new = harness.connect("old"), harness.connect("new")
    old.subscribe("old/+", 1)
    new.publish("new/a", b"1", 1)
    old.expect_message("old/a", b"1")
    old.unsubscribe("old/+")
    new.publish("new/a", b"2", 1)
    old.expect_nothing()


def test_a_shared_subscription_is_rewritten(make: Make) -> None:
    harness = make(IN, OUT)
    client = harness.connect("c")
    client.subscribe("$share/group/old/+", 1)
    client.publish("new/a", b"1", 1)
    client.expect_message("old/a", b"1")


def test_a_will_is_published_to_the_new_topic(make: Make) -> None:
    harness = make(IN)
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    harness.connect("dying", will=will("old/will", b"gone")).drop()
    watcher.expect_message("new/will", b"gone")


def test_the_client_fills_in_the_topic(make: Make) -> None:
    harness = make(OWN)
    watcher = harness.connect("watcher")
    watcher.subscribe("users/#")
    harness.connect("a", username="ann").publish("mine/x", b"1")
    watcher.expect_message("users/ann/x", b"1")


@pytest.mark.parametrize("username", [None, "a/b", "+"])
def test_without_a_fitting_value_the_action_is_denied(make: Make, username: str | None) -> None:
    harness = make(OWN)
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    client = harness.connect("a", username=username)
    client.publish("mine/x", b"1", 1, expect=0x87)
    watcher.expect_nothing()
    client.send_subscribe("mine/x")
    assert client.expect(Suback).codes == (0x87,)


def test_both_topics_are_authorized(make: Make) -> None:
    deciding = Deciding()
    harness = make(IN, deciding=deciding)
    client = harness.connect("c", will=will("old/will", b"gone"))
    client.publish("old/a", b"1", 1)
    client.subscribe("old/b")
    client.drop()
    harness.settle()
    assert deciding.asked == [
        ("will", "old/will"),
        ("publish", "old/a"),
        ("publish", "new/a"),
        ("subscribe", "old/b"),
        ("subscribe", "new/b"),
        ("will", "old/will"),
        ("will", "new/will"),
    ]


@pytest.mark.parametrize("forbidden", ["old/a", "new/a"])
def test_either_topic_may_be_denied(make: Make, forbidden: str) -> None:
    deciding = Deciding()
    deciding.forbidden = frozenset({forbidden})
    harness = make(IN, deciding=deciding)
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    client = harness.connect("c", will=will("other", b""))
    client.publish("old/a", b"1", 1, expect=0x87)
    client.send_subscribe("old/a")
    assert client.expect(Suback).codes == (0x87,)
    watcher.expect_nothing()


def test_a_message_of_a_plugin_is_rewritten(make: Make) -> None:
    harness = make(IN, deciding=Deciding())
    client = harness.connect("c")
    client.subscribe("new/a")
    harness.handle("deciding").publish("old/a", b"1")
    harness.settle()
    client.expect_message("new/a", b"1")
