"""See a cluster of real brokers on a real NATS server, and move a lane, with the commands of the plugin admin."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hookmq_testing import AsyncioClient, LoopThread
from nats_server import NatsServer
from ports import free_port

pytestmark = pytest.mark.slow

CONFIG = """\
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:{port}"}}
  - {{name: http, type: http, bind: "127.0.0.1:{http}"}}
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - use: cluster
    config: {{servers: ["{nats}"], node: {name}, lease: 3s, replicas: 1, allow_single_replica: true}}
  - use: admin
    config: {{first_token_file: {token}}}
"""


class Node:
    """A broker process, with commands that reach its API."""

    def __init__(self, folder: Path, name: str, nats: str) -> None:
        self.name = name
        self.port, http = free_port(), free_port()
        self._token = folder / f"{name}.token"
        self._log = folder / f"{name}.log"
        self._url = f"http://127.0.0.1:{http}/plugins/admin"
        file = folder / f"{name}.yaml"
        file.write_text(
            CONFIG.format(port=self.port, http=http, nats=nats, name=name, token=self._token)
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hookmq.cli", "serve", "-c", str(file)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``hookmq cluster``."""
        assert self._process.poll() is None, self._log.read_text()
        return subprocess.run(
            [
                sys.executable, "-m", "hookmq.cli", "cluster", *words, "--url", self._url,
                "--token-file", str(self._token),
            ],
            env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def status(self) -> Any:
        """Return the cluster as the node sees it, or None if it does not answer yet."""
        done = self.run("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def sees_all(self) -> bool:
        """Return whether the node is ready and sees three nodes."""
        status = self.status()
        return status is not None and len(status["members"]) == 3

    def end(self, sent: int) -> int:
        """Send a signal, and return the exit code."""
        with suppress(ProcessLookupError):
            self._process.send_signal(sent)
        return self._process.wait(60)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Node]]:
    """Return three running nodes."""
    nats = NatsServer()
    made: dict[str, Node] = {}
    try:
        for name in ("a", "b", "c"):
            made[name] = Node(tmp_path, name, nats.url)
        yield made
    finally:
        for node in made.values():
            node.end(signal.SIGKILL)
        nats.close()


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """Return an event loop for clients."""
    made = LoopThread()
    yield made
    made.close()


def until(true: Callable[[], bool]) -> None:
    """Wait until `true` returns True, at most one minute."""
    end = monotonic() + 60.0
    while not true():
        assert monotonic() < end


def lane_owner(node: Node, lane: str) -> str:
    """Return the live owner of a lane, or an empty string."""
    status = node.status()
    for one in status["lanes"] if status else ():
        if one["name"] == lane and one["live"]:
            return str(one["owner"])
    return ""


def test_an_adopted_lane_moves_with_its_messages(
    nodes: dict[str, Node], thread: LoopThread
) -> None:
    for node in nodes.values():
        until(node.sees_all)
    subscriber = AsyncioClient("s", clean_start=False, session_expiry_interval=3600)
    thread.run(subscriber.connect(nodes["c"].port))
    thread.run(subscriber.subscribe("t", 1))
    nodes["c"].end(signal.SIGKILL)
    thread.run(subscriber.wait_closed())
    until(lambda: lane_owner(nodes["a"], "c") in ("a", "b"))
    owner = nodes[lane_owner(nodes["a"], "c")]
    other = nodes["b" if owner.name == "a" else "a"]
    publisher = thread.run(AsyncioClient("p").connect(owner.port))
    thread.run(publisher.publish("t", b"1", 1))

    refused = other.run("move", "c", owner.name)
    assert refused.returncode == 1
    assert f"node {owner.name!r} owns lane 'c'" in refused.stderr
    until(lambda: lane_owner(owner, "c") == owner.name)
    moved = owner.run("move", "c", other.name, "--json")
    assert moved.returncode == 0, moved.stderr
    assert json.loads(moved.stdout) == {"lane": "c", "owner": other.name}
    until(lambda: lane_owner(other, "c") == other.name)
    thread.run(publisher.publish("t", b"2", 1))

    [lane] = [one for one in other.status()["lanes"] if one["name"] == "c"]
    assert lane["sessions"] == 1
    again = AsyncioClient("s", clean_start=False, session_expiry_interval=3600)
    thread.run(again.connect(other.port))
    assert again.session_present
    assert [thread.run(again.message()).payload for _ in range(2)] == [b"1", b"2"]
    publisher.drop()
    again.drop()
