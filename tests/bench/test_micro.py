"""bench.micro: what is slower by both measures fails, by name; every case runs."""

from __future__ import annotations

import pytest

from bench import micro, micro_cases


def test_slower_by_both_measures_fails() -> None:
    base = {"decode": [[1.0, 1.1], [1.0]], "match": [[1.0], [1.0]], "chain": [[1.0], [1.0]]}
    new = {"decode": [[1.2, 1.3], [1.2]], "match": [[1.4], [1.0]], "chain": [[1.05], [1.05]]}
    judged = micro.judge(base, new)
    assert list(judged["decode"]) == pytest.approx([1e6, 1.2e6, 1.2, 1.2])
    # One slow round of two: the fastest was as fast as ever.
    assert list(judged["match"]) == pytest.approx([1e6, 1e6, 1.2, 1.0])
    failed = micro.slower(judged, 10)
    assert failed == ["decode"]
    text = micro.table(judged, ({"decode": 10.0}, {"decode": 20.0}), failed)
    assert "SLOWER" in text.splitlines()[1]
    assert text.count("SLOWER") == 1


def test_a_case_that_one_side_does_not_have_is_left_out() -> None:
    assert micro.judge({"decode": [[1.0]], "old": [[1.0]]}, {"decode": [[1.0]]}).keys() == {
        "decode"
    }


@pytest.mark.parametrize("name", micro_cases.CASES)
def test_every_case_runs_and_executes_the_same_each_time(name: str) -> None:
    make, loops = micro_cases.CASES[name]
    assert loops > 0
    assert micro_cases.timed(make, 1) > 0


def test_a_longer_way_has_more_bytecodes() -> None:
    """Of which compiled code executes none, so that both builds pass."""
    first = micro_cases.bytecodes(micro_cases.CASES["lookup"][0])
    assert first == micro_cases.bytecodes(micro_cases.CASES["lookup"][0])
    assert first <= micro_cases.bytecodes(micro_cases.CASES["match"][0])
    assert first > 0
