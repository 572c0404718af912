"""Medians, ratios and the void rule."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_goal_is_that_of_the_build() -> None:
    runs = [run("mosquitto", 15.0), run("hookmq", 1.0)]
    assert report.summarise(runs, {"hookmq": "compiled"})[1].goal() == ">= 20x MISSED"
    assert report.summarise(runs, {"hookmq": "pure"})[1].goal() == ">= 13x met"


@pytest.mark.parametrize(("cost", "met"), [(1.9, "met"), (2.1, "MISSED")])
def test_goal_beside_another_scenario_of_its_own(cost: float, met: str) -> None:
    runs = [run("hookmq", 1.0), run("hookmq", cost)]
    runs[0].scenario, runs[1].scenario = PAIRS, TLS
    row = report.summarise(runs, BUILDS)[1]
    assert row.beside == cost
    assert row.goal() == f"<= 2x pairs-q0-w20 {met}"


def test_behind_the_rival_is_said() -> None:
    rows = report.summarise([run("nats", 1.0), run("hookmq", 2.0)], BUILDS)
    assert rows[1].rival_ratio == 0.5
    assert "2.0x the cost of nats" in rows[1].notes()
    assert rows[0].rival_ratio is None


def test_latency_beside_mosquitto_is_said() -> None:
    def at(broker: str, p50: float) -> report.Run:
        return run(broker, 1.0, latency_us={"p50": p50, "p99": 90.0, "p99_9": 99.0})

    rows = report.summarise([at("mosquitto", 30.0), at("hookmq", 33.0)], BUILDS)
    assert rows[1].latency_ratio == pytest.approx(1.1)
    assert "p50 1.10x mosquitto's" in rows[1].notes()
    assert "mosquitto's" not in rows[0].notes()


def test_what_a_broker_cannot_do_is_left_out_and_not_void() -> None:
    (row,) = report.summarise([report.Run(FANIN, "nats", left_out="no websockets")])
    assert row.void == []
    assert "left out: no websockets" in report.table([row])


def test_void_run_counts_for_nothing_and_says_why() -> None:
    (row,) = report.summarise([run("hookmq", 1.0), run("hookmq", 0.1, lost=3, duplicates=2)])
    assert row.median["cost"] == 1.0
    assert row.void == ["3 lost, 2 duplicated"]
    assert "VOID 1 of 2 runs: 3 lost, 2 duplicated" in report.table([row])


def test_row_without_a_valid_run_misses_its_bar() -> None:
    rows = report.summarise(
        [run("mosquitto", 8.0), report.Run(FANIN, "hookmq", error="closed")], BUILDS
    )
    assert rows[1].goal() == ">= 20x MISSED"
    assert rows[1].cost_ratio is None
    assert "closed" in report.table(rows)


def test_busy_generator_is_flagged() -> None:
    (row,) = report.summarise([run("hookmq", 1.0, generator_share=0.81)])
    assert "0.81!" in report.table([row])
    assert "generator-bound" in row.notes()


def test_window_cut_by_the_broker_is_said() -> None:
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


def test_busy_machine_is_said() -> None:
    (row,) = report.summarise([run("hookmq", 1.0, broker_wait_ns=250_000_000)])
    assert "other work had a core for 25% of the time" in row.notes()


def test_run_that_delivered_nothing_is_void() -> None:
    (row,) = report.summarise([run("hookmq", 1.0, delivered=0)])
    assert row.void == ["nothing delivered"]
