"""Test the plan for workers of one machine. tests/workers runs the workers."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import ConfigError, StoreError
from hookmq_cluster.config import ClusterConfig
from hookmq_cluster.plugin import ClusterPlugin
from hookmq_cluster.workers import ClusterWorkers, SupervisorRuntime
from hookmq_testing import make_plugin


def log(level: str, event: str, /, **fields: object) -> None:
    pass


class Registry:
    """A registry that remembers what is registered."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, Any]] = []

    def set(self, count: Any, plan: Any) -> None:
        self.found.append((count, plan))


async def test_workers_share_a_server(tmp_path: Path) -> None:
    plan = ClusterWorkers("", tmp_path / "nats", log)
    await plan.start()
    try:
        found = plan.settings("w1")
        assert found["node"] == "w1"
        assert found["servers.0"].startswith("nats://127.0.0.1:")
        assert (found["replicas"], found["allow_single_replica"]) == ("1", "true")
        assert len(found["password"]) == 64
        other = ClusterWorkers("", tmp_path / "nats", log)
        with pytest.raises(StoreError, match="in use"):
            await other.start()
        await other.stop()
    finally:
        await plan.stop()
    await plan.stop()


async def test_workers_may_use_other_servers() -> None:
    plan = ClusterWorkers("site", None, log)
    await plan.start()
    found = dict(plan.settings("w0"))
    folder = found.pop("transfers")
    assert found == {"node": "site-w0"}
    assert os.stat(folder).st_mode & 0o777 == 0o700
    await plan.stop()
    with pytest.raises(FileNotFoundError):
        os.stat(folder)


async def test_workers_do_not_need_transfers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 80)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    logged: list[str] = []
    plan = ClusterWorkers("site", None, lambda level, event, /, **fields: logged.append(event))
    await plan.start()
    assert logged == ["cluster.no_transfers"]
    assert plan.settings("w0") == {"node": "site-w0"}
    assert os.listdir(folder) == []
    await plan.stop()


def test_the_plugin_registers_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for config, wanted in (
        ({}, None),
        ({"workers": "auto"}, "auto"),
        ({"workers": 3, "folder": str(tmp_path)}, 3),
        ({"workers": 3, "servers": ["nats://127.0.0.1:1"]}, 3),
    ):
        registry = Registry()
        plugin = make_plugin(ClusterPlugin, config, use="cluster").plugin
        plugin.register_workers(registry)  # type: ignore[attr-defined]
        assert [count for count, _ in registry.found] == ([] if wanted is None else [wanted])


@pytest.mark.parametrize("workers", [0, -1])
def test_a_wrong_number_is_refused(workers: int) -> None:
    with pytest.raises(ConfigError, match=f"expected auto or a number from 1 on, found {workers}"):
        ClusterConfig(workers=workers)


def test_a_folder_needs_workers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="folder: only used with workers"):
        ClusterConfig(folder=tmp_path)


def test_the_supervisors_runtime() -> None:
    runtime = SupervisorRuntime(log)
    assert runtime.now() <= runtime.now()
    assert len(runtime.token(8)) == 16
    assert runtime.token(8) != runtime.token(8)
