"""Read the manual's pages, code blocks and links, for use in tests."""

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
    """A code block: its page, line, language and options.

    The info string ``python file=a.py`` gives the language python and the option ``file``.
    """

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def kind(self) -> str:
        """Return the block's language and tags, without its options."""
        return " ".join([self.language, *(word for word in self.words if "=" not in word)])

    @property
    def file(self) -> str:
        """Return the name of the file that the block shows, or '' if it has none."""
        return next((w.removeprefix("file=") for w in self.words if w.startswith("file=")), "")

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return every page for readers: the READMEs, the manual and the changelog."""
    patterns = (
        "*.md",
        "docs/**/*.md",
        "*/README.md",
        "plugins/*/*.md",
        "clients/*/README.md",
        "examples/**/README.md",
        "tests/*/README.md",
    )
    found = {page for pattern in patterns for page in ROOT.glob(pattern)}
    return sorted(page for page in found if "node_modules" not in page.parts)


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, language, tuple(words), dedent(match["text"])))
    return found


def prose(page: Path) -> str:
    """Return a page without code blocks and inline code."""
    return re.sub(r"`[^`\n]+`", "``", _FENCE.sub("", page.read_text()))


def links(page: Path) -> list[str]:
    """Return the targets of a page's links."""
    text = _FENCE.sub("", page.read_text())
    return [match["target"] for match in _LINK.finditer(text)]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub derives from the page's headings."""
    texts = [
        match["text"].replace("`", "")
        for match in _HEADING.finditer(_FENCE.sub("", page.read_text()))
    ]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}
