"""Test the plugin contract and a sink's journal in an in-memory broker. The sinks' processes do not run, because a
virtual event loop cannot start processes.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import StoreError
from hookmq_sinks.plugin import SinksPlugin
from hookmq_testing import DurableStore, Harness, PluginInstance, make_plugin
from hookmq_testing.contracts import PluginContract
from hookmq_toolkit.message_columns import decode_columns


def sink(tmp_path: Path, **more: Any) -> dict[str, Any]:
    target = {"path": str(tmp_path / "out")}
    return {"name": "plant", "topics": ["t/#"], "driver": "file", "target": target, **more}


class TestSinks(PluginContract):
    """Runs the plugin contract. Each plugin object gets its own folder, because two objects cannot share one."""

    kind = SinksPlugin
    use = "sinks"
    configs = (
        {"sinks": [{"name": "a", "topics": ["#"], "driver": "file", "target": {"path": "/tmp/x"}}]},
    )
    bad_configs = (
        {},
        {"sinks": []},
        {"sinks": [{"name": "a", "topics": ["#"], "driver": "file"}]},
        {"sinks": [{"name": "a", "topics": ["#"], "driver": "no", "target": {"path": "x"}}]},
    )

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folders = (tmp_path / str(number) for number in itertools.count())
        without_processes(monkeypatch)

    def instance(self, config: Mapping[str, Any], id: str = "") -> PluginInstance:
        return super().instance({"path": str(next(self.folders)), **config}, id)


def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookmq_sinks.process.SenderProcess.start", lambda self: None)


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_processes(monkeypatch)


def harness(tmp_path: Path, store: DurableStore | None = None, **more: Any) -> Harness:
    config = {"path": str(tmp_path / "sinks"), "sinks": [sink(tmp_path, **more)]}
    plugin = make_plugin(SinksPlugin, config, "sinks", use="sinks")
    return Harness([plugin], store=store or DurableStore())


def plugin_of(broker: Harness) -> SinksPlugin:
    instance = broker.hooks.instance("sinks")
    assert instance is not None
    assert isinstance(instance.plugin, SinksPlugin)
    return instance.plugin


def payloads(broker: Harness) -> list[bytes]:
    (one,) = plugin_of(broker).sinks
    frames = one.log.read(one.log.earliest, 1 << 30)
    return [message.payload for frame in frames for message in decode_columns(frame.payload)]


def test_matching_messages_are_stored_before_the_acknowledgement(tmp_path: Path) -> None:
    with harness(tmp_path, exclude=["t/secret/#"]) as broker:
        client = broker.connect("c")
        client.publish("t/a", b"1", qos=1, expect=0)
        client.publish("t/secret/a", b"2", qos=1, expect=0x10)
        client.publish("u", b"3", qos=1, expect=0x10)
        client.publish("t", b"4", qos=2, retain=True, expect=0)
        assert payloads(broker) == [b"1", b"4"]
        (one,) = plugin_of(broker).sinks
        frames = one.log.read(0, 1 << 20)
        kept = [decode_columns(frame.payload)[0] for frame in frames]
        assert [(one.qos, one.retain, one.sender) for one in kept] == [
            (1, False, "c"),
            (2, True, "c"),
        ]


def test_a_full_log_refuses_and_deletion_makes_room(tmp_path: Path) -> None:
    with harness(tmp_path, max_bytes="64KiB") as broker:
        client = broker.connect("c")
        (one,) = plugin_of(broker).sinks
        while not one.filled:
            client.publish("t/a", b"x" * 4000, qos=1, expect=0)
        client.publish("t/a", b"x", qos=1, expect=0x97)
        assert broker.logged("sinks.log_full")
        assert len(one.log.segments) > 2
        one.move_done(one.log.segments[2].base)
        broker.clock.run_until_idle()
        client.publish("t/a", b"x", qos=1, expect=0)
        assert broker.logged("sinks.log_has_room")


def test_one_large_segment_is_deleted_once_all_is_done(tmp_path: Path) -> None:
    with harness(tmp_path, max_bytes="64KiB") as broker:
        client = broker.connect("c")
        (one,) = plugin_of(broker).sinks
        client.publish("t/a", b"x" * 70000, qos=1, expect=0)
        client.publish("t/a", b"x", qos=1, expect=0x97)
        one.move_done(1)
        broker.clock.run_until_idle()
        assert one.bytes < 1000
        client.publish("t/a", b"x", qos=1, expect=0)


def test_a_sink_that_is_not_configured_is_an_error(tmp_path: Path) -> None:
    with harness(tmp_path):
        pass
    with pytest.raises(StoreError, match="plant contains a sink that is not configured"):
        harness(tmp_path, name="other")


def test_notes_say_what_is_stored_and_what_happens_if_it_is_full(tmp_path: Path) -> None:
    with harness(tmp_path, on_full="drop_oldest") as broker:
        (note,) = plugin_of(broker).notes
        assert "plant: file gets t/#" in note
        assert str(tmp_path / "sinks/plant") in note
        assert "oldest messages are dropped" in note
