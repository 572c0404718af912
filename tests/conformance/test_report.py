"""Every statement has a test or an exception, and the manual's page is up to date."""

import re

import pytest
from statements import (
    ROOT,
    covered,
    edges,
    excused,
    ids_of,
    statements,
    tagged,
)

PAGE = ROOT / "docs" / "reference" / "conformance.md"
STATEMENTS = statements()
COVERED = covered()


def test_the_tables_are_whole() -> None:
    five = [id for id in STATEMENTS if id.startswith("MQTT-")]
    three = [id for id in STATEMENTS if id.startswith("MQTT311-")]
    assert (len(five), len(three), len(edges())) == (251, 141, 59)
    for prefix, server in (("MQTT-", 202), ("MQTT311-", 106)):
        rows = [one for id, one in STATEMENTS.items() if id.startswith(prefix)]
        assert sum(one.side != "client" for one in rows) == server
        assert {one.side for one in rows} == {"server", "client", "both"}
        assert {one.kind for one in rows} <= {"wire", "internal", "none"}


def test_marks_and_tags_name_what_exists() -> None:
    known: set[str | int] = {*STATEMENTS, *edges()}
    assert [key for key in COVERED if key not in known] == []
    assert [id for id in tagged() if id not in STATEMENTS] == []


def test_every_statement_has_a_test_or_a_reason() -> None:
    reasons = excused("test")
    missing = [id for id, one in STATEMENTS.items() if one.concerns_us and id not in COVERED]
    assert missing == list(reasons)
    assert [number for number in edges() if number not in COVERED] == []


def test_every_statement_is_named_where_it_is_enforced() -> None:
    reasons = excused("line")
    places = tagged()
    assert [id for id, one in STATEMENTS.items() if one.concerns_us and id not in places] == list(
        reasons
    )


@pytest.mark.parametrize(
    ("tag", "ids"),
    [
        ("MQTT-3.1.4-3", ["MQTT-3.1.4-3"]),
        ("MQTT-3.1.4-3, 3.10.4-11", ["MQTT-3.1.4-3", "MQTT-3.10.4-11"]),
        ("MQTT-4.7.3-4, MQTT-1.5.4-3", ["MQTT-4.7.3-4", "MQTT-1.5.4-3"]),
        ("MQTT311-3.2.2-1 to 3", ["MQTT311-3.2.2-1", "MQTT311-3.2.2-2", "MQTT311-3.2.2-3"]),
        ("MQTT-3.1.0-1,\n    3.1.0-2", ["MQTT-3.1.0-1", "MQTT-3.1.0-2"]),
    ],
)
def test_a_tag_names_its_statements(tag: str, ids: list[str]) -> None:
    assert ids_of(tag) == ids


def rows() -> dict[str, list[str]]:
    """Return the page's rows, keyed by their first cell."""
    text = PAGE.read_text(encoding="utf-8").partition("## Exceptions")
    found = {}
    for line in (text[0] + text[2].partition("## Edge cases")[2]).splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) > 2 and re.fullmatch(r" (MQTT\S+-\d+|\d+) ", cells[1]):
            found[cells[1].strip()] = [cell.strip() for cell in cells[2:-1]]
    return found


def test_the_manual_names_the_tests_and_the_files_of_each_statement() -> None:
    """Run `make conformance` after changing tests or tags, or moving a module."""
    page = rows()
    places = tagged()
    wanted = [id for id, one in STATEMENTS.items() if one.concerns_us] + [str(n) for n in edges()]
    assert list(page) == wanted
    for key, cells in page.items():
        tests = COVERED.get(int(key) if key.isdigit() else key, [])
        position = 1 if key.isdigit() else 2
        assert re.findall(r"`([^`]*)`", cells[position]) == tests, key
        assert cells[position + 1] == ("passed" if tests else "see exceptions"), key
        if not key.isdigit():
            files = sorted({file for file, _ in places.get(key, [])})
            assert re.findall(r"`([^`]*)`", cells[position + 2]) == files, key


def test_the_manual_gives_the_reasons() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for id, reason in {**excused("test"), **excused("line")}.items():
        assert f"| {id} | {reason} |" in text
