"""Test the plans of faults, and one run of real processes."""

from itertools import pairwise
from pathlib import Path

import pytest
from clusterkill.faults import ALONE, ALWAYS, CATCH_UP, WITH_DISKS, Fault, plan
from clusterkill.report import recoveries
from clusterkill.rounds import break_cluster


def test_a_seed_determines_the_faults() -> None:
    assert plan(7, True) == plan(7, True)
    assert plan(7, True) != plan(8, True)


def test_consecutive_seeds_have_all_kinds() -> None:
    kinds = ALWAYS + WITH_DISKS
    assert {plan(seed, True)[0].kind for seed in range(len(kinds))} == set(kinds)


def test_without_disks_no_fault_needs_one() -> None:
    kinds = {fault.kind for seed in range(200) for fault in plan(seed, False)}
    assert kinds == set(ALWAYS)


def test_all_faults_can_be_of_one_kind() -> None:
    assert {fault.kind for fault in plan(5, True, kind="kill server")} == {"kill server"}


def test_a_machine_has_one_fault_at_a_time() -> None:
    for seed in range(300):
        faults = plan(seed, True)
        for one, other in ((a, b) for a in faults for b in faults if a.at < b.at):
            assert one.machine != other.machine or one.at + one.seconds <= other.at


def test_a_lost_disk_does_not_overlap_other_faults() -> None:
    lost = 0
    for seed in range(300):
        for before, after in pairwise(plan(seed, True)):
            if before.kind in ALONE or after.kind in ALONE:
                lost += 1
                assert before.at + before.seconds + CATCH_UP <= after.at + 1e-9
    assert lost


def test_a_seed_is_short() -> None:
    ends = [max(one.at + one.seconds for one in plan(seed, True)) for seed in range(300)]
    assert sorted(ends)[150] < 16
    assert max(ends) < 40


def test_a_fault_has_a_description() -> None:
    assert str(Fault("kill broker", 1.0, 2.0, 1)) == "1.0-3.0 s kill broker 1"
    assert str(Fault("cut relay", 1.0, 2.0, 1, "back")) == "1.0-3.0 s cut relay 1, back"


@pytest.mark.slow
def test_a_killed_machine_loses_nothing(tmp_path: Path) -> None:
    outcome = break_cluster(tmp_path, 1, 1, "kill machine")
    assert outcome.verdict.ok, outcome.verdict.lines()
    assert outcome.verdict.counts["acknowledged"] > 20
    assert outcome.verdict.counts["due"] > 20
    assert outcome.verdict.counts["retained read"] == 24
    assert recoveries([outcome])["kill machine"]
