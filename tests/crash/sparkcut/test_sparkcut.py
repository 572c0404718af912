"""Test power cuts under a broker with a Spark sink. Every acknowledged or served message is in the stream once, in
order.

For more cuts, run ``python tests/crash/sparkcut --cuts 500``.
"""

from pathlib import Path

import pytest
from planting import Bug, bugs, plant, problems
from powercut.shim import missing
from sparkcut.runs import cut_and_check, record, run_program

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
HERE = Path(__file__).parent
BUGS = bugs(HERE / "bugs")
TESTS = HERE.parents[2] / "plugins" / "spark_sink" / "tests"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_power_cuts(tmp_path: Path) -> None:
    recording = record(tmp_path, 20, messages=240)
    report = cut_and_check(recording, 60, 20)
    assert not report.failures, report.text()
    assert report.cuts == 60


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_applies_to_the_plugin_as_it_is(bug: Bug) -> None:
    assert problems(bug) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.cuts > 1], ids=lambda bug: bug.name)
def test_a_power_cut_finds_what_is_planted(bug: Bug, tmp_path: Path) -> None:
    plant(bug, tmp_path)
    arguments = ("--cuts", str(bug.cuts), "--seed", "1", "--messages", "200")
    done = run_program(tmp_path, str(HERE), *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "power cuts with seed" in done.stdout or "before any cut" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.cuts == 1], ids=lambda bug: bug.name)
def test_a_test_of_the_plugin_finds_what_is_planted(bug: Bug, tmp_path: Path) -> None:
    plant(bug, tmp_path)
    names = "log_replaced or damaged_stream or uncommitted or packed or only_clients or are_merged"
    done = run_program(tmp_path, "-m", "pytest", "-q", "-x", str(TESTS), "-k", names)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout, done.stdout
