"""The page of all commands matches their help texts."""

import pathlib

from commands import reference

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_of_commands_is_up_to_date() -> None:
    text = PAGE.read_text("utf-8")
    assert text == reference(), "run: python tools/commands.py > docs/reference/cli.md"
