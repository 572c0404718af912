"""Reads alert rules of Prometheus and their cases, and checks them with `promtool`."""

import subprocess
from pathlib import Path

import yaml


def expressions(rules: Path) -> dict[str, str]:
    """Return the expression of each alert."""
    groups = yaml.safe_load(rules.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def fired(cases: Path) -> set[str]:
    """Return the alerts that the case in this file lets fire."""
    [case] = yaml.safe_load(cases.read_text())["tests"]
    return {one["alertname"] for one in case["alert_rule_test"] if one["exp_alerts"]}


def problems_of(rules: Path, cases: Path, folder: Path) -> str:
    """Return what `promtool` finds wrong with the rules or their cases, or an empty string. In the cases, RULES means
    the path of the rules."""
    written = folder / "cases.yaml"
    written.write_text(cases.read_text().replace("[RULES]", f"[{rules}]"))
    for command in (["check", "rules", str(rules)], ["test", "rules", str(written)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stdout + done.stderr
    return ""
