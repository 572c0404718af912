"""Whole brokers with the NATS user of the manual, which has only the permissions that a cluster needs."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from clusterkill.nodes import BrokerNode
from hookmq_testing import AsyncioClient, LoopThread
from nats_server import NatsCluster
from pages import blocks
from workspace import ROOT

pytestmark = pytest.mark.slow

[ACCOUNT] = [
    one.text
    for one in blocks(ROOT / "docs" / "how-to" / "cluster.md")
    if one.text.startswith("accounts {")
]
USER = ", name: hookmq, user: hookmq, password: change-me"


@pytest.fixture
def nats() -> Iterator[NatsCluster]:
    """Return a NATS server with the manual's account."""
    made = NatsCluster(1, ACCOUNT)
    made.start()
    yield made
    made.close()


@pytest.fixture
def nodes(nats: NatsCluster, tmp_path: Path) -> Iterator[list[BrokerNode]]:
    """Return two nodes that have joined."""
    made = [BrokerNode(tmp_path, name, nats.urls, 1, USER) for name in "ab"]
    for one in made:
        one.start()
    for one in made:
        one.wait()
    yield made
    for one in made:
        one.resume()
        one.kill()


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """Return an event loop for clients."""
    made = LoopThread()
    yield made
    made.close()


def events(node: BrokerNode) -> list[str]:
    """Return the names of a node's log events."""
    lines = node.log.read_text().splitlines()
    return [str(json.loads(line)["event"]) for line in lines if line.startswith("{")]


def until(thread: LoopThread, true: Callable[[], bool]) -> None:
    """Wait until `true` returns True, at most one minute."""
    end = monotonic() + 60.0
    while not true():
        assert monotonic() < end
        thread.run(asyncio.sleep(0.05))


def test_a_cluster_needs_no_other_permission(nodes: list[BrokerNode], thread: LoopThread) -> None:
    a, b = nodes
    keep: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 3600}
    subscriber = thread.run(AsyncioClient("s", **keep).connect(b.port))
    thread.run(subscriber.subscribe("t/#", 1))
    thread.call(subscriber.disconnect)
    publisher = thread.run(AsyncioClient("p", **keep).connect(a.port))
    thread.run(publisher.publish("t/1", b"before", 1, expect=0))
    thread.run(publisher.publish("kept", b"kept", 1, True))
    b.kill()
    thread.run(publisher.publish("t/2", b"after", 1, expect=0))
    until(
        thread,
        lambda: "cluster.lane_adopted" in events(a) and events(a).count("cluster.lane_opened") == 2,
    )
    back = thread.run(AsyncioClient("s", **keep).connect(a.port))
    assert back.session_present
    assert [thread.run(back.message()).payload for _ in range(2)] == [b"before", b"after"]
    thread.call(back.disconnect)
    thread.call(publisher.disconnect)
    for node in nodes:
        assert "cluster.nats_error" not in events(node)
    a.terminate(60)


def test_a_deleted_stream_withholds_acknowledgements(
    nats: NatsCluster, nodes: list[BrokerNode], thread: LoopThread
) -> None:
    a, b = nodes
    keep: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 3600}
    subscriber = thread.run(AsyncioClient("s", **keep).connect(a.port))
    thread.run(subscriber.subscribe("t", 1))
    publisher = thread.run(AsyncioClient("p").connect(a.port))
    server = nats.nodes[0]
    server.kill()
    for one in (server.folder / "jetstream").glob("*/streams/HOOKMQ_hookmq"):
        one.rename(server.folder / "deleted")
    nats.start()
    thread.call(publisher.send_publish, "t", b"x", 1)
    until(thread, lambda: "stream not found" in a.log.read_text())
    assert publisher.acknowledged == 0
    assert a.process is not None
    assert a.process.poll() is None
    # A node that starts makes a new stream, in which nobody owns the lanes of the old one.
    b.kill()
    b.start()
    until(thread, a.ended)
    assert "nobody owns lane 'a': the log was deleted" in a.log.read_text()
    assert publisher.acknowledged == 0
    a.start()
    a.wait()
    b.wait()
