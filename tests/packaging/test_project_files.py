"""Workflows, templates and commit hooks refer only to existing scripts and targets."""

import re
from typing import Any

import pytest
import yaml
from workspace import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def commands(text: str) -> list[str]:
    """Return every command of a workflow, one line each."""
    jobs: dict[str, Any] = yaml.safe_load(text)["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"] if "run" in step]
    return [line for step in steps for line in step["run"].splitlines()]


def exists(command: str) -> bool:
    """Return whether the script or the make target that `command` starts with exists."""
    words = command.split()
    if words[0] == "make":
        return {word for word in words[1:] if re.fullmatch("[a-z-]+", word)} <= TARGETS
    scripts = [word for word in words[:2] if word.startswith((".ci/", "tools/"))]
    return all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_exists(path: Any) -> None:
    found = commands(path.read_text())
    assert found
    assert [command for command in found if not exists(command)] == []


def test_a_workflow_calls_the_one_script_that_must_pass() -> None:
    assert {path.name for path in WORKFLOWS} == {"ci.yml", "release.yml"}
    for path in WORKFLOWS:
        assert ".ci/run" in commands(path.read_text())


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_an_issue_form_is_complete(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert form.keys() >= {"name", "description", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_commit_hooks_run_tools_of_this_checkout() -> None:
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert {hook["id"] for hook in repository["hooks"]} == {
        "ruff-check",
        "ruff-format",
        "codespell",
        "words",
        "mypy",
    }
    for hook in repository["hooks"]:
        words = hook["entry"].split()
        assert words[0].startswith(".venv/bin/") or words[1] in TARGETS
        for word in words:
            assert not word.startswith("tools/") or (ROOT / word).is_file()
