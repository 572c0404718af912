"""Run the core's tests on every Python on this machine, and print which versions ran.

    python tools/pythons.py                  use each minor version from 3.11 that is on the PATH or in pyenv
    python tools/pythons.py PYTHON...        use these interpreters
    python tools/pythons.py PYTHON -- ARG... pass these arguments to pytest instead of `-m "not slow" core/tests`

Each interpreter gets its own environment in .venv-pythons, built from uv.lock. Packages may be downloaded, but
interpreters are not.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = (3, 11)
Version = tuple[int, ...]


def version(python: str) -> Version | None:
    """Return the version of the interpreter `python`, or None if it is not CPython or is too old."""
    code = "import sys; print(sys.implementation.name, *sys.version_info[:3])"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    name, *numbers = done.stdout.split()
    found = tuple(int(number) for number in numbers)
    return found if name == "cpython" and found >= OLDEST else None


def found() -> dict[Version, str]:
    """Return the newest interpreter of each minor version on this machine."""
    folders = [Path(folder) for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += sorted(pyenv.glob("versions/*/bin"))
    newest: dict[Version, tuple[Version, str]] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")) if folder.is_dir() else ():
            if not re.fullmatch(r"python3\.\d+", path.name):
                continue
            this = version(str(path))
            if this and this > newest.get(this[:2], ((), ""))[0]:
                newest[this[:2]] = (this, str(path))
    return dict(sorted(newest.values()))


def run(this: Version, python: str, arguments: list[str]) -> bool:
    """Create an interpreter's environment and run pytest in it. Return whether both succeeded."""
    folder = ROOT / ".venv-pythons" / ".".join(map(str, this))
    environ = {
        **os.environ,
        "UV_PROJECT_ENVIRONMENT": str(folder),
        "HOOKMQ_BUILD": "pure",
        "HYPOTHESIS_PROFILE": "ci",
    }
    sync: list[str | Path] = [
        ROOT / ".venv/bin/uv",
        "sync",
        "--locked",
        "--all-packages",
        "--quiet",
        "--python",
        python,
    ]
    commands: list[list[str | Path]] = [sync, [folder / "bin/python", "-m", "pytest", *arguments]]
    return all(
        subprocess.run(one, cwd=ROOT, env=environ, check=False).returncode == 0 for one in commands
    )


def main(arguments: list[str]) -> int:
    """Run the tests, and print one line for each interpreter. Return 1 if a run failed or no interpreter was found."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    given, rest = arguments[:cut], arguments[cut + 1 :]
    pythons = {this: one for one in given if (this := version(one))} if given else found()
    results = {}
    for this, python in pythons.items():
        print(f"== Python {'.'.join(map(str, this))}: {python}", flush=True)
        results[this] = run(this, python, rest or ["-q", "-m", "not slow", "core/tests"])
    for this, passed in results.items():
        print(f"Python {'.'.join(map(str, this))}: {'passed' if passed else 'FAILED'}")
    return 0 if results and all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
