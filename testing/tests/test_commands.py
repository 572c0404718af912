"""Test the helper that runs commands in tests."""

import pytest
from hookmq_testing import run_command


def test_a_command_runs_and_returns_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["version"]) == 0
    assert "plugins api" in capsys.readouterr().out
    assert run_command(["nothing"]) == 2
    assert "unknown command 'nothing'" in capsys.readouterr().err
