"""Test checks in a broker: refused, dropped and tagged messages, wills, and changed files. Also test a broker process
with real clients.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq_schema.plugin import SchemaPlugin
from hookmq_testing import Harness, make_plugin, will
from hookmq_testing.contracts import PluginContract
from recording import V5, Client
from serving import serving

STATE = {"type": "object", "required": ["speed"]}
JSON: dict[str, Any] = {"filter": "a/#", "format": "json"}
Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = SchemaPlugin
    use = "schema"
    configs = (
        {"rules": [JSON, {"filter": "#", "format": "utf8", "invalid": "tag"}]},
        {"rules": [{**JSON, "invalid": "drop"}], "max_size": "1KiB"},
    )
    bad_configs = (
        {},
        {"rules": []},
        {"rules": [{"filter": "a"}]},
        {"rules": [{**JSON, "file": "x.json"}]},
        {"rules": [{**JSON, "message": "x.Y"}]},
        {"rules": [{"filter": "a", "format": "avro"}]},
        {"rules": [{"filter": "a", "format": "json_schema", "file": "/nowhere/x.json"}]},
        {"rules": [{"filter": "a", "format": "protobuf", "file": "/nowhere/x"}]},
        {"rules": [JSON], "tag": ""},
    )


@pytest.fixture
def make(broker_harness: Callable[..., Harness]) -> Make:
    def build(*rules: dict[str, Any], **config: Any) -> Harness:
        return broker_harness(
            [make_plugin(SchemaPlugin, {"rules": list(rules), **config}, "schema")]
        )

    return build


def file_rule(path: Path, document: Any) -> dict[str, Any]:
    path.write_text(json.dumps(document))
    return {"filter": "a/#", "format": "json_schema", "file": path}


@pytest.mark.parametrize("qos", [1, 2])
def test_an_invalid_message_is_refused_with_the_reason(make: Make, qos: int) -> None:
    harness = make(JSON)
    client = harness.connect("c")
    client.subscribe("#")
    client.publish("a/b", b"{", qos, expect=0x99)
    client.expect_nothing()
    client.publish("a/b", b"{}", qos)
    client.expect_message("a/b", b"{}")
    client.publish("other", b"{", qos)
    client.expect_message("other", b"{")


def test_an_invalid_message_is_dropped_but_acknowledged(make: Make) -> None:
    harness = make({**JSON, "invalid": "drop"})
    client = harness.connect("c")
    client.subscribe("#")
    client.publish("a/b", b"{", 1, expect=0)
    client.expect_nothing()


def test_an_invalid_message_is_tagged(make: Make) -> None:
    harness = make({**JSON, "invalid": "tag"})
    client = harness.connect("c")
    client.subscribe("#")
    client.publish("a/b", b"{", user_property=(("x", "y"),))
    pairs = client.expect_message("a/b", b"{").properties.user_property
    assert pairs == (("x", "y"), ("schema-error", "not JSON at character 1"))


def test_a_client_cannot_forge_a_tag(make: Make) -> None:
    harness = make({**JSON, "invalid": "tag"})
    client = harness.connect("c")
    client.subscribe("#")
    client.publish("a/b", b"{}", user_property=(("schema-error", "forged"), ("x", "y")))
    assert client.expect_message("a/b", b"{}").properties.user_property == (("x", "y"),)
    client.publish("a/b", b"{}", user_property=(("schema-error", "forged"),))
    assert client.expect_message("a/b", b"{}").properties.user_property is None


def test_an_empty_retained_message_deletes(make: Make) -> None:
    harness = make(JSON)
    client = harness.connect("c")
    client.publish("a/b", b"{}", 1, retain=True, expect=0x10)
    client.publish("a/b", b"", 1, retain=True, expect=0x10)
    client.publish("a/b", b"", 1, expect=0x99)
    client.subscribe("a/b")
    client.expect_nothing()


def test_a_large_payload_is_not_examined(make: Make) -> None:
    harness = make(JSON, max_size=10)
    client = harness.connect("c")
    client.publish("a/b", b'"12345678"', 1, expect=0x10)
    client.publish("a/b", b'"123456789"', 1, expect=0x99)


def test_an_invalid_will_is_not_published(make: Make) -> None:
    harness = make(JSON)
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    harness.connect("bad", will=will("a/will", b"{")).drop()
    watcher.expect_nothing()
    harness.connect("good", will=will("a/will", b"{}")).drop()
    watcher.expect_message("a/will", b"{}")


def test_a_changed_schema_file_is_used_and_a_broken_one_is_not(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    harness = make(file_rule(path, STATE), reload_interval="1s")
    client = harness.connect("c", keep_alive=0)
    client.publish("a/b", b"{}", 1, expect=0x99)
    for step, document in enumerate(({"type": "object"}, {"type": "strng"}), 1):
        path.write_text(json.dumps(document))
        os.utime(path, (step, step))
        harness.advance(5)
        client.publish("a/b", b"{}", 1, expect=0x10)
    assert [one["file"] for one in harness.logged("schema.loaded")] == [str(path)]
    assert len(harness.logged("schema.file_bad")) == 1


def test_a_broken_file_is_named_at_start(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    rule = file_rule(path, {"type": "strng"})
    with pytest.raises(Exception, match=r"state\.json: \$\.type: 'strng' is not valid"):
        make_plugin(SchemaPlugin, {"rules": [rule]}, "schema")


def test_a_broker_process_with_a_real_client(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps(STATE))
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        "version: 1\n"
        'listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]\n'
        "auth: {default: allow}\n"
        "authz: {default: allow}\n"
        "plugins:\n"
        "  - use: schema\n"
        "    config:\n"
        "      rules: [{filter: a/#, format: json_schema, file: state.json, invalid: drop}]\n"
    )
    with (
        serving("-c", str(config)) as served,
        Client(served.ports["tcp"], "c", V5) as client,
    ):
        assert client.subscribe("a/#", 1) == 1
        client.publish("a/b", b"{}", 1)
        client.publish("a/b", b'{"speed": 1}', 1)
        assert bytes(client.message().payload) == b'{"speed": 1}'
