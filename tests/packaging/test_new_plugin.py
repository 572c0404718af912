"""The projects that `hookmq plugins new` writes are complete: they build wheels, and pass their own tests, mypy and
ruff.

Each step runs once over projects of every kind, because running a step is far more expensive than adding another
project to it. Type checking, for example, reads all of HookMQ.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hookmq_testing.new_plugin import KINDS, create

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("new_plugin")]
UV = Path(sys.executable).with_name("uv")
NAMES = {kind: f"new_{kind}" for kind in KINDS}


def run(*words: str | Path, cwd: Path, **environ: str) -> str:
    """Run a program, which must succeed. Return its output."""
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a project of each kind."""
    folder = tmp_path_factory.mktemp("projects")
    for kind, name in NAMES.items():
        create(name, kind, str(folder / name), "Ada Lovelace <ada@example.org>")
    return folder


@pytest.fixture(scope="module")
def site(projects: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the wheels of all projects are installed.

    uv builds them as one workspace. Each project gets only the packages that its own `build-system` requires.
    """
    if not UV.exists():
        pytest.skip("uv is not installed (make install)")
    wheels = tmp_path_factory.mktemp("wheels")
    (projects / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["new_*"]\n')
    words = ["build", "--all-packages", "--wheel", "--quiet", "--python"]
    run(UV, *words, sys.executable, "--out-dir", wheels, cwd=projects)
    (projects / "pyproject.toml").unlink()
    site = tmp_path_factory.mktemp("site")
    install = ["pip", "install", "--quiet", "--no-deps", "--offline", "--python"]
    run(UV, *install, sys.executable, "--target", site, *wheels.glob("*.whl"), cwd=projects)
    return site


def test_the_wheels_have_the_package_and_its_types(site: Path) -> None:
    for name in NAMES.values():
        assert (site / f"hookmq_{name}" / "py.typed").is_file()
        assert (site / f"hookmq_{name}-0.1.0.dist-info" / "entry_points.txt").is_file()


def test_the_tests_of_the_projects_pass(projects: Path, site: Path) -> None:
    first = projects / NAMES["decide"] / "pyproject.toml"
    told = run(
        sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", first, "--rootdir", projects,
        *(f"{name}/tests" for name in NAMES.values()),
        cwd=projects, PYTHONPATH=str(site),
    )  # fmt: skip
    passed = re.findall(r"^new_(\w+)/tests/test_new_\1\.py::\S+ PASSED", told, re.M)
    assert set(passed) == set(KINDS)
    assert "SKIPPED" not in told, "the contract also finds the entry point"
    assert "arning" not in told


def test_mypy_and_ruff_accept_the_projects(projects: Path, tmp_path: Path) -> None:
    """mypy and ruff accept the projects. All projects use the same options."""
    texts = {(projects / name / "pyproject.toml").read_text() for name in NAMES.values()}
    assert len({text[text.index("[tool.pytest") :] for text in texts}) == 1
    sources = [f"{name}/{part}" for name in NAMES.values() for part in (f"hookmq_{name}", "tests")]
    config = projects / NAMES["decide"] / "pyproject.toml"
    assert "strict = true" in config.read_text()
    mypy = (sys.executable, "-m", "mypy", "--config-file", config, f"--cache-dir={tmp_path}")
    assert f"no issues found in {2 * len(KINDS)} source files" in run(*mypy, *sources, cwd=projects)
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".", cwd=projects)
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".", cwd=projects)
