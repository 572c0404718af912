"""Test the command 'hookmq plugins', which shows a configuration's plugins and a hook's implementations."""

import json
import pathlib

import pytest
from door import write
from hookmq.cli import main
from hookmq.plugin import Plugin

Captured = pytest.CaptureFixture[str]


def test_plugins_are_listed(door: None, tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = write(tmp_path, "plugins: [{use: door, id: d, listeners: [tcp]}]\n")
    assert main(["plugins", "-c", path, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["use"], row["hooks"], row["listeners"]) == (
        "d", "door", ["on_connect", "on_published"], ["tcp"],
    )  # fmt: skip
    assert main(["plugins", "--installed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "distribution", "version", "api", "hooks"]
    assert lines[1].split() == [
        "door",
        "hookmq-door",
        "1.2",
        Plugin.requires_api,
        "on_connect,on_published",
    ]
    assert main(["plugins"]) == 0
    assert "has no plugins" in capsys.readouterr().out


def test_a_hook_is_explained(door: None, tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = write(tmp_path, "plugins: [{use: door}]\n")
    assert main(["plugins", "explain", "on_connect", "-c", path]) == 0
    out = capsys.readouterr().out
    assert out.startswith("on_connect(client, connect, broker): decide, must answer within 5 s\n")
    assert "door" in out
    assert main(["plugins", "explain", "on_conect", "-c", path]) == 2
    assert "unknown hook 'on_conect' (did you mean 'on_connect'?)" in capsys.readouterr().err
    assert main(["plugins", "explain"]) == 2
    assert main(["plugins", "list", "on_connect"]) == 2
    capsys.readouterr()
    assert main(["plugins", "explain", "authorize", "-c", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
