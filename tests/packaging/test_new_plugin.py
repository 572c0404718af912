"""The project that `hookmq plugins new` writes is complete. It builds a wheel, and passes its own
tests and mypy.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hookmq_testing.new_plugin import KINDS, create

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
UV = Path(sys.executable).with_name("uv")


def run(*words: str | Path, cwd: Path, **environ: str) -> str:
    """Run a program, which must succeed. Return its output."""
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_is_whole(kind: str, tmp_path: Path) -> None:
    if not UV.exists():
        pytest.skip("uv is not installed (make install)")
    name = f"new_{kind}"
    folder, _ = create(name, kind, str(tmp_path / "project"), "Ada Lovelace <ada@example.org>")
    run(
        UV,
        "build",
        "--wheel",
        "--quiet",
        "--python",
        sys.executable,
        "--out-dir",
        tmp_path,
        ".",
        cwd=folder,
    )
    [wheel] = tmp_path.glob(f"hookmq_{name}-0.1.0-py3-none-any.whl")
    site = tmp_path / "site"
    run(
        UV, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", site, wheel, cwd=folder
    )  # fmt: skip
    assert (site / f"hookmq_{name}" / "py.typed").is_file()
    told = run(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        cwd=folder,
        PYTHONPATH=str(site),
    )
    assert " passed" in told
    assert "skipped" not in told, "the contract also finds the entry point"
    assert "arning" not in told
    cache = f"--cache-dir={tmp_path / 'mypy'}"
    run(sys.executable, "-m", "mypy", cache, f"hookmq_{name}", "tests", cwd=folder)
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".", cwd=folder)
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".", cwd=folder)
