"""Test the command 'hookmq check'."""

import pathlib

import pytest
import trustme
from hookmq.cli import main

Captured = pytest.CaptureFixture[str]


HEAD = "version: 1\nlisteners: [{name: tcp}]\n"


def write(folder: pathlib.Path, text: str) -> str:
    path = folder / "hookmq.yaml"
    path.write_text(HEAD + text)
    return str(path)


def test_wrong_configurations_exit_with_2(tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = write(tmp_path, "broker: {max_qos: 3}\nlop: auto\n")
    assert main(["check", "-c", path]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "hookmq: 2 errors in the configuration:",
        f"  {path}:3:19: broker.max_qos: expected at most 2, found 3",
        f"  {path}:4:1: lop: unknown key (did you mean 'loop'?)",
    ]
    assert main(["check", "-o", "x"]) == 2
    assert capsys.readouterr().err == "hookmq: option -o x: expected KEY=VALUE\n"


def test_a_missing_plugin_exits_with_3(tmp_path: pathlib.Path, capsys: Captured) -> None:
    assert main(["check", "-c", write(tmp_path, "plugins: [{use: no_such_thing}]\n")]) == 3
    assert "pip install" not in capsys.readouterr().err


def test_certificates_are_read(tmp_path: pathlib.Path, capsys: Captured) -> None:
    text = "version: 1\nlisteners:\n  - {type: tls, tls: {certificate: '%s'}}\n"
    path, pem = tmp_path / "f.yaml", tmp_path / "server.pem"
    path.write_text(text % pem)
    assert main(["check", "-c", str(path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"hookmq: {path}:3:22: listeners[0].tls: tls.certificate"
    )
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    assert main(["check", "-c", str(path)]) == 0


def test_uvloop_must_be_installed(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", "--check", "--loop", "uvloop"]) == 2
    assert "uvloop is not installed (pip install uvloop)" in capsys.readouterr().err
