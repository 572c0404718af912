"""HookMQ and mosquitto are sent the same bytes. If their clients receive different packets, the table explains why."""

from collections.abc import Iterator

import pytest
from differential import table
from differential.brokers import Brokers, brokers, mosquitto, version
from differential.generated import MOVES, Move, alike, script
from differential.scripts import scripts
from hypothesis import given, settings
from statements import statements

pytestmark = pytest.mark.slow
SCRIPTS = scripts()
VERSION = "2.0.11"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Run both brokers."""
    program = mosquitto()
    if program is None:
        pytest.skip("mosquitto is not installed (apt install mosquitto)")
    if version(program) != VERSION:
        pytest.skip(f"the table is of mosquitto {VERSION}, here is {version(program)}")
    with brokers(program, tmp_path_factory.mktemp("differential")) as found:
        yield found


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(both: Brokers, name: str) -> None:
    """The brokers differ exactly where the table says they do."""
    found = table.compare(name, *both.both(SCRIPTS[name]))
    known = [one.found for one in table.read() if one.script == name]
    assert [one.found for one in found] == known


@settings(max_examples=20)
@given(moves=MOVES)
def test_random_scripts(both: Brokers, moves: list[Move]) -> None:
    """Both brokers respond the same way to ordinary client behavior."""
    theirs, ours = both.both(script(moves))
    assert alike(ours) == alike(theirs)


def test_every_difference_has_a_verdict_and_a_reason() -> None:
    """Every row of the table has a verdict and a reason, and belongs to an existing script."""
    known = statements()
    for one in table.read():
        assert one.script in SCRIPTS
        assert one.right in table.RIGHT, one
        assert one.reason.endswith((".", ".)")), one
        for name in filter(None, one.statement.split(", ")):
            assert name in known or name.startswith("§"), one


def test_the_page_is_of_the_table() -> None:
    """docs/reference/mosquitto.md is up to date. tests/differential/report.py writes it."""
    assert table.PAGE.read_text(encoding="utf-8") == table.page(table.read(), len(SCRIPTS))
