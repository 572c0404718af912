"""Test that bench.micro fails and names the case if a case is slower by both measures. Also test that every case runs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from bench import micro, micro_cases

if TYPE_CHECKING:
    import pathlib


def test_slower_by_both_measures_fails() -> None:
    base = {"decode": [[1.0, 1.1], [1.0]], "match": [[1.0], [1.0]], "chain": [[1.0], [1.0]]}
    new = {"decode": [[1.2, 1.3], [1.2]], "match": [[1.4], [1.0]], "chain": [[1.05], [1.05]]}
    judged = micro.judge(base, new)
    assert list(judged["decode"]) == pytest.approx([1e6, 1.2e6, 1.2, 1.2])
    # Only one of two rounds was slow; the fastest is the same.
    assert list(judged["match"]) == pytest.approx([1e6, 1e6, 1.2, 1.0])
    failed = micro.slower(judged, 10)
    assert failed == ["decode"]
    text = micro.table(judged, ({"decode": 10.0}, {"decode": 20.0}), failed)
    assert "SLOWER" in text.splitlines()[1]
    assert text.count("SLOWER") == 1


def test_a_case_of_one_side_only_is_left_out() -> None:
    assert micro.judge({"decode": [[1.0]], "old": [[1.0]]}, {"decode": [[1.0]]}).keys() == {
        "decode"
    }


@pytest.mark.parametrize("name", micro_cases.CASES)
def test_every_case_runs_and_executes_the_same_each_time(name: str) -> None:
    make, loops = micro_cases.CASES[name]
    assert loops > 0
    assert micro_cases.timed(make, 1) > 0


def test_a_longer_path_has_more_bytecodes() -> None:
    """A longer code path executes at least as many bytecodes. Compiled code executes none, so in the compiled build the
    two counts may be equal.
    """
    first = micro_cases.bytecodes(micro_cases.CASES["lookup"][0])
    assert first == micro_cases.bytecodes(micro_cases.CASES["lookup"][0])
    assert first <= micro_cases.bytecodes(micro_cases.CASES["match"][0])
    assert first > 0


def test_each_side_runs_its_own_cases_on_its_own_packages(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each side runs its own cases with its own packages. An old commit may have only one package."""
    repository, copies = tmp_path / "repository", tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(micro, "ROOT", repository)
    monkeypatch.setattr(micro, "FOLDER", copies)

    def write(path: str, text: str) -> None:
        file = repository / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def commit() -> None:
        subprocess.run(["git", "-C", repository, "add", "."], check=True)
        words = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]
        subprocess.run(["git", "-C", repository, *words], check=True)

    write("README.md", "")
    subprocess.run(["git", "init", "-q", repository], check=True)
    commit()
    write("core/hookmq/__init__.py", "where = 'before'")
    write(micro.CASES, "import hookmq; print(hookmq.where)")
    commit()
    for package in micro.PACKAGES:
        write(f"{package}/__init__.py", "where = 'now'")
    write(micro.CASES, "import hookmq_testing; print('kit', hookmq_testing.where)")
    assert micro.run(micro.unpack("HEAD", copies / "base")) == "before\n"
    assert micro.run(micro.unpack("", copies / "now")) == "kit now\n"
    assert micro.default_base() == "HEAD"
    commit()
    assert micro.run(micro.unpack("HEAD", copies / "base")) == "kit now\n"
    assert micro.default_base() == "HEAD~1"
    with pytest.raises(micro.MicroError, match=r"has no bench/micro_cases\.py"):
        micro.unpack("HEAD~2", copies / "base")
