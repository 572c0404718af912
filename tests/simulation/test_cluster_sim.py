"""A cluster of real brokers keeps its guarantees in simulated runs. The simulator finds the bugs planted in a cluster."""

import pathlib

import pytest
from cluster_simulator import run
from cluster_simulator.__main__ import main
from planting import Bug, bugs, plant, problems, simulate

FOUND = (
    5110671,
    6003915,
    6009521,
    6024445,
    7040668,
    8004094,
    9060708,
    10040286,
    12084188,
    13015743,
    14070492,
    15038206,
    17013820,
)
"""Seeds that broke a promise once. A change of the simulator can make them runs like any others."""
PLANTED = bugs(pathlib.Path(__file__).parent / "cluster_bugs")


@pytest.mark.slow
def test_every_promise_is_kept() -> None:
    for seed in range(60):
        result = run(seed)
        assert not result.problems, (seed, result.problems, result.trace)


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_a_fault_is_clean(seed: int) -> None:
    result = run(seed)
    assert not result.problems, result.trace


def test_a_seed_gives_the_same_run_twice() -> None:
    first = run(7)
    assert first == run(7)
    assert first.meaningful


@pytest.mark.slow
def test_several_processes_run_each_seed_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "45", "--start", "100", "--jobs", "2"]) == 0
    assert capfd.readouterr().out.startswith("45 runs (45 with faults and messages), ")


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_applies_to_the_code_as_it_is(bug: Bug) -> None:
    assert problems(bug) == []


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_the_simulator_finds_what_is_planted(bug: Bug, tmp_path: pathlib.Path) -> None:
    plant(bug, tmp_path)
    seeds = ("--seeds", str(bug.within), "--start", str(bug.first))
    found = simulate(tmp_path, "--first", *seeds, module="cluster_simulator")
    assert found.returncode == 1, f"not found: {found.stdout}{found.stderr}"
    assert found.stdout.startswith("seed "), f"failed otherwise: {found.stdout}{found.stderr}"
