"""Test ``hookmq sink-test``, which needs no running broker."""

from pathlib import Path
from typing import Any

import pytest
from hookmq_testing import run_command
from ports import free_port
from sink_broker import write_config


def run(folder: Path, *names: str, **sink: Any) -> int:
    return run_command(["sink-test", "-c", write_config(folder, **sink), *names])


def test_a_ready_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, sample={"topic": "t/a", "payload": {"n": 1}}) == 0
    assert capsys.readouterr().out == "plant: the target is ready\n"
    assert list((tmp_path / "out").glob("*.jsonl*")) == []
    assert run(tmp_path, "plant") == 0


def test_a_target_that_cannot_be_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("not a folder")
    assert run(tmp_path) == 1
    out = capsys.readouterr().out
    assert out.startswith("plant: ")
    assert "out: " in out


def test_a_sample_that_does_not_fit_is_a_mistake_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = {"path": str(tmp_path / "out"), "fields": {"n": "${payload.n}"}}
    assert run(tmp_path, target=target, sample={"topic": "t/a", "payload": {"m": 1}}) != 0
    assert "no value for ${payload.n}" in capsys.readouterr().err


def test_an_unknown_sink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "plnt") != 0
    assert "there is no sink or source 'plnt'" in capsys.readouterr().err


def test_origins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = {"token": "0123456789abcdef", "identity": "erp"}
    ready = {"name": "api", "driver": "http", "origin": {"bind": "127.0.0.1:0", "tokens": [token]}}
    origin = {
        "url": f"redis://127.0.0.1:{free_port()}",
        "streams": ["s"],
        "publish": {"topic": "t"},
    }
    down = {"name": "orders", "driver": "redis", "origin": origin}
    assert run(tmp_path, "api", "orders", sources=[ready, down]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "api: the origin is ready"
    assert second.startswith("orders: ")
    assert "Connect call failed" in second


def test_a_sample_of_a_source_that_does_not_fit_is_a_mistake_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = {"topic": "t/${payload.n}", "decode": "json", "sample": {"topic": "s", "payload": {}}}
    one = {"name": "orders", "driver": "redis", "origin": {"streams": ["s"], "publish": publish}}
    assert run(tmp_path, sources=[one]) != 0
    assert "sample: no value for ${payload.n}" in capsys.readouterr().err
