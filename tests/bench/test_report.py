"""Medians, ratios and the void rule."""

from __future__ import annotations

from typing import Any

import pytest

from bench import report, scenarios

FANIN, *_ = scenarios.SCENARIOS
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
        ]
    )
    mosquitto, hookmq = rows
    assert (mosquitto.median["cost"], mosquitto.least["cost"], mosquitto.most["cost"]) == (
        10,
        8,
        30,
    )
    assert (mosquitto.cost_ratio, mosquitto.rate_ratio) == (1.0, 1.0)
    assert (hookmq.median["cost"], hookmq.cost_ratio, hookmq.rate_ratio) == (1.0, 10.0, 6.0)
    assert hookmq.goal() == ">= 8x met"
    assert mosquitto.goal() == ""


def test_void_run_counts_for_nothing_and_says_why() -> None:
    (row,) = report.summarise([run("hookmq", 1.0), run("hookmq", 0.1, lost=3, duplicates=2)])
    assert row.median["cost"] == 1.0
    assert row.void == ["3 lost, 2 duplicated"]
    assert "VOID 1 of 2 runs: 3 lost, 2 duplicated" in report.table([row])


def test_row_without_a_valid_run_misses_its_bar() -> None:
    rows = report.summarise([run("mosquitto", 8.0), report.Run(FANIN, "hookmq", error="closed")])
    assert rows[1].goal() == ">= 8x MISSED"
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
    (row,) = report.summarise([report.Run(IDLE, "hookmq", raw)])
    assert row.median["cost"] == 6.5
    assert row.goal() == "<= 6 KiB MISSED"
    assert "6.50 KiB/conn" in report.table([row])


def test_select_takes_patterns_in_table_order() -> None:
    assert [s.name for s in scenarios.select("connect,fan*-w1")] == [
        "fanin-q0-w1",
        "fanout-q0-w1",
        "connect",
    ]
    with pytest.raises(ValueError, match="no scenario matches 'nope'"):
        scenarios.select("nope")


def test_busy_machine_is_said() -> None:
    (row,) = report.summarise([run("hookmq", 1.0, broker_wait_ns=250_000_000)])
    assert "other work had a core for 25% of the time" in row.notes()


def test_run_that_delivered_nothing_is_void() -> None:
    (row,) = report.summarise([run("hookmq", 1.0, delivered=0)])
    assert row.void == ["nothing delivered"]
