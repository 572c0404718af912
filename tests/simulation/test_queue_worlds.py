"""Queues keep their guarantees in simulated worlds with crashes, torn writes and failing disks.

The simulator also finds the bugs planted in the plugin.
"""

import pathlib

import pytest
from planting import Bug, bugs, plant, problems, simulate
from simulator import make_queue_plan, run

BLOCK = 10
PLANTED = bugs(pathlib.Path(__file__).parent / "queue_bugs")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "start",
    [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(BLOCK, 170, 40))],
)
def test_queues_keep_their_promises(start: int) -> None:
    for seed in range(start, start + (40 if start else BLOCK)):
        result = run(make_queue_plan(seed))
        assert not result.failed, (
            f"{result.invariant}: {result.text}\n"
            f"python -m simulator --queues --seed {seed} --trace\n"
            f"python -m simulator --queues --seed {seed} --shrink"
        )


def test_a_seed_gives_the_same_trace_twice() -> None:
    first, second = (run(make_queue_plan(5)) for _ in range(2))
    assert first.hash == second.hash
    assert first.crashes > 2


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_applies_to_the_plugin_as_it_is(bug: Bug) -> None:
    assert problems(bug) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_the_simulator_finds_what_is_planted(bug: Bug, tmp_path: pathlib.Path) -> None:
    plant(bug, tmp_path)
    seeds = ("--seeds", str(bug.within), "--start", str(bug.first))
    found = simulate(tmp_path, "--queues", "--first", "--quiet", "--workers", "1", *seeds)
    assert found.returncode == 1, f"not found: {found.stdout}{found.stderr}"
    assert found.stdout.startswith("\nseed "), f"failed otherwise: {found.stdout}{found.stderr}"
    assert ": queue " in found.stdout, f"failed otherwise: {found.stdout}"
