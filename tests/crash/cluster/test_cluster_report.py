"""Test the report of a series of seeds."""

import json
from pathlib import Path

from clusterkill.checker import check
from clusterkill.faults import Fault
from clusterkill.history import FAULTS, Event, History
from clusterkill.report import outcome_lines, recovery_lines, write_results
from clusterkill.rounds import Outcome


def outcome(found: bool) -> Outcome:
    """Return the outcome of a seed with one fault and one message, which is lost if something is to be found."""
    events = [
        Event(0.0, "s", "ok", "subscribe", "d/#", detail="durable"),
        Event(1.0, FAULTS, "invoke", "fault", "1", detail="kill broker"),
        Event(1.5, "p", "invoke", "publish", "d/1", 1, 1),
        Event(3.5, "p", "ok", "publish", "d/1", 1, 1),
        Event(4.0, FAULTS, "ok", "fault", "1", detail="kill broker"),
    ]
    if not found:
        events.append(Event(5.0, "s", "ok", "receive", "d/1", 1, 1))
    history = History(events)
    return Outcome(7, [Fault("kill broker", 1.0, 3.0, 2)], history, check(history), seconds=9.0)


def test_lines() -> None:
    assert outcome_lines(outcome(False)) == [
        "seed 7: ok, 9 s, settled after 0.0 s; 1 acknowledged, 1 due, 0 repeated, 0 unknown, 0 restarts",
        "  1.0-4.0 s kill broker 2",
    ]
    assert outcome_lines(outcome(True))[-1] == "  found 1 lost: d/1 1 QoS 1 to s"
    lines = recovery_lines([outcome(False), outcome(True)])
    assert lines[1:] == ["found: 1 lost", "kill broker: 2 publishers, p50 2.5 s, p99 2.5 s"]


def test_results(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, [outcome(False), outcome(True)], 1)
    result = json.loads(path.read_text())
    assert (result["failed"], result["findings"]) == (1, {"lost": 1})
    assert result["counts"]["acknowledged"] == 2
    assert result["recovery"] == {"kill broker": {"publishers": 2, "p50": 2.5, "p99": 2.5}}
    assert [seed["findings"] for seed in result["seeds"]] == [[], ["1 lost: d/1 1 QoS 1 to s"]]
    assert result["seeds"][0]["recovery"] == {"kill broker": [2.5]}
