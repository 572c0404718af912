"""The README is short and correct."""

import re
import tomllib
from types import ModuleType

from hookmq_testing import Harness, make_plugin
from pages import blocks, links, prose
from workspace import ROOT

README = ROOT / "README.md"


def test_guests_listen_and_nothing_else() -> None:
    [block] = [block for block in blocks(README) if block.kind == "python"]
    assert len(block.text.splitlines()) <= 20
    module = ModuleType("shown")
    exec(compile(block.text, str(block), "exec"), module.__dict__)
    closed = {"auth": {"default": "deny"}, "authz": {"default": "deny"}}
    with Harness([make_plugin(module.Guests)], config=closed) as harness:
        guest = harness.connect("guest")
        assert guest.subscribe(["public/a", "public/#", "#"]).codes == (0, 0, 0x87)
        guest.publish("public/a", b"", 1, expect=0x87)
        harness.connect("somebody", username="ada", expect=0x87)
    with Harness([make_plugin(module.Guests)]) as harness:
        ada = harness.connect("ada", username="ada")
        ada.publish("public/a", b"", 1, expect=0x10)


def test_it_is_short() -> None:
    text = re.sub(r"\]\([^)]*\)", "]", prose(README))
    assert len(re.findall(r"\w[\w'.,/-]*", text)) <= 500
    assert len(links(README)) <= 10


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table whose heading starts with `heading`, without the heading row."""
    table = text[text.index(heading) :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]


def test_the_benchmark_is_that_of_the_manual() -> None:
    shown = rows(README.read_text(), "| | mosquitto")
    assert len(shown) == 4
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text()
    costs = rows(page, "|  | mosquitto | HookMQ pure | HookMQ compiled")
    measured = [[cell.partition(" ")[0] for cell in row[1:4]] for row in costs]
    for row in shown:
        assert row[1:] in measured, f"{row[0]}: docs/explanation/performance.md has other figures"


def test_its_pictures_exist_and_the_first_is_that_of_the_index() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(docs/([^)]+)\)", README.read_text())
    assert f"]({pictures[0]})" in (ROOT / "docs" / "index.md").read_text()
    for picture in pictures:
        assert (ROOT / "docs" / picture).is_file()


def test_it_names_the_versions_that_are_supported() -> None:
    core = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"]
    oldest = core["requires-python"].removeprefix(">=")
    assert f"Python {oldest}" in README.read_text()
    assert core["version"] in README.read_text()
