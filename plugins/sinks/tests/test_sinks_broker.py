"""Test sinks in broker processes with the `file` driver: acknowledged messages arrive, once and in order."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mqttbytes as m
import pytest
from brokercut.lines import kind, reason
from byteclient import ByteClient, over_tcp
from serving import Served, serving

pytestmark = pytest.mark.slow


def write(tmp_path: Path, **sink: Any) -> str:
    path = tmp_path / "hookmq.yaml"
    one = {
        "name": "plant",
        "topics": ["t/#"],
        "decode": "json",
        "driver": "file",
        "target": {"path": str(tmp_path / "out")},
        "batch": {"age": "10ms"},
        "retry": {"first": "50ms"},
        **sink,
    }
    text = {
        "version": 1,
        "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": [
            {"use": "storage", "config": {"path": str(tmp_path / "data")}},
            {"use": "sinks", "config": {"path": str(tmp_path / "sinks"), "sinks": [one]}},
        ],
    }
    path.write_text(json.dumps(text))
    return str(path)


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    folder = tmp_path / "out"
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.jsonl*")))
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def until(true: Callable[[], bool]) -> None:
    for _ in range(3000):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen within 30 seconds")


def connect(served: Served) -> ByteClient:
    line = over_tcp(served.ports["tcp"])
    line.send(m.connect("dev"))
    assert kind(line.frame()) == 2
    return line


def publish(line: ByteClient, payload: bytes, number: int, topic: str = "t/a") -> int:
    line.send(m.publish(topic, payload, 1, number))
    return reason(line.frame())


def test_messages_arrive_and_bad_ones_are_dead_letters(tmp_path: Path) -> None:
    with serving("-c", write(tmp_path, key="${topic.2}")) as served:
        line = connect(served)
        publish(line, b'{"n":1}', 1)
        publish(line, b"not json", 2)
        publish(line, b'{"n":2}', 3, "t/b")
        until(lambda: len(lines(tmp_path)) == 2)
        line.close()
        told = served.wait_for("sinks.dead_letters")
        assert (told["messages"], told["topic"]) == (1, "t/a")
    first, second = lines(tmp_path)
    assert (first["payload"], first["topic"], first["key"]) == ({"n": 1}, "t/a", "a")
    assert (second["payload"], second["topic"], second["key"]) == ({"n": 2}, "t/b", "b")
    assert (first["client_id"], first["qos"]) == ("dev", 1)
    assert first["id"].startswith("plant:")
    assert first["id"].endswith(":0")
    assert second["id"].endswith(":2")
    (letter,) = (tmp_path / "sinks/plant/dead-letters").glob("*.jsonl")
    dead = json.loads(letter.read_text())
    assert dead["payload"] == "not json"
    assert "not JSON" in dead["reason"]


def test_a_process_that_is_killed_continues_where_it_was(tmp_path: Path) -> None:
    with serving("-c", write(tmp_path)) as served:
        line = connect(served)
        for number in range(1, 40):
            publish(line, b'{"n":%d}' % number, number)
            if number in (10, 20):
                until(lambda: len(senders_of(served.process.pid)) == 1)
                os.kill(senders_of(served.process.pid)[0], signal.SIGKILL)
        until(lambda: len(lines(tmp_path)) == 39)
        line.close()
        served.log[:] = [one for one in served.log if one["event"] != "sinks.process_ended"]
    assert [one["payload"]["n"] for one in lines(tmp_path)] == list(range(1, 40))


def senders_of(pid: int) -> list[int]:
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
        if b"hookmq_sinks.sender" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
