"""All tests of a group run in the same process."""

from pathlib import Path

import pytest
from grouping import ROOT, GroupScheduling, group_of


@pytest.mark.parametrize(
    ("source", "group"),
    [
        ('pytestmark = pytest.mark.xdist_group("one")\n', "one"),
        ('x = 1\npytestmark = [\n    pytest.mark.slow,\n    pytest.mark.xdist_group("one"),\n]\n', "one"),
        ("pytestmark = [pytest.mark.slow]\nGROUPS = [pytest.mark.xdist_group(\"one\")]\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_group_of_a_module(source: str, group: str, tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(source)
    assert group_of(path) == group


def test_a_module_that_does_not_exist_has_no_group(tmp_path: Path) -> None:
    assert group_of(tmp_path / "none.py") == ""


def test_all_tests_of_a_group_are_one_unit_of_work() -> None:
    split = object.__new__(GroupScheduling)._split_scope
    assert split("tests/packaging/test_wheels.py::test_a") == "wheels"
    assert split("tests/packaging/test_wheels.py::test_b[1@2]") == "wheels"
    assert split("tests/test_grouping.py::test_c[1]") == "tests/test_grouping.py::test_c[1]"


def test_every_group_is_found() -> None:
    named = {
        path
        for folder in ("core", "examples", "plugins", "testing", "tests", "toolkit")
        for path in (ROOT / folder).rglob("test_*.py")
        if "xdist_group" in path.read_text() and path != Path(__file__)
    }
    assert len(named) > 5
    assert [path for path in named if not group_of(path)] == []
