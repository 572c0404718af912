"""Test redaction: which clients receive which fields."""

import json
from collections.abc import Callable

import pytest
from hookmq.plugin import Accept, ClientInfo, Context, Plugin, hookimpl
from hookmq_example_redact import RedactPlugin
from hookmq_testing import Harness, make_plugin
from hookmq_testing.contracts import PluginContract

CONFIG = {"fields": ("driver", "position"), "trusted": frozenset({"dispatch"})}
TELEMETRY = {"speed": 80, "driver": "Ada", "position": [52.5, 13.4]}
HIDDEN = {"speed": 80, "driver": "***", "position": "***"}


class TestContract(PluginContract):
    kind = RedactPlugin
    use = "example_redact"
    configs = (CONFIG, {"fields": ("x",)})
    bad_configs = ({}, {"fields": ()})


class ByClientId(Plugin):
    """A plugin that accepts every client and uses the client id as its identity."""

    @hookimpl
    def on_connect(self, client: ClientInfo) -> Accept:
        return Accept(identity=client.client_id)


@pytest.fixture
def harness(broker_harness: Callable[..., Harness]) -> Harness:
    redact = make_plugin(
        RedactPlugin,
        CONFIG,
        "redact",
        filters=("v/#",),
        hooks={"on_deliver": {"on_error": "drop"}},
    )
    return broker_harness([ByClientId(None, Context("who")), redact])


def test_the_trusted_see_everything_and_others_do_not(harness: Harness) -> None:
    clients = {name: harness.connect(name) for name in ("a", "dispatch", "b")}
    for client in clients.values():
        client.subscribe("v/1", 1)
    clients["a"].publish("v/1", json.dumps(TELEMETRY).encode(), 1)
    seen = {name: json.loads(c.expect_message("v/1").payload) for name, c in clients.items()}
    assert seen == {"a": HIDDEN, "dispatch": TELEMETRY, "b": HIDDEN}


@pytest.mark.parametrize("payload", [b"driver=Ada", b"[1]", b"\xff", b""])
def test_what_cannot_be_read_is_for_the_trusted_alone(harness: Harness, payload: bytes) -> None:
    trusted, other = harness.connect("dispatch"), harness.connect("other")
    for client in (trusted, other):
        client.subscribe("v/1")
    trusted.publish("v/1", payload)
    trusted.expect_message("v/1", payload)
    other.expect_nothing()


def test_other_topics_pass_as_they_are(harness: Harness) -> None:
    client = harness.connect("other")
    client.subscribe("w")
    client.publish("w", json.dumps(TELEMETRY).encode())
    client.expect_message("w", json.dumps(TELEMETRY).encode())


def test_when_it_fails_nothing_leaves(harness: Harness) -> None:
    client = harness.connect("other")
    client.subscribe("v/1")
    harness.fail("redact", "on_deliver", RuntimeError("broken"), times=1)
    client.publish("v/1", json.dumps(TELEMETRY).encode())
    client.expect_nothing()
    client.publish("v/1", json.dumps(TELEMETRY).encode())
    assert json.loads(client.expect_message("v/1").payload) == HIDDEN


def test_an_object_without_such_fields_stays_as_it_was(harness: Harness) -> None:
    client = harness.connect("other")
    client.subscribe("v/1")
    client.publish("v/1", b'{ "speed": 80 }')
    client.expect_message("v/1", b'{ "speed": 80 }')
