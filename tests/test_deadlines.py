"""A test that takes too long is ended, and the stack of the test is printed."""

import os
import subprocess
import sys

import pytest
from deadlines import Deadlines
from pytest_timeout import Settings  # type: ignore[import-untyped]
from workspace import ROOT

SETTINGS = Settings(300.0, "thread", False, False)


def test_a_deadline_is_missed_when_it_has_passed(request: pytest.FixtureRequest) -> None:
    item = request.node
    deadlines = Deadlines()
    assert deadlines.missed(1e9) is None
    deadlines.begin(item, SETTINGS, now=1000.0)
    assert deadlines.missed(1300.0) is None
    assert deadlines.missed(1300.1) == (item, SETTINGS)
    deadlines.end()
    assert deadlines.missed(1e9) is None


@pytest.mark.slow
def test_an_endless_test_is_ended() -> None:
    """Check that the conftest.py at the root ends the endless test below."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:rerunfailures"]
    done = subprocess.run(
        [*command, "--timeout", "1", f"{__file__}::test_that_never_ends"], cwd=ROOT, text=True,
        capture_output=True, check=False, timeout=240, env={**os.environ, "ENDLESS": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout" in done.stdout + done.stderr
    assert "test_that_never_ends" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif("ENDLESS" not in os.environ, reason="only the test before runs it")
def test_that_never_ends() -> None:
    while True:
        pass
