"""The root of the workspace and its members, for use in tests."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Member:
    """One distribution of the workspace."""

    folder: Path
    project: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the distribution's name."""
        name: str = self.project["name"]
        return name

    @property
    def package(self) -> str:
        """Return the name of the package that the distribution installs."""
        return self.name.replace("-", "_")

    @property
    def stem(self) -> str:
        """Return the prefix that the distribution's wheel and sdist share in their file names."""
        return f"{self.package}-{self.project['version']}"


def members() -> list[Member]:
    """Return every member: the core, the plugins and the example plugins."""
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = root["tool"]["uv"]["workspace"]["members"]
    files = [
        file for pattern in patterns for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))
    ]
    return [Member(file.parent, tomllib.loads(file.read_text())["project"]) for file in files]
