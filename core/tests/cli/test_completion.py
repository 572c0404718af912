"""Test the completion of commands, options and values, both as candidates and in real shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hookmq.cli import COMMANDS, main
from hookmq.cli.completion import SCRIPTS, candidates


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ver"], ["version"]), (["hel"], ["help"]), (["config", "sh"], ["show"]), (["version", "--j"], ["--json"]),
        (["completion", "z"], ["zsh"]), (["serve", "--log-format", ""], ["auto", "json", "text"]),
        (["serve", "-c", ""], []), (["unknown", ""], []), (["pub", "-t", "topic", "--qo"], ["--qos"]),
    ],
)  # fmt: skip
def test_candidates(words: list[str], found: list[str]) -> None:
    assert candidates(words) == found


def test_all_commands_are_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--words"]) == 0
    assert set(COMMANDS) <= set(capsys.readouterr().out.split())


def test_options_are_not_taken_for_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--words", "version", "--json", "--h"]) == 0
    assert capsys.readouterr().out == "--help\n"


def test_a_shell_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert main(["completion", "tcsh"]) == 2
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out.endswith(SCRIPTS["bash"])


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(SCRIPTS[shell])
    subprocess.run([shell, "-n", str(file)], check=True)


def test_bash_completes_a_subcommand(tmp_path: Path) -> None:
    """bash completes a subcommand. If it did not call the real command, it would complete a file name instead."""
    hookmq = tmp_path / "hookmq"
    hookmq.write_text(f'#!/bin/sh\nexec {sys.executable} -m hookmq.cli "$@"\n')
    hookmq.chmod(0o755)
    script = (
        'source <(hookmq completion bash); COMP_WORDS=(hookmq config s); COMP_CWORD=2; _hookmq; echo "${COMPREPLY[@]}"'
    )  # fmt: skip
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["schema", "show"]
