"""Test that a reload adds, removes and changes sinks and sources of a running broker."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sink_broker import SinkBroker, read_lines, sink_broker, until

pytestmark = pytest.mark.slow


def reload(broker: SinkBroker, change: Callable[[dict[str, Any]], None], event: str) -> Any:
    """Change the settings of the plugin in the configuration file, and reload it. Return the next entry of `event`."""
    path = broker.folder / "hookmq.yaml"
    document = json.loads(path.read_text())
    change(document["plugins"][1]["config"])
    path.write_text(json.dumps(document))
    before = len(broker.served.log)
    broker.served.signal(signal.SIGHUP)

    def logged() -> Any:
        return [one for one in broker.served.log[before:] if one["event"] == event]

    return until(logged, event)[0]


def other(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "other", "topics": ["o/#"], "driver": "file", "target": {"path": str(folder / "two" / "out")},
        "batch": {"age": "10ms"}, **more,
    }  # fmt: skip


def payloads(folder: Path) -> list[Any]:
    return [one["payload"] for one in read_lines(folder)]


def names(broker: SinkBroker) -> list[str]:
    return [one["name"] for one in broker.ask("GET", "/sinks")["items"]]


def test_sinks_are_added_and_removed_while_others_keep_running(tmp_path: Path) -> None:
    with sink_broker(tmp_path) as broker:
        (first,) = until(lambda: broker.senders)
        broker.publish(b"1")
        broker.publish(b"lost", "o/a", expect=0x10)
        told = reload(
            broker, lambda config: config["sinks"].insert(0, other(tmp_path)), "sinks.added"
        )
        assert (told["sink"], told["driver"]) == ("other", "file")
        broker.publish(b"2")
        broker.publish(b"kept", "o/a")
        until(lambda: payloads(tmp_path / "two") == ["kept"])
        assert names(broker) == ["other", "plant"]
        assert first in broker.senders

        broker.ask("POST", "/sinks/other/pause")
        broker.publish(b"left", "o/a")
        told = reload(broker, lambda config: config["sinks"].pop(0), "sinks.removed")
        assert (told["sink"], told["messages"], told["level"]) == ("other", 1, "warning")
        assert (Path(told["folder"]) / "log").is_dir()
        assert names(broker) == ["plant"]
        broker.publish(b"none", "o/a", expect=0x10)
        broker.publish(b"3")
        until(lambda: payloads(tmp_path) == [1, 2, 3])
        assert broker.senders == [first]
        assert not (tmp_path / "sinks/other").exists()

        reload(broker, lambda config: config["sinks"].append(other(tmp_path)), "sinks.added")
        broker.publish(b"again", "o/a")
        until(lambda: sorted(payloads(tmp_path / "two")) == ["again", "kept"])
        told = reload(broker, lambda config: config["sinks"].pop(), "sinks.removed")
        assert (told["messages"], told["level"]) == (0, "info")
    with sink_broker(tmp_path) as broker:  # a restart accepts the folders
        assert names(broker) == ["plant"]


def test_a_changed_sink_continues_with_its_messages(tmp_path: Path) -> None:
    with sink_broker(tmp_path, decode="raw") as broker:
        (first,) = until(lambda: broker.senders)
        broker.publish(b"1")
        until(lambda: payloads(tmp_path) == ["1"])
        broker.ask("POST", "/sinks/plant/pause")
        broker.publish(b"2")

        def change(config: dict[str, Any]) -> None:
            config["sinks"][0] |= {"decode": "json", "topics": ["new/#"]}

        told = reload(broker, change, "sinks.changed")
        assert sorted(told["settings"]) == ["decode", "topics"]
        broker.until_state("paused")
        broker.publish(b"4", expect=0x10)
        broker.publish(b"3", "new/a")
        broker.ask("POST", "/sinks/plant/resume")
        until(lambda: payloads(tmp_path) == ["1", 2, 3])
        assert broker.senders != [first]
        until(lambda: broker.status()["counts"]["written"] == 3)  # including the first one
        assert broker.status()["counts"]["restarts"] == 0


def test_a_reload_that_is_wrong_changes_nothing_and_says_where(tmp_path: Path) -> None:
    with sink_broker(tmp_path) as broker:
        (first,) = until(lambda: broker.senders)
        before = (tmp_path / "hookmq.yaml").read_text()

        def wrong(change: Callable[[dict[str, Any]], None]) -> str:
            told = reload(broker, change, "node.reload_failed")
            (tmp_path / "hookmq.yaml").write_text(before)
            return str(told["error"])

        def misspell(config: dict[str, Any]) -> None:
            config["sinks"] += [other(tmp_path), other(tmp_path, name="third", driver="flie")]

        def move(config: dict[str, Any]) -> None:
            config["path"] += "2"

        (tmp_path / "sinks/other/log").mkdir(parents=True)
        text = wrong(misspell)
        assert "did you mean file?" in text
        assert "hookmq.yaml:1:" in text
        assert "path: a change needs a restart" in wrong(move)
        text = wrong(lambda config: config["sinks"].append(other(tmp_path)))
        assert "other contains the log of another sink" in text
        assert names(broker) == ["plant"]
        broker.publish(b"1")
        until(lambda: payloads(tmp_path) == [1])
        assert broker.senders == [first]
        broker.accept_errors("node.reload_failed")


def source(**more: Any) -> dict[str, Any]:
    return {"name": "web", "driver": "http", "origin": {"bind": "127.0.0.1:0", **more}}


def test_sources_are_added_changed_and_removed(tmp_path: Path) -> None:
    with sink_broker(tmp_path) as broker:
        token = {"tokens": [{"token": "t" * 32, "identity": "web", "topics": ["t/#"]}]}
        reload(broker, lambda config: config["sources"].append(source(**token)), "sources.added")
        until(lambda: broker.ask("GET", "/sources/web")["state"] == "active")
        told = reload(
            broker,
            lambda config: config["sources"][0]["origin"].update(max_batch=7),
            "sources.changed",
        )
        assert told["source"] == "web"
        until(lambda: broker.ask("GET", "/sources/web")["state"] == "active")
        reload(broker, lambda config: config["sources"].clear(), "sources.removed")
        assert broker.ask("GET", "/sources")["items"] == []
        broker.publish(b"1")
        until(lambda: payloads(tmp_path) == [1])
