"""Each cell of the tables in docs/explanation/who-may-do-what.md shows what a client observed with the real plugins.

After an intended change, ``python tests/support/denials.py`` rewrites the tables.
"""

import re

import pytest
from denials import PUBLISH, TABLES, VERSIONS, render, shown, told

CASES = [
    (table, row.title, version, qos)
    for table, rows in TABLES.items()
    for row in rows
    for version in VERSIONS
    for qos in ((0, 1, 2) if table == "publish" else (1,))
]


def cells(table: str) -> dict[tuple[str, int, int], str]:
    """Return the cells of the page, keyed by row, version and QoS."""
    head, _, *lines = shown(table).splitlines()
    columns = []
    for text in head.strip("|").split("|")[1:]:
        name, _, qos = text.strip().partition(", QoS ")
        [version] = [number for number, called in VERSIONS.items() if called == name]
        columns.append((version, int(qos or 1)))
    found = {}
    for line in lines:
        title, *row = (cell.strip() for cell in line.strip("|").split("|"))
        for column, cell in zip(columns, row, strict=True):
            found[title, *column] = cell
    return found


@pytest.mark.parametrize(("table", "title", "version", "qos"), CASES)
def test_a_denial(table: str, title: str, version: int, qos: int) -> None:
    # For publishing, the page says that 3.1 behaves like 3.1.1.
    column = 4 if table == "publish" and version == 3 else version
    assert told(table, title, version, qos) == cells(table)[title, column, qos]


@pytest.mark.parametrize("table", TABLES)
def test_the_page_shows_all_rows_and_no_others(table: str) -> None:
    assert shown(table) == render(table)


def test_the_rows_tell_apart_what_they_show() -> None:
    for rows in TABLES.values():
        titles = [row.title for row in rows]
        assert len(titles) == len(set(titles))
    said = {told("publish", row.title, 5, 1) for row in PUBLISH}
    assert {"PUBACK 0x87", "PUBACK 0x97", "PUBACK 0x83", "DISCONNECT 0x96"} < said
    assert all(re.fullmatch(r"[A-Za-z0-9 ,]+", one) for one in said)
