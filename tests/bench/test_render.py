"""Test that docs/explanation/performance.md matches the results, and that its plots are valid charts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from bench import curves, render, scenarios, svg


def row(broker: str, cost: float, **more: Any) -> dict[str, Any]:
    median = {"cost": cost, "rate": 1e6 / cost, "generator": 0.5, "core": 1.0}
    made: dict[str, Any] = {
        "scenario": "pairs-q0-w20",
        "load": {"title": "pairs", "mode": "closed"},
        "broker": broker,
        "median": median,
        "least": median | {"cost": cost * 0.9},
        "most": median,
        "cost_ratio": 8 / cost,
        "rival_ratio": None,
        "build": "",
        "goal": "",
        "left_out": "",
        "void": [],
        "runs": [{}],
    }
    return made | more


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"versions": {one["broker"]: "1" for one in rows}, "rows": list(rows)}


def test_page_and_plots_are_those_of_the_results() -> None:
    page = render.PAGE.read_text()
    rendered, plots = render.render(page)
    assert rendered == page, "run: python -m bench.render"
    folder = render.PAGE.parent / render.PLOTS
    assert {path.name for path in folder.iterdir()} == set(plots)
    for name, text in plots.items():
        assert (folder / name).read_text() == text


def test_costs_have_spread_ratio_and_goal() -> None:
    ours = row("hookmq-pure", 0.8, build="pure", goal=">= 10x met", rival_ratio=1.55)
    *_, line = render.costs(document(row("mosquitto", 8.0), ours)).splitlines()
    assert line == "| pairs | 8.00 (7.20-8.00) | 0.80 (0.72-0.80) | 10.0 | 1.6 | >= 10x met |"


def test_void_runs_and_missing_brokers_have_reasons() -> None:
    lost = row("aedes", 5.0, void=["3 lost", "3 lost"], median={}, runs=[{}, {}])
    away = row("nats", 5.0, left_out="MQTT 3.1.1 only")
    told = document(row("mosquitto", 8.0), lost, away)
    *_, line = render.costs(told).splitlines()
    assert line.split(" | ")[2:4] == ["void", "-"]
    assert render.void(told).splitlines() == [
        "- pairs, aedes: 2 of 2 runs void: 3 lost",
        "- pairs, nats: left out: MQTT 3.1.1 only",
    ]


def test_a_busy_generator_makes_a_rate_a_lower_bound() -> None:
    busy = row("mosquitto", 1.0)
    busy["median"]["generator"] = 0.93
    assert "≥ 1.00M (gen. 93%)" in render.rates(document(busy))


def test_a_curve_names_points_that_were_not_measured() -> None:
    points = [
        {"value": 10, "broker": "hookmq-pure", "void": [], "cost": 1.0, "least": 0.9, "most": 1.2,
         "kib_each": 2.5, "rss_mib": 40.0},
        {"value": 50_000, "left_out": "needs 50130 open files of one process, the limit is 20000",
         "held": {"hookmq-pure": {"kib_each": 2.47, "rss_mib": 149.2}}},
    ]  # fmt: skip
    curve = {
        "name": "connections",
        "title": "By connections",
        "x": "n",
        "claim": "flat",
        "points": points,
    }
    text, plots = render.curves({"curves": [curve]})  # fmt: skip
    assert "The value 50,000 was not measured" in text
    assert (
        "Without sockets, HookMQ pure needs 2.47 KiB for each of 50,000 connections, 149 MiB in total"
        in text
    )
    assert "HookMQ pure 40 MiB, 2.50 KiB each" in text
    assert list(plots) == ["connections.svg"]


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place <!-- costs -->"):
        render.fill("# Empty", {"costs": "x"})


def test_chart_is_well_formed_and_has_every_point() -> None:
    points = [svg.Point(10.0**n, 1.0 + n, 0.5 + n, 1.5 + n) for n in range(4)]
    root = ElementTree.fromstring(svg.chart("A < B", "n", "µs", {"one": points, "two": points[:2]}))
    space = "{http://www.w3.org/2000/svg}"
    circles = root.findall(f"{space}circle")
    assert len(circles) == 6
    across = [float(circle.attrib["cx"]) for circle in circles[:4]]
    steps = [after - before for before, after in zip(across, across[1:], strict=False)]  # noqa: RUF007
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)  # equal steps
    up = [float(circle.attrib["cy"]) for circle in circles[:4]]
    assert up == sorted(up, reverse=True)
    assert all(0 < value < svg.HEIGHT for value in up)


def test_every_curve_is_a_load_that_the_generator_knows() -> None:
    for curve in curves.CURVES:
        assert len(set(curve.values)) == len(curve.values) >= 4
        for value in curve.values:
            words = curve.at(value).arguments(payload=64, level=4, seconds=1, warmup=0)
            assert words["mode"] in ("closed", "retained")
            assert curve.descriptors(value) > 0
    assert {scenario.group for scenario in scenarios.SCENARIOS} == set(scenarios.GROUPS)
