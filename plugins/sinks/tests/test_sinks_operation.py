"""Test how operators manage sinks through the API and with ``hookmq sinks``."""

import json
from pathlib import Path

import pytest
from hookmq_testing import run_command
from sink_broker import SinkBroker, read_lines, sink_broker, until

pytestmark = pytest.mark.slow


def numbers(folder: Path) -> list[int]:
    return [one["payload"]["n"] for one in read_lines(folder)]


def test_a_paused_sink_stores_messages_even_after_a_restart(tmp_path: Path) -> None:
    with sink_broker(tmp_path) as broker:
        broker.publish(b'{"n":1}')
        until(lambda: numbers(tmp_path) == [1])
        assert broker.ask("POST", "/sinks/plant/pause", {}) == {"paused": True}
        broker.until_state("paused")
        broker.publish(b'{"n":2}')
        assert until(lambda: broker.status()["lag"] == 1)
    with sink_broker(tmp_path) as broker:
        broker.publish(b'{"n":3}')
        assert until(lambda: broker.status()["lag"] == 2)
        assert broker.status()["state"] == "paused"
        assert numbers(tmp_path) == [1]
        assert broker.ask("POST", "/sinks/plant/resume", {}) == {"paused": False}
        until(lambda: numbers(tmp_path) == [1, 2, 3])
        broker.until_state("active")


def test_a_seek_writes_messages_again_with_the_same_ids(tmp_path: Path) -> None:
    with sink_broker(tmp_path) as broker:
        for number in range(5):
            broker.publish(b'{"n":%d}' % number)
        until(lambda: len(numbers(tmp_path)) == 5)
        assert broker.ask("POST", "/sinks/plant/seek", {"position": "2"}) == {"offset": 2}
        until(lambda: len(numbers(tmp_path)) == 8)
        broker.publish(b'{"n":5}')
        until(lambda: len(numbers(tmp_path)) == 9)
        assert broker.ask("POST", "/sinks/plant/seek", {"position": "@1"}) == {"offset": 0}
        until(lambda: len(numbers(tmp_path)) == 15)
        later = {"position": "2999-01-01T00:00:00Z"}
        assert broker.ask("POST", "/sinks/plant/seek", later) == {"offset": 6}
        code, told = broker.ask("POST", "/sinks/plant/seek", {"position": "soon"})
        assert (code, told["field"]) == (400, "position")
        assert broker.ask("GET", "/sinks/other")[0] == 404
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    ids = [one["id"] for one in read_lines(tmp_path)]
    assert ids[2:5] == ids[5:8]


def test_dead_letters_are_listed_replayed_and_purged(tmp_path: Path) -> None:
    with sink_broker(tmp_path) as broker:
        broker.publish(b"bad", "t/1")
        broker.publish(b'{"n":1}')
        broker.publish(b"\xff", "t/2")
        until(lambda: broker.status()["dead_letters"] == 2)
        page = broker.ask("GET", "/sinks/plant/dead-letters?limit=1")
        (one,) = page["items"]
        assert (one["topic"], one["offset"], one["payload"]["text"]) == ("t/1", 0, "bad")
        assert "not JSON" in one["reason"]
        (two,) = broker.ask("GET", f"/sinks/plant/dead-letters?after={page['after']}")["items"]
        assert two["payload"]["base64"]
        replayed = broker.ask("POST", "/sinks/plant/dead-letters/replay", {})
        assert replayed == {"written": 0, "failed": 2}
        assert broker.status()["dead_letters"] == 2
    with sink_broker(tmp_path, decode="raw") as broker:
        until(lambda: broker.status()["dead_letters"] == 2)
        until(lambda: broker.status()["state"] == "active")
        replayed = broker.ask("POST", "/sinks/plant/dead-letters/replay", {})
        assert replayed == {"written": 2, "failed": 0}
        until(lambda: broker.status()["dead_letters"] == 0)
        assert [one["topic"] for one in read_lines(tmp_path)] == ["t/a", "t/1", "t/2"]
        assert broker.ask("GET", "/sinks/plant/dead-letters") == {"items": [], "after": None}
    with sink_broker(tmp_path) as broker:
        broker.publish(b"bad")
        until(lambda: broker.status()["dead_letters"] == 1)
        assert broker.ask("DELETE", "/sinks/plant/dead-letters") == {"purged": 1}
        until(lambda: broker.status()["dead_letters"] == 0)


def test_the_command_lists_and_tests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = {"topic": "t/a", "payload": {"n": 1}}
    with sink_broker(tmp_path, sample=sample) as broker:
        use(broker, monkeypatch)
        broker.until_state("active")
        assert run_command(["sinks", "list"]) == 0
        row = capsys.readouterr().out.splitlines()[1].split()
        assert row[:4] == ["plant", "file", "active", "0"]
        assert run_command(["sinks", "test", "plant"]) == 0
        assert capsys.readouterr().out == "the target is ready\n"
        assert run_command(["sinks", "status", "plant"]) == 0
        assert "exactly_once" in capsys.readouterr().out
        (tmp_path / "out").rename(tmp_path / "away")
        (tmp_path / "out").write_text("not a folder")
        assert run_command(["sinks", "test", "plant"]) == 1
        assert "out" in capsys.readouterr().out
        broker.publish(b"bad")
        until(lambda: broker.status()["dead_letters"] == 1)
        assert run_command(["sinks", "dead-letters", "plant", "--json"]) == 0
        (letter,) = json.loads(capsys.readouterr().out)
        assert letter["payload"]["text"] == "bad"
        assert run_command(["sinks", "pause", "nothing"]) == 1
        assert "there is no sink or source 'nothing'" in capsys.readouterr().err
        broker.accept_errors("sinks.target_failed")


def use(broker: SinkBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands use the broker's address and token."""
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", broker.base.removesuffix("/api/v1"))
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", broker.token)
