"""Test the record of a run."""

from pathlib import Path

from clusterkill.history import Event, History, read_history


def test_a_history_survives_a_file(tmp_path: Path) -> None:
    history = History()
    history.add("p", "invoke", "publish", "d/1", 1, 2, 3, "clear")
    history.add("p", "ok", "publish", "d/1", 1)
    history.write(tmp_path / "history.jsonl")
    assert read_history(tmp_path / "history.jsonl").events == history.events
    assert history.events[0][1:] == ("p", "invoke", "publish", "d/1", 1, 2, 3, "clear")


def test_events_have_the_time_since_the_start() -> None:
    history = History([Event(0.0, "p", "ok", "close")])
    history.add("p", "ok", "close")
    assert 0 <= history.events[-1].at < 60
