"""Test the alert rules and the dashboard for queues with `promtool`: when each alert fires, and whether its metrics
exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from alert_rules import expressions, fired, problems_of
from hookmq_queues.metrics import register
from workspace import ROOT

RULES = ROOT / "deploy/prometheus/alerts-queues.yaml"
BOARD = ROOT / "deploy/grafana/hookmq-queues.json"
CASES = Path(__file__).with_name("queue_rules.yaml")
EXPRESSIONS = expressions(RULES)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="prometheus is not installed: apt-get install prometheus",
)
def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    assert problems_of(RULES, CASES, tmp_path) == ""


def test_each_alert_has_a_case() -> None:
    assert fired(CASES) == set(EXPRESSIONS)


def test_the_metrics_of_the_alerts_and_the_board_exist() -> None:
    names: list[str] = []

    class Registry:
        def counter(self, name: str, *_: object) -> None:
            names.append(f"hookmq_{name}")

        gauge = counter

    register(Registry(), list)  # type: ignore[arg-type]
    board = json.loads(BOARD.read_text())
    queries = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    assert len(queries) >= 8
    used = set(re.findall(r"hookmq_queues_\w+", " ".join([*EXPRESSIONS.values(), *queries])))
    assert used <= set(names)
    assert all("hookmq_queues_" in one for one in queries)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="prometheus is not installed")
def test_the_queries_of_the_board_are_valid(tmp_path: Path) -> None:
    """`promtool` parses each query, with Grafana's variables replaced."""
    board = json.loads(BOARD.read_text())
    queries = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$\w+", "5m", query)}
        for number, query in enumerate(queries)
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    command = ["promtool", "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
