"""Test that entry points are listed by group without being imported, and are imported on request."""

import sys
from pathlib import Path

import pytest
from hookmq.hooks.entry_points import entries, import_entry
from hookmq.model.errors import PluginError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on `sys.path` that contains a distribution."""
    monkeypatch.syspath_prepend(str(tmp_path))
    info = tmp_path / "hq_points-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hq-points\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hq.one]\nb = hq_points_b:x\na = hq_points_a:x\n[hq.two]\nc = hq_points_c:x\n"
    )
    return tmp_path


def test_only_those_of_the_group_are_listed(site: Path) -> None:
    (site / "hq_points_a.py").write_text("raise RuntimeError('imported')\n")
    found = entries("hq.one")
    assert [(one.name, one.target) for one in found] == [
        ("a", "hq_points_a:x"),
        ("b", "hq_points_b:x"),
    ]
    assert {(one.distribution, one.version) for one in found} == {("hq-points", "1.0")}
    assert "hq_points_a" not in sys.modules
    assert entries("hq.three") == ()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module_of_anybody\n", "ModuleNotFoundError"),
        ("y = 1\n", "AttributeError"),
        ("import sys\nsys.exit(0)\n", r"SystemExit\(0\)"),
        ("def x(:\n", r"hq_points_c.py:1: invalid syntax"),
    ],
)
def test_an_import_that_fails_names_the_entry_point(site: Path, source: str, words: str) -> None:
    (site / "hq_points_c.py").write_text(source)
    sys.modules.pop("hq_points_c", None)
    [found] = entries("hq.two")
    with pytest.raises(
        PluginError, match=f"importing hq_points_c:x of hq-points 1.0 failed: .*{words}"
    ) as caught:
        import_entry(found, "owner")
    assert caught.value.plugin == "owner"


def test_the_object_is_returned(site: Path) -> None:
    (site / "hq_points_b.py").write_text("x = 7\n")
    [found] = [one for one in entries("hq.one") if one.name == "b"]
    assert import_entry(found, "owner") == 7


def test_a_group_named_in_another_place_is_not_listed(site: Path) -> None:
    points = site / "hq_points-1.0.dist-info" / "entry_points.txt"
    points.write_text("[hq.other]\nhq.three = hq.three:x\n")
    assert entries("hq.three") == ()


@pytest.mark.parametrize("wrong", [b"[hq.one]\nno value\n", b"[hq.one]\na = b:\xff\n"])
def test_a_damaged_distribution_is_named(site: Path, wrong: bytes) -> None:
    (site / "hq_points-1.0.dist-info" / "entry_points.txt").write_bytes(wrong)
    with pytest.raises(PluginError, match=r"the entry points of .*hq_points-1\.0\.dist-info"):
        entries("hq.one")
