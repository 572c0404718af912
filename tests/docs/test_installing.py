"""The project is not on a package index yet, so no page may tell users to install it from there."""

import re
import subprocess

from workspace import ROOT

NAMES = r"(hookmq|pyspark-mqtt)\b"
FROM_INDEX = re.compile(rf"pip install (?:-\S+ )*['\"]?{NAMES}(?!-sizes)")


def test_installing_starts_from_a_checkout() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix not in {".md", ".py", ".yaml", ".toml", ".ipynb"} or not path.is_file():
            continue
        found += [f"{name}: {one[0]}" for one in FROM_INDEX.finditer(path.read_text("utf-8"))]
    assert found == []


def test_folders_named_by_commands_exist() -> None:
    for path in [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("plugins/*/README.md"),
        *ROOT.glob("clients/*/README.md"),
        *ROOT.glob("*/README.md"),
    ]:
        for command in re.findall(r"uv pip install (.*)", path.read_text("utf-8")):
            for folder in re.findall(r"\./([\w/-]+)", command.partition("#")[0]):
                assert (ROOT / folder / "pyproject.toml").is_file(), f"{path}: {command}"
