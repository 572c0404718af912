"""Test the audit file: which events are written, and that none are lost at shutdown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Deny, PluginError
from hookmq_example_audit import AuditPlugin
from hookmq_testing import Harness, HookRecorder, make_plugin
from hookmq_testing.contracts import PluginContract

Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = AuditPlugin
    use = "example_audit"
    bad_configs = ({}, {"path": "x", "sesions": True})

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        config: dict[str, Any] = {"path": tmp_path / "audit.jsonl"}
        type(self).configs = (config, config | {"sessions": False})


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the events in the file, leaving out their times."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in entries:
        assert entry.pop("time").endswith("+00:00")
    return entries


def test_what_is_written(broker_harness: Make, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    rules = HookRecorder("on_connect", "authorize", id="rules")
    rules.answer("authorize", Deny())
    audit = make_plugin(AuditPlugin, {"path": path}, "audit")
    harness = broker_harness([rules, audit])
    client = harness.connect("c", username="ada")
    client.publish("secret", b"payload", 1, expect=0x87)
    client.disconnect()
    rules.answer("on_connect", Deny(reason="not you"))
    harness.connect("d", username="eve", password=b"hunter2", expect=0x87)
    harness.close()
    who = {"client_id": "c", "identity": None, "peer": "192.0.2.1:40000", "listener": "default"}
    entries = lines(path)
    assert {**who, "event": "session", "change": "created"} in entries
    denied = {"event": "denied", "action": "publish", "topic": "secret", "code": "NOT_AUTHORIZED"}
    assert {**who, **denied, "rule": "rules"} in entries
    [end] = [entry for entry in entries if entry["event"] == "disconnect"]
    assert end == {
        **who, "event": "disconnect", "code": "SUCCESS", "by": "client", "will": False,
    }  # fmt: skip
    [refused] = [entry for entry in entries if entry["event"] == "auth_failed"]
    assert (refused["client_id"], refused["username"], refused["reason"]) == ("d", "eve", "not you")
    assert "payload" not in path.read_text()
    assert "hunter2" not in path.read_text()


def test_sessions_may_be_left_out(broker_harness: Make, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    harness = broker_harness([make_plugin(AuditPlugin, {"path": path, "sessions": False})])
    harness.connect("c").disconnect()
    harness.close()
    assert [entry["event"] for entry in lines(path)] == ["disconnect"]


def test_lines_are_appended(broker_harness: Make, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(2):
        harness = broker_harness([make_plugin(AuditPlugin, {"path": path, "sessions": False})])
        harness.connect("c").disconnect()
        harness.close()
    assert len(lines(path)) == 2


def test_a_wrong_path_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="on_startup"):
        Harness([make_plugin(AuditPlugin, {"path": tmp_path / "no" / "folder"})])
