"""The manual as a test sees it: pages, their blocks of code and their links."""

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from workspace import ROOT

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<text>.+)$", re.M)


@dataclass(frozen=True)
class Block:
    """A block of code: the page it stands on, its line, and what its info string says: ``python file=a.py`` is of the
    language python with the option ``file``."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def kind(self) -> str:
        """The language, and what is special about the block."""
        return " ".join([self.language, *(word for word in self.words if "=" not in word)])

    @property
    def file(self) -> str:
        """The name of the file that the block shows; '' for none."""
        return next((w.removeprefix("file=") for w in self.words if w.startswith("file=")), "")

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page for readers: the READMEs, the manual, the changelog."""
    patterns = (
        "*.md",
        "docs/**/*.md",
        "*/README.md",
        "plugins/*/README.md",
        "examples/**/README.md",
        "tests/*/README.md",
    )
    found = {page for pattern in patterns for page in ROOT.glob(pattern)}
    return sorted(page for page in found if "node_modules" not in page.parts)


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, language, tuple(words), dedent(match["text"])))
    return found


def prose(page: Path) -> str:
    """A page without its blocks and without code in its lines."""
    return re.sub(r"`[^`\n]+`", "``", _FENCE.sub("", page.read_text()))


def links(page: Path) -> list[str]:
    """The targets of a page's links."""
    text = _FENCE.sub("", page.read_text())
    return [match["target"] for match in _LINK.finditer(text)]


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may name, as forges make it of the heading."""
    texts = [
        match["text"].replace("`", "")
        for match in _HEADING.finditer(_FENCE.sub("", page.read_text()))
    ]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}
