"""Test how the workers' Python is chosen. An unsuitable one causes a one-line error that names the remedy, before Spark
starts.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from mqtt_pipelines import cli
from mqtt_pipelines.settings import PipelineError
from mqtt_pipelines.worker_python import VARIABLE, use_this_python


def program(path: Path, script: str) -> Path:
    """Create a program. A separate process writes the file, because Linux refuses to run a file that is open for
    writing. If this process wrote it, a child forked by another thread could inherit the open file.
    """
    source = path.with_suffix(".txt")
    source.write_text(script)
    subprocess.run(["install", "-m", "700", str(source), str(path)], check=True)
    return path


def test_without_the_variable_it_is_this_python() -> None:
    for environ in ({}, {VARIABLE: ""}):
        given: dict[str, str] = dict(environ)
        use_this_python(given)
        assert given == {VARIABLE: sys.executable}


def test_another_python_with_the_packages_may_be_used(tmp_path: Path) -> None:
    link = program(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    given = {**os.environ, VARIABLE: str(link)}
    use_this_python(given)
    assert given[VARIABLE] == str(link)


def bare(tmp_path: Path) -> Path:
    """Return a Python interpreter that lacks the packages."""
    base = Path(sysconfig.get_config_var("BINDIR")) / f"python{sys.version_info[0]}"
    return program(tmp_path / "bare", f'#!/bin/sh\nexec {base} -I -S "$@"\n')


def test_a_python_without_the_packages_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = bare(tmp_path)
    monkeypatch.setenv(VARIABLE, str(named))
    conf = tmp_path / "c.yaml"
    conf.write_text(
        "version: 1\nname: p\nsource: {mqtt: {url: 'http://127.0.0.1:1', stream: s}}\n"
        f"checkpoints: {tmp_path}/c\ntables: {{bronze: {{path: {tmp_path}/t}}}}\n"
    )
    assert cli.main(["run", "bronze", "-c", str(conf), "--once"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hookmq-pipelines: {VARIABLE} names {named}, which has no pyspark, ")
    assert line.endswith(f"unset {VARIABLE}, or set it to {sys.executable}")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\nexit 1\n", "does not run (it ends with an error)"),
        ("#!/bin/sh\necho 3.7\n", "is Python 3.7, but this is"),
        (None, "does not run (No such file or directory)"),
    ],
)
def test_a_python_that_cannot_be_used(tmp_path: Path, script: str | None, reason: str) -> None:
    named = tmp_path / "python"
    if script is not None:
        program(named, script)
    with pytest.raises(PipelineError) as refused:
        use_this_python({VARIABLE: str(named)})
    assert reason in str(refused.value)
