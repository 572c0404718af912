"""Test the command 'hookmq config' within the test process."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.cli import main
from hookmq.config.model import loads
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.plugin import Accept, Plugin, hookimpl

Captured = pytest.CaptureFixture[str]


class Door(Plugin):
    @hookimpl
    def on_connect(self, client: Any) -> Accept | None:
        return Accept()

    @hookimpl
    async def on_published(self, message: Any) -> None:
        return None


class Point:
    def __init__(self, load: Callable[[], Any]) -> None:
        self.load = load


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> None:
    point: Any = Point(lambda: Door)
    offered = (InstalledEntry("door", "m:Door", "hookmq-door", "1.2", point),)
    monkeypatch.setattr("hookmq.config.plugins.installed", lambda: offered)
    monkeypatch.setattr("hookmq.hooks.discovery.installed", lambda: offered)
    monkeypatch.setattr("hookmq.hooks.discovery.load", lambda found, plugin_id="": Door)


def test_show(capsys: Captured) -> None:
    assert main(["config", "show", "-o", "broker.max_qos=1", "--no-origins"]) == 0
    assert loads(capsys.readouterr().out, environ={}).broker.max_qos == 1
    assert main(["config", "show", "-o", "broker.max_qos=1"]) == 0
    assert "# option -o broker.max_qos" in capsys.readouterr().out


def test_schema_and_reference(door: None, capsys: Captured) -> None:
    assert main(["config", "schema"]) == 0
    assert "plugin_door" in json.loads(capsys.readouterr().out)["$defs"]
    assert main(["config", "reference"]) == 0
    assert capsys.readouterr().out.startswith("# Configuration\n")


def test_init_writes_once(tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = str(tmp_path / "new.yaml")
    assert main(["config", "init", path]) == 0
    assert main(["check", "-q", "-c", path]) == 0
    capsys.readouterr()
    assert main(["config", "init", path]) == 2
    assert capsys.readouterr().err == f"hookmq: {path} exists (--force overwrites it)\n"
    assert main(["config", "init", "--force", path]) == 0
    capsys.readouterr()
    assert main(["config", "init"]) == 0
    assert capsys.readouterr().out == pathlib.Path(path).read_text()
    assert main(["config", "show", "extra"]) == 2
