"""Test the comparison with mosquitto. Every load delivers all its messages, and the command prints
a table.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from hookmq_bench import native

from bench import launch, peers, report, scenarios

pytestmark = pytest.mark.skipif(native.find_compiler() is None, reason="there is no C compiler")
needs_mosquitto = pytest.mark.skipif(
    peers.PEERS["mosquitto"].program() is None, reason="mosquitto is not installed"
)

# A run without loss ends when everything is delivered; `drain` is the time to wait for that on a busy machine.
PATIENT = {"drain": "30"}
SHORT = {"warmup": "0.1", "seconds": "0.3", **PATIENT}


@needs_mosquitto
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize(
    "name", ["fanin-q0-w20", "pairs-q1-w20", "pairs-q2-w1", "light-q1-10k", "tls-q0"]
)
def test_mosquitto_delivers_all(name: str, level: int) -> None:
    (scenario,) = scenarios.select(name)
    words = scenario.arguments(payload=64, level=level, seconds=0.2, warmup=0.05) | PATIENT
    with launch.running("mosquitto", core=None, variant=scenario.variant) as broker:
        raw = native.run(words, port=broker.port, pids=broker.pids(), timeout=60)
    run = report.Run(scenario, "mosquitto", raw)
    assert run.defects() == ""
    assert raw["sent_total"] == raw["delivered_total"] > 0
    assert run.figures()["cost"] > 0


@needs_mosquitto
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("name", ["wildcard", "shared", "retained", "offline"])
def test_mosquitto_delivers_all_routed_and_stored_messages(name: str, level: int) -> None:
    (scenario,) = scenarios.select(name)
    words = scenario.arguments(payload=64, level=level, seconds=0.1, warmup=0.05) | PATIENT
    small = {"wildcard": {"topics": "500"}, "offline": {"clients": "5", "topics": "100"}}
    words |= small.get(name, {"topics": "300"} if name == "retained" else {})
    with launch.running("mosquitto", core=None) as broker:
        raw = native.run(words, port=broker.port, pids=broker.pids(), timeout=60)
    assert report.Run(scenario, "mosquitto", raw).defects() == ""
    assert raw["delivered"] >= 300


@pytest.mark.slow
@needs_mosquitto
def test_command_prints_a_table_and_writes_every_run(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "result.json"
    words = (
        "--peers mosquitto --scenarios fanin-q0-w20 --runs 1 --seconds 0.2 --warmup 0.1 --no-pin"
    )
    command = [sys.executable, "-m", "bench", *words.split(), "--json", str(target)]
    root = pathlib.Path(peers.HERE).parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "fan-in 50 to 1, QoS 0, W20  mosquitto" in done.stdout
    (row,) = json.loads(target.read_text())["rows"]
    assert row["broker"] == "mosquitto"
    assert row["void"] == []
    assert row["cost_ratio"] == 1.0
    assert row["runs"][0]["delivered"] > 0


@needs_mosquitto
def test_fanout_counts_each_subscriber() -> None:
    words = {**SHORT, "topology": "all", "pubs": "1", "subs": "7", "window": "10"}
    with launch.running("mosquitto", core=None) as broker:
        raw = native.run(words, port=broker.port, pids=broker.pids(), timeout=60)
    assert raw["delivered_total"] == 7 * raw["sent_total"] > 0
    assert raw["lost"] == raw["duplicates"] == raw["stray"] == 0


@pytest.mark.slow
@needs_mosquitto
def test_connect_and_idle_against_mosquitto() -> None:
    with launch.running("mosquitto", core=None) as broker:
        pids = broker.pids()
        words = {"mode": "connect", "inflight": "8", **SHORT}
        assert native.run(words, port=broker.port, pids=pids, timeout=60)["connects"] > 0
        words = {"mode": "idle", "clients": "100", "seconds": "0.1"}
        raw = native.run(words, port=broker.port, pids=pids, timeout=60)
    assert raw["clients"] == 100
    assert raw["lost"] == 0
    assert raw["rss_after_kib"] >= raw["rss_before_kib"] > 0
