"""The table in docs/explanation/durability.md matches the stored results, and the results are complete."""

import pytest
from killing import table
from killing.ledger import Counts


def test_the_page_has_the_table_of_the_results() -> None:
    """The page contains the table of the stored results. tests/crash/report.py writes both."""
    text = table.PAGE.read_text(encoding="utf-8")
    assert text.count(table.BEGIN) == text.count(table.END) == 1
    assert text == table.page(text, table.read())


def test_every_row_is_there_and_killed_as_often() -> None:
    found = table.read()
    wanted = [(one.broker, one.setting) for one in table.SUBJECTS]
    assert [(row["broker"], row["setting"]) for row in found["rows"]] == wanted
    most = max(row["counts"]["kills"] for row in found["rows"])
    assert most > 20
    for subject, row in zip(table.SUBJECTS, found["rows"], strict=True):
        assert row["counts"]["kills"] == round((most - 1) * subject.part) + 1
        counts = Counts(**row["counts"])
        assert counts.acknowledged <= counts.published
        assert 0 <= counts.lost <= counts.due
        assert 0 <= counts.sessions_lost <= counts.returns
        assert 0 <= counts.retained_wrong <= counts.retained_checks
        assert 0 <= counts.wills_lost <= counts.wills
        assert not counts.corrupt


def test_no_setting_of_the_report_lost_what_it_promises() -> None:
    for row in table.read()["rows"]:
        assert not table.broken(row), row["setting"]


@pytest.mark.parametrize(("part", "text"), [(0, "0"), (1, "1 (under 1 %)"), (50, "50 (25%)")])
def test_shares(part: int, text: str) -> None:
    counts = Counts(lost=part, due=200 if part != 1 else 1000)
    cell = table.COLUMNS["of these lost"](vars(counts))
    assert cell == text
