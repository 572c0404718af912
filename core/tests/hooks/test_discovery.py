"""Test that discovery reads metadata, and imports a plugin only on request."""

import sys
from pathlib import Path

import pytest
from hookmq.hooks.discovery import find, installed, load
from hookmq.model.errors import PluginError, PluginNotFound
from hookmq.plugin import Plugin


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def distribution(site: Path, name: str, version: str, *points: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text("\n".join(["[hookmq.plugins]", *points, ""]))


def module(site: Path, name: str, body: str) -> None:
    (site / f"{name}.py").write_text(body)


PLUGIN = "from hookmq.plugin import Plugin\nclass P(Plugin): pass\n"


def test_listing_imports_nothing(site: Path) -> None:
    distribution(site, "hq-bad", "1.0", "hq_bad = hq_bad_module:P")
    module(site, "hq_bad_module", "raise RuntimeError('imported')\n")
    (found,) = [one for one in installed() if one.name == "hq_bad"]
    assert (found.target, found.distribution, found.version) == ("hq_bad_module:P", "hq-bad", "1.0")
    assert "hq_bad_module" not in sys.modules


def test_only_what_is_asked_for_is_imported(site: Path) -> None:
    distribution(site, "hq-two", "1.0", "hq_x = hq_x_module:P", "hq_y = hq_y_module:P")
    module(site, "hq_x_module", PLUGIN)
    module(site, "hq_y_module", PLUGIN)
    loaded = load(find("hq_x"))
    assert issubclass(loaded, Plugin)
    assert loaded.__module__ == "hq_x_module"
    assert "hq_y_module" not in sys.modules


def test_an_unknown_name_is_told_the_nearest(site: Path) -> None:
    distribution(site, "hq-web", "1.0", "hq_webhook = m:P")
    with pytest.raises(PluginNotFound, match="did you mean 'hq_webhook'") as caught:
        find("hq_webhok", "audit")
    assert caught.value.plugin == "audit"


def test_an_unknown_name_with_nothing_near() -> None:
    with pytest.raises(PluginNotFound, match="no plugin named 'zzzzzz' is installed; `hookmq"):
        find("zzzzzz", among=())


def test_one_name_of_two_distributions_names_both(site: Path) -> None:
    distribution(site, "hq-one", "1.0", "hq_same = m1:P")
    distribution(site, "hq-other", "2.0", "hq_same = m2:P")
    with pytest.raises(PluginError, match=r"hq-one 1\.0 and hq-other 2\.0"):
        find("hq_same")


def test_one_distribution_found_twice_is_one(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(site, "hq-once", "1.0", "hq_once = m1:P")
    again = tmp_path / "again"
    again.mkdir()
    distribution(again, "hq-once", "1.0", "hq_once = m1:P")
    monkeypatch.syspath_prepend(str(again))
    assert find("hq_once").distribution == "hq-once"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise RuntimeError('no such luck')\n", "no such luck"),
        ("", "has no attribute 'P'"),
        ("P = 3\n", "is not a subclass of hookmq.plugin.Plugin"),
        ("class P: pass\n", "is not a subclass of hookmq.plugin.Plugin"),
        (None, "No module named"),
    ],
)
def test_an_entry_point_that_fails_to_load_is_named_with_its_distribution(
    site: Path, body: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(site, "hq-broken", "3.1", "hq_broken = hq_broken_module:P")
    if body is not None:
        module(site, "hq_broken_module", body)
    monkeypatch.delitem(sys.modules, "hq_broken_module", raising=False)
    with pytest.raises(PluginError, match="hq_broken_module:P of hq-broken 3") as caught:
        load(find("hq_broken"), "mine")
    assert words in str(caught.value)
    assert caught.value.plugin == "mine"
