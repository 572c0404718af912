"""Measure the memory that durable sessions need in a cluster: in the node that has them, and in the NATS server.

    python -m bench.cluster_sizes [--sessions 20000,100000]

A cluster of one node and one NATS server is filled with offline sessions, each with one subscription of its own, by the
code of ``hookmq cluster import``. Then a broker starts, and loads them. Memory is resident memory. The cost of a session
is the difference between the two runs, divided by that of their numbers of sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from hookmq.plugin import ClientRecord, Subscription
from hookmq.storage_api import Loaded, MemoryStore, PutSession, PutSubscription, SessionRecord
from hookmq_cluster.migration import import_store
from hookmq_cluster.names import Names
from hookmq_cluster.nats_connection import NatsOptions
from hookmq_cluster.nats_engine import NatsEngine
from hookmq_cluster.waiting import ended
from hookmq_toolkit.child_runtime import ChildRuntime

from . import launch
from .queue_load import resident

NODE = """\
version: 1
listeners: [{name: tcp, bind: "127.0.0.1:%d"}]
auth: {default: allow}
authz: {default: allow}
log: {format: json}
plugins: [{use: cluster, config: {node: a, servers: ["%s"], replicas: 1, allow_single_replica: true}}]
"""


class OfflineSessions(MemoryStore):
    """A store with sessions that have ended, each with one subscription."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._sessions = count

    def load(self) -> Iterator[Loaded]:
        """Yield the sessions."""
        now = time.time()
        for number in range(self._sessions):
            name = f"device-{number:08}"
            yield PutSession(SessionRecord(ClientRecord(name, 5), 7 * 86400.0, ended_at=now))
            topic = f"fleet/{name}/commands"
            yield PutSubscription(name, Subscription(topic, topic, 1))


async def fill(url: str, count: int) -> float:
    """Fill the cluster, and return the seconds that it took."""
    runtime, names = ChildRuntime(lambda *_, **__: None), Names("hookmq")
    engine = NatsEngine(
        NatsOptions((url,)), names.stream, names.everything, runtime, replicas=1, allow_single_replica=True
    )  # fmt: skip
    await engine.open()
    began = time.monotonic()
    await import_store(
        engine, names, runtime, OfflineSessions(count), ("a",), "bench.cluster_sizes"
    )
    took = time.monotonic() - began
    await ended(runtime, engine.close)
    return took


def size_of(folder: pathlib.Path) -> int:
    """Return the bytes in all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(count: int) -> dict[str, Any]:
    """Return the figures for `count` sessions."""
    with tempfile.TemporaryDirectory(prefix="hookmq-sizes-") as name:
        folder = pathlib.Path(name)
        port, client_port = launch.free_port(), launch.free_port()
        config = folder / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}/js" }}\n')
        words = [str(pathlib.Path(sys.executable).with_name("nats-server")), "-c", str(config)]
        said = folder / "nats.log"
        with said.open("wb") as output:
            nats = subprocess.Popen(words, stdout=output, stderr=output)
        broker: subprocess.Popen[bytes] | None = None
        try:
            launch.await_listener("nats-server", nats, port, said)
            empty = resident([nats.pid])
            took = asyncio.run(fill(f"nats://127.0.0.1:{port}", count))
            filled = resident([nats.pid])
            node = folder / "a.yaml"
            node.write_text(NODE % (client_port, f"nats://127.0.0.1:{port}"))
            began = time.monotonic()
            said = folder / "broker.log"
            words = [sys.executable, "-m", "hookmq.cli", "serve", "-c", str(node)]
            with said.open("wb") as output:
                broker = subprocess.Popen(words, stdout=output, stderr=output)
            launch.await_listener("the broker", broker, client_port, said)
            return {
                "sessions": count,
                "import_seconds": round(took, 1),
                "start_seconds": round(time.monotonic() - began, 1),
                "node_bytes": resident(launch.process_tree(broker.pid)),
                "nats_bytes": filled - empty,
                "disk_bytes": size_of(folder / "js"),
            }
        finally:
            for process in (broker, nats):
                if process is not None:
                    process.terminate()
                    process.wait(60)


def main() -> None:
    """Print the figures of both runs, and the cost of a session."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", default="20000,100000", help="two numbers (%(default)s)")
    small, large = map(int, parser.parse_args().sessions.split(","))
    runs = [measure(count) for count in (small, large)]
    for run in runs:
        print(json.dumps(run))
    for name in ("node_bytes", "nats_bytes", "disk_bytes"):
        print(f"{name} of a session: {(runs[1][name] - runs[0][name]) / (large - small):.0f}")


if __name__ == "__main__":
    main()
