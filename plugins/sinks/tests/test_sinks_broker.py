"""Test sinks in broker processes with the `file` driver: acknowledged messages arrive, once and in order."""

import json
import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest
from sink_broker import SinkBroker, read_lines, sink_broker, until

pytestmark = pytest.mark.slow


def test_messages_arrive_and_bad_ones_are_dead_letters(tmp_path: Path) -> None:
    with sink_broker(tmp_path, key="${topic.2}") as broker:
        broker.publish(b'{"n":1}', user_property=(("a", "b"),), content_type="x/y")
        broker.publish(b"not json")
        broker.publish(b'{"n":2}', "t/b")
        until(lambda: len(read_lines(tmp_path)) == 2)
        told = broker.served.wait_for("sinks.dead_letters")
        assert (told["messages"], told["topic"]) == (1, "t/a")
    first, second = read_lines(tmp_path)
    assert (first["payload"], first["topic"], first["key"]) == ({"n": 1}, "t/a", "a")
    assert (second["payload"], second["topic"], second["key"]) == ({"n": 2}, "t/b", "b")
    assert (first["client_id"], first["qos"]) == ("dev", 1)
    assert (first["content_type"], first["user_properties"]) == ("x/y", [["a", "b"]])
    assert first["id"].startswith("plant:")
    assert first["id"].endswith(":0")
    assert second["id"].endswith(":2")
    (letter,) = (tmp_path / "sinks/plant/dead-letters").glob("*.jsonl")
    dead = json.loads(letter.read_text())
    assert dead["payload"] == "not json"
    assert "not JSON" in dead["reason"]


def test_a_process_that_is_killed_continues_where_it_was(tmp_path: Path) -> None:
    with sink_broker(tmp_path) as broker:
        for number in range(1, 40):
            broker.publish(b'{"n":%d}' % number)
            if number in (10, 20):
                (child,) = until(lambda: broker.senders)
                os.kill(child, signal.SIGKILL)
                until(partial(restarted, broker, child))
        until(lambda: len(read_lines(tmp_path)) == 39)
        assert broker.status()["counts"]["restarts"] == 2
        broker.accept_errors("sinks.process_ended")
    assert [one["payload"]["n"] for one in read_lines(tmp_path)] == list(range(1, 40))


def restarted(broker: SinkBroker, child: int) -> bool:
    return broker.senders not in ([], [child])


def test_a_target_that_is_down_does_not_stop_publishers(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("not a folder")
    with sink_broker(tmp_path) as broker:
        for number in range(50):
            broker.publish(b'{"n":%d}' % number)
        found = broker.until_state("failed")
        assert "File exists" in found["reason"] or "Not a directory" in found["reason"]
        assert until(lambda: broker.status()["lag"] == 50)
        assert re.search(r'^hookmq_sinks_state{.*state="failed".*} 1', broker.metrics(), re.M)
        (tmp_path / "out").unlink()
        until(lambda: len(read_lines(tmp_path)) == 50)
        found = broker.until_state("active")
        assert until(lambda: broker.status()["lag"] == 0)
        broker.accept_errors("sinks.target_failed")
    assert [one["payload"]["n"] for one in read_lines(tmp_path)] == list(range(50))


def test_a_process_that_is_stuck_does_not_stop_publishers(tmp_path: Path) -> None:
    with sink_broker(tmp_path) as broker:
        broker.publish(b'{"n":0}')
        until(lambda: len(read_lines(tmp_path)) == 1)
        (child,) = broker.senders
        os.kill(child, signal.SIGSTOP)
        try:
            for number in range(1, 200):
                broker.publish(b'{"n":%d}' % number)
            assert broker.status()["lag"] >= 199
            assert len(read_lines(tmp_path)) == 1
        finally:
            os.kill(child, signal.SIGCONT)
        until(lambda: len(read_lines(tmp_path)) == 200)
    assert [one["payload"]["n"] for one in read_lines(tmp_path)] == list(range(200))


def test_a_full_log_refuses_messages_and_takes_them_again(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("not a folder")
    big = json.dumps({"x": "y" * 4000}).encode()
    with sink_broker(tmp_path, max_bytes="64KiB") as broker:
        codes = []
        for _ in range(30):
            answer = broker.thread.run(broker.client.publish("t/a", big, 1))
            assert answer is not None
            codes.append(answer.code)
        accepted = codes.count(0) + codes.count(0x10)
        assert codes[-1] == 0x97
        assert 10 < accepted < 20
        broker.publish(b"elsewhere", "other", expect=0x10)
        assert broker.status()["full"]
        (tmp_path / "out").unlink()
        until(lambda: not broker.status()["full"])
        broker.publish(b'{"last":1}')
        until(lambda: len(read_lines(tmp_path)) == accepted + 1)
        broker.accept_errors("sinks.target_failed")


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_new"])
def test_a_full_log_drops_messages_if_it_may(tmp_path: Path, policy: str) -> None:
    (tmp_path / "out").write_text("not a folder")
    batch = {"bytes": "4KiB"}  # so that the sink's process has few messages in memory
    with sink_broker(tmp_path, max_bytes="64KiB", on_full=policy, batch=batch) as broker:
        for number in range(60):
            broker.publish(json.dumps({"n": number, "x": "y" * 4000}).encode())
        assert broker.status()["bytes"] < 2 * 65536
        (tmp_path / "out").unlink()
        until(lambda: read_lines(tmp_path))
        until(lambda: broker.status()["lag"] == 0)
        broker.accept_errors("sinks.target_failed")
        counts = broker.status()["counts"]
        numbers = [one["payload"]["n"] for one in read_lines(tmp_path)]
        assert counts["dropped"] == 60 - len(numbers) > 0
    assert 5 < len(numbers) < 45
    assert numbers == sorted(set(numbers))
    assert (numbers[-1] == 59) == (policy == "drop_oldest")
