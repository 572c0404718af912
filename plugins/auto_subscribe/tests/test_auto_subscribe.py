"""Test subscriptions by rule: variables, options, listeners, authorization and sessions. Also test with a
real client.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Accept, Action, Allow, ClientInfo, Context, Deny, Plugin, hookimpl
from hookmq_auto_subscribe.plugin import AutoSubscribePlugin
from hookmq_testing import Harness, make_plugin
from hookmq_testing.contracts import PluginContract
from recording import V5, Client
from serving import serving

Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = AutoSubscribePlugin
    use = "auto_subscribe"
    configs = (
        {"rules": [{"filter": "devices/%c/#", "qos": 1}, {"filter": "$share/g/a/${claim}"}]},
        {"rules": [{"filter": "a", "no_local": True, "retain_handling": 2, "listeners": ["x"]}]},
    )
    bad_configs = (
        {},
        {"rules": []},
        {"rules": [{}]},
        {"rules": [{"filter": "a/#/b"}]},
        {"rules": [{"filter": "a", "qos": 3}]},
        {"rules": [{"filter": "a", "retain_handling": 3}]},
        {"rules": [{"filter": "a", "listeners": []}]},
    )


class Deciding(Plugin):
    """A plugin that sets a claim for each client, and allows only topics below ``free``."""

    @hookimpl
    def on_connect(self, client: ClientInfo) -> Accept:
        return Accept(claims={"room": "7"})

    @hookimpl
    def authorize(self, action: Action, topic: str) -> Allow | Deny:
        allowed = action is not Action.SUBSCRIBE or topic.startswith("free/")
        return Allow() if allowed else Deny()


@pytest.fixture
def make(broker_harness: Callable[..., Harness]) -> Make:
    def build(*rules: dict[str, Any], others: tuple[Plugin, ...] = ()) -> Harness:
        plugin = make_plugin(AutoSubscribePlugin, {"rules": list(rules)}, "auto_subscribe")
        return broker_harness([*others, plugin])

    return build


def test_a_client_is_subscribed_by_its_own_values(make: Make) -> None:
    harness = make({"filter": "devices/%c/#", "qos": 1}, {"filter": "users/%u"})
    one, other = harness.connect("one", username="ann"), harness.connect("two", username="bob")
    other.publish("devices/one/x", b"1", 1)
    found = one.expect_message("devices/one/x", b"1")
    assert found.qos == 1
    other.publish("users/ann", b"2")
    one.expect_message("users/ann", b"2")


def test_claims_fill_in(make: Make) -> None:
    harness = make({"filter": "free/${room}"}, others=(Deciding(None, Context("deciding")),))
    client = harness.connect("c")
    client.publish("free/7", b"1")
    client.expect_message("free/7", b"1")


@pytest.mark.parametrize("client_id", ["a/b", "+", "#"])
def test_a_value_that_is_not_a_level_skips_the_rule(make: Make, client_id: str) -> None:
    harness = make({"filter": "devices/%c/#"})
    client = harness.connect(client_id)
    client.publish("devices/a/b/x", b"1")
    client.expect_nothing()
    assert len(harness.logged("auto_subscribe.skipped")) == 1


def test_the_client_must_be_allowed_to_subscribe(make: Make) -> None:
    deciding = (Deciding(None, Context("deciding")),)
    harness = make({"filter": "secret/%c"}, others=deciding)
    client = harness.connect("c")
    client.publish("secret/c", b"1")
    client.expect_nothing()
    assert [one["code"] for one in harness.logged("auto_subscribe.refused")] == ["0x87"]


def test_a_rule_can_be_enough(make: Make) -> None:
    deciding = (Deciding(None, Context("deciding")),)
    harness = make({"filter": "secret/%c", "authorize": False}, others=deciding)
    client = harness.connect("c")
    client.publish("secret/c", b"1")
    client.expect_message("secret/c", b"1")


def test_options_apply(make: Make) -> None:
    harness = make({"filter": "a/#", "no_local": True, "retain_as_published": True})
    client, other = harness.connect("c"), harness.connect("d")
    client.publish("a/x", b"1", retain=True)
    found = other.expect_message("a/x", b"1")
    assert found.retain
    client.expect_nothing()


def test_other_listeners_are_left_alone(make: Make) -> None:
    harness = make({"filter": "a", "listeners": ["other"]})
    client = harness.connect("c")
    client.publish("a", b"1")
    client.expect_nothing()


def test_a_resumed_session_gets_retained_messages_once(make: Make) -> None:
    harness = make({"filter": "a", "qos": 1})
    harness.connect("source").publish("a", b"kept", 1, retain=True, expect=None)
    client = harness.connect("c", session_expiry_interval=60)
    client.expect_message("a", b"kept")
    client.drop()
    again = client.reconnect(clean_start=False)
    assert again.session_present
    again.expect_nothing()


def test_a_client_may_unsubscribe(make: Make) -> None:
    harness = make({"filter": "a"})
    client = harness.connect("c")
    client.unsubscribe("a")
    client.publish("a", b"1")
    client.expect_nothing()


def test_a_broker_process_with_a_real_client(tmp_path: Path) -> None:
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        "version: 1\n"
        'listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]\n'
        "auth: {default: allow}\n"
        "authz: {default: allow}\n"
        "plugins:\n"
        "  - use: auto_subscribe\n"
        "    config: {rules: [{filter: devices/%c/#, qos: 1, retain_handling: 0}]}\n"
    )
    with (
        serving("-c", str(config)) as served,
        Client(served.ports["tcp"], "source", V5) as source,
    ):
        source.publish("devices/press/x", b"1", 1, retain=True)
        with Client(served.ports["tcp"], "press", V5) as press:
            assert bytes(press.message().payload) == b"1"
