"""Kill a broker and its sink's process under load. Every acknowledged message must be in the target exactly once, in
order for each key. `make crash-sinks KILLS=200` runs more kills.
"""

from pathlib import Path
from typing import Any

import pytest
from sinkkill.files import read_lines
from sinkkill.ledger import SinkLedger, Stored
from sinkkill.rounds import SinkKill

KILLS = 3
LOG = "0" * 32


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_file_has_each_message_once(tmp_path: Path, lanes: int) -> None:
    out = tmp_path / "out"
    target = {"path": str(out), "rotate_size": "16KiB"}
    run = SinkKill(
        tmp_path, {"driver": "file", "target": target, "lanes": lanes}, lambda: read_lines(out), once=True, seed=lanes
    )  # fmt: skip
    run.run(KILLS)
    assert run.broker_kills == KILLS
    assert run.sender_kills >= 1
    assert run.ledger.total > 50 * KILLS
    assert len(list(out.glob("*.jsonl"))) > 1


def ledger(*numbers: int) -> SinkLedger:
    """Return a ledger for one key: messages 1 to 3 were published, and the given ones were acknowledged."""
    made = SinkLedger()
    for _ in range(3):
        made.publish("a")
    for number in numbers:
        made.acknowledge("a", number)
    return made


def stored(*numbers: int) -> list[Stored]:
    return [Stored(f"s:{LOG}:{number}", "a", number) for number in numbers]


def test_the_ledger_finds_what_is_missing() -> None:
    assert ledger(1, 3).missing(stored(1, 2)) == {"a": [3]}
    assert ledger(1, 3).missing(stored(3, 1)) == {}


@pytest.mark.parametrize(
    ("found", "once", "word"),
    [
        (stored(1, 2, 2, 3), True, "more than once"),
        (stored(2, 1), False, "not in order"),
        (stored(1, 4), False, "never published"),
        ([*stored(1), Stored("other", "a", 1)], False, "has the ids"),
        ([*stored(1), Stored(f"s:{LOG}:1", "a", 2)], False, "is both"),
    ],
)
def test_the_ledger_finds_mistakes(found: list[Any], once: bool, word: str) -> None:
    assert any(word in one for one in ledger(1).mistakes(found, once))


def test_the_ledger_accepts_repeated_records_unless_once() -> None:
    assert not ledger(1, 2).mistakes(stored(1, 2, 1, 2, 3), False)
