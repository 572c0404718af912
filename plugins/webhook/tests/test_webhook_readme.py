"""Test that the README describes every setting, event and metric."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hookmq_webhook.catalog import CATALOG
from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.filter_config import FilterPluginConfig
from workspace import ROOT

README = (ROOT / "plugins" / "webhook" / "README.md").read_text()
ABOUT_EVENTS, _, ABOUT_FILTER = README.partition("\n## webhook_filter\n")


def keys(kind: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.default) and field.default is not None:
            yield from keys(type(field.default), f"{place}{field.name}.")
        else:
            yield f"{place}{field.name}", field.default


def named(text: str) -> set[str]:
    rows = re.findall(r"^\| (`[^|]+) \|", text, re.M)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_key_is_told_and_no_other() -> None:
    configuration = ABOUT_EVENTS.partition("\n## Configuration\n")[2].partition("\n## ")[0]
    assert named(configuration) == {name for name, _ in keys(WebhookConfig)}
    shared = {"destinations"}
    expected = {name for name, _ in keys(FilterPluginConfig)}
    expected = {name for name in expected if not name.startswith("destinations.")} | shared
    assert named(ABOUT_FILTER) == expected


@pytest.mark.parametrize("name", ["first_delay", "max_event", "drain", "concurrency", "mode"])
def test_a_default_is_that_of_the_code(name: str) -> None:
    found = {key.rpartition(".")[2]: default for key, default in keys(WebhookConfig)}
    shown = {"first_delay": "500ms", "max_event": "1MiB", "drain": "5s"}
    value = {"first_delay": 0.5, "max_event": 1 << 20, "drain": 5.0}.get(name, found[name])
    assert found[name] == value
    assert f"`{shown.get(name, value)}`" in README


def test_every_event_is_told() -> None:
    assert {name for name in CATALOG if f"`{name}`" not in README} == set()


@pytest.mark.parametrize("module", ["metrics", "filter_plugin"])
def test_every_metric_is_told(module: str) -> None:
    source = (ROOT / "plugins" / "webhook" / "hookmq_webhook" / f"{module}.py").read_text()
    prefix = "webhook_filter_" if module == "filter_plugin" else "webhook_"
    found = re.findall(rf'"{prefix}([a-z_]+)"', source)
    if module == "filter_plugin":
        shared = (ROOT / "toolkit" / "hookmq_toolkit" / "http_client.py").read_text()
        found += re.findall(r'f"\{prefix\}_([a-z_]+)"', shared)
    assert len(found) >= 7
    metrics = README.partition("\n## Metrics\n")[2]
    events, _, filters = metrics.partition("`hookmq_webhook_filter_")
    part = events if module == "metrics" else "_" + filters
    for name in found:
        assert f"_{name}" in part, name
