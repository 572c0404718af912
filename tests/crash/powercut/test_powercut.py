"""Test power cuts under a broker with storage. Everything that the broker acknowledged must still be there.

For more cuts, run ``python tests/crash/powercut --cuts 1000``.
"""

from pathlib import Path

import pytest
from brokercut.bugs import find, planted
from brokercut.runs import cut_and_check, record, record_failure
from planting import Bug, problems
from powercut.shim import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
SEED = 20


def check(work: Path, messages: int, lives: int, cuts: int, real: int) -> None:
    recording = record(work, SEED, messages, lives)
    report = cut_and_check(recording, cuts, SEED, real=real)
    if report.failures:
        recording.save(work / "kept")
    number = report.failures[0][0].number if report.failures else 0
    assert not report.failures, (
        f"{report.text()}\n"
        f"python tests/crash/powercut --replay {work / 'kept'} --seed {SEED} --first {number} --cuts 1"
    )
    assert report.cuts == cuts


@pytest.mark.slow
def test_some_power_cuts(tmp_path: Path) -> None:
    check(tmp_path, messages=120, lives=2, cuts=15, real=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_power_cuts(tmp_path: Path) -> None:
    check(tmp_path, messages=600, lives=3, cuts=120, real=24)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("failing", [60, 75, 91])
def test_a_sync_that_fails_ends_the_broker_and_nothing_acknowledged_is_missing(
    tmp_path: Path, failing: int
) -> None:
    recording = record_failure(tmp_path, SEED, failing)
    report = cut_and_check(recording, 30, SEED)
    assert not report.failures, report.text()


@pytest.mark.parametrize("bug", planted(), ids=lambda bug: bug.name)
def test_a_planted_bug_applies_to_the_plugin_as_it_is(bug: Bug) -> None:
    assert problems(bug) == []
    assert bug.cuts


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", planted(), ids=lambda bug: bug.name)
def test_a_power_cut_finds_what_is_planted(bug: Bug, tmp_path: Path) -> None:
    assert find(bug, tmp_path), f"{bug.name} was not found within {bug.cuts} cuts"
