"""Build the documentation site from the repository's pages.

python tools/manual.py build/site    copy the pages to build/docs, build the site strictly, check all links

Pages below `docs/` move to the site's root. Other pages, such as plugin READMEs, keep their paths. Links are rewritten
to match. A linked file that is not a page is copied to `files/`; a link to a folder becomes plain text. The headings
and links of docs/index.md become the navigation. The script needs the dependency group `docs`.
"""

import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
STAGE = ROOT / "build" / "docs"
INDEX = "docs/index.md"
PAGES = (
    "*.md", "docs/**/*.md", "bench/README.md", "spark/README.md", "pipelines/*.md", "plugins/*/*.md", "clients/*/*.md",
    "examples/**/README.md", "tests/*/README.md",
)  # fmt: skip
LEFT_OUT = ("README.md",)
"""Pages that are not on the site. The README introduces HookMQ in the repository; on the site, docs/index.md does."""

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
_SITE = re.compile(r"<!-- site only\n(.*?)-->\n", re.S)
_LINK = re.compile(r"(?P<before>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_ONLY = re.compile(r"<!-- repository only -->.*?<!-- end -->\n*", re.S)
_LIST = re.compile(r"^(?! *([-*]|\d+\.) |\||#|>|\s*$)(.+)\n(?=([-*]|\d+\.) )", re.M)


def pages() -> list[str]:
    """Return the site's pages, as paths relative to the repository."""
    found = {
        path for pattern in PAGES for path in ROOT.glob(pattern) if "node_modules" not in path.parts
    }
    return sorted(
        name for path in found if (name := path.relative_to(ROOT).as_posix()) not in LEFT_OUT
    )


def place(name: str) -> str:
    """Return the path on the site for a page or file in the repository."""
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return name if name.endswith(".md") else f"files/{name}"


def rewrite(name: str, text: str, known: Iterable[str]) -> tuple[str, set[str]]:
    """Return a page as shown on the site, and the files that it links to. `known` contains all pages on the site."""
    files: set[str] = set()
    known = set(known)

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if f"{found}/README.md" in known:
            found = f"{found}/README.md"
        if found in LEFT_OUT:
            found, anchor = INDEX, ""
        if found not in known:
            if (ROOT / found).is_dir():
                return match["text"]
            if not (ROOT / found).is_file():
                return match[0]  # mkdocs reports it
            files.add(found)
        to = posixpath.relpath(place(found), posixpath.dirname(place(name)) or ".")
        return f"{match['before']}[{match['text']}]({to}{'#' + anchor if anchor else ''})"

    def fence(match: re.Match[str]) -> str:
        language, *words = match["info"].split() or [""]
        title = next((f' title="{word[5:]}"' for word in words if word.startswith("file=")), "")
        return f"{match['indent']}```{language}{title}\n{match['text']}{match['indent']}```"

    text = _SITE.sub(r"\1", _ONLY.sub("", text))
    parts = []
    at = 0
    for match in [*_FENCE.finditer(text), None]:
        prose = text[at : match.start() if match else len(text)]
        parts.append(_LIST.sub(r"\2\n\n", _LINK.sub(link, prose)))
        if match:
            parts.append(fence(match))
            at = match.end()
    return "".join(parts), files


def navigation(index: str) -> list[Any]:
    """Return the navigation for mkdocs: the headings of docs/index.md, and below each heading the pages linked there."""
    found: list[Any] = [{"Home": place(INDEX)}]
    seen = {place(INDEX)}
    levels: list[list[Any]] = [found]
    for line in index.splitlines():
        if heading := re.match(r"(##+) (.+)", line):
            depth = len(heading[1]) - 1
            section: list[Any] = []
            levels = [*levels[:depth], section]
            levels[depth - 1].append({heading[2]: section})
        for match in _LINK.finditer(line):
            target = posixpath.normpath(posixpath.join("docs", match["target"]))
            if len(levels) > 1 and target.endswith(".md") and place(target) not in seen:
                seen.add(place(target))
                levels[-1].append({match["text"]: place(target)})
                if target == "docs/decisions/README.md":
                    parts = sorted(path.name for path in (ROOT / target).parent.glob("[0-9]*.md"))
                    levels[-1][-1] = {
                        match["text"]: [place(target), *(f"decisions/{part}" for part in parts)]
                    }
                    seen |= {f"decisions/{part}" for part in parts}
    rest = [place(name) for name in pages() if place(name) not in seen]
    return [*_full(found), *([{"More": rest}] if rest else [])]


def _full(sections: list[Any]) -> list[Any]:
    kept = []
    for entry in sections:
        [(title, content)] = entry.items() if isinstance(entry, dict) else [("", entry)]
        if isinstance(content, list):
            content = _full(content)
            if not content:
                continue
        kept.append({title: content} if title else content)
    return kept


def stage() -> None:
    """Copy the pages and the files they link to into `STAGE`."""
    shutil.rmtree(STAGE, ignore_errors=True)
    known = pages()
    files: set[str] = set()
    for name in known:
        text = (ROOT / name).read_text()
        text, linked = rewrite(name, text, known)
        files |= linked
        target = STAGE / place(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for name in files:
        target = STAGE / place(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)


class _Targets(HTMLParser):
    """Collects an HTML page's links and anchors, and the resources that a browser would load automatically."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") in {"stylesheet", "icon", "preload"}:
            self.loaded.add(given["href"])
        elif tag in {"script", "img", "iframe", "source"} and "src" in given:
            self.loaded.add(given["src"])


def broken(site: Path) -> list[str]:
    """Return the problems in a built site: dead links and anchors, and resources that are loaded from other servers."""
    parsed: dict[Path, _Targets] = {}
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":
            parsed[path] = _Targets()
            parsed[path].feed(path.read_text())
    wrong = []
    for path, page in parsed.items():
        where = path.relative_to(site)
        wrong += [f"{where}: loads {one}" for one in page.loaded if urlsplit(one).netloc]
        for one in page.links | page.loaded:
            parts = urlsplit(one)
            if parts.scheme or parts.netloc:
                continue
            target = (
                Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            )
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{where}: {one} does not exist")
            elif (
                parts.fragment
                and target in parsed
                and unquote(parts.fragment) not in parsed[target].anchors
            ):
                wrong.append(f"{where}: {one} has no such heading")
    return wrong


def main(arguments: list[str]) -> int:
    """Build the site. Return 1 if a page, link or heading is wrong."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    import yaml

    site = Path(arguments[0]).resolve()
    stage()
    config = STAGE.parent / "mkdocs.yml"
    given = {"INHERIT": "../mkdocs.yml", "docs_dir": str(STAGE), "site_dir": str(site)}
    config.write_text(
        yaml.safe_dump({**given, "nav": navigation((ROOT / INDEX).read_text())}, sort_keys=False)
    )
    sources = os.pathsep.join(str(ROOT / name) for name in ("core", "toolkit", "testing"))
    environ = {**os.environ, "PYTHONPATH": sources, "NO_MKDOCS_2_WARNING": "1"}
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--clean",
        "--config-file",
        str(config),
    ]
    if subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode:
        return 1
    wrong = broken(site)
    print(
        "\n".join(wrong)
        or f"{len(list(site.rglob('*.html')))} pages in {site}; every link leads somewhere"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
