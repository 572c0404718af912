"""Test the preparation that makes Spark start fast in `make test-spark`. The tests need Java but not Spark."""

import os
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

WARM = runpy.run_path(str(Path(__file__).parents[1] / "warm.py"))


def test_the_driver_and_its_executors_are_given_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "a file.jsa"
    words = shlex.split(WARM["submit_args"](archive))
    assert words[::2] == ["--conf", "--conf", "pyspark-shell"]
    names, given = zip(*(word.split("=", 1) for word in words[1::2]), strict=True)
    assert names == ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")
    assert set(given) == {" ".join(WARM["options"](archive))}


@pytest.mark.parametrize("content", [None, b"", b"of another Java"])
def test_an_archive_that_cannot_be_used_is_passed_over(
    tmp_path: Path, content: bytes | None
) -> None:
    archive = tmp_path / "classes.jsa"
    if content is not None:
        archive.write_bytes(content)
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else shutil.which("java")
    assert java is not None
    options = WARM["options"](archive)
    said = subprocess.run([java, *options, "-version"], capture_output=True, text=True, check=True)
    assert said.stdout == ""
    assert said.stderr.splitlines()[0].startswith("openjdk version")
