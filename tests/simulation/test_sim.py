"""The real broker keeps its guarantees in hundreds of simulated worlds, each of which can be repeated.

The simulator also finds the bugs planted in the core.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
from planting import Bug, bugs, plant, problems, simulate
from simulator import Knobs, Plan, Step, make_plan, run
from simulator.coverage import CELLS, UNREACHABLE, Coverage
from simulator.shrink import as_test, shrink

BLOCK = 25
HERE = pathlib.Path(__file__).parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "start",
    [
        0,
        *(pytest.param(start, marks=pytest.mark.slow) for start in range(BLOCK, 250, BLOCK)),
    ],
)
def test_every_promise_is_kept(start: int) -> None:
    for seed in range(start, start + BLOCK):
        plan = make_plan(seed)
        assert len(plan.knobs.versions) >= 4
        result = run(plan)
        assert not result.failed, (
            f"{result.invariant}: {result.text}\n"
            f"python -m simulator --seed {seed} --trace\n"
            f"python -m simulator --seed {seed} --shrink"
        )
        assert result.packets >= 250


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_twice_and_in_another_process() -> None:
    seeds = (1, 7, 11)
    hashes = [run(make_plan(seed)).hash for seed in seeds]
    assert hashes == [run(make_plan(seed)).hash for seed in seeds]
    assert len(set(hashes)) == len(seeds)
    code = (
        "from simulator import make_plan, run\n"
        f"print([run(make_plan(seed)).hash for seed in {seeds}])"
    )
    for hash_seed in ("1", "2"):
        other = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert other.stdout.strip() == str(hashes)


@pytest.mark.slow
def test_the_faults_do_happen() -> None:
    results = [run(make_plan(seed)) for seed in range(30)]
    assert sum(result.crashes for result in results) > 20
    assert sum(result.takeovers for result in results) > 20
    assert sum(result.delivered for result in results) > 3000
    assert sum(result.commits for result in results) > 2000


def test_a_plan_is_text_that_makes_the_same_plan() -> None:
    plan = make_plan(5)
    assert eval(repr(plan), {"Plan": Plan, "Knobs": Knobs, "Step": Step}) == plan


def regressions() -> list[pathlib.Path]:
    return sorted((HERE / "regressions").glob("*.py"))


@pytest.mark.parametrize("path", regressions(), ids=lambda path: path.stem)
def test_fixed_failures_do_not_return(path: pathlib.Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = run(module.PLAN)
    assert not result.failed, f"{result.invariant}: {result.text}"


@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_a_planted_bug_applies_to_the_core_as_it_is(bug: Bug) -> None:
    assert problems(bug) == []


def test_a_planted_bug_is_found_and_made_short(tmp_path: pathlib.Path) -> None:
    bug = next(bug for bug in bugs() if bug.name == "window_off_by_one")
    plant(bug, tmp_path)
    found = simulate(tmp_path, "--seed", "0", "--shrink", "--seconds", "120")
    assert found.returncode == 1, found.stdout + found.stderr
    assert "window" in found.stdout
    assert "def test_window_0()" in found.stdout
    namespace: dict[str, object] = {}
    exec(found.stdout[found.stdout.index('"""') :], namespace)
    plan = namespace["PLAN"]
    assert isinstance(plan, Plan)
    assert len(plan.steps) < len(make_plan(0).steps) / 3
    assert not run(plan).failed


def test_shrinking_keeps_what_fails() -> None:
    plan = make_plan(3)
    # This invariant does not exist, so nothing fails and nothing is left out.
    assert shrink(plan, "no such invariant", 0.2, lambda text: None) == plan
    assert "PLAN = Plan(" in as_test(plan, "1 owed", "text")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_seeds_reach_every_cell() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simulator", "--seeds", "1000", "--start", "250"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_the_simulator_finds_what_is_planted(bug: Bug, tmp_path: pathlib.Path) -> None:
    plant(bug, tmp_path)
    if bug.plan is not None:
        found = simulate(tmp_path, "--plan", str(bug.plan))
    else:
        seeds = ("--seeds", str(bug.within), "--start", str(bug.first))
        arguments = ("--first", "--quiet", "--workers", "1", *seeds)
        found = simulate(tmp_path, *arguments)
    assert found.returncode == 1, f"not found: {found.stdout}{found.stderr}"
    assert found.stdout.startswith("\nseed "), f"failed otherwise: {found.stdout}{found.stderr}"
    assert "simulator:" not in found.stdout, "the simulator itself failed"


def test_coverage_knows_every_cell() -> None:
    coverage = Coverage()
    assert len(CELLS) == 90
    assert len(coverage.missing()) == len(CELLS) - len(UNREACHABLE)
    coverage.add((cell, 1) for cell in CELLS)
    assert coverage.missing() == []
    assert all(UNREACHABLE.values())
