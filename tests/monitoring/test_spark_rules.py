"""Test the alert rules for streams with `promtool`: when each one fires, when it does not, and whether its metrics
exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hookmq_spark_sink.metrics import register
from workspace import ROOT

RULES = ROOT / "deploy/prometheus/alerts-spark.yaml"
CASES = Path(__file__).with_name("spark_rules.yaml")
EXPRESSIONS = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="prometheus is not installed: apt-get install prometheus",
)
def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    cases = tmp_path / "cases.yaml"
    cases.write_text(CASES.read_text().replace("[RULES]", f"[{RULES}]"))
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(cases)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case() -> None:
    [case] = yaml.safe_load(CASES.read_text())["tests"]
    fired = {one["alertname"] for one in case["alert_rule_test"] if one["exp_alerts"]}
    assert fired == set(EXPRESSIONS)


def test_the_metrics_of_the_alerts_exist() -> None:
    names: list[str] = []

    class Registry:
        def counter(self, name: str, *_: object) -> None:
            names.append(f"hookmq_{name}")

        gauge = summary = counter

    register(Registry(), list, list, lambda: None, lambda: 0.0, list)  # type: ignore[arg-type]
    used = set(re.findall(r"hookmq_spark_\w+", " ".join(EXPRESSIONS.values())))
    assert used <= set(names)
