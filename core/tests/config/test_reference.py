"""Test that the manual's page of configuration keys is up to date."""

import pathlib

from hookmq.config.reference import reference as of_keys

PAGES = pathlib.Path(__file__).parents[3] / "docs" / "reference"


def test_the_page_of_keys_is_up_to_date() -> None:
    text = (PAGES / "config.md").read_text("utf-8")
    assert text == of_keys(), "run: hookmq config reference > docs/reference/config.md"


def test_every_key_has_a_meaning() -> None:
    rows = [line for line in of_keys().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.rstrip(" |").endswith("|") or row[-4:] == "|  |"] == []
