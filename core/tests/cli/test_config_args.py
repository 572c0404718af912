"""The options that name a configuration."""

import pathlib

import pytest
from door import write
from hookmq.cli import main

Captured = pytest.CaptureFixture[str]


def test_the_folder_of_the_store_is_told_and_chosen(
    door: None, tmp_path: pathlib.Path, capsys: Captured
) -> None:
    path = write(tmp_path, "plugins: [{use: door}]\n")
    assert main(["check", "-c", path, "--data-dir", "x"]) == 2
    err = capsys.readouterr().err
    assert f"option --data-dir: {path} has no plugin 'storage' that keeps state" in err
    assert main(["check", "-c", path]) == 0
    assert "to keep them, add the plugin storage" in capsys.readouterr().out
    assert main(["config", "show", "--data-dir", "some/where", "--no-origins"]) == 0
    assert "path: some/where\n" in capsys.readouterr().out
    assert main(["config", "show", "--data-dir", "1", "-o", "plugins.0.id=x"]) == 0
    assert "-o plugins.0.config.path" in capsys.readouterr().out
