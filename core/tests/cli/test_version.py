"""Test the command 'hookmq version'."""

import json
import sys

import pytest
from hookmq import BUILD
from hookmq.cli import main

Captured = pytest.CaptureFixture[str]


def test_version(capsys: Captured) -> None:
    assert main(["version"]) == 0
    printed = capsys.readouterr().out
    names = [line.split("  ")[0] for line in printed.splitlines()]
    # The builds of plugins follow.
    assert names[:6] == ["hookmq", "python", "loop", "build", "plugins api", "platform"]
    assert f"build        {BUILD}\n" in printed
    assert main(["--version"]) == 0
    capsys.readouterr()
    assert main(["version", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["python"].startswith(sys.version.split()[0])
    assert (found["build"], found["build_reason"]) == (BUILD.kind, BUILD.reason)
