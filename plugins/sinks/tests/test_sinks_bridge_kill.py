"""Repeatedly kill two brokers that are bridged in both directions. No message may be lost, duplicated or looped."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from bridging import Client, both_ways, until
from ports import free_port

pytestmark = pytest.mark.slow
EACH = 100
KILLS = 4


class Node:
    """A broker that can be killed and started again."""

    def __init__(self, config: str, log: Path) -> None:
        self.config, self.log = config, log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hookmq.cli", "serve", "--log-format", "json", "-c", self.config],
                stdout=log, stderr=log,
            )  # fmt: skip

    def restart(self) -> None:
        """Kill the broker, start it again, and wait until it is ready."""
        before = self.log.read_text().count("node.started")
        self.kill()
        self.start()
        until(lambda: self.log.read_text().count("node.started") > before, 60)

    def kill(self) -> None:
        """Kill the broker. Its child processes end when their pipes close."""
        self.process.kill()
        self.process.wait(30)

    def kill_child(self, module: str) -> None:
        for child in children_of(self.process.pid):
            if module in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(child, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]


def test_two_brokers_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    chance = random.Random(20)
    configs = [
        both_ways(tmp_path / "a", ports[0], ports[1], "a", "b"),
        both_ways(tmp_path / "b", ports[1], 1, "b", "a"),
    ]
    # Only `a` has a bridge; it works in both directions.
    text = Path(configs[1]).read_text()
    Path(configs[1]).write_text(text.replace('"use": "sinks"', '"use": "sinks", "enabled": false'))
    nodes = []
    for name, config in zip("ab", configs, strict=True):
        node = Node(config, tmp_path / f"{name}.log")
        nodes.append(node)
    clients: list[Client] = []
    try:
        for node in nodes:
            until(lambda node=node: "node.started" in node.log.read_text(), 60)  # type: ignore[misc]
        until(lambda: "sources.available" in nodes[0].log.read_text(), 30)
        readers = [Client(port, "reader", "t/#", 2) for port in ports]
        writers = [Client(port, "writer") for port in ports]
        clients = [*readers, *writers]
        done = threading.Event()
        sent: list[list[str]] = [[], []]

        def write(at: int) -> None:
            for number in range(EACH):
                payload = f"{'ab'[at]} {number}"
                # One at a time, because paho does not keep the order when it connects again.
                writers[at].publish_surely(f"t/{'ab'[at]}", payload, 2)
                sent[at].append(payload)
                done.wait(0.05)

        threads = [threading.Thread(target=write, args=(at,)) for at in (0, 1)]
        for one in threads:
            one.start()
        for number in range(KILLS):
            done.wait(chance.uniform(0.5, 1.5))
            nodes[number % 2].restart()
            nodes[0].kill_child(chance.choice(["source_runner", "sender"]))
        for one in threads:
            one.join()
        expected = sorted(sent[0] + sent[1])
        until(lambda: all(len(set(one.payloads)) == len(expected) for one in readers), 60)
        # A loop or a repetition would still arrive.
        for writer in writers:
            writer.publish("t/end", "end", 2)
        until(lambda: all(one.payloads.count("end") == 2 for one in readers), 30)
        for reader in readers:
            got = [payload for payload in reader.payloads if payload != "end"]
            assert [item for item in Counter(got).items() if item[1] > 1] == []
            assert sorted(got) == expected
            for name in "ab":
                mine = [int(payload.split()[1]) for payload in got if payload.startswith(name)]
                assert mine == sorted(mine), name
    finally:
        for client in clients:
            client.close()
        for node in nodes:
            node.kill()
