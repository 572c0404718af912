"""Create the project of a new plugin: ``hookmq plugins new``.

The templates are in this package because only plugin authors, who use the testing kit, need them. The core finds
`create` through the entry point group ``hookmq.new_plugin``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Final

from hookmq.config.plugins import FIRST_PARTY
from hookmq.plugin import ConfigError

KINDS: Final[Mapping[str, str]] = {
    "decide": "Topics that clients may not use",
    "transform": "A user property on every message",
    "observe": "Messages counted by topic",
    "provide": "A rate limit for each client",
    "gateway": "Lines over TCP as MQTT messages",
}
"""The kinds of plugins, each with a description of what its template creates."""
LICENCES: Final = ("Apache-2.0", "BSD-3-Clause", "MIT")
"""The licences whose texts are included, as SPDX identifiers."""
LONGEST: Final = 30
"""Maximum length of a plugin's name in characters."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_AUTHOR: Final = re.compile(r"(?P<name>[^<>]+?)\s*(<(?P<email>[^<>@\s]+@[^<>@\s]+)>)?")
_MARK: Final = re.compile(r"@@(\w+)@@")


@dataclass(frozen=True)
class NewPlugin:
    """The values for the templates. Raises ConfigError if a value is invalid."""

    name: str
    kind: str
    author: str = ""
    licence: str = "Apache-2.0"
    year: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > LONGEST:
            raise ConfigError(
                f"{self.name!r} is not a name for a plugin: expected at most {LONGEST} lower-case letters, digits and "
                "single underscores, starting with a letter",
                hint=self._suggestion(),
            )
        if self.name.startswith("hookmq"):
            raise ConfigError(
                f"{self.name!r}: the distribution is called hookmq-NAME, so leave out hookmq",
                hint=self._suggestion(),
            )
        if self.name in FIRST_PARTY:
            raise ConfigError(f"{self.name!r} is the name of one of HookMQ's own plugins")
        if self.kind not in KINDS:
            raise ConfigError(f"unknown kind {self.kind!r}", hint=f"known: {', '.join(KINDS)}")
        if self.licence not in LICENCES:
            raise ConfigError(
                f"unknown licence {self.licence!r}", hint=f"known: {', '.join(LICENCES)}"
            )
        if self.author and (not _AUTHOR.fullmatch(self.author) or not self.author.isprintable()):
            raise ConfigError(
                f"{self.author!r} is not an author", hint='such as "Ada Lovelace <ada@example.org>"'
            )

    def _suggestion(self) -> str:
        words = re.findall(r"[a-z0-9]+", self.name.lower())
        near = "_".join(words[1:] if words[:1] == ["hookmq"] else words)[:LONGEST].strip("_")
        return f"such as {near}" if _NAME.fullmatch(near) and near != self.name else ""

    @property
    def distribution(self) -> str:
        """The distribution's name on a package index."""
        return f"hookmq-{self.name.replace('_', '-')}"

    @property
    def package(self) -> str:
        """The name of the package to import."""
        return f"hookmq_{self.name}"

    def values(self) -> dict[str, str]:
        """Return the values that replace the markers in the templates."""
        found = _AUTHOR.fullmatch(self.author)
        person = {k: v for k, v in found.groupdict().items() if v} if found else {}
        fields = ", ".join(f"{key} = {json.dumps(value)}" for key, value in person.items())
        return {
            "name": self.name,
            "distribution": self.distribution,
            "package": self.package,
            "stem": self.package,
            "class": "".join(word.capitalize() for word in self.name.split("_")),
            "description": KINDS[self.kind],
            "licence": self.licence,
            "authors": f"authors = [{{ {fields} }}]\n" if fields else "",
            "holder": person.get("name", f"the authors of {self.distribution}"),
            "year": str(self.year or datetime.now(UTC).year),
            "example": _text(f"kinds/{self.kind}.yaml").rstrip("\n"),
            "settings": _text(f"kinds/{self.kind}.settings").rstrip("\n"),
            "protocol": _text("kinds/gateway.readme") if self.kind == "gateway" else "",
        }

    def project(self) -> dict[str, str]:
        """Return the contents of all files, keyed by path in the project."""
        values = self.values()
        templates = {
            "pyproject.toml": "pyproject.toml",
            "README.md": "README.md",
            "LICENSE": f"licences/{self.licence}",
            ".gitignore": "gitignore",
            ".github/workflows/test.yml": "test.yml",
            ".github/workflows/publish.yml": "publish.yml",
            f"{self.package}/__init__.py": f"kinds/{self.kind}.py",
            f"tests/test_{self.name}.py": f"kinds/{self.kind}.test",
        }
        made = {path: _filled(_text(template), values) for path, template in templates.items()}
        return {**made, f"{self.package}/py.typed": ""}


def create(
    name: str,
    kind: str,
    directory: str | None = None,
    author: str = "",
    licence: str = LICENCES[0],
) -> tuple[Path, list[str]]:
    """Write a plugin project into `directory`, by default ``hookmq-NAME``. Return the folder and its files.

    This call blocks. Writes nothing and raises ConfigError if a value is invalid, or if the folder exists and is not
    empty.
    """
    plugin = NewPlugin(name, kind, author, licence)
    folder = Path(directory or plugin.distribution)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"{folder} exists and is not a folder", hint="use --directory")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists and is not empty", hint="use --directory")
    texts = plugin.project()
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    return folder, sorted(texts)


def _text(template: str) -> str:
    return (files("hookmq_testing") / "templates" / f"{template}.txt").read_text("utf-8")


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _MARK.sub(lambda match: values[match[1]], text)
