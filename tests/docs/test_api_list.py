"""The plugin API page shows each public name with its arguments and meaning, even to readers who view it in the
repository.
"""

import re
from importlib import import_module

import pytest
from api_list import PAGES, Described, describe, updated
from manual import _ONLY, _SITE

TEXTS = {page.name: page.read_text("utf-8") for page in PAGES}
BY_PAGE = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())


def _names(text: str) -> list[str]:
    return re.findall(r"^::: (.+)$", text, re.M)


@BY_PAGE
def test_the_tables_are_up_to_date(text: str) -> None:
    assert updated(text) == text, "run: python tools/api_list.py"


@BY_PAGE
def test_a_reader_of_the_repository_sees_every_name_and_its_meaning(text: str) -> None:
    shown = _SITE.sub("", text)
    assert ":::" not in shown
    rows = re.findall(r"^\| `(\w+)[^`]*` \| (.*) \|$", shown, re.M)
    assert [name for name, _ in rows] == [name.rpartition(".")[2] for name in _names(text)]
    assert [name for name, meaning in rows if not meaning.strip()] == []


@BY_PAGE
def test_the_site_shows_docstrings_in_place_of_the_tables(text: str) -> None:
    site = _SITE.sub(r"\1", _ONLY.sub("", text))
    assert _names(site) == _names(text)
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


@BY_PAGE
def test_every_listed_name_exists(text: str) -> None:
    for name in _names(text):
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name
