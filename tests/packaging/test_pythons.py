"""Interpreters are identified by the version they report. The newest of each minor version is used once."""

import sys
from pathlib import Path

import pytest
from pythons import found, main, version


def fake(folder: Path, minor: int, answer: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"python3.{minor}"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)


def test_this_interpreter() -> None:
    assert version(sys.executable) == sys.version_info[:3]


@pytest.mark.parametrize("answer", ["echo pypy 3 12 1", "echo cpython 3 10 9", "exit 1"])
def test_unsupported_interpreters_are_ignored(tmp_path: Path, answer: str) -> None:
    fake(tmp_path, 12, answer)
    assert version(str(tmp_path / "python3.12")) is None
    assert version(str(tmp_path / "python3.13")) is None


def test_the_newest_of_each_minor_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "path", 12, "echo cpython 3 12 1")
    fake(tmp_path / "pyenv" / "versions" / "3.12.9" / "bin", 12, "echo cpython 3 12 9")
    fake(tmp_path / "pyenv" / "versions" / "3.13.0" / "bin", 13, "echo cpython 3 13 0")
    fake(tmp_path / "pyenv" / "versions" / "3.9.0" / "bin", 9, "echo cpython 3 9 0")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    paths = {this: Path(path).parent.parent.name for this, path in found().items()}
    assert paths == {(3, 12, 9): "3.12.9", (3, 13, 0): "3.13.0"}


def test_without_any_it_fails(tmp_path: Path) -> None:
    assert main([str(tmp_path / "python3.12")]) == 1
