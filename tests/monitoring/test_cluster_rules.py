"""Test the alert rules for clusters with `promtool`: when each alert fires, and whether its metrics exist."""

import re
import shutil
from pathlib import Path

import pytest
from alert_rules import expressions, fired, problems_of
from hookmq.plugin import MetricRegistry
from hookmq_cluster.metrics import register
from workspace import ROOT

RULES = ROOT / "deploy/prometheus/alerts-cluster.yaml"
CASES = Path(__file__).with_name("cluster_rules.yaml")
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


def test_the_metrics_of_the_alerts_exist() -> None:
    registry = MetricRegistry()
    register(registry, lambda: None)
    names = set(re.findall(r"^# TYPE (\w+)", registry.text(), re.MULTILINE))
    used = set(re.findall(r"hookmq_cluster_\w+", " ".join(EXPRESSIONS.values())))
    assert {name.removesuffix("_bucket") for name in used} <= names
    assert len(used) >= 7
