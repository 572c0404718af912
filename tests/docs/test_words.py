"""Test the check that pages, docstrings, comments and messages use the glossary's words. `make check` runs that check."""

import re
from collections import Counter

import pytest
from words import GLOSSARY, SENTENCE, Rules, files, unchecked, words
from words import _any as matches_any

LEFT = unchecked()
STRICT = [name for name in files() if not matches_any(name, LEFT)]
ENTRIES = 0
"""The number of entries in tools/unchecked.txt. Lower it whenever you remove entries."""


def test_the_list_of_files_to_be_rewritten_only_shrinks() -> None:
    assert len(LEFT) <= ENTRIES
    assert len(set(LEFT)) == len(LEFT)
    assert "*" not in LEFT


def test_the_front_door_is_checked() -> None:
    wanted = {"CONTRIBUTING.md", "SECURITY.md", "docs/decisions/README.md", "tools/release.py"}
    assert wanted <= set(STRICT)


def test_no_word_is_both_used_and_banned() -> None:
    table = re.findall(r"^\| ([^|]+) \|[^|]+\|[^|]+\|$", GLOSSARY.read_text(), re.M)
    terms = {term.strip("` ") for cell in table for term in cell.split(",")}
    banned = Counter(one.text.lower() for one in words(GLOSSARY.read_text()))
    assert not terms & banned.keys()
    assert [word for word, times in banned.items() if times > 1] == []


def test_the_glossary_is_in_order() -> None:
    for section in re.split(r"^## ", GLOSSARY.read_text(), flags=re.M)[1:]:
        terms = re.findall(r"^\| ([^|]+) \|[^|]+\|[^|]+\|$", section, re.M)[1:]
        assert terms == sorted(terms, key=str.lower), section.splitlines()[0]


GIVEN = """# Glossary

| term | meaning | do not write |
|---|---|---|
| fast path | quick | short way, hot path |
| takeover | one replaces another | `duplicate_client_id` |
| plugin | a class | - |

| do not write | write |
|---|---|
| whoever | anyone who |
"""


def page(text: str) -> list[tuple[int, str]]:
    return [(one.line, one.what.partition(":")[0]) for one in Rules(GIVEN).page(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# A\n\nThe short way.", [(3, "'short way'")]),
        ("# A\n\nThe SHORT\nway.", [(3, "'short way'")]),
        ("Whoever comes", [(1, "'whoever'")]),
        ("| a | the hot path |", [(1, "'hot path'")]),
        ("shortway, hot paths, hot path's", [(1, "'hot path'")]),
        ("[the page](whoever)", []),
        ("[whoever](page.md)", [(1, "'whoever'")]),
        ("`hot path` is code", []),
        ("`duplicate_client_id` is code, and not_second_client", [(1, "'duplicate_client_id'")]),
        ("```yaml config\nwhoever: hot path\n```\nwhoever", [(4, "'whoever'")]),
        ("<!-- whoever -->", []),
        ("a - b", []),
    ],
)
def test_words_on_a_page(text: str, found: list[tuple[int, str]]) -> None:
    assert page(text) == found


LONG = " ".join(["word"] * (SENTENCE + 1))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"# A\n\n{LONG}.", [(3, f"a sentence of {SENTENCE + 1} words")]),
        (f"Short.\n{LONG}.", [(2, f"a sentence of {SENTENCE + 1} words")]),
        (f"- {LONG}", [(1, f"a sentence of {SENTENCE + 1} words")]),
        (f"{LONG[:-5]}. {LONG[:-5]}.", []),
        (f"{LONG[:-5]}\n\n{LONG[:-5]}", []),
        (f"{LONG[:-5]}\n- {LONG[:-5]}", []),
        (f"| {LONG} |", []),
        (f"```text\n{LONG}\n```", []),
        (
            "in version 3.1.1 of `a b c d` " * 4 + "it is.",
            [(1, "a sentence of 22 words")] if SENTENCE < 22 else [],
        ),
    ],
)
def test_long_sentences(text: str, found: list[tuple[int, str]]) -> None:
    assert page(text) == found


SOURCE = '''"""Whoever reads this."""

whoever = 1  # the hot path
log("info", "one.whoever", text="short way")


def f() -> None:
    """Do it.

    The short
    way."""
    raise ValueError(f"{whoever} is whoever")


class Settings:
    short_way: int = 1
    """Seconds."""
'''


def test_prose_in_a_module() -> None:
    found = [(one.line, one.what.partition(":")[0]) for one in Rules(GIVEN).module(SOURCE)]
    assert found == [
        (1, "'whoever'"),
        (3, "'hot path'"),
        (4, "'short way'"),
        (4, "'whoever'"),
        (10, "'short way'"),
        (12, "'whoever'"),
        (16, "'short way'"),
    ]
