"""Test that files written by operators are opened without blocking, and that errors contain the full path."""

import os
import pathlib

import pytest
from hookmq.config.model import load, loads
from hookmq.model.errors import ConfigError


def test_a_pipe_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "secret")
    text = "version: 1\nlisteners: [{name: tcp}]\nbroker: {server_reference: {$file: secret}}\n"
    with pytest.raises(ConfigError) as caught:
        loads(text, "f", (), {}, tmp_path)
    assert f"the file '{tmp_path}/secret': not a regular file" in str(caught.value)


@pytest.mark.parametrize("kind", ["missing", "a pipe"])
def test_a_file_that_cannot_be_read_is_named_in_full(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if kind == "a pipe":
        os.mkfifo("hookmq.yaml")
    with pytest.raises(ConfigError) as caught:
        load("hookmq.yaml")
    why = "no such file or directory" if kind == "missing" else "not a regular file"
    assert str(caught.value).startswith(f"{tmp_path}/hookmq.yaml: {why}")
