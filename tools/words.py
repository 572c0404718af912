"""Check prose against the glossary: banned words in pages, docstrings, comments and messages, and long sentences.

    python tools/words.py             check every file that is not on the list of files to be rewritten
    python tools/words.py FILE...     check these files, as a commit hook does
    python tools/words.py --all       also check the files to be rewritten: what is left to do
    python tools/words.py --stale     print entries of the list that can be removed

The words are those in the tables of docs/reference/glossary.md. `tools/unchecked.txt` lists the
files to be rewritten. It may only shrink.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
UNCHECKED = ROOT / "tools" / "unchecked.txt"
SENTENCE = 28
"""Maximum number of words in a sentence on a page. Aim for 20."""
CHECKED = (
    "*.md",
    "core/hookmq/*.py",
    "toolkit/hookmq_toolkit/*.py",
    "testing/hookmq_testing/*.py",
    "plugins/*/hookmq_*/*.py",
    "clients/*/hookmq_*/*.py",
    "examples/*.py",
    "tools/*.py",
    "bench/*.py",
)
"""Files with prose for users and contributors, in the patterns of `fnmatch`: a star also matches slashes."""
EXEMPT = (
    "docs/reference/glossary.md",
    "docs/reference/conformance.md",
    "tools/words.py",
    "*/tests/*",
    "tests/*.py",
    ".github/*",
    "LICENSE*",
)

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
_COMMENT = re.compile(r"<!--.*?-->|^:::.*$", re.S | re.M)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
_LINK = re.compile(r"\]\([^)\s]*\)")
_NAME = re.compile(r"[a-z]\w*([._]\w+)+")
"""Pattern of the names of log events, metrics and settings."""
_SENTENCE_END = re.compile(r"[.!?](?=[\s\"')]|$)")


class Problem(NamedTuple):
    """A violation of a rule: its line, and a description that includes the remedy."""

    line: int
    what: str


class Word(NamedTuple):
    """A banned word or phrase, and what to write instead. `code` is True if the word is an identifier."""

    text: str
    instead: str
    code: bool


def words(glossary: str) -> list[Word]:
    """Return the banned words in the glossary's tables."""
    found = []
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("| ") or "do not write" in cells:
            continue
        banned, instead = (cells[2], cells[0]) if len(cells) == 3 else (cells[0], cells[1])
        found += [
            Word(one.strip("`"), instead, one.startswith("`"))
            for one in banned.split(", ")
            if one != "-"
        ]
    return found


def _pattern(all_words: Iterable[Word]) -> re.Pattern[str]:
    texts = sorted(
        (re.escape(one.text).replace(r"\ ", r"\s+") for one in all_words), key=len, reverse=True
    )
    return re.compile(rf"(?<![\w$/-])({'|'.join(texts)})(?![\w/]|-\w)", re.I)


class Rules:
    """The words of one glossary, compiled into search patterns."""

    def __init__(self, glossary: str) -> None:
        self.words = words(glossary)
        self._instead = {one.text.lower(): one.instead for one in self.words}
        self._prose = _pattern(one for one in self.words if not one.code)
        self._code = _pattern(one for one in self.words if one.code)

    def search(self, text: str, line: int = 1) -> Iterator[Problem]:
        """Find banned words in `text`, which starts at `line` of its file."""
        for pattern, where in ((self._prose, _blank(_CODE, text)), (self._code, text)):
            for match in pattern.finditer(where):
                word = re.sub(r"\s+", " ", match[0].lower())
                yield Problem(
                    line + where.count("\n", 0, match.start()),
                    f"{word!r}: write {self._instead[word]!r}",
                )

    def page(self, text: str) -> list[Problem]:
        """Return the problems in a Markdown page, skipping code blocks."""
        text = _blank(_COMMENT, _blank(_FENCE, text))
        return sorted([*self.search(_blank(_LINK, text)), *_long_sentences(text)])

    def module(self, source: str) -> list[Problem]:
        """Return the problems in a Python module: in its docstrings, comments, messages, log events and settings."""
        found: list[Problem] = []
        for line, text in _prose_of(source):
            found += self.search(text, line)
        return sorted(set(found))


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Replace each match of `pattern` with spaces, so that line numbers stay the same."""
    return pattern.sub(lambda match: re.sub(r"\S", " ", match[0]), text)


def _long_sentences(page: str) -> Iterator[Problem]:
    lines = page.splitlines()
    start = 0
    while start < len(lines):
        end = start + 1
        if re.match(r"\s*([|#!]|$)", lines[start]):
            start = end
            continue
        while end < len(lines) and not re.match(r"\s*([|#!]|[-*] |\d+\. |$)", lines[end]):
            end += 1
        text = _CODE.sub("code", _LINK.sub("]", "\n".join(lines[start:end])))
        at = 0
        for match in [*_SENTENCE_END.finditer(text), None]:
            stop = match.end() if match else len(text)
            count = len(re.findall(r"\w[\w'.,/-]*", text[at:stop]))
            if count > SENTENCE:
                first = at + len(text[at:]) - len(text[at:].lstrip())
                line = start + 1 + text.count("\n", 0, first)
                yield Problem(line, f"a sentence of {count} words: at most {SENTENCE}, better 20")
            at = stop
        start = end


def _prose_of(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.search(r"\s", node.value):
                yield node.lineno, node.value
            elif _NAME.fullmatch(node.value):
                yield node.lineno, re.sub("[._]", " ", node.value)
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield part.lineno, part.target.id.replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def unchecked() -> list[str]:
    """Return the patterns of files that have yet to be rewritten."""
    lines = UNCHECKED.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def files() -> list[str]:
    """Return the repository's files that contain prose, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    return [name for name in names if _any(name, CHECKED) and not _any(name, EXEMPT)]


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def check(name: str, rules: Rules) -> list[Problem]:
    """Return the problems in one of the repository's files."""
    text = (ROOT / name).read_text()
    return rules.module(text) if name.endswith(".py") else rules.page(text)


def stale(rules: Rules) -> list[str]:
    """Return the entries of the list that match no file, or only files without problems."""
    names = files()
    return [
        one
        for one in unchecked()
        if not any(check(name, rules) for name in names if fnmatch(name, one))
    ]


def main(arguments: list[str]) -> int:
    """Check the files and print problems as FILE:LINE: TEXT. Return 1 if there are any."""
    rules = Rules(GLOSSARY.read_text())
    if arguments == ["--stale"]:
        print("\n".join(stale(rules)))
        return 0
    names = files()
    if arguments and arguments != ["--all"]:
        given = {str(Path(one).resolve().relative_to(ROOT)) for one in arguments}
        names = [name for name in names if name in given]
    left = [] if arguments == ["--all"] else unchecked()
    found = [(name, one) for name in names if not _any(name, left) for one in check(name, rules)]
    for name, problem in found:
        print(f"{name}:{problem.line}: {problem.what}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
