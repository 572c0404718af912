"""Test medians, ratios and the rule that makes a run void."""

from __future__ import annotations

from typing import Any

import pytest
from hookmq_bench.histogram import bucket

from bench import report, scenarios

(FANIN,) = scenarios.select("fanin-q0-w20")
(TLS,) = scenarios.select("tls-q0")
(PAIRS,) = scenarios.select("pairs-q0-w20")
BUILDS = {"hookmq": "compiled"}
(IDLE,) = scenarios.select("idle")


def run(broker: str, cost_us: float, rate: int = 1000, **changes: Any) -> report.Run:
    raw: dict[str, Any] = {
        "elapsed_ns": 1_000_000_000,
        "delivered": rate,
        "broker_cpu_ns": cost_us * 1000 * rate,
        "generator_share": 0.5,
        "lost": 0,
    }
    return report.Run(FANIN, broker, raw | changes)


def test_ratio_is_of_medians_and_above_one_beats_mosquitto() -> None:
    rows = report.summarise(
        [
            run("mosquitto", 8.0),
            run("hookmq", 1.0, 5000),
            run("hookmq", 0.5, 9000),
            run("mosquitto", 10.0),
            run("mosquitto", 30.0),
            run("hookmq", 4.0, 6000),
        ],
        {"hookmq": "pure"},
    )
    mosquitto, hookmq = rows
    assert (mosquitto.median["cost"], mosquitto.least["cost"], mosquitto.most["cost"]) == (
        10,
        8,
        30,
    )
    assert (mosquitto.cost_ratio, mosquitto.rate_ratio) == (1.0, 1.0)
    assert (hookmq.median["cost"], hookmq.cost_ratio, hookmq.rate_ratio) == (1.0, 10.0, 6.0)
    assert hookmq.goal() == ">= 13x MISSED"
    assert mosquitto.goal() == ""


def test_against_is_the_cost_of_the_other_checkout_by_medians_and_by_lowest_runs() -> None:
    runs = [run("hookmq", cost) for cost in (2.0, 4.0, 5.0)]
    runs += [run("hookmq@1234567", cost) for cost in (3.0, 6.0, 7.0)]
    ours, theirs = report.summarise(runs, {"hookmq": "pure"}, {"hookmq": "hookmq@1234567"})
    assert ours.against == (1.5, 1.5)
    assert theirs.against is None
    assert theirs.goal() == ""
    headings, _, first, _ = report.table([ours, theirs]).splitlines()
    assert "against" in headings
    assert "1.500x, 1.500x" in first
    alone = report.summarise(runs[:3], {"hookmq": "pure"}, {"hookmq": "hookmq@1234567"})
    assert "against" not in report.table(alone)


def test_goal_is_that_of_the_build() -> None:
    runs = [run("mosquitto", 15.0), run("hookmq", 1.0)]
    assert report.summarise(runs, {"hookmq": "compiled"})[1].goal() == ">= 20x MISSED"
    assert report.summarise(runs, {"hookmq": "pure"})[1].goal() == ">= 13x met"


@pytest.mark.parametrize(("cost", "met"), [(1.9, "met"), (2.1, "MISSED")])
def test_goal_relative_to_another_scenario(cost: float, met: str) -> None:
    runs = [run("hookmq", 1.0), run("hookmq", cost)]
    runs[0].scenario, runs[1].scenario = PAIRS, TLS
    row = report.summarise(runs, BUILDS)[1]
    assert row.own_ratio == cost
    assert row.goal() == f"<= 2x pairs-q0-w20 {met}"


def test_a_row_behind_the_rival_has_a_note() -> None:
    rows = report.summarise([run("nats", 1.0), run("hookmq", 2.0)], BUILDS)
    assert rows[1].rival_ratio == 0.5
    assert "2.0x the cost of nats" in rows[1].notes()
    assert rows[0].rival_ratio is None


def test_latency_is_compared_with_mosquitto() -> None:
    def at(broker: str, p50: float) -> report.Run:
        buckets = [
            [bucket(round(us * 1000)), times] for us, times in ((p50, 98), (90.0, 1), (99.0, 1))
        ]
        return run(broker, 1.0, latency={"count": 100, "largest": 99_000, "buckets": buckets})

    rows = report.summarise([at("mosquitto", 30.0), at("hookmq", 33.0)], BUILDS)
    assert rows[1].latency_ratio == pytest.approx(1.1, rel=0.01)
    assert "p50 1.10x mosquitto's" in rows[1].notes()
    assert "mosquitto's" not in rows[0].notes()


def test_an_unsupported_load_is_left_out_and_not_void() -> None:
    (row,) = report.summarise([report.Run(FANIN, "nats", left_out="no websockets")])
    assert row.void == []
    assert "left out: no websockets" in report.table([row])


def test_a_void_run_does_not_count_and_has_a_reason() -> None:
    (row,) = report.summarise([run("hookmq", 1.0), run("hookmq", 0.1, lost=3, duplicates=2)])
    assert row.median["cost"] == 1.0
    assert row.void == ["3 lost, 2 duplicated"]
    assert "VOID 1 of 2 runs: 3 lost, 2 duplicated" in report.table([row])


def test_a_row_without_a_valid_run_misses_its_goal() -> None:
    rows = report.summarise(
        [run("mosquitto", 8.0), report.Run(FANIN, "hookmq", error="closed")], BUILDS
    )
    assert rows[1].goal() == ">= 20x MISSED"
    assert rows[1].cost_ratio is None
    assert "closed" in report.table(rows)


def test_a_busy_generator_is_marked() -> None:
    (row,) = report.summarise([run("hookmq", 1.0, generator_share=0.81)])
    assert "0.81!" in report.table([row])
    assert "generator-bound" in row.notes()


def test_a_window_limited_by_the_broker_has_a_note() -> None:
    (row,) = report.summarise([run("hookmq", 1.0, window=10)])
    assert "cuts the window to 10" in row.notes()


def test_idle_is_memory_per_connection() -> None:
    raw = {
        "elapsed_ns": 1_000_000_000,
        "broker_cpu_ns": 0,
        "clients": 5000,
        "rss_before_kib": 10_000,
        "rss_after_kib": 42_500,
        "lost": 0,
    }
    (row,) = report.summarise([report.Run(IDLE, "hookmq", raw)], BUILDS)
    assert row.median["cost"] == 6.5
    assert row.goal() == "<= 3 KiB MISSED"
    assert "6.50 KiB/conn" in report.table([row])


def test_select_takes_patterns_in_table_order() -> None:
    assert [s.name for s in scenarios.select("connect,fan*-w1")] == [
        "fanin-q0-w1",
        "fanout-q0-w1",
        "connect",
    ]
    assert {s.group for s in scenarios.select("stored")} == {"stored"}
    with pytest.raises(ValueError, match="no scenario matches 'nope'"):
        scenarios.select("nope")


def test_a_busy_machine_has_a_note() -> None:
    (row,) = report.summarise([run("hookmq", 1.0, broker_wait_ns=250_000_000)])
    assert "other work had a core for 25% of the time" in row.notes()


def test_a_run_without_deliveries_is_void() -> None:
    (row,) = report.summarise([run("hookmq", 1.0, delivered=0)])
    assert row.void == ["nothing delivered"]
