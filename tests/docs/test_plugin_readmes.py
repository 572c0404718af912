"""The READMEs of the access plugins have the same structure."""

import re

import pytest
from pages import blocks
from workspace import ROOT

ORDER = (
    "How it decides", "What the client sees", "Configuration", "When something fails", "Commands", "Metrics",
    "What it costs", "Limits",
)  # fmt: skip
OPTIONAL = {"What it costs"}
PLUGINS = ("acl_file", "auth_http", "auth_jwt", "auth_password", "ratelimit")


@pytest.mark.parametrize("name", PLUGINS)
def test_the_same_sections_in_the_same_order(name: str) -> None:
    page = ROOT / "plugins" / name / "README.md"
    text = page.read_text()
    found = [title for title in re.findall(r"^## (.+)$", text, re.M) if title in ORDER]
    assert found == [title for title in ORDER if title in found]
    assert set(ORDER) - set(found) <= OPTIONAL
    first = blocks(page)[0]
    assert first.text == f"uv pip install ./plugins/{name}\n"
    section = text.partition("## What the client sees\n")[2].partition("\n## ")[0]
    assert "docs/explanation/who-may-do-what.md" in section
    assert "MQTT 5" in section
    assert "MQTT 3" in section
    assert "| key | default | |\n" in text
