"""Test birth certificates and death timestamps, in memory and in a broker process with real
clients.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Context, Plugin
from hookmq_sparkplug.payload import with_timestamp
from hookmq_sparkplug.plugin import SparkplugPlugin
from hookmq_testing import Harness, make_plugin, will
from hookmq_testing.contracts import PluginContract
from hypothesis import given
from hypothesis import strategies as st
from recording import V5, Client
from serving import serving

CERTIFICATES = "$sparkplug/certificates/"
NODE = "spBv1.0/plant/NBIRTH/press"
DEVICE = "spBv1.0/plant/DBIRTH/press/motor"
METRIC = b"\x12\x09\x0a\x05bdSeq\x18\x04"
"""A metric as an edge node could send it: field 2 of a payload."""
Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = SparkplugPlugin
    use = "sparkplug"
    configs = ({}, {"namespace": "spAv1.0", "stamp_deaths": False})
    bad_configs = ({"namespace": ""}, {"namespace": "a/b"}, {"namespace": "+"}, {"x": 1})


@pytest.fixture
def make(broker_harness: Callable[..., Harness]) -> Make:
    def build(**config: Any) -> Harness:
        return broker_harness([make_plugin(SparkplugPlugin, config, "sparkplug")])

    return build


@pytest.mark.parametrize("topic", [NODE, DEVICE])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_late_subscriber_finds_the_last_birth(make: Make, topic: str, qos: int) -> None:
    harness = make()
    node = harness.connect("node")
    for payload in (b"first", b"second"):
        node.publish(topic, payload, qos)
    late = harness.connect("late")
    late.subscribe("$sparkplug/certificates/#", 1)
    found = late.expect_message(CERTIFICATES + topic, b"second")
    assert (found.retain, found.qos) == (True, qos)
    late.expect_nothing()


@pytest.mark.parametrize(
    "topic",
    [
        "spBv1.0/plant/NDATA/press",
        "spBv1.0/plant/NBIRTH",
        "spBv1.0/plant/NBIRTH/press/more",
        "spBv1.0/plant/DBIRTH/press",
        "other/plant/NBIRTH/press",
        "spBv1.0/STATE/scada",
    ],
)
def test_nothing_else_becomes_a_certificate(make: Make, topic: str) -> None:
    harness = make()
    client = harness.connect("c")
    client.subscribe("$sparkplug/#")
    client.publish(topic, b"x")
    client.expect_nothing()


def test_clients_cannot_publish_certificates(make: Make) -> None:
    harness = make()
    client = harness.connect("c")
    client.subscribe("$sparkplug/#")
    client.publish(CERTIFICATES + NODE, b"forged", 1, expect=0x87)
    dying = harness.connect("d", will=will(CERTIFICATES + NODE, b"forged"), expect=None)
    assert dying.connack is not None
    assert dying.connack.code == 0x87
    client.expect_nothing()


def test_other_plugins_cannot_publish_certificates(broker_harness: Callable[..., Harness]) -> None:
    sparkplug = make_plugin(SparkplugPlugin, {}, "sparkplug")
    harness = broker_harness([sparkplug, Plugin(None, Context("other"))])
    client = harness.connect("c")
    client.subscribe("$sparkplug/#")
    harness.handle("other").publish(CERTIFICATES + NODE, b"forged", retain=True)
    harness.settle()
    client.expect_nothing()


def test_a_death_has_the_time_of_its_publication(make: Make) -> None:
    harness = make()
    watcher = harness.connect("watcher", keep_alive=0)
    watcher.subscribe("spBv1.0/#")
    payload = b"\x08\x01" + METRIC
    node = harness.connect("node", will=will("spBv1.0/plant/NDEATH/press", payload))
    harness.advance(30)
    node.drop()
    stamped = watcher.expect_message("spBv1.0/plant/NDEATH/press").payload
    assert stamped == with_timestamp(payload, harness.clock.time())
    assert stamped != payload
    assert METRIC in stamped


@pytest.mark.parametrize(
    ("topic", "payload", "config"),
    [
        ("spBv1.0/plant/NDEATH/press", b"\xff", {}),
        ("spBv1.0/plant/DDEATH/press/motor", b"\x08\x01", {}),
        ("spBv1.0/plant/NDEATH/press", b"\x08\x01", {"stamp_deaths": False}),
    ],
)
def test_other_wills_stay_as_they_are(
    make: Make, topic: str, payload: bytes, config: dict[str, Any]
) -> None:
    harness = make(**config)
    watcher = harness.connect("watcher")
    watcher.subscribe("spBv1.0/#")
    harness.connect("node", will=will(topic, payload)).drop()
    watcher.expect_message(topic, payload)


def test_the_timestamp_is_in_milliseconds() -> None:
    assert with_timestamp(b"", 1.5) == b"\x08\xdc\x0b"


@given(st.binary(max_size=50), st.floats(0, 4e9))
def test_other_fields_survive(payload: bytes, now: float) -> None:
    stamped = with_timestamp(payload, now)
    if stamped is not None:
        assert with_timestamp(stamped, now) == stamped
        assert with_timestamp(stamped, 0) == with_timestamp(payload, 0)


def test_a_broker_process_with_real_clients(tmp_path: Path) -> None:
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        "version: 1\n"
        'listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]\n'
        "auth: {default: allow}\n"
        "authz: {default: allow}\n"
        "plugins: [{use: sparkplug}]\n"
    )
    with serving("-c", str(config)) as served:
        with Client(served.ports["tcp"], "node", V5) as node:
            node.publish(NODE, b"birth", 1)
        with Client(served.ports["tcp"], "host", V5) as host:
            assert host.subscribe("$sparkplug/certificates/#", 1) == 1
            message = host.message()
    assert (message.topic, bytes(message.payload)) == (CERTIFICATES + NODE, b"birth")
