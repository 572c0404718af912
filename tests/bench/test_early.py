"""Test that `python -m bench`, interrupted with Ctrl-C, reports the runs so far and keeps older results."""

from __future__ import annotations

import json
import pathlib
import signal
import sys
from typing import Any

import pytest
from hookmq_bench import native

from bench import __main__ as command
from bench import launch, report, session


def test_ctrl_c_reports_the_runs_so_far(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def measure(scenario: Any, broker: str, options: Any) -> report.Run:
        if told:
            raise KeyboardInterrupt
        told.append(broker)
        return report.Run(scenario, broker, error="not for this test")

    older = tmp_path / "older.json"
    older.write_text("{}")
    words = ["--scenarios", "idle", "--peers", "mosquitto", "--no-pin", "--json", str(older)]
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(command, "installed", lambda names: (dict.fromkeys(names, "1"), {}))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(native, "build", lambda: tmp_path)
    monkeypatch.setattr(launch, "raise_file_limit", lambda: 0)
    monkeypatch.setattr(session, "machine", lambda: MACHINE)
    assert command.main() == 130
    out, err = capsys.readouterr()
    assert "ended early by Ctrl-C, after 1 runs" in err
    assert "not for this test" in out
    (written,) = (tmp_path / "results").iterdir()
    assert len(json.loads(written.read_text())["rows"]) == 1
    assert older.read_text() == "{}"
    # Without a complete run, nothing is written.
    assert command.main() == 130
    assert list((tmp_path / "results").iterdir()) == [written]


MACHINE = {
    "cpu": "any",
    "cores": 2,
    "kernel": "6",
    "python": "3.11",
    "load_average": [0.0, 0.0, 0.0],
}
