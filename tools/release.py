"""Check, build and describe a release.

    python tools/release.py check v0.1.0    fail unless every distribution and the changelog have this version
    python tools/release.py build dist      build the wheels and sdists of the published distributions
    python tools/release.py notes v0.1.0    print the changelog's section for this version

The script needs only Python; `build` also needs `make install`.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PUBLISHED = ("core", "toolkit", "testing", "plugins/*", "clients/*", "spark", "pipelines")
"""Folders of the distributions that are published; examples are not."""


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version of each published distribution."""
    found = {}
    for pattern in PUBLISHED:
        for folder in sorted(root.glob(pattern)):
            file = folder / "pyproject.toml"
            if file.exists():
                project = tomllib.loads(file.read_text())["project"]
                found[project["name"]] = project["version"]
    return found


def sections(changelog: str) -> dict[str, str]:
    """Return the changelog's sections by version; "Unreleased" is one of them."""
    found: dict[str, str] = {}
    for match in re.finditer(
        r"^## \[?([^\]\s]+)\]?[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S
    ):
        if match[1] in found:
            raise ValueError(f"the changelog has two sections {match[1]!r}")
        found[match[1]] = match[2].strip()
    return found


def problems(tag: str, found: Mapping[str, str], changelog: str) -> list[str]:
    """Return the problems that prevent the release of `tag`, or an empty list if there are none."""
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        return [f"{tag!r} is not a version such as v0.1.0"]
    version = tag[1:]
    wrong = [
        f"{name} has version {has}, not {version}" for name, has in found.items() if has != version
    ]
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.M):
        wrong.append(f"the changelog has no heading '## {version} (YYYY-MM-DD)'")
    elif not sections(changelog)[version]:
        wrong.append(f"the changelog says nothing about {version}")
    return wrong


def build(out: Path) -> None:
    """Build the wheels and sdists of the published distributions into `out`."""
    uv = ROOT / ".venv" / "bin" / "uv"
    for pattern in PUBLISHED:
        for folder in sorted(ROOT.glob(pattern)):
            if not (folder / "pyproject.toml").exists():
                continue
            subprocess.run(
                [uv, "build", "--quiet", "--out-dir", out.resolve(), folder], cwd=ROOT, check=True
            )


def main(arguments: list[str]) -> int:
    """Run one command; return the exit code."""
    match arguments:
        case ["check", tag]:
            found = problems(tag, versions(), (ROOT / "CHANGELOG.md").read_text())
            print("\n".join(found) or f"{tag} can be released")
            return 1 if found else 0
        case ["build", out]:
            build(Path(out))
            return 0
        case ["notes", tag]:
            print(sections((ROOT / "CHANGELOG.md").read_text())[tag.removeprefix("v")])
            return 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
