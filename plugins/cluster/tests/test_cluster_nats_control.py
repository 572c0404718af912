"""See a cluster of real brokers on a real NATS server, and move a lane, with the commands of the plugin admin."""

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hookmq_testing import AsyncioClient, LoopThread
from managed_node import ManagedNode, until
from nats_server import NatsServer

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, ManagedNode]]:
    """Return three running nodes."""
    nats = NatsServer()
    made: dict[str, ManagedNode] = {}
    try:
        for name in ("a", "b", "c"):
            made[name] = ManagedNode(tmp_path, name, nats.url)
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


def lane_owner(node: ManagedNode, lane: str) -> str:
    """Return the live owner of a lane, or an empty string."""
    status = node.status()
    for one in status["lanes"] if status else ():
        if one["name"] == lane and one["live"]:
            return str(one["owner"])
    return ""


def test_an_adopted_lane_moves_with_its_messages(
    nodes: dict[str, ManagedNode], thread: LoopThread
) -> None:
    for node in nodes.values():
        until(partial(node.sees, 3))
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
