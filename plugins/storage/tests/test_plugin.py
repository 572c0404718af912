"""Test the plugin as seen by the broker, `hookmq check` and the exporter."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from hookmq.plugin import MetricRegistry, StoreError
from hookmq.storage_api import MemoryStore
from hookmq_storage.plugin import StoragePlugin
from hookmq_storage.store import SQLiteStore
from hookmq_testing import Harness, PluginContract, PluginInstance, run_command
from hookmq_testing.plugins import make_plugin


class TestContract(PluginContract):
    kind = StoragePlugin
    use = "storage"
    configs: ClassVar[Any] = (
        {"durability": "group"},
        {"durability": "os"},
        {"durability": "memory"},
    )
    bad_configs: ClassVar[Any] = ({"durability": "none"}, {"paht": "x"})

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.made = 0

    def instance(self, config: Any, id: str = "") -> PluginInstance:
        self.made += 1
        return super().instance({"path": str(self.folder / str(self.made)), **config}, id)

    def test_two_of_it_live_together(self) -> None:
        """Assert that two such plugins are refused, because a broker has one store."""
        first, second = (self.instance(self.configs[0], id) for id in ("first", "second"))
        with pytest.raises(Exception, match="plugin 'first' already does"):
            Harness([first, second])


def plugin(folder: Path, durability: str = "group") -> PluginInstance:
    config = {"path": str(folder / "data"), "durability": durability}
    return make_plugin(StoragePlugin, config, "storage", use="storage")


def test_stored_sessions_exist_after_a_restart(tmp_path: Path) -> None:
    for present in (False, True):
        with Harness([plugin(tmp_path)]) as harness:
            assert isinstance(harness.store, SQLiteStore)
            client = harness.connect("one", clean_start=False, session_expiry_interval=600)
            assert client.connack is not None
            assert client.connack.session_present is present


def test_memory_leaves_the_folder_alone(tmp_path: Path) -> None:
    with Harness([plugin(tmp_path, "memory")]) as harness:
        assert isinstance(harness.store, MemoryStore)
        assert not harness.logged("storage.ignored")
    assert not (tmp_path / "data").exists()
    with Harness([plugin(tmp_path)]):
        pass
    with Harness([plugin(tmp_path, "memory")]) as harness:
        assert harness.logged("storage.ignored")


def test_metrics(tmp_path: Path) -> None:
    instance = plugin(tmp_path, "os")
    registry = MetricRegistry()
    assert isinstance(instance.plugin, StoragePlugin)
    instance.plugin.register_metrics(registry)
    assert "hookmq_storage_commit_seconds_count 0\n" in registry.text()
    with Harness([instance]) as harness:
        harness.connect("one", session_expiry_interval=600)
        text = registry.text()
    assert 'hookmq_storage_durability{durability="os"} 1\n' in text
    assert "hookmq_storage_commit_seconds_count 0\n" not in text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(values["hookmq_storage_records_total"]) >= 1
    assert int(values["hookmq_storage_database_bytes"]) > 4096
    assert float(values["hookmq_storage_commit_seconds_sum"]) > 0


@pytest.mark.parametrize(
    ("durability", "says"),
    [
        ("group", "survives a power cut"),
        ("os", "survives the end of the process, not a power cut"),
        ("memory", "nothing survives a restart"),
    ],
)
def test_check_tells_the_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], durability: str, says: str
) -> None:
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        "version: 1\nlisteners: [{name: tcp, bind: '127.0.0.1:0'}]\n"
        f"plugins: [{{use: storage, config: {{path: {tmp_path}/data, durability: {durability}}}}}]\n"
    )
    assert run_command(["check", "-c", str(config)]) == 0
    told = capsys.readouterr().out
    assert f"({durability}: {says})" in told
    assert ("a restart loses them" in told) == (durability == "memory")
    assert not (tmp_path / "data").exists()


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    with pytest.raises(StoreError, match="data is a file, not a folder"):
        Harness([plugin(tmp_path)])
