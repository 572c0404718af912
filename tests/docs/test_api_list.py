"""The page of the plugin API shows each public name with its arguments and meaning, even for readers who view it in
the repository."""

import re
from importlib import import_module

import pytest
from api_list import PAGE, Described, describe, updated
from manual import _ONLY, _SITE

TEXT = PAGE.read_text("utf-8")
NAMES = re.findall(r"^::: (.+)$", TEXT, re.M)


def test_the_tables_are_up_to_date() -> None:
    assert updated(TEXT) == TEXT, "run: python tools/api_list.py"


def test_a_reader_of_the_repository_sees_every_name_and_its_meaning() -> None:
    shown = _SITE.sub("", TEXT)
    assert ":::" not in shown
    rows = re.findall(r"^\| `(\w+)[^`]*` \| (.*) \|$", shown, re.M)
    assert [name for name, _ in rows] == [name.rpartition(".")[2] for name in NAMES]
    assert [name for name, text in rows if not text.strip()] == []


def test_the_site_shows_docstrings_in_place_of_the_tables() -> None:
    site = _SITE.sub(r"\1", _ONLY.sub("", TEXT))
    assert re.findall(r"^::: (.+)$", site, re.M) == NAMES
    assert "| name | meaning |" not in site
    assert "-->" not in site


def test_what_a_row_says() -> None:
    assert describe("hookmq.plugin.Allow").call.startswith("Allow(")
    assert "publish" in describe("hookmq.plugin.BrokerHandle").members
    assert describe("hookmq.plugin.no_log").call == "no_log(level, event, /, **fields)"
    assert describe("hookmq.plugin.HOOK_API") == Described(
        "HOOK_API", "Version of the hook contract.", ()
    )
    assert "ALLOW" not in describe("hookmq.plugin.Action").call
    assert "PUBLISH" in describe("hookmq.plugin.Action").members
    with pytest.raises(LookupError, match="does not define Nothing"):
        describe("hookmq.plugin.Nothing")


def test_a_changed_name_changes_the_page() -> None:
    page = "## x\n\n::: hookmq.plugin.no_log\n\ntext\n"
    made = updated(page)
    assert made.endswith(
        "| `no_log(level, event, /, **fields)` | Discard a log event. |\n<!-- end -->\n\ntext\n"
    )
    assert updated(made) == made
    assert updated(made.replace("Discard", "Keep")) == made


def test_every_listed_name_exists() -> None:
    for name in NAMES:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name
