"""The documentation site: links are rewritten, every page is reachable from the index, and dead links are reported.

`make docs` builds the whole site; these tests need none of its packages.
"""

from pathlib import Path
from typing import Any

import pytest
from manual import (
    INDEX,
    ROOT,
    broken,
    navigation,
    pages,
    place,
    rewrite,
)

KNOWN = ["docs/index.md", "docs/how-to/tls.md", "plugins/storage/README.md", "CHANGELOG.md"]


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("docs/how-to/tls.md", "[a](../../plugins/storage/README.md#b)", "[a](../plugins/storage/README.md#b)"),
        ("docs/how-to/tls.md", "[a](../../plugins/storage)", "[a](../plugins/storage/README.md)"),
        ("docs/how-to/tls.md", "[a](../../tests)", "a"),
        ("docs/how-to/tls.md", "[a](../../LICENSE)", "[a](../files/LICENSE)"),
        ("docs/how-to/tls.md", "[a](../../README.md#b)", "[a](../index.md)"),
        ("docs/how-to/tls.md", "[a](missing.md)", "[a](missing.md)"),
        ("docs/index.md", "![a](images/publish.svg)", "![a](images/publish.svg)"),
        ("plugins/storage/README.md", "[a](../../docs/how-to/tls.md)", "[a](../../how-to/tls.md)"),
        ("CHANGELOG.md", "[a](docs/how-to/tls.md) [`b` c](#c)", "[a](how-to/tls.md) [`b` c](#c)"),
        ("docs/index.md", "```python file=a.py\n[a](b)\n```\n", '```python title="a.py"\n[a](b)\n```\n'),
        ("docs/index.md", "```yaml config\na: 1\n```\n", "```yaml\na: 1\n```\n"),
        ("docs/index.md", "a\n<!-- repository only -->\nb\n<!-- end -->\n\nc\n", "a\nc\n"),
        ("docs/index.md", "One:\n- two\n- three\n", "One:\n\n- two\n- three\n"),
    ],
)  # fmt: skip
def test_a_page_is_rewritten(name: str, text: str, shown: str) -> None:
    assert rewrite(name, text, KNOWN)[0] == shown


def test_linked_files_are_copied() -> None:
    assert rewrite("docs/how-to/tls.md", "[a](../../LICENSE)", KNOWN)[1] == {"LICENSE"}


def names(entries: list[Any]) -> list[str]:
    found = []
    for entry in entries:
        [content] = entry.values() if isinstance(entry, dict) else [entry]
        found += [content] if isinstance(content, str) else names(content)
    return found


def test_the_index_leads_to_every_page() -> None:
    entries = navigation((ROOT / INDEX).read_text())
    assert sorted(names(entries)) == sorted(place(name) for name in pages())
    rest: list[str] = next((entry["More"] for entry in entries if "More" in entry), [])
    assert rest == [], "link these pages from docs/index.md"


def test_navigation_has_the_headings_of_the_index() -> None:
    text = "# A\n\n## B\n\n### C\n\n- [d](how-to/tls.md)\n\n## E\n\n## F\n\n[g](../CHANGELOG.md), [d](how-to/tls.md)\n"
    found = navigation(text)
    assert found[:3] == [
        {"Home": "index.md"},
        {"B": [{"C": [{"d": "how-to/tls.md"}]}]},
        {"F": [{"g": "CHANGELOG.md"}]},
    ]


def test_dead_links_and_foreign_servers_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text(
        '<h1 id="one">1</h1><a href="../">home</a><a href="#one">1</a>'
    )
    (tmp_path / "index.html").write_text(
        '<a href="a/">a</a><a href="a/#one">1</a><a href="https://example.org">b</a><script src="missing.js"></script>'
        '<a href="a/#two">2</a><a href="b/">c</a><link rel="stylesheet" href="https://fonts.example/x.css">'
    )
    assert sorted(broken(tmp_path)) == [
        "index.html: a/#two has no such heading",
        "index.html: b/ does not exist",
        "index.html: loads https://fonts.example/x.css",
        "index.html: missing.js does not exist",
    ]
